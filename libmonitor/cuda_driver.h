// Provides what all work on CUDA devices uses: the entry points of the driver, set-up in a context, the file
// with the device kernels, and a ring of device memory. The entry points are found by name in libcuda.so.1,
// after the trainer itself has used a tensor on a device. This header declares the types and numbers of the
// driver's ABI, so that building needs no part of CUDA; device_driver_abi_test.cpp compares them with cuda.h.
#ifndef FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_
#define FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "foreshock/hook.h"
#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "segment/layout.h"

namespace foreshock {

namespace cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // in device memory
using Context = struct ContextOf*;
using Stream = struct StreamOf*;
using Event = struct EventOf*;
using Module = struct ModuleOf*;
using Function = struct FunctionOf*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kAlreadyRegistered = 712;  // the host memory was already pinned for another device
inline constexpr Result kCaptureImplicit = 906;    // the legacy stream is used while a stream captures

// Smaller handles are the default streams: 1 the legacy stream, 2 the per-thread stream.
inline constexpr uintptr_t kFirstStreamHandle = 3;

inline constexpr int kCaptureRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, see CaptureGuard
inline constexpr int kNotCapturing = 0;    // result of cuStreamIsCapturing
// Flags of cuStreamCreateWithPriority, cuEventCreate and cuMemHostRegister.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1, kRegisterDeviceMap = 2;
inline constexpr int kCanWriteFromStream = 122;  // device attribute: stream operations on 64-bit words
// Device attributes (DeviceLimits): number of multiprocessors; most shared memory of a block, on request.
inline constexpr int kProcessors = 16, kSharedBytesOptIn = 97;
inline constexpr int kMostDynamicShared = 8;  // function attribute: limit of dynamic shared memory
inline constexpr uint64_t kLegacyStream = 1;  // flag of cuGetProcAddress: a null stream is the legacy stream

// Driver versions are 1000 * major + 10 * minor, as cuDriverGetVersion returns them. The entry points below
// are those of 12.0. The kernels may need a later one (DeviceCodeSeal::oldest_driver): machine code needs a
// driver of at least the major version of its assembler, with any minor version (NVIDIA's minor version
// compatibility).
inline constexpr int kOldestDriver = 12000;
// From this version on, cuStreamGetCtx does not invalidate the capture of a stream that is being captured.
inline constexpr int kGetContextKeepsCapture = 12050;

}  // namespace cuda

inline bool ok(cuda::Result result) { return result == cuda::kSuccess; }

// Columns: call (a member of DriverApi), symbol, CUDA version of its signature, parameters.
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

// Entry points that a supported driver may lack; DriverApi then has a null pointer.
#define FORESHOCK_OPTIONAL_DRIVER_CALLS(X) X(func_load, cuFuncLoad, 12040, (cuda::Function))

// The entry points of the driver. Never closed, since the trainer uses the driver too. Thread-safe.
class DriverApi {
 public:
  // Returns true once all entry points of a driver of at least version `oldest` (kOldestDriver or more) have
  // been found; the optional one may be missing. The first caller opens `library`; meanwhile other threads
  // get false. Also returns false in a child of the process that opened it, where the driver must not be
  // used.
  bool open(const char* library, int oldest);

  // Whether the driver is open in this process, not only in its parent. Makes a system call (getpid).
  bool is_open() const;
  const char* failure() const;              // the reason why open() will never succeed, as a word; or null
  int version() const { return version_; }  // 0 until open() has found a driver, even if it is too old

  // Finds a kernel of a module and loads it. Call this at set-up for every kernel that is launched within a
  // step. From 12.4 on, drivers load a function at its first launch, unless CUDA_MODULE_LOADING disables
  // this. Loading locks the context and waits for the device's work, which may be a collective that waits for
  // another rank; that rank may wait for this one. Older drivers load a function when it is found, so
  // func_load is not needed.
  bool find_kernel(cuda::Module module, const char* name, cuda::Function* kernel) const;

  // Launches a kernel with its one parameter, a job of kernels/device_jobs.h.
  bool launch(cuda::Function kernel, const LaunchShape& shape, void* job, cuda::Stream stream) const;

#define FORESHOCK_DRIVER_MEMBER(call, symbol, version, parameters) cuda::Result(*call) parameters = nullptr;
  FORESHOCK_DRIVER_CALLS(FORESHOCK_DRIVER_MEMBER)
  FORESHOCK_OPTIONAL_DRIVER_CALLS(FORESHOCK_DRIVER_MEMBER)
#undef FORESHOCK_DRIVER_MEMBER

 private:
  const char* find_all(const char* library, int oldest);

  int version_ = 0;
  std::atomic_flag opening_;  // a thread is in open()
  std::atomic<const char*> failure_{nullptr};
  std::atomic<pid_t> opened_by_{0};  // the process that opened the driver; 0: not open
};

// Base class of objects that are set up in a context of a device. Stores that context and the result of the
// set-up. A device that was reset has another context, in which the object must be set up again.
// Thread-compatible. Has no virtual functions.
class PerContext {
 public:
  // Limit of contexts in which the object is set up, one after the other. A trainer that resets its device
  // does so once or twice. A trainer that alternates between two contexts would need a new set-up each time,
  // so it reaches this limit.
  static constexpr int kMostSetUps = 4;

  // Whether the last set-up, successful or not, was in this context.
  bool was_set_up_in(uint64_t context_id) const { return is_set_up_ && context_id_ == context_id; }

