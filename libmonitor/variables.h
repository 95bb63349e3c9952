// The environment of a process whose other threads may be changing it. setenv() in one thread frees the array
// that getenv() walks in another (glibc before 2.41; os.environ of Python ends there), and the one that
// crashes of it must not be a guest. So this is a copy, made by the kernel, which refuses where a load would
// be SIGSEGV.
#ifndef FORESHOCK_LIBMONITOR_VARIABLES_H_
#define FORESHOCK_LIBMONITOR_VARIABLES_H_

#include <cstddef>

namespace foreshock {

class Variables {
 public:
  // Copies all variables as they are now. For set-up: it opens a file and maps memory for as long as it
  // lives. Where `memory` cannot be opened (no /proc) or there is no room, find() is getenv(). Any thread.
  explicit Variables(const char* memory = "/proc/self/mem");
  ~Variables();
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

  // Null where it is not set, or longer than 4 KiB with its name; else it lives as long as this object.
  const char* find(const char* name) const;

  bool is_copy() const { return is_copy_; }

 private:
  struct Room;
  bool copy(int memory);
  bool copy_array(int memory, const char** entries, size_t* count) const;

  Room* room_ = nullptr;
  bool is_copy_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_VARIABLES_H_
