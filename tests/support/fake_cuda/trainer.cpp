// What only a trainer calls, so that a program for a real device can be tried on this one
// (tests/support/live_device.h).
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include "tests/support/fake_cuda/checks.h"
#include "tests/support/fake_cuda/entry_points.h"

using namespace fake_cuda;

FAKE_ENTRY cuInit(unsigned) {
  start(Run::kByThreads);
  context_stack().clear();
  return kSuccess;
}

FAKE_ENTRY cuDeviceGet(int* device, int number) {
  *device = number;
  return number == 0 ? kSuccess : kInvalidValue;
}

FAKE_ENTRY cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<size_t>(bytes), "a device of the host");
  return kSuccess;
}

FAKE_ENTRY cuCtxSetCurrent(void* context) {
  Lock lock(world().mutex);
  context_stack().assign(1, static_cast<Context*>(context));
  return kSuccess;
}

FAKE_ENTRY cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  Lock lock(world().mutex);
  if (!is_on_device(to, bytes)) return kInvalidValue;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}

FAKE_ENTRY cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  rest();
  Lock lock(world().mutex);
  if (!is_on_device(from, bytes)) return kInvalidValue;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}

FAKE_ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Lock lock(world().mutex);
  if (!is_on_device(from, bytes) || !is_on_device(to, bytes)) return kInvalidValue;
  push(stream_of(stream),
       {[=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); },
        nullptr});
  return kSuccess;
}

FAKE_ENTRY cuMemFree_v2(uint64_t address) {
  rest();
  Lock lock(world().mutex);
  if (world().memory.erase(address) == 0) return kInvalidValue;
  ::operator delete (reinterpret_cast<void*>(address), std::align_val_t{256});
  return kSuccess;
}

FAKE_ENTRY cuStreamCreate(void** stream, unsigned) {
  Lock lock(world().mutex);
  *stream = add_stream(current());
  return kSuccess;
}

FAKE_ENTRY cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t least, unsigned) {
  Lock lock(world().mutex);
  const uint64_t host = address - kHostOffset;
  if (!is_inside(world().pinned, host, sizeof least)) return kInvalidValue;
  push(stream_of(stream), {[host, least] {
                             const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(host));
                             while (word.load(std::memory_order_acquire) < least) std::this_thread::yield();
                           },
                           nullptr});
  return kSuccess;
}

// Only what was given to this stream, and what that waits for.
FAKE_ENTRY cuStreamSynchronize(void* stream) {
  Lock lock(world().mutex);
  Stream* of = stream_of(stream);
  if (of->is_capturing) return kCaptureUnsupported;
  world().changed.wait(lock, [of] { return of->queue.empty() && !of->is_busy; });
  return kSuccess;
}

FAKE_ENTRY cuEventSynchronize(void* event) {
  Lock lock(world().mutex);
  const auto record = static_cast<Event*>(event)->record;
  world().changed.wait(lock, [record] { return *record; });
  return kSuccess;
}

// No figure of this device is one.
FAKE_ENTRY cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return kSuccess;
}

FAKE_ENTRY cuEventDestroy_v2(void*) { return kSuccess; }

FAKE_ENTRY cuStreamBeginCapture_v2(void* stream, int) {
  begin_capture(stream);
  return kSuccess;
}

FAKE_ENTRY cuStreamEndCapture(void* stream, void** graph) {
  end_capture(stream);
  *graph = stream;
  return kSuccess;
}

FAKE_ENTRY cuCtxSynchronize() {
  Lock lock(world().mutex);
  const bool is_spoilt = any_capture();
  lock.unlock();
  if (is_spoilt) return kCaptureUnsupported;
  rest();
  return kSuccess;
}
