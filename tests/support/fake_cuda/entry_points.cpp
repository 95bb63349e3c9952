// The entry points by the names and signatures of the real driver.
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "tests/support/fake_cuda/world.h"

#define FAKE_ENTRY extern "C" __attribute__((visibility("default"))) int

using namespace fake_cuda;

namespace {

Context* current() { return context_stack().empty() ? nullptr : context_stack().back(); }

// Counts the call and tells whether it shall fail. Under the lock.
int enter(const char* name, void* stream = nullptr, uint64_t bytes = 0) {
  World& w = world();
  w.calls.push_back({name, stream, bytes});
  if (w.faults.failing == name && w.times[name]++ >= w.faults.failing_after) return w.faults.error;
  return w.faults.is_lost ? kLost : kSuccess;
}

int check(const Context* context) {
  if (context == nullptr || context->is_alive) return kSuccess;
  violation("a handle of a context that is gone");
  return kDestroyed;
}

// What a capture elsewhere forbids, and would be spoilt by.
int check_unsafe(const char* name) {
  if (!any_capture() || capture_mode() == 2) return kSuccess;
  violation(std::string(name) + " while a stream is being captured");
  return kCaptureUnsupported;
}

int check_stream(const char* name, Stream* stream) {
  if (stream == nullptr) return kInvalidContext;
  if (const int error = check(stream->context)) return error;
  if (current() != stream->context) violation(std::string(name) + " on a stream of another context");
  if (stream->is_capturing) violation(std::string(name) + " into a capture");
  return kSuccess;
}

bool is_inside(const std::map<uint64_t, size_t>& ranges, uint64_t at, size_t bytes) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

bool is_on_device(uint64_t at, size_t bytes) {
  std::map<uint64_t, size_t> ranges;
  for (const auto& [begin, block] : world().memory) ranges[begin] = block.first;
  return is_inside(ranges, at, bytes);
}

}  // namespace

FAKE_ENTRY cuDriverGetVersion(int* version) {
  Lock lock(world().mutex);
  *version = world().faults.version;
  return kSuccess;
}

FAKE_ENTRY cuCtxGetCurrent(void** context) {
  Lock lock(world().mutex);
  *context = current();
  return enter("cuCtxGetCurrent");
}

FAKE_ENTRY cuCtxPushCurrent_v2(void* context) {
  Lock lock(world().mutex);
  context_stack().push_back(static_cast<Context*>(context));
  return enter("cuCtxPushCurrent");
}

FAKE_ENTRY cuCtxPopCurrent_v2(void** context) {
  Lock lock(world().mutex);
  *context = current();
  if (context_stack().empty()) return kInvalidContext;
  context_stack().pop_back();
  return enter("cuCtxPopCurrent");
}

FAKE_ENTRY cuCtxGetDevice(int* device) {
  Lock lock(world().mutex);
  if (current() == nullptr) return kInvalidContext;
  *device = current()->device;
  return enter("cuCtxGetDevice");
}

FAKE_ENTRY cuCtxGetId(void* context, unsigned long long* id) {
  Lock lock(world().mutex);
  *id = static_cast<Context*>(context)->id;
  return enter("cuCtxGetId");
}

FAKE_ENTRY cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Lock lock(world().mutex);
  *least = 0;
  *greatest = -5;
  return enter("cuCtxGetStreamPriorityRange");
}

FAKE_ENTRY cuDeviceGetAttribute(int* value, int attribute, int) {
  Lock lock(world().mutex);
  *value = attribute == 122 ? world().faults.stream_operations : 0;
  return enter("cuDeviceGetAttribute");
}

FAKE_ENTRY cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  Lock lock(world().mutex);
  *flags = 0;
  *active = world().primary_users[device] > 0;
  return enter("cuDevicePrimaryCtxGetState");
}

FAKE_ENTRY cuDevicePrimaryCtxRetain(void** context, int device) {
  Lock lock(world().mutex);
  ++world().primary_users[device];
  *context = world().primary[device];
  return enter("cuDevicePrimaryCtxRetain");
}

FAKE_ENTRY cuDevicePrimaryCtxRelease_v2(int device) {
  Lock lock(world().mutex);
  if (--world().primary_users[device] == 0) violation("the trainer's context was given away");
  return enter("cuDevicePrimaryCtxRelease");
}

FAKE_ENTRY cuThreadExchangeStreamCaptureMode(int* mode) {
  Lock lock(world().mutex);
  std::swap(*mode, capture_mode());
  return enter("cuThreadExchangeStreamCaptureMode");
}

