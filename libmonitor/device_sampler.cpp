#include "libmonitor/device_sampler.h"

#include "libmonitor/library_place.h"
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

void DeviceSampler::attach(const segment::SegmentWriter* writer, const char* library) {
  writer_ = writer;
  library_ = library;
  has_wanted_.store(false, std::memory_order_relaxed);
  for (Device& device : devices_) {
    device.state.forget();
    device.index.store(-1, std::memory_order_relaxed);
    device.wanted.store(kNothing, std::memory_order_relaxed);
    device.busy.clear();
  }
}

// -- in a sampled call --

// Its owner has it: asked for and given back, the count of its users is what it was.
cuda::Context DeviceSampler::primary_context(cuda::Device device) const {
  cuda::Context context = nullptr;
  unsigned flags = 0;
  int is_active = 0;
  if (!ok(driver_.device_primary_ctx_get_state(device, &flags, &is_active)) || is_active == 0 ||
      !ok(driver_.device_primary_ctx_retain(&context, device)))
    return nullptr;
  driver_.device_primary_ctx_release(device);
  return context;
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
  return primary_context(call.device_index);
}

int DeviceSampler::begin(const CheckedCall& call, DeviceTurn* turn) {
  if (call.stream == nullptr || call.device_index < 0 || driver_.failure() != nullptr)
    return FORESHOCK_SKIP_DEVICE;
  if (!driver_.is_open()) return want(place_of(call.device_index), kAnyContext);
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

// For the end of the step. Until then nothing is there to be written into.
int DeviceSampler::want(int place, uint64_t context_id) {
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  devices_[place].wanted.store(context_id, std::memory_order_relaxed);
  has_wanted_.store(true, std::memory_order_release);
  return FORESHOCK_SKIP_RING_FULL;
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
  if (!state.is_of(id)) return want(place, id);
  if (state.failed() >= 0) return state.failed();
  return state.is_ready() ? -1 : FORESHOCK_SKIP_RING_FULL;
}

// -- between two steps --

// A context of the device whose handle is good now: the one that is current in this thread, or the primary
// one. The handle that a call met may be stale, and asking about a stale one is undefined.
cuda::Context DeviceSampler::find_context(cuda::Device device, uint64_t wanted, cuda::Context current,
                                          uint64_t* id) const {
  const auto is_wanted = [&](cuda::Context context) {
    unsigned long long its = 0;
    if (context == nullptr || !ok(driver_.ctx_get_id(context, &its))) return false;
    *id = its;
    return wanted == kAnyContext || wanted == its;
  };
  cuda::Device of_current = -1;
  if (current != nullptr && ok(driver_.ctx_get_device(&of_current)) && of_current == device &&
      is_wanted(current))
    return current;
  const cuda::Context primary = primary_context(device);
  return is_wanted(primary) ? primary : nullptr;
}

void DeviceSampler::set_up(int place, uint64_t wanted) {
  DeviceState& state = devices_[place].state;
  const cuda::Device device = devices_[place].index.load(std::memory_order_relaxed);
  cuda::Context current = nullptr, ours = nullptr;
  uint64_t id = 0;
  if (!ok(driver_.ctx_get_current(&current))) return;
  const cuda::Context context = find_context(device, wanted, current, &id);
  if (context == nullptr) {
    if (wanted != kAnyContext) state.refuse(wanted);  // else the next call tells which it wants
    return;
  }
  if (context != current && !ok(driver_.ctx_push_current(context))) return;
  state.set_up({&driver_, writer_, code_.code()}, place, id);
  if (context != current) driver_.ctx_pop_current(&ours);
}

void DeviceSampler::set_up_wanted() {
  if (!has_wanted_.exchange(false, std::memory_order_acquire)) return;
  const DeviceCodeSeal seal = device_code_seal();
  if (!driver_.open(library_, cuda::oldest_driver_for(seal.toolkit))) return;
  char path[512];
  if (path_beside_library(kDeviceCodeFile, path, sizeof path)) code_.read(path, seal);
  for (int place = 0; place < kMostDevices; ++place) {
    Device& device = devices_[place];
    if (device.wanted.load(std::memory_order_relaxed) == kNothing) continue;
    TryLock lock(device.busy);
    if (!lock)
      has_wanted_.store(true, std::memory_order_relaxed);  // at the next step
    else
      set_up(place, device.wanted.exchange(kNothing, std::memory_order_relaxed));
  }
}

GatherTimes::Spent DeviceSampler::take_spent() {
  GatherTimes::Spent all;
  for (Device& device : devices_) {
    if (device.index.load(std::memory_order_acquire) < 0) break;  // places are taken in order
    TryLock lock(device.busy);
    if (!lock) continue;  // at the next step
    const GatherTimes::Spent spent = device.state.take_spent();
    all.ns += spent.ns;
    all.slices += spent.slices;
  }
  return all;
}

}  // namespace foreshock
