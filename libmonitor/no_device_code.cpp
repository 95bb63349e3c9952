// In place of kernels/device_code.cpp, for the library that is preloaded: the kernels would take 1.8 MB of
// address space in every process of a training, which a trainer under a tight `ulimit -v` may not have to
// spare (tests/faults/test_limits.py), and nobody needs them before an adapter gives the streams of its
// tensors. They belong into a file of their own, mapped at the first tensor on a device.
#include "kernels/device_code.h"

namespace foreshock {

std::span<const std::byte> DeviceCode() { return {}; }

}  // namespace foreshock