FAKE_ENTRY cuStreamIsCapturing(void* handle, int* status) {
  Lock lock(world().mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidContext;
  *status = stream->is_capturing ? 1 : 0;
  if (const int error = enter("cuStreamIsCapturing", handle)) return error;
  if (stream == world().legacy[stream->context->device] && any_capture()) return kCaptureImplicit;
  return check(stream->context);
}

FAKE_ENTRY cuStreamGetCtx(void* handle, void** context) {
  Lock lock(world().mutex);
  Stream* stream = stream_of(handle);
  *context = stream == nullptr ? nullptr : stream->context;
  return enter("cuStreamGetCtx", handle);
}

FAKE_ENTRY cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
  Lock lock(world().mutex);
  if (const int error = enter("cuStreamCreateWithPriority")) return error;
  if (const int error = check_unsafe("cuStreamCreateWithPriority")) return error;
  Stream* stream = add_stream(current());
  stream->is_ours = true;
  stream->is_non_blocking = flags == 1;
  stream->priority = priority;
  if (!stream->is_non_blocking) violation("a stream that the legacy default one waits for");
  *handle = stream;
  return kSuccess;
}

FAKE_ENTRY cuStreamWaitEvent(void* handle, void* event, unsigned) {
  Lock lock(world().mutex);
  if (const int error = enter("cuStreamWaitEvent", handle)) return error;
  if (const int error = check_stream("cuStreamWaitEvent", stream_of(handle))) return error;
  if (!stream_of(handle)->is_ours) violation("a stream of the trainer waits");
  push(stream_of(handle), {nullptr, static_cast<Event*>(event)->record});
  return kSuccess;
}

FAKE_ENTRY cuStreamWriteValue64_v2(void* handle, uint64_t address, uint64_t value, unsigned flags) {
  Lock lock(world().mutex);
  if (const int error = enter("cuStreamWriteValue64", handle, value)) return error;
  if (const int error = check_stream("cuStreamWriteValue64", stream_of(handle))) return error;
  const uint64_t host = address - kHostOffset;
  if (!is_inside(world().pinned, host, 8) || host % 8 != 0) {
    violation("a stream write to what is not pinned");
    return kInvalidValue;
  }
  if (flags != 0) violation("a stream write that others may see before what went before");
  push(stream_of(handle), {[host, value] {
                             std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(host));
                             word.store(value, std::memory_order_release);
                           },
                           nullptr});
  return kSuccess;
}

FAKE_ENTRY cuEventCreate(void** event, unsigned flags) {
  Lock lock(world().mutex);
  if (const int error = enter("cuEventCreate")) return error;
  if (const int error = check_unsafe("cuEventCreate")) return error;
  if (flags != 2) violation("an event that takes times");
  world().events.push_back(std::make_unique<Event>());
  world().events.back()->context = current();
  *event = world().events.back().get();
  return kSuccess;
}

FAKE_ENTRY cuEventRecord(void* handle, void* stream) {
  Lock lock(world().mutex);
  auto* event = static_cast<Event*>(handle);
  if (const int error = enter("cuEventRecord", stream)) return error;
  if (const int error = check(event->context)) return error;
  if (const int error = check_stream("cuEventRecord", stream_of(stream))) return error;
  auto record = std::make_shared<bool>(false);
  event->record = record;
  push(stream_of(stream), {[record] {
                             Lock inner(world().mutex);
                             *record = true;
                           },
                           nullptr});
  return kSuccess;
}

FAKE_ENTRY cuMemGetInfo_v2(size_t* free, size_t* total) {
  Lock lock(world().mutex);
  *free = world().faults.free_bytes;
  *total = size_t{80} << 30;
  return enter("cuMemGetInfo");
}

FAKE_ENTRY cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemAlloc", nullptr, bytes)) return error;
  if (const int error = check_unsafe("cuMemAlloc")) return error;
  if (bytes > world().faults.free_bytes) return kOutOfMemory;
  void* memory = ::operator new (bytes, std::align_val_t{256});
  std::memset(memory, 0xa5, bytes);  // it is what somebody else left
  *address = reinterpret_cast<uint64_t>(memory);
  world().memory[*address] = {bytes, current()};
  return kSuccess;
}

FAKE_ENTRY cuMemHostRegister_v2(void* begin, size_t bytes, unsigned flags) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemHostRegister", nullptr, bytes)) return error;
  if (const int error = check_unsafe("cuMemHostRegister")) return error;
  const auto at = reinterpret_cast<uint64_t>(begin);
  if (world().pinned.contains(at)) return kAlreadyRegistered;
  if (flags != 3) violation("pinned for one context only, or not to be stored into");
  world().pinned[at] = bytes;
  return kSuccess;
}

FAKE_ENTRY cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned) {
  Lock lock(world().mutex);
  *address = reinterpret_cast<uint64_t>(host) + kHostOffset;
  return enter("cuMemHostGetDevicePointer");
}

