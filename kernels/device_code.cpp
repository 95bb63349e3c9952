// Embeds the fatbin (CUDA's container of compiled kernels) and returns its bytes. FORESHOCK_DEVICE_CODE is
// its path; a build without nvcc does not define it. Only tests and benchmarks link this file:
// libforeshock.so loads the fatbin from disk.
#include "kernels/device_code.h"

#ifdef FORESHOCK_DEVICE_CODE
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".global foreshock_device_code_begin\n"
    ".hidden foreshock_device_code_begin\n"
    "foreshock_device_code_begin:\n"
    ".incbin \"" FORESHOCK_DEVICE_CODE
    "\"\n"
    ".global foreshock_device_code_end\n"
    ".hidden foreshock_device_code_end\n"
    "foreshock_device_code_end:\n"
    ".popsection\n");

extern "C" {
extern const std::byte foreshock_device_code_begin[] __attribute__((visibility("hidden")));
extern const std::byte foreshock_device_code_end[] __attribute__((visibility("hidden")));
}
#endif

namespace foreshock {

std::span<const std::byte> DeviceCode() {
#ifdef FORESHOCK_DEVICE_CODE
  return {foreshock_device_code_begin, foreshock_device_code_end};
#else
  return {};
#endif
}

}  // namespace foreshock
