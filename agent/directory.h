// A directory that belongs to somebody else, perhaps to somebody hostile: held open, so that it cannot be
// exchanged, and used by plain file names only. No link is followed, no pipe is waited for, nothing outside
// is read or written. One thread.
#ifndef FORESHOCK_AGENT_DIRECTORY_H_
#define FORESHOCK_AGENT_DIRECTORY_H_

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace foreshock {

// Whether what has failed with this errno may be had a moment later: this process or the node has no
// descriptor or no memory left.
bool is_shortage(int error);

class Directory {
 public:
  // Opens `path`, which the caller trusts but for its last component: that must be a directory and no link.
  // Null: *why is a short reason.
  static std::unique_ptr<Directory> open(const std::string& path, std::string* why);
  // The same, for a directory inside this one.
  std::unique_ptr<Directory> open_inside(const std::string& name, std::string* why) const;
  // Another descriptor of this one.
  std::unique_ptr<Directory> open_again() const;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // Of the path or the name it was opened by; for messages, never to open anything.
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  struct stat status() const;
  uid_t owner() const { return owner_; }

  // Names that begin and end as given and do not begin with a dot, sorted. Of a directory with more than
  // kMostEntries entries the first ones that the kernel tells. `was_read`: false where a shortage is why
  // there are none, which says nothing.
  static constexpr size_t kMostEntries = 16384;
  std::vector<std::string> names(const std::string& begin, const std::string& end,
                                 bool* was_read = nullptr) const;
  // The same for the directories inside.
  std::vector<std::string> directories(bool* was_read = nullptr) const;

  // A regular file of the directory's owner (anybody's, where the directory is root's or ours), with no other
  // name. -1 and errno when there is none; `flags` are open(2)'s. The caller closes it.
  int open_file(const std::string& name, int flags) const;
  bool has(const std::string& name) const;
  // Of the entry itself, also if it is a link; nothing when there is none.
  std::optional<struct stat> status_of(const std::string& name) const;

  // The whole file, at most `most` bytes; nothing, and errno, when it cannot be read or is larger.
  std::optional<std::string> read(const std::string& name, size_t most) const;

  // Replaces the file as a whole: nobody reads half of it. Root gives it to the owner of the
  // directory, another service opens it to him if the directory has the set-group-id bit; else it is ours
  // alone. False when the directory is full or not to be written.
  bool write(const std::string& name, const std::string& text, mode_t mode = 0600) const;
  void remove(const std::string& name) const;

  // Takes an flock (LOCK_EX or LOCK_SH) on the file, creating it if need be. The descriptor that holds it, or
  // -1.
  int lock(const std::string& name, int operation) const;
  // Whether anybody holds an flock on the file; true as well where there is nothing left to ask with
  // (is_shortage()).
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