  // Returns the FORESHOCK_SKIP_ reason (0 or more) why the object cannot be used, or -1 if it can be used.
  int skip_reason() const { return skip_reason_; }

  // Refuses a context, because the object could not be set up in this context between steps. Only the last
  // refused context is remembered. Used for a context that is current only during a part of the step, such as
  // a green context (which has some of the device's processors), since its handle is valid only then. A
  // set-up in another context stays.
  void refuse(uint64_t context_id) { refused_ = context_id; }
  bool is_refused(uint64_t context_id) const { return refused_ == context_id; }

 protected:
  // Calls try_set_up() in the current context. skip_reason() returns its result from then on. After
  // kMostSetUps calls, refuses every further context (see refuse()).
  template <class TrySetUp>
  void set_up_in(uint64_t context_id, const TrySetUp& try_set_up) {
    if (set_ups_ == kMostSetUps) return refuse(context_id);
    ++set_ups_;
    context_id_ = context_id;
    is_set_up_ = true;
    is_ready_ = false;
    skip_reason_ = FORESHOCK_SKIP_DEVICE;  // until try_set_up() has returned
    skip_reason_ = try_set_up();
  }

  // Makes the object permanently unusable in this context.
  int fail() { return skip_reason_ = FORESHOCK_SKIP_DEVICE; }

  // The object's stream writes marker() to a word in host memory after the work of set-up. Bit 63 keeps it
  // apart from other values of the word. has_written_marker() returns whether it has been written; load()
  // reads the word, and is not called any more once it was.
  uint64_t marker() const { return uint64_t{1} << 63 | context_id_; }
  bool has_written_marker(const auto& load) {
    if (!is_ready_) is_ready_ = load() == marker();
    return is_ready_;
  }

  uint64_t context_id() const { return context_id_; }

 private:
  int skip_reason_ = -1;
  bool is_set_up_ = false;  // skip_reason_ holds the result for context_id_
  bool is_ready_ = false;   // the marker was found once (has_written_marker)
  int set_ups_ = 0;         // number of calls of try_set_up()
  uint64_t context_id_ = 0;
  uint64_t refused_ = ~uint64_t{0};  // ~0: no context
};

// Switches this thread to the relaxed capture mode during the guard's lifetime. In the other modes, set-up
// calls fail while any thread captures a graph, and invalidate the capture.
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
  int mode_;  // the mode that the destructor restores: the driver's exchange stores it here
  bool exchanged_;
};

inline constexpr const char* kDeviceCodeFile = "libforeshock.fatbin";

// Writes the path of `name` in the folder of the library that contains this code (library_path.cpp). Returns
// false if the folder is unknown or the path is too long.
bool path_beside_library(const char* name, char* path, size_t capacity);

// The device kernels (kernels/device_code.h), read from the file that is installed beside the library. It is
// read once, after the first tensor on a device was seen. One caller at a time.
class Fatbin {
 public:
  // Reads the file into memory if it has the size and checksum of `seal`, i.e. if it was built with this
  // library and is not damaged. The file is not mapped: some installers replace files in place, and a mapping
  // would then raise SIGBUS in the trainer. After a failure the file is not read again.
  void read(const char* path, const DeviceCodeSeal& seal);

  bool is_read() const { return code_.data() != nullptr; }
  const char* failure() const { return failure_; }  // why the file could not be read, as a word; or null
  // Returns the bytes of the file. They are never freed, since a driver may load from them later.
  std::span<const std::byte> code() const { return code_; }

 private:
  const char* failure_ = nullptr;
  std::span<const std::byte> code_;
};

// Allocates memory on a device for slices on their way to slots of the segment (host memory), and frees it in
// the order of allocation. After copying a slice, the stream stores a sequence word into the slice's slot.
// Once the host has read it back (SegmentWriter::read_back), the slice's memory is free. Thread-compatible.
class StagingRing {
 public:
  // Limit of slices in the ring. Each slice has at least one slot of the segment.
  static constexpr uint32_t kMostSlices = segment::kMaxSlots;
  static constexpr uint64_t kAlign = 256;  // in bytes, of every range

  // Sets the size of the ring to `bytes` (a multiple of kAlign) and frees all of it.
  void reset(uint64_t bytes);

  struct FreeRange {
    uint64_t offset = 0;
    uint32_t number = 0;  // unique among the slices in the ring
  };
  // Finds a free range of `bytes` bytes. Returns false if no such range is free now. commit() allocates it.
  bool find(uint64_t bytes, FreeRange* free);

  // Allocates the range that find() found last. It is free again once `*sequence` >= `done`.
  void commit(const uint64_t* sequence, uint64_t done);

  uint64_t bytes() const { return bytes_; }
  uint32_t slices() const { return count_; }

 private:
  struct Range {
    uint64_t begin, end;  // begin <= end
    const uint64_t* sequence;
    uint64_t done;  // free once *sequence >= done
  };
  // The range of slice n, counted from the oldest.
  Range& at(uint32_t n) { return used_[(first_ + n) % kMostSlices]; }
  void free_completed();

  uint64_t bytes_ = 0;
  uint32_t first_ = 0, count_ = 0;  // index in used_ of the oldest range; number of ranges
  Range found_ = {};                // the result of the last find()
  Range used_[kMostSlices] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CUDA_DRIVER_H_
