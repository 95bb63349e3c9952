// The first device of this machine through its driver, for tests and benches that launch the kernels on it.
// The driver is opened while the program runs, so that they are built everywhere.
#ifndef FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_
#define FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"

namespace foreshock {

class CudaDevice {
 public:
  // Opened once, kept until the end. missing() says why there is none; "" if there is one.
  static CudaDevice& get();
  const std::string& missing() const { return missing_; }

  const std::string& name() const { return name_; }
  const DeviceLimits& limits() const { return limits_; }

  // All throw std::runtime_error with the driver's number.
  uint64_t allocate(size_t bytes);
  void release(uint64_t address);
  void write(uint64_t to, const void* from, size_t bytes);
  void read(void* to, uint64_t from, size_t bytes);
  // Waits until it has ended.
  void launch(DeviceKernel kernel, const LaunchShape& shape, const void* job);

  // Of one of `times` launches in a row, or of one copy of `bytes` within the device, by the device's clock.
  double milliseconds(DeviceKernel kernel, const LaunchShape& shape, const void* job, int times);
  double milliseconds_of_copy(uint64_t to, uint64_t from, size_t bytes, int times);

 private:
  CudaDevice();
  void enqueue(DeviceKernel kernel, const LaunchShape& shape, const void* job);
  void keep_busy();
  template <class Work>
  double milliseconds_of(int times, const Work& work);

  std::string missing_, name_;
  DeviceLimits limits_ = {};
  std::vector<void*> functions_;
  uint64_t busy_ = 0;  // memory that keep_busy() sets
};

}  // namespace foreshock

#endif  // FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_
