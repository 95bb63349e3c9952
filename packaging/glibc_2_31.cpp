// Defines symbols that the static C++ runtime of a newer system needs but glibc 2.31 lacks. Linked only into
// the `foreshock` program of packages, which is built with the CMake option FORESHOCK_GLIBC.

#include <sys/random.h>

#include <cstdint>

extern "C" {

// In glibc since 2.32. 0 means that the process may have threads, so shared pointers count atomically.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// In glibc since 2.35; used to find the unwind table of an address. Here it always fails (-1). The unwinder
// of exceptions then uses dl_iterate_phdr, as with older versions of glibc.
__attribute__((visibility("hidden"))) int _dl_find_object(void* /*address*/, void* /*result*/) { return -1; }

// In glibc since 2.36; used by std::random_device.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // extern "C"
