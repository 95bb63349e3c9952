// The first CUDA device of this machine, for tests and benches that launch kernels and time them.
#ifndef FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_
#define FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "tests/support/live_device.h"

namespace foreshock {

class CudaDevice {
 public:
  // Opens the device on the first call and keeps it open. If there is no device, missing() says why, else it
  // is "".
  static CudaDevice& get();
  const std::string& missing() const { return driver_.missing(); }

  const std::string& name() const { return name_; }
  const DeviceLimits& limits() const { return limits_; }

  // get() and the functions below end the process if the driver returns an error. A uint64_t is an address in
  // device memory. `job` points to the kernel's parameter, a struct of device_jobs.h.
  uint64_t allocate(size_t bytes);
  void release(uint64_t address);
  void write(uint64_t to, const void* from, size_t bytes);
  void read(void* to, uint64_t from, size_t bytes);
  // Launches a kernel and waits until it has ended.
  void launch(DeviceKernel kernel, const LaunchShape& shape, const void* job);

  // Return the mean time in milliseconds of one launch, or of one copy of `bytes` within device memory, over
  // `times` repetitions queued back to back, after one that is not timed. Device events measure it.
  double milliseconds(DeviceKernel kernel, const LaunchShape& shape, const void* job, int times);
  double milliseconds_of_copy(uint64_t to, uint64_t from, size_t bytes, int times);

 private:
  CudaDevice();
  void enqueue(DeviceKernel kernel, const LaunchShape& shape, const void* job);
  void keep_busy();  // occupies the device for about 0.2 ms, while the host queues the timed launches
  template <class Work>
  double milliseconds_of(int times, const Work& work);

  LiveDevice driver_;
  std::string name_;
  DeviceLimits limits_ = {};
  std::vector<void*> functions_;  // of the driver (CUfunction), by DeviceKernel
  uint64_t busy_memory_ = 0;      // memory that keep_busy() fills to occupy the device; 0: not allocated yet
};

}  // namespace foreshock

#endif  // FORESHOCK_BENCH_GPU_CUDA_DEVICE_H_
