// DeviceState sends slices (parts of attention calls) to slots of the segment, the memory shared with the
// agent. Gather kernels copy the trainer's rows into a ring of device memory, whose parts (one for each slot)
// are then copied to the slots. The sequence word of a full slot with ticket t is 2t. DeviceSampler finds the
// device of a stream, for slices, scalars, gradients and weights. It skips samples while the stream is being
// captured into a CUDA graph, and until the device is set up. The functions that return an int, except
// place_of(), return -1 for success, else the FORESHOCK_SKIP_ reason, which is 0 or more.
#include "libmonitor/device_sampler.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "kernels/device_code.h"

namespace foreshock {

void CopyTiming::expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts) {
  if (count_ + parts > segment::kMaxSlots) collect();
  for (uint32_t part = 0; part < parts && count_ < segment::kMaxSlots; ++part)
    expected_[count_++] = {slots[part], 2 * (ticket + part), part == 0};
}

void CopyTiming::collect() {
  uint32_t kept = 0;
  bool is_pending = false;  // the slice of the current slot has not arrived
  for (uint32_t n = 0; n < count_; ++n) {
    const Expected& expected = expected_[n];
    const auto sequence = segment::word(expected.slot->sequence);
    const uint64_t sequence_before = sequence.load(std::memory_order_acquire);
    // The first slot of a slice is published last, so it decides for all slots of the slice.
    if (expected.is_first) is_pending = sequence_before < expected.sequence;
    if (is_pending) {
      expected_[kept++] = expected;
      continue;
    }
    const uint64_t begin = segment::word(expected.slot->device_begin_ns).load(std::memory_order_relaxed);
    const uint64_t end = segment::word(expected.slot->device_end_ns).load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);  // the times are read before the sequence is checked
    const bool is_same_slice = sequence.load(std::memory_order_relaxed) == expected.sequence && begin <= end;
    if (is_same_slice) last_ns_ = end - begin;
    // If another slice has reused the slot, or `begin` is after `end`, last_ns_ is the previous time, as an
    // estimate.
    spent_.ns += last_ns_;
    spent_.slices += expected.is_first;
  }
  count_ = kept;
}

CopyTiming::Spent CopyTiming::take() {
  collect();
  return std::exchange(spent_, {});
}

namespace {

constexpr uint64_t round_up(uint64_t value) {
  return (value + StagingRing::kAlign - 1) / StagingRing::kAlign * StagingRing::kAlign;
}

// Bytes before the payloads of a part in the ring. kTimesBytes: for the begin and end times of its gather (16
// bytes, padded). kTimesAndSequenceBytes: for a packed batch, also for the GatheredSequence, at
// kSequenceOffset. It describes the sequence that the kernel chose, since only the device has the sequences'
// lengths.
constexpr uint64_t kTimesBytes = 64, kSequenceOffset = 64, kTimesAndSequenceBytes = 192;
static_assert(kSequenceOffset + sizeof(GatheredSequence) <= kTimesAndSequenceBytes);
// In a slot the payloads follow the header, in the ring they follow these bytes. The header must be at least
// as large, so that a part takes no more space in the ring than in its slot.
static_assert(kTimesAndSequenceBytes <= sizeof(segment::Slot));
static_assert(sizeof(GatheredSequence) == sizeof(segment::SequenceTold) &&
              offsetof(GatheredSequence, position) == offsetof(segment::SequenceTold, position));

constexpr uint64_t before_payloads(const segment::Slot& slot) {
  return slot.packed == segment::kNotPacked ? kTimesBytes : kTimesAndSequenceBytes;
}

// Bytes before the ring: a GatherClock for each slice, scratch memory in which gather kernels measure times.
constexpr uint64_t kClocksBytes = round_up(StagingRing::kMostSlices * sizeof(GatherClock));

uint64_t bytes_of_part(const segment::Slot& slot) {
  const PayloadRange range = payloads_of(slot);
  return round_up(before_payloads(slot) + range.end - range.begin);
}

}  // namespace

