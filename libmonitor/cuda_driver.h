// The few entry points of the CUDA driver that sampling uses, found by name in libcuda.so.1 once the trainer
// itself has shown a tensor on a device. Types and numbers are those of the driver's ABI, written down here
// so that nothing of CUDA is needed to build; device_driver_abi_test.cpp holds them against cuda.h.
#ifndef FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_
#define FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_code.h"

namespace foreshock {

namespace cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // of device memory
using Context = struct ContextOf*;
using Stream = struct StreamOf*;
using Event = struct EventOf*;
using Module = struct ModuleOf*;
using Function = struct FunctionOf*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kAlreadyRegistered = 712;
inline constexpr Result kCaptureImplicit = 906;  // the legacy default stream, while another stream captures

// Handles below this are the default streams: 1 the legacy one, 2 the thread's own.
inline constexpr uintptr_t kFirstStreamHandle = 3;

inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kNotCapturing = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1, kRegisterDeviceMap = 2;
inline constexpr int kCanWriteFromStream = 122;  // an attribute: stream operations on 64-bit words
inline constexpr int kProcessors = 16, kSharedBytesOptIn = 97;  // others: kernels/device_jobs.h
inline constexpr int kMostDynamicShared = 8;                    // an attribute of a function
inline constexpr uint64_t kLegacyStream = 1;  // of cuGetProcAddress: what a null stream means

// 1000 * major + 10 * minor, as cuDriverGetVersion tells it. The entry points below are those of 12.0;
// machine code needs a driver of the major version of the toolkit that made it or a later one, whatever the
// minor version (NVIDIA's minor version compatibility). PTX asks for as new a driver as the whole toolkit:
// where only PTX fits the device and the driver is older than that, loading it fails.
inline constexpr int kOldestDriver = 12000;
// From here on a stream may be asked for its context while it is being captured; before, that ends the
// capture.
inline constexpr int kContextOfCapture = 12050;
constexpr int oldest_driver_for(int toolkit) {
  const int of_its_major = toolkit / 1000 * 1000;
  return of_its_major > kOldestDriver ? of_its_major : kOldestDriver;
}

}  // namespace cuda

inline bool ok(cuda::Result result) { return result == cuda::kSuccess; }

// call, symbol, version of its signature, parameters
#define FORESHOCK_DRIVER_CALLS(X)                                                                          \
  X(ctx_get_current, cuCtxGetCurrent, 4000, (cuda::Context*))                                              \
  X(ctx_push_current, cuCtxPushCurrent, 4000, (cuda::Context))                                             \
  X(ctx_pop_current, cuCtxPopCurrent, 4000, (cuda::Context*))                                              \
  X(ctx_get_device, cuCtxGetDevice, 2000, (cuda::Device*))                                                 \
  X(ctx_get_id, cuCtxGetId, 12000, (cuda::Context, unsigned long long*))                                   \
  X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050, (int*, int*))                        \
  X(device_get_attribute, cuDeviceGetAttribute, 2000, (int*, int, cuda::Device))                           \
  X(device_primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000, (cuda::Device, unsigned*, int*))       \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, (cuda::Context*, cuda::Device))             \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000, (cuda::Device))                          \
  X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int*))                 \
  X(stream_is_capturing, cuStreamIsCapturing, 10000, (cuda::Stream, int*))                                 \
  X(stream_get_ctx, cuStreamGetCtx, 9020, (cuda::Stream, cuda::Context*))                                  \
  X(stream_create_with_priority, cuStreamCreateWithPriority, 5050, (cuda::Stream*, unsigned, int))         \
  X(stream_wait_event, cuStreamWaitEvent, 3020, (cuda::Stream, cuda::Event, unsigned))                     \
  X(stream_write_value_64, cuStreamWriteValue64, 11070, (cuda::Stream, cuda::Address, uint64_t, unsigned)) \
  X(event_create, cuEventCreate, 2000, (cuda::Event*, unsigned))                                           \
  X(event_record, cuEventRecord, 2000, (cuda::Event, cuda::Stream))                                        \
  X(mem_get_info, cuMemGetInfo, 3020, (size_t*, size_t*))                                                  \
  X(mem_alloc, cuMemAlloc, 3020, (cuda::Address*, size_t))                                                 \
  X(mem_host_register, cuMemHostRegister, 6050, (void*, size_t, unsigned))                                 \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer, 3020, (cuda::Address*, void*, unsigned))       \
  X(memset_d8_async, cuMemsetD8Async, 3020, (cuda::Address, unsigned char, size_t, cuda::Stream))          \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync, 3020, (void*, cuda::Address, size_t, cuda::Stream))              \
  X(module_load_data, cuModuleLoadData, 2000, (cuda::Module*, const void*))                                \
  X(module_get_function, cuModuleGetFunction, 2000, (cuda::Function*, cuda::Module, const char*))          \
  X(func_set_attribute, cuFuncSetAttribute, 9000, (cuda::Function, int, int))                              \
  X(launch_kernel, cuLaunchKernel, 4000,                                                                   \
    (cuda::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda::Stream,   \
     void**, void**))

// The same of what a driver may lack that is new enough: null then.
#define FORESHOCK_OPTIONAL_DRIVER_CALLS(X) X(func_load, cuFuncLoad, 12040, (cuda::Function))

