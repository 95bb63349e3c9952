// Finds the place of a file that is to be written, without following a symbolic link that another user may
// have set. Otherwise that user could make this process, which may be root, write to a file of their choice.
#ifndef FORESHOCK_EXPORTERS_FILE_PLACE_H_
#define FORESHOCK_EXPORTERS_FILE_PLACE_H_

#include <sys/types.h>

#include <string>

namespace foreshock {

// The folder and the name of a file, with all symbolic links on the way resolved. A link is followed if it
// belongs to this user or root, or if only this user and root may write its folder. The folder is held open,
// so that no part of the path can be replaced later. The file need not exist. Thread-compatible.
class FilePlace {
 public:
  explicit FilePlace(const std::string& path);
  ~FilePlace();
  FilePlace(const FilePlace&) = delete;
  FilePlace& operator=(const FilePlace&) = delete;

  // One line that says which link is not followed, and what to do; "": every link was followed.
  const std::string& refusal() const { return refusal_; }

  // Opens the file with the flags of open(2). Returns a descriptor, or -1 with errno: ELOOP after a refusal.
  int open(int flags, mode_t mode = 0600) const;

  // The descriptor of the folder, for ...at() calls (-1: not found), and the name in it: "." if the path ends
  // with '/' or "..".
  int folder() const { return folder_; }
  const std::string& name() const { return name_; }
  // The path without links. It ends with '/' if the given path, or the target of its last link, does.
  const std::string& path() const { return path_; }

 private:
  void begin_at(const std::string& path);
  void walk(const std::string& path);
  void append(const std::string& component);

  int folder_ = -1;
  int error_ = 0;  // errno if the folder could not be opened
  std::string name_, path_, refusal_;
  bool is_of_kernel_ =
      false;  // the file is a link of procfs, such as /proc/self/fd/1, which only open() follows
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_FILE_PLACE_H_