void DeviceState::set_up(const DeviceSetting& setting, int32_t index, uint64_t context_id) {
  set_up_in(context_id, [&] {
    setting_ = setting;
    index_ = index;
    scalars_.disable();  // until try_set_up() has set them up in this context
    return try_set_up();
  });
}

cuda::Address DeviceState::progress_on_device() const {
  return progress_ + offsetof(segment::Progress, by_device) + sizeof(uint64_t) * static_cast<size_t>(index_);
}

// Makes two regions of the file, the progress words and the slots, accessible to the device. Each begins on a
// page of its own. Memory that another device has pinned is pinned for this device too. A pinned page stays
// where it is when the file is truncated, so the device always has it. Of a file that was truncated before,
// pages cannot be pinned, and the driver says so.
bool DeviceState::pin_segment() {
  const DriverApi& driver = *setting_.driver;
  const segment::SegmentWriter& writer = *setting_.writer;
  const auto pin = [&](const void* in_image, uint64_t bytes, cuda::Address* address) {
    void* begin = writer.device_memory(in_image);
    const cuda::Result result =
        driver.mem_host_register(begin, bytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
    return (ok(result) || result == cuda::kAlreadyRegistered) &&
           ok(driver.mem_host_get_device_pointer(address, begin, 0));
  };
  return writer.map_for_devices() && pin(writer.progress(), sizeof(segment::Progress), &progress_) &&
         pin(writer.slot_region(), writer.slot_region_bytes(), &slots_);
}

int DeviceState::try_set_up() {
  const DriverApi& driver = *setting_.driver;
  const CaptureGuard relaxed(driver);
  cuda::Device device = 0;
  int can_write = 0;
  if (!relaxed || setting_.code.empty() || !ok(driver.ctx_get_device(&device)) ||
      !ok(driver.device_get_attribute(&can_write, cuda::kCanWriteFromStream, device)) || can_write != 1)
    return FORESHOCK_SKIP_DEVICE;

  cuda::Module module = nullptr;
  if (!ok(driver.module_load_data(&module, setting_.code.data()))) return FORESHOCK_SKIP_DEVICE;
  scalars_.set_up(driver, module);  // before memory for slices is requested: losses are read back without it

  size_t free = 0, total = 0;
  if (!ok(driver.mem_get_info(&free, &total))) return FORESHOCK_SKIP_DEVICE;
  const uint64_t wanted = setting_.writer->slots() * round_up(kTimesBytes + setting_.writer->slot_bytes());
  const uint64_t available =
      std::min<uint64_t>(free / kShareOfFree, kMostRingBytes) / StagingRing::kAlign * StagingRing::kAlign;
  if (available < kClocksBytes + kLeastRingBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  const uint64_t bytes = std::min(wanted, available - kClocksBytes);

  int lowest = 0, highest = 0;  // priorities of streams; this object's stream has the lowest
  if (!driver.find_kernel(module, name_of(DeviceKernel::kGather), &gather_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kPackedGather), &packed_gather_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kKeyGather), &key_gather_) ||
      !ok(driver.ctx_get_stream_priority_range(&lowest, &highest)) ||
      !ok(driver.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, lowest)) ||
      !ok(driver.event_create(&event_, cuda::kEventDisableTiming)))
    return FORESHOCK_SKIP_DEVICE;
  // The memory is allocated after everything that may fail on a sound device, so that no memory is lost.
  if (!pin_segment() || !ok(driver.mem_alloc(&clocks_, kClocksBytes + bytes)))
    return FORESHOCK_SKIP_DEVICE_MEMORY;
  memory_ = clocks_ + kClocksBytes;
  ring_.reset(bytes);
  if (!ok(driver.memset_d8_async(clocks_, 0, kClocksBytes, stream_)) ||
      !ok(driver.stream_write_value_64(stream_, progress_on_device(), marker(), 0)))  // is_ready() reads it
    return FORESHOCK_SKIP_DEVICE;
  return -1;
}

