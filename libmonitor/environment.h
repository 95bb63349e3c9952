// The environment of a process whose other threads may be changing it. setenv() in one thread frees the array
// that getenv() walks in another (glibc before 2.41; os.environ of Python ends there), and the one that
// crashes of it must not be a guest. So this is a copy, made by the kernel, which refuses where a load would
// be SIGSEGV.
#ifndef FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
#define FORESHOCK_LIBMONITOR_ENVIRONMENT_H_

#include <cstddef>

#include "libmonitor/options.h"
#include "libmonitor/process.h"

namespace foreshock {

class SafeEnvironment {
 public:
  // Copies all variables as they are now. For set-up: it opens a file and maps memory for as long as it
  // lives. Where `memory` cannot be opened (no /proc) or there is no room, find() is getenv(). Any thread.
  explicit SafeEnvironment(const char* memory = "/proc/self/mem");
  ~SafeEnvironment();
  SafeEnvironment(const SafeEnvironment&) = delete;
  SafeEnvironment& operator=(const SafeEnvironment&) = delete;

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

// What the environment says about this process: its rank in the job and the settings of the run.

// False when this process is not to be monitored (FORESHOCK=0, or no directory given). Reads the environment
// only.
bool read_environment(const SafeEnvironment& variables, Settings* settings);
inline bool read_environment(Settings* settings) { return read_environment(SafeEnvironment(), settings); }

// As option_value() of options.h, while other threads may change the environment.
const char* option_value(const SafeEnvironment& variables, OptionId id);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
