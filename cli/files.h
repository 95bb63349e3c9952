// Writes files atomically: a single file, or several together. Locks files. Raises the limit on open files.
#ifndef FORESHOCK_CLI_FILES_H_
#define FORESHOCK_CLI_FILES_H_

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshock::cli {

// A temporary file. The destructor removes it. A signal handler removes it too if a signal such as SIGTERM or
// SIGINT ends the process. From the first object on, a write beyond the limit on file size (ulimit -f) fails
// instead of raising a signal. All objects must be used from one thread.
class UnfinishedFile {
 public:
  // Creates an empty file in `directory`, with a unique name and mode 0600.
  explicit UnfinishedFile(const std::string& directory);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // The descriptor for writing; the caller must close it. -1: the file could not be created; errno is set.
  int descriptor() const { return descriptor_; }

  // Renames the file to `path`, so that it is kept. Call it at most once. On failure: false, errno is set.
  bool finish(const std::string& path);

 private:
  void forget();  // from then on, the destructor and the signal handler do not remove the file

  std::string path_;  // "": not created, or finished
  int descriptor_;
};

// Returns "" or why no file can be written at `path`. Commands call it first, to fail before their work.
std::string why_no_file(const std::string& path);

// A file that is replaced atomically: write() appends to a temporary file, which finish() renames. If the
// process is stopped, either the old or the new file is complete. A symbolic link stays; its target is
// replaced. A device, a pipe, or our own standard output or error (/dev/stdout) is written directly.
class WholeFile {
 public:
  // The paths "" and "-" mean standard output.
  explicit WholeFile(const std::string& path);
  ~WholeFile();  // without finish(): an existing file stays unchanged
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view bytes);  // appends the bytes. The first error is in problem().
  void close();  // flushes all bytes to the temporary file; the target is not replaced yet
  // Closes the temporary file and, if there was no error, renames it to the target. Returns problem().
  const std::string& finish();

  const std::string& problem() const { return problem_; }  // the first error, one line; "": none

 private:
  // Return a descriptor of what is written directly, or of the temporary file; -1: errno or problem_ is set.
  int open_stream();
  int open_file();
  void fail(const std::string& why);  // sets problem_, unless an earlier error has set it

  const std::string path_;
  std::string target_;                        // path_ with symbolic links resolved
  std::optional<UnfinishedFile> unfinished_;  // the temporary file; nullopt: path_ is written directly
  FILE* file_ = nullptr;                      // null: not open
  std::string problem_;
};

// Writes `content` to a WholeFile at `path`. Returns "" or an error.
std::string write_whole_file(const std::string& path, std::string_view content);

// New files of one folder that are created together: either all are complete, or none exists.
class NewFiles {
 public:
  explicit NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~NewFiles();  // without finish(): removes the files, and the folders that were created for them
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  bool has(const std::string& name) const { return files_.contains(name); }
  bool empty() const { return files_.empty(); }

  // Appends to the file `name`, a path relative to the folder. Returns "" or one line with the error. It is
  // an error if the file existed before; that file stays unchanged.
  std::string write(const std::string& name, std::string_view bytes);

  // Renames all temporary files. Returns "" or an error; after an error none of the files exists.
  std::string finish();

 private:
  std::string make_folders(const std::filesystem::path& folder);

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> created_folders_;  // parents first
  std::map<std::string, WholeFile> files_;              // by name
};

// An flock on a file, which is held by one descriptor and released when that is closed.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { release(); }

  // Opens or creates the file (mode 0600) and tries to lock it; `operation` is LOCK_SH or LOCK_EX. False:
  // another process holds the lock, or the file cannot be opened.
  bool try_lock(const std::string& path, int operation);
  // Like try_lock(), but retries for up to `timeout_ms`.
  bool lock_within(const std::string& path, int operation, int timeout_ms);
  void release();
  // Lets the group open the file whose lock is held. Ignores errors.
  void share_with_group() const { fchmod(descriptor_, 0660); }
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Whether another process holds an exclusive flock on `path`. Takes a shared lock for a moment, during which
// try_lock(path, LOCK_EX) of another process fails; so that process must retry.
bool is_locked(const std::string& path);

// Raises the limit on open files, for checkpoints with hundreds of shards and for hundreds of records.
void allow_many_files();

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_FILES_H_