bool DeviceState::is_ready() {
  return has_written_marker([this] {
    setting_.writer->read_back_progress();
    return segment::word(setting_.writer->progress()->by_device[index_]).load(std::memory_order_acquire);
  });
}

// Copies what the device has stored for slices that were on their way from the file into the image.
void DeviceState::read_back() {
  times_.for_each_slot([this](segment::Slot* slot) { setting_.writer->read_back(slot); });
}

CopyTiming::Spent DeviceState::take_spent() {
  if (setting_.writer != nullptr) read_back();
  return times_.take();
}

// A part takes no more bytes of the ring than of its slot (see kTimesAndSequenceBytes), except that its bytes
// in the ring are rounded up to a multiple of kAlign.
uint64_t DeviceState::capacity() const {
  return std::min(setting_.writer->slot_bytes(), ring_.bytes() - StagingRing::kAlign);
}

// All parts of a slice are in the ring at once. A part takes at most round_up(capacity()) bytes of it; kAlign
// is a margin.
uint32_t DeviceState::most_parts() const {
  const uint64_t parts = ring_.bytes() / (round_up(capacity()) + StagingRing::kAlign);
  return static_cast<uint32_t>(std::clamp<uint64_t>(parts, 1, setting_.writer->slots()));
}

// Launches the gathers of a slice, and makes this object's stream wait for them.
bool DeviceState::gather(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
                         cuda::Stream stream) {
  const DriverApi& driver = *setting_.driver;
  cuda::Address part_begin = memory_ + range_.offset;
  for (uint32_t part = 0; part < claimed.parts(); ++part) {
    const segment::Slot slot = claimed.header(part);
    const uint64_t payloads = part_begin + before_payloads(slot);
    const auto set_times = [&](GatherJob* job) {
      job->times = part_begin;
      job->clock = clocks_ + range_.number * sizeof(GatherClock);
    };
    if (slot.columns == 1) {  // a slice of key positions
      KeyGatherJob job = key_gather_for_slot(call, slice, slot, payloads);
      set_times(&job.gather);
      if (!driver.launch(key_gather_, launch_of(job), &job, stream)) return false;
    } else if (slot.packed == segment::kNotPacked) {
      GatherJob job = gather_for_slot(call, slice, slot, payloads);
      set_times(&job);
      if (!driver.launch(gather_, launch_of(job), &job, stream)) return false;
    } else {
      PackedGatherJob job = packed_gather_for_slot(call, slice, slot, payloads);
      set_times(&job.gather);
      job.gathered = part_begin + kSequenceOffset;
      if (!driver.launch(packed_gather_, launch_of(job), &job, stream)) return false;
    }
    part_begin += bytes_of_part(slot);
  }
  return ok(driver.event_record(event_, stream)) && ok(driver.stream_wait_event(stream_, event_, 0));
}

