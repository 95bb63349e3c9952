#include "libmonitor/device_sampler.h"

#include "libmonitor/library_path.h"

namespace foreshock {
namespace {

bool is_default_stream(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) < cuda::kFirstStreamHandle;
}

cuda::Stream handle_of(const DeviceStream& stream) { return static_cast<cuda::Stream>(stream.handle); }

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
    device.weights.forget();
    device.gradients.forget();
    device.index.store(-1, std::memory_order_relaxed);
    for (auto& wanted : device.wanted) wanted.store(kNothing, std::memory_order_relaxed);
    device.busy.clear();
  }
}

// -- within a sampled call --

// Returns the primary context if the trainer has created it. Retaining and releasing it leaves its reference
// count unchanged.
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

// Whether cuStreamGetCtx may be called for the stream: `may_be_captured` before the check for a capture, else
// after it. Drivers before kContextOfCapture must not get the call for a captured stream, and checking for a
// capture already needs the context (NVIDIA's cuda.core has the same rule).
bool DeviceSampler::may_query_context(const DeviceStream& stream, bool may_be_captured) const {
  return !is_default_stream(stream.handle) &&
         (driver_.version() >= cuda::kContextOfCapture) == may_be_captured;
}

// Returns the context of the stream, or null. It need not be the current one, because a hook is called before
// the framework has switched to the device of the tensors. If the stream cannot be queried yet, this is the
// context of the device's default stream; claim() checks it later.
cuda::Context DeviceSampler::context_of(const DeviceStream& stream, cuda::Context current) const {
  cuda::Context context = nullptr;
  if (may_query_context(stream, true))
    return ok(driver_.stream_get_ctx(handle_of(stream), &context)) ? context : nullptr;
  cuda::Device device = -1;
  if (current != nullptr && ok(driver_.ctx_get_device(&device)) && device == stream.device_index)
    return current;
  return primary_context(stream.device_index);
}

int DeviceSampler::enter(const DeviceStream& stream, Purpose purpose, DeviceTurn* turn) {
  if (stream.handle == nullptr || stream.device_index < 0 || driver_.failure() != nullptr)
    return FORESHOCK_SKIP_DEVICE;
  if (!driver_.is_open()) return request_set_up(place_of(stream.device_index), purpose, kAnyContext);
  cuda::Context current = nullptr;
  if (!ok(driver_.ctx_get_current(&current))) return FORESHOCK_SKIP_DEVICE;
  const cuda::Context context = context_of(stream, current);
  if (context == nullptr) return FORESHOCK_SKIP_DEVICE;
  if (context != current) {
    if (!ok(driver_.ctx_push_current(context))) return FORESHOCK_SKIP_DEVICE;
    turn->driver_ = &driver_;
  }
  return claim(stream, context, turn);
}

int DeviceSampler::begin(const ValidatedCall& call, DeviceTurn* turn) {
  const int why = enter({call.device_index, call.stream}, kCalls, turn);
  return why >= 0 ? why : check(turn->state(), kCalls, *turn);
}

int DeviceSampler::begin_weights(const DeviceStream& stream, DeviceTurn* turn, int* place) {
  const int why = enter(stream, kWeights, turn);
  if (why >= 0) return why;
  *place = turn->place_;
  return check(turn->weights(), kWeights, *turn);
}

// Returns the index of the device in devices_, adding it if it is new. Returns -1 if all entries are used by
// other devices.
int DeviceSampler::place_of(int32_t device) {
  for (int32_t place = 0; place < kMostDevices; ++place) {
    int32_t owner = -1;
    if (devices_[place].index.compare_exchange_strong(owner, device, std::memory_order_acq_rel) ||
        owner == device)
      return place;
  }
  return -1;
}

// Requests a set-up at the end of the step. Until then samples are skipped.
int DeviceSampler::request_set_up(int place, Purpose purpose, uint64_t context_id) {
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  devices_[place].wanted[purpose].store(context_id, std::memory_order_relaxed);
  // The sums of gradients are read back like scalars, which need the set-up for calls.
  if (purpose == kGradients && context_id == kAnyContext)
    devices_[place].wanted[kCalls].store(context_id, std::memory_order_relaxed);
  has_wanted_.store(true, std::memory_order_release);
  return FORESHOCK_SKIP_SET_UP;
}

int DeviceSampler::claim(const DeviceStream& stream, cuda::Context context, DeviceTurn* turn) {
  // Must come first: the calls below would invalidate the capture.
  int capturing = cuda::kNotCapturing;
  const cuda::Result result = driver_.stream_is_capturing(handle_of(stream), &capturing);
  if (result == cuda::kCaptureImplicit || (ok(result) && capturing != cuda::kNotCapturing))
    return FORESHOCK_SKIP_CAPTURE;
  if (!ok(result)) return FORESHOCK_SKIP_DEVICE;
  cuda::Context its = context;
  if (may_query_context(stream, false) &&
      (!ok(driver_.stream_get_ctx(handle_of(stream), &its)) || its != context))
    return FORESHOCK_SKIP_DEVICE;
  cuda::Device device = -1;
  unsigned long long id = 0;
  if (!ok(driver_.ctx_get_device(&device)) || device != stream.device_index ||
      !ok(driver_.ctx_get_id(context, &id)))
    return FORESHOCK_SKIP_DEVICE;

  const int place = place_of(device);
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  Device& mine = devices_[place];
  if (mine.busy.test_and_set(std::memory_order_acquire)) return FORESHOCK_SKIP_RING_FULL;
  turn->device_ = &mine;
  turn->place_ = place;
  turn->context_id_ = id;
  return -1;
}

