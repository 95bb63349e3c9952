// Writes files so that they are there as a whole or not at all, alone or several together; locks of files;
// more open files.
#ifndef FORESHOCK_CLI_FILES_H_
#define FORESHOCK_CLI_FILES_H_

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshock::cli {

// Removes the file when it ends, and when a signal (but SIGKILL) ends the process before. From the first one
// on a limit on the size of files (ulimit -f) is an error of write(), no signal. All of them from one thread.
class UnfinishedFile {
 public:
  // An empty one in this directory, under a name of its own, its owner's alone.
  explicit UnfinishedFile(const std::string& directory);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // To write it, closed by who takes it; -1: there is none, and errno says why.
  int descriptor() const { return descriptor_; }

  // Gives it its name, and it stays. False: errno says why.
  bool finish(const std::string& name);

 private:
  void leave_out();

  std::string path_;  // "": there is none, or it has its name
  int descriptor_;
};

// Writes a file so that it is either the old one or the new one, whole, whenever the process is stopped.

// An empty string, or why no file can be written at `path`: to be told before the work is done.
std::string why_no_file(const std::string& path);

// A file that is written piece by piece, beside the one whose place it takes at the end. Links stay: what
// they lead to is written. A device, a pipe, or what is our own standard output or error (/dev/stdout) is
// merely written to, at once.
class WholeFile {
 public:
  // "" and "-": standard output.
  explicit WholeFile(const std::string& path);
  ~WholeFile();  // without finish() everything is as it was
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view bytes);

  // Everything is on its way to the disk, and nobody sees it yet.
  void close();

  // It is there now, once and for all. Returns problem().
  const std::string& finish();

  // The first thing that went wrong, "" when nothing has: one line.
  const std::string& problem() const { return problem_; }

 private:
  int open_stream();
  int open_file();
  void fail(const std::string& why);

  const std::string path_;
  std::string target_;  // where it leads to
  std::optional<UnfinishedFile> unfinished_;
  FILE* file_ = nullptr;
  std::string problem_;
};

// An empty string, or what went wrong.
std::string write_whole_file(const std::string& path, std::string_view content);

// Files of one folder that come into being together: all of them whole, or none.

class NewFiles {
 public:
  explicit NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~NewFiles();  // without finish() nothing has become of them, nor of the folders that were made for them
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  bool has(const std::string& name) const { return files_.contains(name); }
  bool empty() const { return files_.empty(); }

  // Writes to the end of the file of that name, which may have folders in it. An empty string, or what went
  // wrong, in one line: a file that is there already is left alone.
  std::string write(const std::string& name, std::string_view bytes);

  // They are there now. An empty string, or what went wrong: then none of them is.
  std::string finish();

 private:
  std::string make_folders(const std::filesystem::path& folder);

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // folders, the deeper after those they are in
  std::map<std::string, WholeFile> files_;   // by name
};

// An flock held by one descriptor, released with it.

class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { release(); }

  // Opens (creates, mode 0600) and tries the lock: LOCK_SH or LOCK_EX. False: somebody else holds it, or no
  // file.
  bool try_lock(const std::string& path, int operation);
  // The same, trying again for up to `timeout_ms`.
  bool lock_within(const std::string& path, int operation, int timeout_ms);
  void release();
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Whether another process holds an exclusive flock on `path`. Must not be asked where a momentary lock of
// ours could make that process give up.
bool is_locked(const std::string& path);

// Files that are open at once: a checkpoint has hundreds of shards, a record of a job as many ranks.

// As many as this process may ask for, which is more than the usual limit.
void allow_many_files();

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_FILES_H_