// Queues on this object's stream: the copies from the ring to the slots, then the writes of the slots'
// sequence words and of the device's progress word. Each slot also gets the times of its gather and, for a
// packed batch, the GatheredSequence.
bool DeviceState::copy_and_publish(const ClaimedSlice& claimed) {
  const DriverApi& driver = *setting_.driver;
  cuda::Address part_begin = memory_ + range_.offset;
  for (uint32_t part = 0; part < claimed.parts(); ++part) {
    char* slot = setting_.writer->device_memory(claimed.slots[part]);  // never touched by the host
    const segment::Slot header = claimed.header(part);
    const PayloadRange range = payloads_of(header);
    if (!ok(driver.memcpy_dtoh_async(slot + range.begin, part_begin + before_payloads(header),
                                     range.end - range.begin, stream_)) ||
        !ok(driver.memcpy_dtoh_async(slot + offsetof(segment::Slot, device_begin_ns), part_begin,
                                     2 * sizeof(uint64_t), stream_)) ||
        (header.packed != segment::kNotPacked &&
         !ok(driver.memcpy_dtoh_async(slot + offsetof(segment::Slot, told), part_begin + kSequenceOffset,
                                      sizeof header.told, stream_))))
      return false;
    part_begin += bytes_of_part(header);
  }
  static_assert(offsetof(segment::Slot, device_end_ns) == offsetof(segment::Slot, device_begin_ns) + 8);
  // The sequence words are written from the last part to the first: when a reader sees the first part, the
  // others are complete (the order of SegmentWriter::publish).
  for (uint32_t part = claimed.parts(); part-- > 0;) {
    const auto offset = reinterpret_cast<char*>(claimed.slots[part]) - setting_.writer->slot_region();
    if (!ok(driver.stream_write_value_64(stream_, slots_ + static_cast<uint64_t>(offset),
                                         2 * (claimed.ticket + part), 0)))
      return false;
  }
  return ok(driver.stream_write_value_64(stream_, progress_on_device(), claimed.ticket, 0));
}

int DeviceState::send(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
                      cuda::Stream stream) {
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < claimed.parts(); ++part) bytes += bytes_of_part(claimed.header(part));
  read_back();  // ring_ frees the memory of slices that have arrived
  if (!ring_.find(bytes, &range_)) return FORESHOCK_SKIP_RING_FULL;
  if (!gather(call, slice, claimed, stream)) return fail();
  setting_.writer->leave_to_device(claimed.slots, claimed.ticket, claimed.parts());
  // Returns -1 even if this fails. With a reason, the caller would give the slots back, but the device may
  // still write to them.
  if (!copy_and_publish(claimed)) fail();
  times_.expect(claimed.slots, claimed.ticket, claimed.parts());
  ring_.commit(&claimed.slots[0]->sequence, 2 * claimed.ticket);  // in use until the word reaches this value
  return -1;
}

namespace {

bool is_default_stream(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) < cuda::kFirstStreamHandle;
}

cuda::Stream handle_of(const DeviceStream& stream) { return static_cast<cuda::Stream>(stream.handle); }

}  // namespace

DeviceTurn::~DeviceTurn() {
  if (device_ != nullptr) device_->busy.clear(std::memory_order_release);
  cuda::Context popped = nullptr;
  if (driver_ != nullptr) driver_->ctx_pop_current(&popped);
}

void DeviceSampler::attach(const segment::SegmentWriter* writer, const char* library) {
  writer_ = writer;
  library_ = library;
  needs_set_up_.store(false, std::memory_order_relaxed);
  for (Device& device : devices_) {
    device.state.forget();
    device.weights.forget();
    device.gradients.forget();
    device.index.store(-1, std::memory_order_relaxed);
    for (auto& wanted : device.wanted) wanted.store(kNothing, std::memory_order_relaxed);
    device.busy.clear();
  }
}

// Returns the device's primary context if the trainer has created it, else null. Retaining and releasing it
// leaves its reference count unchanged.
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

// Whether cuStreamGetCtx is to be called now. `is_before_check`: the check for a capture still follows.
// From driver version kGetContextKeepsCapture on, the query comes before the check, which needs a current
// context. On older drivers the query comes after the check, because it would invalidate a capture. Default
// streams are never queried. NVIDIA's cuda.core has the same rule.
bool DeviceSampler::may_query_context(const DeviceStream& stream, bool is_before_check) const {
  if (is_default_stream(stream.handle)) return false;
  const bool keeps_capture = driver_.version() >= cuda::kGetContextKeepsCapture;
  return is_before_check ? keeps_capture : !keeps_capture;
}

