// Reads and writes files of a directory that may belong to a hostile user. The directory is held open, so
// that it cannot be replaced by another one. A file's name must have no '/'. Links are not followed, opening
// a pipe does not block, nothing outside the directory is accessed. `why`: a short reason. For one thread.
#ifndef FORESHOCK_AGENT_DIRECTORY_H_
#define FORESHOCK_AGENT_DIRECTORY_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock {

// Flags of open(2) for a file in a directory into which another user may put anything: a link is not
// followed, and opening a pipe does not wait for its other end.
inline constexpr int kSafeFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

// Whether the errno `error` means a shortage of descriptors or memory, so that a later retry may succeed.
bool is_shortage(int error);

// The end of the name under which replace_file() writes the new file. A killed process may leave such a file.
inline constexpr const char* kUnfinishedSuffix = ".new";

// Replaces the file `name` of an open directory atomically: a reader sees the old or the new content. All
// files of the agent but the record and its spool are written so. Who cannot call this function renames a new
// file too: the results of commands (cli/files.h), the exit file, whose space is reserved
// (cli/agent_client.cpp), and the trainer, which must not allocate (segment/writer.cpp,
// libmonitor/process.cpp). The new file has mode 0600; `prepare` may change its owner and permissions, and
// returns false on failure. After any failure replace_file() returns false, sets errno, and keeps the old
// file.
bool replace_file(int directory, const std::string& name, std::string_view bytes,
                  const std::function<bool(int file)>& prepare = nullptr);

class Directory {
 public:
  // Opens `path`, whose last component must be a directory and not a link. The owner of that component may be
  // hostile; the caller must trust the earlier components. On failure returns null and sets *why.
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

  // Returns the sorted names of entries that begin with `begin`, end with `end`, have more characters between
  // the two, and do not begin with a dot. Only the first kMostEntries entries are read. *was_read becomes
  // false if a shortage (see is_shortage) stopped the reading, so that names may be missing from the result.
  static constexpr size_t kMostEntries = 16384;
  std::vector<std::string> names(const std::string& begin, const std::string& end,
                                 bool* was_read = nullptr) const;
  // Returns the sorted names of the directories inside this one, and of entries whose type the file system
  // does not report (DT_UNKNOWN). Dots, kMostEntries and *was_read have the same effect as in names().
  std::vector<std::string> directories(bool* was_read = nullptr) const;

  // Opens a file with the flags of open(2). It must be a regular file without a second hard link. It must
  // belong to the directory's owner or to this process's user, except in a directory of root or of this
  // process's user, whose files may belong to anyone. Returns a descriptor that the caller must close. On
  // failure returns -1 and sets errno.
  int open_file(const std::string& name, int flags) const;
  bool has(const std::string& name) const;  // whether the directory has an entry of any type with this name
  // Returns the status of the entry itself, even if it is a link; nullopt if it cannot be read.
  std::optional<struct stat> status_of(const std::string& name) const;

  // Returns the content of the file. If open_file() or reading fails, or if the file has more than `most`
  // bytes, returns nullopt and sets errno.
  std::optional<std::string> read(const std::string& name, size_t most) const;

  // Replaces the file as replace_file() does. Returns false if it cannot be written. If this process is root,
  // the new file belongs to the directory's owner, else to this process's user. In the second case, if
  // another user owns the directory and it has the set-group-id bit, the file gets mode 0666: the directory's
  // owner has only the permissions for others. Such a directory must be closed to all users except its owner
  // and this process's group.
  bool write(const std::string& name, const std::string& text, mode_t mode = 0600) const;
  void remove(const std::string& name) const;  // ignores errors

  // Takes an flock (LOCK_EX or LOCK_SH) on the file without waiting, and creates the file if it is missing.
  // Returns the descriptor that holds the lock. On failure returns -1 and sets errno: EWOULDBLOCK if another
  // process holds the lock.
  int lock(const std::string& name, int operation) const;
  // Whether any process holds an flock on the file. Also true if a shortage (see is_shortage) prevents the
  // check; false if the file cannot be opened for another reason.
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
