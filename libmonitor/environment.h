// Reads the environment while other threads may change it. setenv() in one thread frees the array that
// getenv() reads in another (glibc before 2.41; Python's os.environ calls setenv). The monitor must not crash
// the trainer, so the kernel copies the environment for it through /proc/self/mem. This returns an error
// where a load would raise SIGSEGV.
#ifndef FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
#define FORESHOCK_LIBMONITOR_ENVIRONMENT_H_

#include <cstddef>

#include "libmonitor/options.h"
#include "libmonitor/process.h"

namespace foreshock {

class SafeEnvironment {
 public:
  // Copies all variables. For set-up only: opens a file, and maps memory for the life of this object. If
  // `memory` cannot be opened (no /proc) or there is no memory, find() uses getenv(). Any thread.
  explicit SafeEnvironment(const char* memory = "/proc/self/mem");
  ~SafeEnvironment();
  SafeEnvironment(const SafeEnvironment&) = delete;
  SafeEnvironment& operator=(const SafeEnvironment&) = delete;

  // Returns the value of a variable, valid as long as this object. Null if the variable is not set, or if
  // name and value exceed 4 KiB.
  const char* find(const char* name) const;

  bool is_copy() const { return is_copy_; }

 private:
  struct Buffers;
  bool copy(int memory);
  bool copy_array(int memory, const char** entries, size_t* count) const;

  Buffers* buffers_ = nullptr;
  bool is_copy_ = false;
};

// Reads this process's rank in the job and the settings of the run from the environment. Returns false if the
// process is not to be monitored (FORESHOCK=0, or no directory given).
bool read_environment(const SafeEnvironment& variables, Settings* settings);
inline bool read_environment(Settings* settings) { return read_environment(SafeEnvironment(), settings); }

// Does the same as option_value() of options.h, but is safe while other threads change the environment.
const char* option_value(const SafeEnvironment& variables, OptionId id);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