// Returns the context of the stream, or null. It need not be the current one, because a hook is called before
// the framework has switched to the device of the tensors. If the stream cannot be queried
// (may_query_context), returns the current context if that is on the stream's device, else the device's
// primary context. claim() compares the result with the stream's context once the stream can be queried.
cuda::Context DeviceSampler::context_of(const DeviceStream& stream, cuda::Context current) const {
  cuda::Context context = nullptr;
  if (may_query_context(stream, true))
    return ok(driver_.stream_get_ctx(handle_of(stream), &context)) ? context : nullptr;
  cuda::Device device = -1;
  if (current != nullptr && ok(driver_.ctx_get_device(&device)) && device == stream.device_index)
    return current;
  return primary_context(stream.device_index);
}

// Makes the context of the stream current and claims the device for *turn. Returns -1 or the skip reason.
// Before the driver is open, no context can be found, so a set-up in kAnyContext is requested.
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

// Returns the place of the device in devices_, adding it if it is new (a free entry has index -1); -1: full.
int DeviceSampler::place_of(int32_t device) {
  for (int32_t place = 0; place < kMostDevices; ++place) {
    int32_t owner = -1;
    if (devices_[place].index.compare_exchange_strong(owner, device, std::memory_order_acq_rel) ||
        owner == device)
      return place;
  }
  return -1;
}

// Requests a set-up at the end of the step. Returns the reason with which samples are skipped until then.
int DeviceSampler::request_set_up(int place, Purpose purpose, uint64_t context_id) {
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  devices_[place].wanted[purpose].store(context_id, std::memory_order_relaxed);
  // The sums of gradients are read back like scalars, which need the set-up for calls. With a known context,
  // send_gradients() requests both.
  if (purpose == kGradients && context_id == kAnyContext)
    devices_[place].wanted[kCalls].store(context_id, std::memory_order_relaxed);
  needs_set_up_.store(true, std::memory_order_release);
  return FORESHOCK_SKIP_SET_UP;
}

// Claims the device for *turn, after the check for a capture. The context must be current.
int DeviceSampler::claim(const DeviceStream& stream, cuda::Context context, DeviceTurn* turn) {
  int capturing = cuda::kNotCapturing;  // checked first: the calls below would invalidate a capture
  const cuda::Result result = driver_.stream_is_capturing(handle_of(stream), &capturing);
  if (result == cuda::kCaptureImplicit || (ok(result) && capturing != cuda::kNotCapturing))
    return FORESHOCK_SKIP_CAPTURE;
  if (!ok(result)) return FORESHOCK_SKIP_DEVICE;
  cuda::Context of_stream = context;
  if (may_query_context(stream, false) &&
      (!ok(driver_.stream_get_ctx(handle_of(stream), &of_stream)) || of_stream != context))
    return FORESHOCK_SKIP_DEVICE;
  cuda::Device device = -1;
  unsigned long long id = 0;
  if (!ok(driver_.ctx_get_device(&device)) || device != stream.device_index ||
      !ok(driver_.ctx_get_id(context, &id)))
    return FORESHOCK_SKIP_DEVICE;

  const int place = place_of(device);
  if (place < 0) return FORESHOCK_SKIP_DEVICE;
  Device& claimed = devices_[place];
  // If another thread uses the device, the sample is skipped for the same reason as without a free slot.
  if (claimed.busy.test_and_set(std::memory_order_acquire)) return FORESHOCK_SKIP_RING_FULL;
  turn->device_ = &claimed;
  turn->place_ = place;
  turn->context_id_ = id;
  return -1;
}

// Returns -1 if the object was set up in this context, FORESHOCK_SKIP_DEVICE if the context is refused. Else
// requests a set-up: the context is the first one, or a new one because the device was reset. In a new
// context, handles of the old context are invalid.
int DeviceSampler::check_context(const PerContext& object, Purpose purpose, const DeviceTurn& turn) {
  if (object.is_refused(turn.context_id_)) return FORESHOCK_SKIP_DEVICE;
  return object.was_set_up_in(turn.context_id_) ? -1 : request_set_up(turn.place_, purpose, turn.context_id_);
}