// Thread-safe. Never closed: the driver is the trainer's.
class DriverApi {
 public:
  // True once every entry point is known, of a driver of version `oldest` at least. The first caller opens
  // `library`; another thread meanwhile, and a child of the process that opened it (where the driver must not
  // be used), gets false.
  bool open(const char* library, int oldest);

  // Whether it is open in this process. Makes a system call.
  bool is_open() const;

  // Why open() will never succeed, in a word, or null.
  const char* failure() const;

  // Of the driver, once it is open.
  int version() const { return version_; }

  // A kernel of a module, loaded. Drivers load lazily unless CUDA_MODULE_LOADING says otherwise: a function
  // that was only found is loaded when it is launched first, and that waits for the work of the device while
  // the context is locked. In the middle of a step such work may be a collective that waits for a rank which
  // waits for this one. So every kernel that is launched there is found by this, at set-up. Before 12.4,
  // which brought the call for it, to find one was to load it.
  bool find_kernel(cuda::Module module, const char* name, cuda::Function* kernel) const;

#define FORESHOCK_DRIVER_MEMBER(call, symbol, version, parameters) cuda::Result(*call) parameters = nullptr;
  FORESHOCK_DRIVER_CALLS(FORESHOCK_DRIVER_MEMBER)
  FORESHOCK_OPTIONAL_DRIVER_CALLS(FORESHOCK_DRIVER_MEMBER)
#undef FORESHOCK_DRIVER_MEMBER

 private:
  const char* find_all(const char* library, int oldest);

  int version_ = 0;
  std::atomic_flag opening_;
  std::atomic<const char*> failure_{nullptr};
  std::atomic<pid_t> opened_by_{0};
};

// In which context of a device something was set up, and what came of it: the same for all that a device is
// given. A device that was reset has another context: what was set up in the old one went with it, and is set
// up anew.

// Thread-compatible. For those that are set up to derive from; nothing here is virtual.
class PerContext {
 public:
  // Of so many contexts in turn: a trainer that resets its device does so once or twice. One that goes to and
  // fro between two that are both found would lose what is had in each of them again each time.
  static constexpr int kMostSetUps = 4;

  bool is_of(uint64_t context_id) const { return is_settled_ && context_id_ == context_id; }

  // Why nothing can be given to it, FORESHOCK_SKIP_..., or -1.
  int failed() const { return failed_; }

  // Nothing will be had in this context: nobody knows a handle of it that is good outside of a call (a green
  // one, which is current only while a part of the step is run in it). What is had in another one stays.
  void refuse(uint64_t context_id) { refused_ = context_id; }
  // Whether it is the last one of these.
  bool is_refused(uint64_t context_id) const { return refused_ == context_id; }

 protected:
  // In the context that is current, by try_set_up(), which returns what failed() is to.
  template <class TrySetUp>
  void set_up_in(uint64_t context_id, const TrySetUp& try_set_up) {
    if (set_ups_ == kMostSetUps) return refuse(context_id);
    ++set_ups_;
    context_id_ = context_id;
    is_settled_ = true;
    is_ready_ = false;
    failed_ = FORESHOCK_SKIP_DEVICE;
    failed_ = try_set_up();
  }

  // For good, in this context.
  int fail() { return failed_ = FORESHOCK_SKIP_DEVICE; }

  // What the stream of it is told to write when it has done what set-up gave it, and whether it has.
  uint64_t marker() const { return uint64_t{1} << 63 | context_id_; }
  bool has_written_marker(uint64_t& word) {
    if (!is_ready_) is_ready_ = std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire) == marker();
    return is_ready_;
  }

  uint64_t context_id() const { return context_id_; }

 private:
  int failed_ = -1;
  bool is_settled_ = false;  // failed_ is about context_id_
  bool is_ready_ = false;
  int set_ups_ = 0;
  uint64_t context_id_ = 0;
  uint64_t refused_ = ~uint64_t{0};  // of no context
};

// A capture in any thread forbids this one what set-up does, and would be spoilt by it, unless this thread
// says that it has nothing to do with it.

class CaptureGuard {
 public:
  explicit CaptureGuard(const DriverApi& driver) : driver_(driver) {
    mode_ = cuda::kCaptureRelaxed;
    exchanged_ = driver_.thread_exchange_stream_capture_mode(&mode_) == cuda::kSuccess;
  }
  ~CaptureGuard() {
    if (exchanged_) driver_.thread_exchange_stream_capture_mode(&mode_);
  }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;
  explicit operator bool() const { return exchanged_; }

 private:
  const DriverApi& driver_;
  int mode_;
  bool exchanged_;
};

// The kernels for devices, from the file that is installed beside the library. Read once, when the first
// tensor on a device has been seen: a process that has none neither opens it nor has room taken for it.

inline constexpr const char* kDeviceCodeFile = "libforeshock.fatbin";

// One caller at a time.
class Fatbin {
 public:
  // Takes the file only if it is the one that was built with this library, which also keeps out one that is
  // cut short or damaged. Into memory of our own: a file that is mapped and then replaced in place, as some
  // installers do, would be a SIGBUS of the trainer. No descriptor stays open. What could not be read is not
  // tried again.
  void read(const char* path, const DeviceCodeSeal& seal);

  bool is_read() const { return code_.data() != nullptr; }

  // Why there is nothing, in a word, or null.
  const char* failure() const { return failure_; }

  // Stays for the life of the process: a driver may load from it later, kernel by kernel.
  std::span<const std::byte> code() const { return code_; }

 private:
  const char* failure_ = nullptr;
  std::span<const std::byte> code_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_