// Requests a set-up if the context is a new one, i.e. the device was reset. The objects in the old context
// are destroyed, and their handles must not be used.
int DeviceSampler::check_context(const PerContext& setting, Purpose purpose, const DeviceTurn& turn) {
  if (setting.is_refused(turn.context_id_)) return FORESHOCK_SKIP_DEVICE;
  return setting.is_of(turn.context_id_) ? -1 : request_set_up(turn.place_, purpose, turn.context_id_);
}

template <class State>
int DeviceSampler::check(State& state, Purpose purpose, const DeviceTurn& turn) {
  if (const int why = check_context(state, purpose, turn); why >= 0) return why;
  if (state.failed() >= 0) return state.failed();
  return state.is_ready() ? -1 : FORESHOCK_SKIP_SET_UP;
}

int DeviceSampler::send_scalars(const DeviceStream& stream, const foreshock_tensor* values, size_t count,
                                uint64_t* numbers) {
  DeviceTurn turn;
  if (const int why = enter(stream, kCalls, &turn); why >= 0) return why;
  if (const int why = check_context(turn.state(), kCalls, turn); why >= 0) return why;
  ScalarReadback& scalars = turn.state().scalars();
  const uint64_t first = scalars.send(values, count, handle_of(stream));
  if (first == 0) return scalars.is_usable() ? FORESHOCK_SKIP_RING_FULL : FORESHOCK_SKIP_DEVICE;
  for (size_t n = 0; n < count; ++n) numbers[n] = (first + n) * kPlaces + static_cast<uint64_t>(turn.place_);
  return -1;
}

bool DeviceSampler::find_scalar(uint64_t number, double* value) const {
  const uint64_t place = number % kPlaces;
  return place < kMostDevices && devices_[place].state.scalars().find(number / kPlaces, value);
}

int DeviceSampler::send_gradients(const DeviceStream& stream, const foreshock_gradient* gradients,
                                  size_t count, SentGradients* sent) {
  DeviceTurn turn;
  if (const int why = enter(stream, kGradients, &turn); why >= 0) return why;
  // Both set-ups are requested at once, because the sums are read back like scalars.
  const int not_there = check(turn.gradients(), kGradients, turn);
  if (const int why = check_context(turn.state(), kCalls, turn); why >= 0) return why;
  if (not_there >= 0) return not_there;
  ScalarReadback& scalars = turn.state().scalars();
  const int why = turn.gradients().send(gradients, count, handle_of(stream), &scalars, sent);
  if (why >= 0) return why;
  for (uint64_t* number : {&sent->begin, &sent->end, &sent->first})
    *number = *number * kPlaces + static_cast<uint64_t>(turn.place_);
  sent->stride = kPlaces;
  return -1;
}

// -- between two steps --

// Returns a context of the device whose handle is valid now: the current one of this thread, or the primary
// one. A handle that an earlier call saw may be stale, and using a stale handle is undefined.
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

void DeviceSampler::set_up(int place, Purpose purpose, uint64_t wanted) {
  Device& device = devices_[place];
  const cuda::Device index = device.index.load(std::memory_order_relaxed);
  cuda::Context current = nullptr, ours = nullptr;
  uint64_t id = 0;
  if (!ok(driver_.ctx_get_current(&current))) return;
  const cuda::Context context = find_context(index, wanted, current, &id);
  if (context == nullptr) {
    if (wanted == kAnyContext) return;  // the next call requests a specific context
    if (purpose == kCalls) return device.state.refuse(wanted);
    return purpose == kWeights ? device.weights.refuse(wanted) : device.gradients.refuse(wanted);
  }
  if (context != current && !ok(driver_.ctx_push_current(context))) return;
  if (purpose == kCalls)
    device.state.set_up({&driver_, writer_, code_.code()}, place, id);
  else if (purpose == kWeights)
    device.weights.set_up(driver_, code_.code(), id);
  else
    device.gradients.set_up(driver_, code_.code(), id);
  if (context != current) driver_.ctx_pop_current(&ours);
}

void DeviceSampler::set_up_wanted() {
  if (!has_wanted_.exchange(false, std::memory_order_acquire)) return;
  const DeviceCodeSeal seal = device_code_seal();
  if (!driver_.open(library_, cuda::oldest_driver_for(seal.toolkit))) return;
  char path[512];
  if (path_beside_library(kDeviceCodeFile, path, sizeof path)) code_.read(path, seal);
  for (int place = 0; place < kMostDevices; ++place) {
    for (const Purpose purpose : {kCalls, kWeights, kGradients}) {
      std::atomic<uint64_t>& wanted = devices_[place].wanted[purpose];
      if (wanted.load(std::memory_order_relaxed) == kNothing) continue;
      TryLock lock(devices_[place].busy);
      if (!lock)
        has_wanted_.store(true, std::memory_order_relaxed);  // try again at the next step
      else
        set_up(place, purpose, wanted.exchange(kNothing, std::memory_order_relaxed));
    }
  }
}

CopyTiming::Spent DeviceSampler::take_spent() {
  CopyTiming::Spent all;
  for (Device& device : devices_) {
    if (device.index.load(std::memory_order_acquire) < 0) break;  // entries are used in order
    TryLock lock(device.busy);
    if (!lock) continue;  // try again at the next step
    const CopyTiming::Spent spent = device.state.take_spent();
    all.ns += spent.ns;
    all.slices += spent.slices;
  }
  return all;
}

}  // namespace foreshock