template <class State>
int DeviceSampler::check(State& state, Purpose purpose, const DeviceTurn& turn) {
  if (const int why = check_context(state, purpose, turn); why >= 0) return why;
  if (state.skip_reason() >= 0) return state.skip_reason();
  return state.is_ready() ? -1 : FORESHOCK_SKIP_SET_UP;
}

int DeviceSampler::send_scalars(const DeviceStream& stream, const foreshock_tensor* values, size_t count,
                                uint64_t* numbers) {
  DeviceTurn turn;
  if (const int why = enter(stream, kCalls, &turn); why >= 0) return why;
  // Not check(): values can be sent even if the state has no memory for slices.
  if (const int why = check_context(turn.state(), kCalls, turn); why >= 0) return why;
  ScalarReadback& scalars = turn.state().scalars();
  const uint64_t first = scalars.send(values, count, handle_of(stream));
  if (first == 0) return scalars.is_usable() ? FORESHOCK_SKIP_RING_FULL : FORESHOCK_SKIP_DEVICE;
  // The remainder of a number modulo kPlaces is the device's place, from which find_scalar() reads the value.
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
  // Both checks come before a return, to request both set-ups at once: the sums are read back like scalars.
  const int why_not_sums = check(turn.gradients(), kGradients, turn);
  if (const int why = check_context(turn.state(), kCalls, turn); why >= 0) return why;
  if (why_not_sums >= 0) return why_not_sums;
  ScalarReadback& scalars = turn.state().scalars();
  const int why = turn.gradients().send(gradients, count, handle_of(stream), &scalars, sent);
  if (why >= 0) return why;
  for (uint64_t* number : {&sent->begin, &sent->end, &sent->first})
    *number = *number * kPlaces + static_cast<uint64_t>(turn.place_);
  sent->stride = kPlaces;
  return -1;
}

// Returns a context of the device whose handle is valid now: the current one of this thread or the primary
// one. Null if neither is the wanted context. Handles from earlier calls may be stale, so they are not used.
cuda::Context DeviceSampler::find_context(cuda::Device device, uint64_t wanted, cuda::Context current,
                                          uint64_t* id) const {
  const auto is_wanted = [&](cuda::Context context) {
    unsigned long long found = 0;
    if (context == nullptr || !ok(driver_.ctx_get_id(context, &found))) return false;
    *id = found;
    return wanted == kAnyContext || wanted == found;
  };
  cuda::Device current_device = -1;
  if (current != nullptr && ok(driver_.ctx_get_device(&current_device)) && current_device == device &&
      is_wanted(current))
    return current;
  const cuda::Context primary = primary_context(device);
  return is_wanted(primary) ? primary : nullptr;
}

// Sets up the device's object for `purpose` (slices, weights or gradients) in the context with id `wanted`.
void DeviceSampler::set_up(int place, Purpose purpose, uint64_t wanted) {
  Device& device = devices_[place];
  const cuda::Device index = device.index.load(std::memory_order_relaxed);
  cuda::Context current = nullptr, popped = nullptr;
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
  if (context != current) driver_.ctx_pop_current(&popped);
}

void DeviceSampler::set_up_wanted() {
  if (!needs_set_up_.exchange(false, std::memory_order_acquire)) return;
  const DeviceCodeSeal seal = device_code_seal();
  // If this fails, enter() requests the set-up again, unless the failure is permanent.
  if (!driver_.open(library_, std::max(seal.oldest_driver, cuda::kOldestDriver))) return;
  char path[512];
  if (path_beside_library(kDeviceCodeFile, path, sizeof path)) code_.read(path, seal);
  for (int place = 0; place < kMostDevices; ++place) {
    for (const Purpose purpose : {kCalls, kWeights, kGradients}) {
      std::atomic<uint64_t>& wanted = devices_[place].wanted[purpose];
      if (wanted.load(std::memory_order_relaxed) == kNothing) continue;
      TryLock lock(devices_[place].busy);
      if (!lock)
        needs_set_up_.store(true, std::memory_order_relaxed);  // try again at the next step
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