FAKE_ENTRY cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* handle) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemsetD8Async", handle, bytes)) return error;
  if (const int error = check_stream("cuMemsetD8Async", stream_of(handle))) return error;
  if (!is_on_device(address, bytes)) violation("a set outside of device memory");
  push(stream_of(handle), {[=] { std::memset(reinterpret_cast<void*>(address), value, bytes); }, nullptr});
  return kSuccess;
}

FAKE_ENTRY cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemcpyDtoHAsync", handle, bytes)) return error;
  if (const int error = check_stream("cuMemcpyDtoHAsync", stream_of(handle))) return error;
  if (!is_inside(world().pinned, reinterpret_cast<uint64_t>(to), bytes))
    violation("a copy to what is not pinned: it waits");
  if (!is_on_device(from, bytes)) violation("a copy from memory that is not ours");
  push(stream_of(handle), {[=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); }, nullptr, true});
  return kSuccess;
}

FAKE_ENTRY cuModuleLoadData(void** module, const void* image) {
  Lock lock(world().mutex);
  if (const int error = enter("cuModuleLoadData")) return error;
  if (const int error = check_unsafe("cuModuleLoadData")) return error;
  if (image == nullptr) return kInvalidValue;
  // The container of nvcc tells its own length.
  struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
  } header;
  std::memcpy(&header, image, sizeof header);
  if (header.magic != 0xba55ed50) return kInvalidImage;
  world().images.emplace_back(static_cast<const char*>(image), header.header_bytes + header.bytes);
  std::this_thread::sleep_for(std::chrono::microseconds(world().faults.load_delay_us));
  *module = current();
  return kSuccess;
}

FAKE_ENTRY cuModuleGetFunction(void** function, void* module, const char* name) {
  Lock lock(world().mutex);
  if (const int error = enter("cuModuleGetFunction")) return error;
  if (kernel_named(name) == nullptr) return kNotFound;
  world().functions.push_back(std::make_unique<Function>(Function{static_cast<Context*>(module), name}));
  *function = world().functions.back().get();
  return kSuccess;
}

FAKE_ENTRY cuLaunchKernel(void* handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          void* stream, void** parameters, void**) {
  Lock lock(world().mutex);
  auto* function = static_cast<Function*>(handle);
  if (const int error = enter("cuLaunchKernel", stream)) return error;
  if (const int error = check(function->context)) return error;
  if (const int error = check_stream("cuLaunchKernel", stream_of(stream))) return error;
  push(stream_of(stream), {kernel_named(function->name)(parameters[0]), nullptr});
  return kSuccess;
}

FAKE_ENTRY cuGetProcAddress_v2(const char* symbol, void** address, int version, uint64_t flags, int* status) {
  struct Entry {
    int since;
    void* address;
  };
#define ENTRY(name, function, since)                     \
  {                                                      \
#name, { since, reinterpret_cast<void*>(&function) } \
  }
  static const std::map<std::string, Entry> kEntries = {
      ENTRY(cuCtxGetCurrent, cuCtxGetCurrent, 4000),
      ENTRY(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000),
      ENTRY(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000),
      ENTRY(cuCtxGetDevice, cuCtxGetDevice, 2000),
      ENTRY(cuCtxGetId, cuCtxGetId, 12000),
      ENTRY(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050),
      ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000),
      ENTRY(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000),
      ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000),
      ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000),
      ENTRY(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010),
      ENTRY(cuStreamIsCapturing, cuStreamIsCapturing, 10000),
      ENTRY(cuStreamGetCtx, cuStreamGetCtx, 9020),
      ENTRY(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050),
      ENTRY(cuStreamWaitEvent, cuStreamWaitEvent, 3020),
      ENTRY(cuStreamWriteValue64, cuStreamWriteValue64_v2, 11070),
      ENTRY(cuEventCreate, cuEventCreate, 2000),
      ENTRY(cuEventRecord, cuEventRecord, 2000),
      ENTRY(cuMemGetInfo, cuMemGetInfo_v2, 3020),
      ENTRY(cuMemAlloc, cuMemAlloc_v2, 3020),
      ENTRY(cuMemHostRegister, cuMemHostRegister_v2, 6050),
      ENTRY(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020),
      ENTRY(cuMemsetD8Async, cuMemsetD8Async, 3020),
      ENTRY(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020),
      ENTRY(cuModuleLoadData, cuModuleLoadData, 2000),
      ENTRY(cuModuleGetFunction, cuModuleGetFunction, 2000),
      ENTRY(cuLaunchKernel, cuLaunchKernel, 4000),
  };
#undef ENTRY
  Lock lock(world().mutex);
  world().symbols.push_back(symbol);
  const auto found = kEntries.find(symbol);
  const bool has = found != kEntries.end() && world().faults.missing != symbol && flags == 1 &&
                   version >= found->second.since && world().faults.version >= found->second.since;
  *status = has ? 0 : 1;
  *address = has ? found->second.address : nullptr;
  return has ? kSuccess : kNotFound;
}
