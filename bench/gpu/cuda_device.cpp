// Runs kernels on the first CUDA device, for tests and benches. Looks up the driver's functions by name at
// run time, so that neither the driver nor its header is needed to build.
#include "bench/gpu/cuda_device.h"

#include <dlfcn.h>

#include <stdexcept>

namespace foreshock {
namespace {

// Values of CUdevice_attribute: number of multiprocessors, and most bytes of shared memory of a block.
constexpr int kProcessors = 16, kSharedBytesOptIn = 97;
// Value of CUfunction_attribute: the limit of a kernel's dynamic shared memory.
constexpr int kMostDynamicShared = 8;

void* driver_library() {
  static void* const opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return opened;
}

// Calls a function of the driver, whose parameters must have exactly the types of the arguments. Returns its
// error number, 0 on success; -1 if the function does not exist.
template <class... Arguments>
int try_call(const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  const auto function = reinterpret_cast<Function>(dlsym(driver_library(), name));
  return function ? function(arguments...) : -1;
}

// Calls a function as try_call() does, and throws an exception if it fails.
template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  if (const int error = try_call(name, arguments...); error != 0)
    throw std::runtime_error(std::string(name) + " failed: " + std::to_string(error));
}

int attribute(int which, int device) {
  int value = 0;
  call("cuDeviceGetAttribute", &value, which, device);
  return value;
}

}  // namespace

CudaDevice& CudaDevice::get() {
  static CudaDevice device;
  return device;
}

CudaDevice::CudaDevice() {
  if (DeviceCode().empty()) {
    missing_ = "built without nvcc";
    return;
  }
  if (!driver_library()) {
    missing_ = "no libcuda.so.1";
    return;
  }
  if (const int error = try_call("cuInit", 0u); error != 0) {
    missing_ = "cuInit failed: " + std::to_string(error);
    return;
  }
  int device = 0;
  void *context = nullptr, *module = nullptr;
  char name[128] = "";
  call("cuDeviceGet", &device, 0);
  call("cuDeviceGetName", &name[0], static_cast<int>(sizeof name), device);
  name_ = name;
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  limits_ = {.processors = static_cast<uint32_t>(attribute(kProcessors, device)),
             .shared_bytes = static_cast<uint32_t>(attribute(kSharedBytesOptIn, device))};
  call("cuModuleLoadData", &module, static_cast<const void*>(DeviceCode().data()));
  for (const char* symbol : kDeviceKernelNames) {
    void*& function = functions_.emplace_back(nullptr);
    call("cuModuleGetFunction", &function, module, symbol);
  }
}

uint64_t CudaDevice::allocate(size_t bytes) {
  uint64_t address = 0;
  call("cuMemAlloc_v2", &address, bytes);
  return address;
}

void CudaDevice::release(uint64_t address) { call("cuMemFree_v2", address); }

void CudaDevice::write(uint64_t to, const void* from, size_t bytes) {
  if (bytes > 0) call("cuMemcpyHtoD_v2", to, from, bytes);
}

void CudaDevice::read(void* to, uint64_t from, size_t bytes) {
  if (bytes > 0) call("cuMemcpyDtoH_v2", to, from, bytes);
}

void CudaDevice::enqueue(DeviceKernel kernel, const LaunchShape& shape, const void* job) {
  void* const function = functions_[static_cast<size_t>(kernel)];
  void* parameters[] = {const_cast<void*>(job)};
  call("cuFuncSetAttribute", function, kMostDynamicShared, static_cast<int>(shape.shared_bytes));
  call("cuLaunchKernel", function, shape.blocks, 1u, 1u, shape.threads, 1u, 1u, shape.shared_bytes,
       static_cast<void*>(nullptr), &parameters[0], static_cast<void**>(nullptr));  // the default stream
}

void CudaDevice::launch(DeviceKernel kernel, const LaunchShape& shape, const void* job) {
  enqueue(kernel, shape, job);
  call("cuCtxSynchronize");
}

// Occupies the device while the host queues all timed launches. Otherwise the kernel time would include gaps
// in which the device waits for the host.
void CudaDevice::keep_busy() {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kFills = 8;  // 8 fills of 64 MiB take about 0.2 ms on an H100
  if (busy_memory_ == 0) busy_memory_ = allocate(kBytes);
  for (int n = 0; n < kFills; ++n)
    call("cuMemsetD8Async", busy_memory_, static_cast<unsigned char>(n), kBytes, static_cast<void*>(nullptr));
}

// Calls `work`, which queues one repetition, once untimed and then `times` times. Returns the mean
// milliseconds of a timed repetition.
template <class Work>
double CudaDevice::milliseconds_of(int times, const Work& work) {
  void *begin = nullptr, *end = nullptr;  // events, whose times the device records
  float milliseconds = 0;
  work();  // loads the kernel, which is not timed
  call("cuEventCreate", &begin, 0u);
  call("cuEventCreate", &end, 0u);
  keep_busy();
  call("cuEventRecord", begin, static_cast<void*>(nullptr));
  for (int n = 0; n < times; ++n) work();
  call("cuEventRecord", end, static_cast<void*>(nullptr));
  call("cuEventSynchronize", end);
  call("cuEventElapsedTime", &milliseconds, begin, end);
  call("cuEventDestroy_v2", begin);
  call("cuEventDestroy_v2", end);
  return milliseconds / times;
}

double CudaDevice::milliseconds(DeviceKernel kernel, const LaunchShape& shape, const void* job, int times) {
  return milliseconds_of(times, [&] { enqueue(kernel, shape, job); });
}

double CudaDevice::milliseconds_of_copy(uint64_t to, uint64_t from, size_t bytes, int times) {
  return milliseconds_of(times,
                         [&] { call("cuMemcpyDtoDAsync_v2", to, from, bytes, static_cast<void*>(nullptr)); });
}

}  // namespace foreshock
