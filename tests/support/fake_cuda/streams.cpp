// Streams and events.
#include <atomic>

#include "tests/support/fake_cuda/checks.h"
#include "tests/support/fake_cuda/entry_points.h"

using namespace fake_cuda;

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
  if (stream != nullptr && stream->is_capturing && world().faults.version < 12050) {
    violation("cuStreamGetCtx of a stream that is being captured, before 12.5: it ends the capture");
    return kCaptureUnsupported;
  }
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
