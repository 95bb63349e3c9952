// Reads and writes files of a directory that may belong to a hostile user. The directory is held open, so
// that it cannot be replaced by another one. Files are given by name only, without a path. Links are not
// followed, opening a pipe does not block, and nothing outside the directory is read or written. One thread.
#ifndef FORESHOCK_AGENT_DIRECTORY_H_
#define FORESHOCK_AGENT_DIRECTORY_H_

#include <sys/stat.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock {

// Whether errno `error` means a shortage of descriptors or memory. A retry may succeed later.
bool is_shortage(int error);

// The end of a file's name while replace_file() writes it. A process that is killed leaves such a file.
inline constexpr const char* kUnfinishedSuffix = ".new";

// Replaces the file `name` of an open directory atomically: a reader sees the old or the new content.
// `prepare` may change owner and permissions of the new file, which has mode 0600; false means failure. On
// failure returns false, sets errno, and keeps the old file.
bool replace_file(int directory, const std::string& name, std::string_view bytes,
                  const std::function<bool(int file)>& prepare = nullptr);

class Directory {
 public:
  // Opens `path`, whose last component must be a directory and not a link. The owner of that component may be
  // hostile; the caller must trust the earlier components. On failure returns null and sets *why to a short
  // reason.
  static std::unique_ptr<Directory> open(const std::string& path, std::string* why);
  // Does the same as open() for the directory `name` inside this one.
  std::unique_ptr<Directory> open_inside(const std::string& name, std::string* why) const;
  // Opens this directory again, with another descriptor.
  std::unique_ptr<Directory> open_again(std::string* why) const;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  // The path passed to open(). Use it in messages only: the path may lead to another directory by now.
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  struct stat status() const;
  uid_t owner() const { return owner_; }

  // Returns the sorted names that begin with `begin`, end with `end`, have more characters between the two,
  // and do not begin with a dot. Only the first kMostEntries entries of a directory are read. *was_read
  // becomes false if a shortage stopped the reading: a missing name then does not mean that the file is gone.
  static constexpr size_t kMostEntries = 16384;
  std::vector<std::string> names(const std::string& begin, const std::string& end,
                                 bool* was_read = nullptr) const;
  // Returns the sorted names of the directories inside this one, and of entries whose type the file system
  // does not report (DT_UNKNOWN). Only kMostEntries are read; *was_read and dots are treated as in names().
  std::vector<std::string> directories(bool* was_read = nullptr) const;

  // Opens a regular file with link count 1 that belongs to the directory's owner or to this process; in a
  // directory of root or of this process it may belong to any user. `flags` are those of open(2). Returns a
  // descriptor that the caller must close, or -1 and errno.
  int open_file(const std::string& name, int flags) const;
  bool has(const std::string& name) const;
  // Returns the status of the entry itself, even if it is a link; nullopt if there is no such entry.
  std::optional<struct stat> status_of(const std::string& name) const;

  // Returns the content of the file. If it cannot be read or has more than `most` bytes, returns nullopt and
  // sets errno.
  std::optional<std::string> read(const std::string& name, size_t most) const;

  // Replaces the file atomically: a reader sees the old or the new content. If this process is root, the file
  // then belongs to the directory's owner, else to this process's user. If that user is not the directory's
  // owner and the directory has the set-group-id bit, the file gets mode 0666, since the directory's owner
  // can read it only with the permissions for others. Such a directory must be closed to all users but its
  // owner and this process's group. Returns false if the file cannot be written.
  bool write(const std::string& name, const std::string& text, mode_t mode = 0600) const;
  void remove(const std::string& name) const;

  // Takes an flock (LOCK_EX or LOCK_SH) on the file without waiting, and creates the file if it is missing.
  // Returns the descriptor that holds the lock. On failure returns -1 and sets errno: EWOULDBLOCK if flock()
  // failed, as it does if another process holds the lock.
  int lock(const std::string& name, int operation) const;
  // Whether any process holds an flock on the file; also true if a shortage prevents the check.
  bool is_locked(const std::string& name) const;

 private:
  Directory(std::string path, int descriptor, uid_t owner);
  static std::unique_ptr<Directory> open_at(int parent, const std::string& name, const std::string& path,
                                            std::string* why);
  bool give_to_owner(int file) const;

  const std::string path_;
  const int descriptor_;
  const uid_t owner_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_DIRECTORY_H_
