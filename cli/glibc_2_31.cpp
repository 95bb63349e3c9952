// Defines what the static C++ runtime of a newer system expects of its glibc and glibc 2.31 does not have.
// Linked into packages only (FORESHOCK_GLIBC).

#include <sys/random.h>

#include <cstdint>

extern "C" {

// glibc 2.32. Zero: shared pointers always count atomically.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// glibc 2.35. A failure makes the unwinder ask dl_iterate_phdr, as it did before.
__attribute__((visibility("hidden"))) int _dl_find_object(void* /*address*/, void* /*result*/) { return -1; }

// glibc 2.36, for std::random_device.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

}  // extern "C"
