#include "kernels/device_code.h"

#ifdef FORESHOCK_DEVICE_CODE
#include "foreshock_device_code.h"  // kFatbin: made by the build
#endif

namespace foreshock {

std::span<const std::byte> DeviceCode() {
#ifdef FORESHOCK_DEVICE_CODE
  return std::as_bytes(std::span(kFatbin));
#else
  return {};
#endif
}

}  // namespace foreshock
