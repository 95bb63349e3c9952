#include "libmonitor/device_sampler.h"

#include "libmonitor/try_lock.h"

namespace foreshock {
namespace {

bool ok(cuda::Result result) { return result == cuda::kSuccess; }

bool is_default_stream(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) < cuda::kFirstStreamHandle;
}

cuda::Stream stream_of(const CheckedCall& call) { return static_cast<cuda::Stream>(call.stream); }

}  // namespace

DeviceTurn::~DeviceTurn() {
  if (device_ != nullptr) device_->busy.clear(std::memory_order_release);
  cuda::Context ours = nullptr;
  if (driver_ != nullptr) driver_->ctx_pop_current(&ours);
}

void DeviceSampler::attach(const segment::SegmentWriter* writer, std::span<const std::byte> code,
                           const char* library) {
  writer_ = writer;
  code_ = code;
  library_ = library;
  for (Device& device : devices_) {
    device.state.forget();
    device.index.store(-1, std::memory_order_relaxed);
    device.busy.clear();
  }
}

// The context that the call's stream belongs to, or null. A hook is called before the framework has switched
// to the device of the tensors, so it need not be the current one.
cuda::Context DeviceSampler::context_of(const CheckedCall& call, cuda::Context current) const {
  cuda::Context context = nullptr;
  if (!is_default_stream(call.stream))
    return ok(driver_.stream_get_ctx(stream_of(call), &context)) ? context : nullptr;
  cuda::Device device = -1;
  if (current != nullptr && ok(driver_.ctx_get_device(&device)) && device == call.device_index)
    return current;
  // Its owner has it: asked for and given back, the count of its users is what it was.
  unsigned flags = 0;
  int is_active = 0;
  device = call.device_index;
  if (!ok(driver_.device_primary_ctx_get_state(device, &flags, &is_active)) || is_active == 0 ||
      !ok(driver_.device_primary_ctx_retain(&context, device)))
    return nullptr;
  driver_.device_primary_ctx_release(device);
  return context;
}

int DeviceSampler::begin(const CheckedCall& call, DeviceTurn* turn) {
  if (call.stream == nullptr || call.device_index < 0 || !driver_.open(library_))
    return FORESHOCK_SKIP_DEVICE;
  cuda::Context current = nullptr;
  if (!ok(driver_.ctx_get_current(&current))) return FORESHOCK_SKIP_DEVICE;
  const cuda::Context context = context_of(call, current);
  if (context == nullptr) return FORESHOCK_SKIP_DEVICE;
  if (context != current) {
    if (!ok(driver_.ctx_push_current(context))) return FORESHOCK_SKIP_DEVICE;
    turn->driver_ = &driver_;
  }
  return take(call, context, turn);
}

// Where what is had on a device stands, or -1: all places are taken by others.
int DeviceSampler::place_of(int32_t device) {
  for (int32_t place = 0; place < kMostDevices; ++place) {
    int32_t owner = -1;
    if (devices_[place].index.compare_exchange_strong(owner, device, std::memory_order_acq_rel) ||
        owner == device)
      return place;
  }
  return -1;
}

int DeviceSampler::take(const CheckedCall& call, cuda::Context context, DeviceTurn* turn) {
  // Before anything else is asked: a stream that is being captured would take it down.
  int capturing = cuda::kNotCapturing;
  const cuda::Result result = driver_.stream_is_capturing(stream_of(call), &capturing);
  if (result == cuda::kCaptureImplicit || (ok(result) && capturing != cuda::kNotCapturing))
    return FORESHOCK_SKIP_CAPTURE;
  cuda::Device device = -1;
  unsigned long long id = 0;
  if (!ok(result) || !ok(driver_.ctx_get_device(&device)) || device != call.device_index ||
      !ok(driver_.ctx_get_id(context, &id)))
    return FORESHOCK_SKIP_DEVICE;

  const int place = place_of(device);
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  Device& mine = devices_[place];
  if (mine.busy.test_and_set(std::memory_order_acquire)) return FORESHOCK_SKIP_RING_FULL;
  turn->device_ = &mine;
  DeviceState& state = mine.state;
  // Another context than before: a device that was reset. What was had in the old one went with it, and its
  // handles must not be touched.
  if (!state.is_of(id)) state.set_up({&driver_, writer_, code_}, place, id);
  if (state.failed() >= 0) return state.failed();
  return state.is_ready() ? -1 : FORESHOCK_SKIP_RING_FULL;
}

}  // namespace foreshock
