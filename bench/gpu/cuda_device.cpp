// Launches kernels through the driver's functions, which LiveDevice looks up by name.
#include "bench/gpu/cuda_device.h"

namespace foreshock {
namespace {

// Values of CUdevice_attribute: number of multiprocessors, and most bytes of shared memory of a block.
constexpr int kProcessors = 16, kSharedBytesOptIn = 97;
// Value of CUfunction_attribute: the limit of a kernel's dynamic shared memory.
constexpr int kMostDynamicShared = 8;
constexpr int kDevice = 0;  // the first one, as LiveDevice opens it

}  // namespace

CudaDevice& CudaDevice::get() {
  static CudaDevice device;
  return device;
}

CudaDevice::CudaDevice() {
  if (!missing().empty()) return;
  void* module = nullptr;
  char name[128] = "";
  driver_.must("cuDeviceGetName", &name[0], static_cast<int>(sizeof name), kDevice);
  name_ = name;
  const auto attribute = [&](int which) {
    int value = 0;
    driver_.must("cuDeviceGetAttribute", &value, which, kDevice);
    return static_cast<uint32_t>(value);
  };
  limits_ = {.processors = attribute(kProcessors), .shared_bytes = attribute(kSharedBytesOptIn)};
  driver_.must("cuModuleLoadData", &module, static_cast<const void*>(DeviceCode().data()));
  for (const char* symbol : kDeviceKernelNames) {
    void*& function = functions_.emplace_back(nullptr);
    driver_.must("cuModuleGetFunction", &function, module, symbol);
  }
}

uint64_t CudaDevice::allocate(size_t bytes) {
  uint64_t address = 0;
  driver_.must("cuMemAlloc_v2", &address, bytes);
  return address;
}

void CudaDevice::release(uint64_t address) { driver_.must("cuMemFree_v2", address); }

void CudaDevice::write(uint64_t to, const void* from, size_t bytes) {
  if (bytes > 0) driver_.must("cuMemcpyHtoD_v2", to, from, bytes);
}

void CudaDevice::read(void* to, uint64_t from, size_t bytes) {
  if (bytes > 0) driver_.must("cuMemcpyDtoH_v2", to, from, bytes);
}

void CudaDevice::enqueue(DeviceKernel kernel, const LaunchShape& shape, const void* job) {
  void* const function = functions_[static_cast<size_t>(kernel)];
  void* parameters[] = {const_cast<void*>(job)};
  driver_.must("cuFuncSetAttribute", function, kMostDynamicShared, static_cast<int>(shape.shared_bytes));
  driver_.must("cuLaunchKernel", function, shape.blocks, 1u, 1u, shape.threads, 1u, 1u, shape.shared_bytes,
               static_cast<void*>(nullptr), &parameters[0],
               static_cast<void**>(nullptr));  // the default stream
}

void CudaDevice::launch(DeviceKernel kernel, const LaunchShape& shape, const void* job) {
  enqueue(kernel, shape, job);
  driver_.wait();
}

// Occupies the device while the host queues all timed launches. Otherwise the kernel time would include gaps
// in which the device waits for the host.
void CudaDevice::keep_busy() {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kFills = 8;  // 8 fills of 64 MiB take about 0.2 ms on an H100
  if (busy_memory_ == 0) busy_memory_ = allocate(kBytes);
  for (int n = 0; n < kFills; ++n)
    driver_.must("cuMemsetD8Async", busy_memory_, static_cast<unsigned char>(n), kBytes,
                 static_cast<void*>(nullptr));
}

// Calls `work`, which queues one repetition, once untimed and then `times` times. Returns the mean
// milliseconds of a timed repetition.
template <class Work>
double CudaDevice::milliseconds_of(int times, const Work& work) {
  void *begin = nullptr, *end = nullptr;  // events, whose times the device records
  float milliseconds = 0;
  work();  // loads the kernel, which is not timed
  driver_.must("cuEventCreate", &begin, 0u);
  driver_.must("cuEventCreate", &end, 0u);
  keep_busy();
  driver_.must("cuEventRecord", begin, static_cast<void*>(nullptr));
  for (int n = 0; n < times; ++n) work();
  driver_.must("cuEventRecord", end, static_cast<void*>(nullptr));
  driver_.must("cuEventSynchronize", end);
  driver_.must("cuEventElapsedTime", &milliseconds, begin, end);
  driver_.must("cuEventDestroy_v2", begin);
  driver_.must("cuEventDestroy_v2", end);
  return milliseconds / times;
}

double CudaDevice::milliseconds(DeviceKernel kernel, const LaunchShape& shape, const void* job, int times) {
  return milliseconds_of(times, [&] { enqueue(kernel, shape, job); });
}

double CudaDevice::milliseconds_of_copy(uint64_t to, uint64_t from, size_t bytes, int times) {
  return milliseconds_of(
      times, [&] { driver_.must("cuMemcpyDtoDAsync_v2", to, from, bytes, static_cast<void*>(nullptr)); });
}

}  // namespace foreshock
