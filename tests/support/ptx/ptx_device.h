// A device that is the host, which runs the PTX of the kernels (machine.h). Has the functions of CudaDevice
// (bench/gpu/cuda_device.h) that tests call. Environment: PTX_SEED and PTX_INTERLEAVE (ptx::Options),
// PTX_MUTANT=KIND:PLACE (ptx::Mutant), PTX_REACHED=FILE, to which the end of the program writes the number of
// instructions, how many were reached, and the places that were.
#ifndef FORESHOCK_TESTS_SUPPORT_PTX_PTX_DEVICE_H_
#define FORESHOCK_TESTS_SUPPORT_PTX_PTX_DEVICE_H_

#include <cstdint>
#include <string>

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"

namespace foreshock {

class PtxDevice {
 public:
  static PtxDevice& get();
  const std::string& missing() const { return missing_; }
  const std::string& name() const { return name_; }
  const DeviceLimits& limits() const { return limits_; }

  uint64_t allocate(size_t bytes);
  void release(uint64_t address);
  void write(uint64_t to, const void* from, size_t bytes);
  void read(void* to, uint64_t from, size_t bytes);
  // Throws std::runtime_error if the kernel cannot be launched so, or with the first report of the machine.
  void launch(DeviceKernel kernel, const LaunchShape& shape, const void* job);

 private:
  PtxDevice();

  std::string missing_, name_ = "the host, which runs the PTX";
  DeviceLimits limits_ = {.processors = 4, .shared_bytes = 227 << 10};
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_PTX_PTX_DEVICE_H_
