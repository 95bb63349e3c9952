// Measures weight tensors and writes their records to the ring, a part of the segment. Each tensor has its
// turn (is due) in one step of each interval; turns_ chooses this step, the ledger the length of an interval.
// Host tensors are measured at once; copies_ has their values from before the optimizer step, for comparison.
// For device tensors, send() launches kernels, and collect() gets the results some steps later. The record
// with the measurement is a snapshot. Replicas are the same tensor on other ranks.
#include "libmonitor/weights.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "foreshock/hook.h"
#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/weight_measure.h"

namespace foreshock {
namespace {

using segment::TensorRecord;

constexpr uint32_t kMostWeights = 1u << 16;  // tensors of a rank that are measured
constexpr uint64_t kLeastRoom = 8 << 10;     // with fewer free bytes in the ring, no snapshot is tried
constexpr uint32_t kMostTurnsSkipped = 32;   // most turns that a tensor skips after its record did not fit
constexpr uint64_t kCopyAlign = 64;          // CopiesBeforeStep aligns copies to this many bytes

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Returns the number of elements; 0: the shape has a size <= 0 or more than 2^48 elements. The sizes of
// unused dimensions are 1.
uint64_t product(const int64_t (&shape)[FORESHOCK_TENSOR_DIMS]) {
  uint64_t elements = 1;
  for (const int64_t size : shape) {
    if (size <= 0 || elements > (uint64_t{1} << 48) / static_cast<uint64_t>(size)) return 0;
    elements *= static_cast<uint64_t>(size);
  }
  return elements;
}

// Whether the elements fill a block of memory without gaps or overlaps, in any order of the dimensions. The
// loops include unused dimensions, whose size is 1.
bool is_dense(const foreshock_tensor& tensor) {
  bool used[FORESHOCK_TENSOR_DIMS] = {};
  int64_t expected = 1;
  for (int n = 0; n < FORESHOCK_TENSOR_DIMS; ++n) {
    int next = -1;
    for (int d = 0; d < FORESHOCK_TENSOR_DIMS; ++d)
      if (!used[d] && (tensor.shape[d] == 1 || tensor.stride[d] == expected)) next = d;
    if (next < 0) return false;
    used[next] = true;
    expected *= tensor.shape[next];
  }
  return true;
}

bool is_measured_format(uint32_t dtype) {
  return dtype == FORESHOCK_FP32 || dtype == FORESHOCK_BF16 || dtype == FORESHOCK_FP16;
}

// Copies the end of a long name, which is more specific than its beginning.
template <size_t n>
void copy_end(char (&to)[n], const char* from) {
  const size_t length = std::strlen(from);
  std::snprintf(to, n, "%s", from + (length >= n ? length - n + 1 : 0));
}

// Results from a device are awaited for this many steps. Usually they arrive within a few steps, since a
// stream queues a limited number of kernels, so that the host is not far ahead of its device.
constexpr uint64_t kStepsAwaited = 1024;

segment::TensorSkip skip_of(int why) {  // `why`: a FORESHOCK_SKIP_ reason
  if (why == FORESHOCK_SKIP_CAPTURE) return segment::kTensorCapture;
  if (why == FORESHOCK_SKIP_DEVICE_MEMORY) return segment::kTensorDeviceMemory;
  if (why == FORESHOCK_SKIP_RING_FULL) return segment::kTensorDeviceFull;
  return why == FORESHOCK_SKIP_SET_UP ? segment::kTensorSetUp : segment::kTensorDevice;
}

// Returns the times and sums of a device's results. The payload (counters or values) follows them.
WeightResults read_results(const char* results) {
  WeightResults measured;
  std::memcpy(&measured, results, sizeof measured);
  return measured;
}

}  // namespace

void WeightSampler::attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
                           const WeightAllowance& allowed, uint64_t most_copy_bytes, bool is_off,
                           DeviceSampler* devices, const segment::SegmentWriter* segment) {
  if (segment != nullptr)
    writer_.attach(ring, ring_bytes, segment);
  else
    writer_.attach(ring, ring_bytes, control);
  allowed_ = allowed;
  most_copy_bytes_ = most_copy_bytes;
  is_off_ = is_off;
  count_ = 0;
  rank_bytes_ = bytes_measured_ = 0;
  copies_.forget();
  copy_step_ = -1;
  devices_ = devices;
  pending_.clear();
  deferred_ns_ = ended_steps_ = host_records_ = 0;
  host_step_ = -1;
}

// Replaces the list of tensors. A tensor's number is its index in `weights`. Returns how many have a number.
int WeightSampler::name_tensors(const foreshock_weight* weights, size_t count) {
  if (writer_.ring() == nullptr) return 0;
  // Tensors of the former list that are due, or whose results a device still computes, get no record.
  if (count_ > 0) writer_.count_skipped(segment::kTensorUnknown, turns_.forget_due() + pending_.forget());
  writer_.set_awaited(0);
  count_ = rank_tensors_ = 0;
  rank_bytes_ = 0;
  std::fill_n(unfollowed_, segment::kTensorUnfollowed, uint64_t{0});
  const int followed = follow(weights, count);
  // add() counts 4 bytes for each element, whatever its type.
  writer_.set_named(rank_tensors_, rank_bytes_ / sizeof(float), unfollowed_);
  return followed;
}

// Does the work of name_tensors() with an empty list of tensors.
int WeightSampler::follow(const foreshock_weight* weights, size_t count) {
  if (!writer_.is_attached()) {
    unfollowed_[is_off_ ? segment::kUnfollowedOff : segment::kUnfollowedNoRoom] = count;
    return 0;
  }
  const auto followed = static_cast<uint32_t>(std::min<size_t>(count, kMostWeights));
  if (followed == 0 || !table_.reserve(followed * sizeof(Weight)) || !turns_.reserve(followed) ||
      !packer_.reserve()) {
    unfollowed_[segment::kUnfollowedNoRoom] = count;
    return 0;
  }
  unfollowed_[segment::kUnfollowedTooMany] = count - followed;
  // A tensor's turn follows from the sizes of unsharded tensors, so that it is the same on all ranks.
  uint64_t total = 0, before = 0;
  for (size_t n = 0; n < followed; ++n) total += product(weights[n].shape);
  for (size_t n = 0; n < followed; ++n) {
    add(weights[n], static_cast<double>(before) / static_cast<double>(total + 1));  // + 1: total may be 0
    before += product(weights[n].shape);
  }
  // At least 1 byte, since reserve() cannot map 0 bytes.
  copies_.reserve(std::max<uint64_t>(std::min(most_copy_bytes_, rank_bytes_ + count_ * kCopyAlign), 1));
  copies_.forget();
  copy_share_ = copies_.room();  // limit for the copy of one tensor until find_due() divides the memory
  copy_step_ = -1;
  writer_.set_interval(allowed_.interval);
  return static_cast<int>(count_);
}

// `begins_at`: the share of the model's elements in the tensors before this one, from which its turn follows.
// A tensor that is not followed, or of which this rank has no part, gets a number but is never due.
void WeightSampler::add(const foreshock_weight& given, double begins_at) {
  Weight& tensor = *weight(count_++);
  tensor = {};
  copy_end(tensor.name, given.name != nullptr ? given.name : "");
  copy_end(tensor.layer, given.layer != nullptr ? given.layer : "");
  std::copy_n(given.shape, segment::kTensorDims, tensor.shape);
  std::copy_n(given.offset, segment::kTensorDims, tensor.offset);
  std::copy_n(given.part, segment::kTensorDims, tensor.part);
  tensor.dims = given.dims;
  tensor.elements = given.unfollowed == FORESHOCK_FOLLOWED ? product(given.part) : 0;
  tensor.element_bytes = sizeof(float);
  turns_.add(begins_at, tensor.elements > 0);
  rank_bytes_ += sizeof(float) * tensor.elements;
  rank_tensors_ += tensor.elements > 0;
  if (given.unfollowed == FORESHOCK_FOLLOWED) return;
  auto why = segment::kUnfollowedPlacement;
  if (given.unfollowed == FORESHOCK_UNFOLLOWED_FLAT) why = segment::kUnfollowedFlat;
  if (given.unfollowed == FORESHOCK_UNFOLLOWED_PACE) why = segment::kUnfollowedPace;
  ++unfollowed_[why];
}

// Counts tensors that have become due, and due tensors that the trainer did not pass (kTensorUnknown).
void WeightSampler::count_turns(const WeightSchedule::DueCount& turns) {
  if (turns.due > 0) writer_.count_due(turns.due);
  if (turns.lost > 0) writer_.count_skipped(segment::kTensorUnknown, turns.lost);
}

size_t WeightSampler::find_due(int64_t step, int64_t steps, uint32_t* numbers, size_t room) {
  if (count_ == 0 || step < 0) return 0;  // step -1: unknown
  WeightSchedule::DueCount turns;
  const size_t found = turns_.find_due(step, steps, allowed_.interval, numbers, room, &turns);
  count_turns(turns);
  // The budget pays neither for snapshots nor for checksums, which only replicas need.
  if (!allowed_.measurements && !(has_replicas_ && allowed_.checksums)) {
    for (size_t n = 0; n < found; ++n) turns_.mark_done(numbers[n], step);
    if (found > 0) writer_.count_skipped(segment::kTensorBudget, found);
    return 0;
  }
  if (has_replicas_)  // tensors with the fewest snapshots come first, since the ring may get full
    std::sort(numbers, numbers + found, [this](uint32_t a, uint32_t b) {
      return std::pair(weight(a)->snapshots, a) < std::pair(weight(b)->snapshots, b);
    });
  share_copies(numbers, found);
  return found;
}

void WeightSampler::count_missed(int64_t step, int64_t steps) {
  if (count_ > 0 && step >= 0) count_turns(turns_.count_missed(step, steps, allowed_.interval));
}

// Sets the limit for the copy of one tensor so that the copies of this step's tensors fit into the memory.
void WeightSampler::share_copies(const uint32_t* numbers, size_t count) {
  copy_share_ = CopiesBeforeStep::share_per_tensor(copies_.room(), count, [&](uint64_t n) {
    const Weight& tensor = *weight(numbers[n]);
    return round_up(tensor.elements * tensor.element_bytes, kCopyAlign);
  });
}

// Whether the tensor can be measured as it was passed. If not, sets *why to the reason.
bool WeightSampler::can_measure(const foreshock_weight_state& state, segment::TensorSkip* why) {
  const foreshock_tensor& values = state.parameter;
  const auto refuse = [why](segment::TensorSkip reason) {
    *why = reason;
    return false;
  };
  if (values.device_type != FORESHOCK_DEVICE_CPU && (devices_ == nullptr || !is_on_device(state)))
    return refuse(segment::kTensorDevice);
  if (!is_measured_format(values.dtype)) return refuse(segment::kTensorFormat);
  const uint64_t misaligned =
      reinterpret_cast<uintptr_t>(values.data) % size_of(static_cast<DType>(values.dtype));
  if (values.data == nullptr || product(values.shape) != weight(state.number)->elements ||
      !is_dense(values) || (misaligned != 0 && is_on_device(state)))
    return refuse(segment::kTensorLayout);
  return true;
}

void WeightSampler::before_step(const foreshock_weight_state* states, size_t count, int64_t step) {
  if (step < 0) return;
  if (copy_step_ != step) copies_.forget();
  copy_step_ = step;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight_state& state = states[n];
    segment::TensorSkip why;
    // Tensors on a device are not copied, because the copies would take the training's device memory.
    if (state.number >= count_ || is_on_device(state) || !can_measure(state, &why) || !allowed_.measurements)
      continue;
    Weight& tensor = *weight(state.number);
    const auto type = static_cast<DType>(state.parameter.dtype);
    tensor.element_bytes = size_of(type);
    const uint64_t bytes = tensor.elements * tensor.element_bytes;
    // If a step number repeats, for example after a skipped step, the memory of the copy is reused.
    if (copies_.holds(tensor.copy) && tensor.copy.whole_bytes == bytes && tensor.copy.type == type)
      copies_.overwrite(tensor.copy, state.parameter.data);
    else
      tensor.copy = copies_.keep(state.parameter.data, bytes, type, copy_share_);
  }
}

// Measures host tensors in the given order, then tensors on devices. The first device tensor is another one
// in each interval, so that lack of room in the ring does not always concern the same tensors.
void WeightSampler::after_step(const foreshock_weight_state* states, size_t count, int64_t step) {
  if (step < 0) return;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight_state& state = states[n];
    if (state.number >= count_) continue;
    // mark_done() returns 1 if find_due() has not counted this tensor. It is measured, so it counts as due.
    if (turns_.mark_done(state.number, step) > 0) writer_.count_due(1);
    if (!is_on_device(state)) measure(state, step);
  }
  const uint64_t first = static_cast<uint64_t>(step) / allowed_.interval;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_weight_state& state = states[(first + n) % count];
    if (state.number < count_ && is_on_device(state)) measure(state, step);
  }
}

// Measures a tensor, or counts why it is not measured. If the budget or the ring prevents the measurement,
// only its checksum is written, for the comparison with its replicas.
void WeightSampler::measure(const foreshock_weight_state& state, int64_t step) {
  segment::TensorSkip why = segment::kTensorBudget;
  if (!can_measure(state, &why)) return writer_.count_skipped(why);
  const bool is_affordable = allowed_.measurements;
  if (!is_affordable || use_up_skip(weight(state.number))) {
    writer_.count_skipped(is_affordable ? segment::kTensorTooLarge : segment::kTensorBudget);
    return write_checksum(state, step);
  }
  is_on_device(state) ? send(state, step) : measure_on_host(state, step);
}

// Sets all members of the record but those that describe its content: form, checksum, payload and bytes.
void WeightSampler::describe(const Weight& tensor, uint32_t number, DType type, int64_t step,
                             TensorRecord* record) const {
  *record = {};
  record->kind = segment::TensorKind::kSnapshot;
  record->step = step;
  record->time_ns = realtime_ns();
  record->interval = allowed_.interval;
  record->snapshot = tensor.snapshots + 1;
  record->number = number;
  record->tensors = rank_tensors_;
  record->dims = tensor.dims;
  record->dtype = static_cast<uint32_t>(type);
  std::copy_n(tensor.shape, segment::kTensorDims, record->shape);
  std::copy_n(tensor.offset, segment::kTensorDims, record->offset);
  std::copy_n(tensor.part, segment::kTensorDims, record->part);
  record->elements = tensor.elements;
  record->step_source = step_source_;
  std::memcpy(record->layer, tensor.layer, sizeof record->layer);
  std::memcpy(record->name, tensor.name, sizeof record->name);
}

// Sums the values and, for the part that before_step() copied, the change made by the step. Sets the sums
// that it cannot compute to NaN. If all values were copied, one pass computes both sums.
void WeightSampler::reduce(const Weight& tensor, const foreshock_tensor& values, DType type, int64_t step,
                           double* reductions) const {
  std::fill_n(reductions, segment::kTensorReductionCount, std::numeric_limits<double>::quiet_NaN());
  // An optimizer may temporarily replace the parameter by a master copy of another type.
  const bool has_copy = copy_step_ == step && copies_.holds(tensor.copy) && tensor.copy.type == type;
  if (!has_copy || tensor.copy.bytes < tensor.copy.whole_bytes)
    reductions[segment::kSumOfSquares] = sum_of_squares(values.data, type, tensor.elements);
  if (!has_copy) return;
  uint64_t elements = 0;
  const Update update = copies_.update_since(tensor.copy, values.data, &elements);
  if (elements == tensor.elements) reductions[segment::kSumOfSquares] = update.sum_squares_after;
  reductions[segment::kUpdateSumMagnitude] = update.sum_magnitude;
  reductions[segment::kUpdateSumOfSquares] = update.sum_squares;
  reductions[segment::kUpdateMaxMagnitude] = update.max_magnitude;
  reductions[segment::kUpdateElements] = static_cast<double>(elements);
  reductions[segment::kComparedSumOfSquares] = update.sum_squares_after;
}

// Returns whether the tensor skips this turn. If so, one turn fewer is left to skip. Turns are skipped
// because a record that did not fit will probably not fit the next time, and each attempt costs a pass over
// the tensor.
bool WeightSampler::use_up_skip(Weight* tensor) {
  if (tensor->turns_to_skip == 0) return false;
  --tensor->turns_to_skip;
  return true;
}

// Called if the record did not fit into `room` bytes. The next record reserves twice as much. If an empty
// ring guarantees no more than `room`, the tensor also skips turns: 1, then 2, 4, ... up to
// kMostTurnsSkipped, until a record fits.
void WeightSampler::skip_next_turns(Weight* tensor, uint64_t room) {
  tensor->record_bytes = 2 * room;
  if (room + checksum_room() < writer_.largest_record())
    return writer_.count_skipped(segment::kTensorRingFull);
  tensor->last_skip = std::clamp(2 * tensor->last_skip, 1u, kMostTurnsSkipped);
  tensor->turns_to_skip = tensor->last_skip;
  writer_.count_skipped(segment::kTensorTooLarge);
}

// Returns the ring bytes that snapshots must leave free for records of checksums: 8 records for every tensor,
// so that checksums fit for some intervals even while the agent reads nothing. At most a quarter of the ring
// (half of the largest record); 0 without replicas, since only replicas are compared by checksums.
uint64_t WeightSampler::checksum_room() const {
  constexpr uint64_t kRecordBytes = round_up(sizeof(TensorRecord), segment::kTensorAlign);
  constexpr uint64_t kRecordsPerTensor = 8;
  const uint64_t wanted = kRecordsPerTensor * rank_tensors_ * kRecordBytes;
  return has_replicas_ ? std::min(wanted, writer_.largest_record() / 2) : 0;
}

// Writes a record of a host tensor with a checksum and without a histogram, if other ranks may have replicas.
// Their comparison by checksums goes on even if a histogram does not fit or the budget does not pay for it.
void WeightSampler::write_checksum(const foreshock_weight_state& state, int64_t step) {
  if (!has_replicas_ || is_on_device(state) || !allowed_.checksums) return;
  const Weight& tensor = *weight(state.number);
  const auto type = static_cast<DType>(state.parameter.dtype);
  uint64_t room = 0;
  constexpr uint64_t kBytes = round_up(sizeof(TensorRecord), segment::kTensorAlign);
  if (writer_.begin(kBytes, &room) == nullptr) return;
  TensorRecord record;
  describe(tensor, state.number, type, step, &record);
  record.bytes = kBytes;
  record.checksum = checksum(state.parameter.data, tensor.elements * size_of(type));
  writer_.publish_uncounted(&record);  // no snapshot: the caller has counted the tensor as skipped
}

// Begins a record in the ring if the ring has room for `least` bytes and for `kept` bytes of checksums. Else
// counts the tensor as skipped and returns false. The record may take all free bytes except the last `kept`,
// and at least `least` bytes.
bool WeightSampler::begin_record(const Weight& tensor, Draft* draft) {
  const uint64_t least = std::min(std::max(tensor.record_bytes, kLeastRoom), writer_.largest_record());
  const uint64_t kept = checksum_room();
  draft->place =
      reinterpret_cast<char*>(writer_.begin(std::min(least + kept, writer_.largest_record()), &draft->room));
  draft->room = std::max(draft->room - std::min(draft->room, kept), std::min(draft->room, least));
  if (draft->place == nullptr) {
    writer_.count_skipped(segment::kTensorRingFull);
    return false;
  }
  return true;
}

// Completes and publishes a record of length `end`. The tensor's next record reserves as much room.
void WeightSampler::publish_record(Weight* tensor, Draft* draft, uint64_t end) {
  TensorRecord& record = draft->record;
  record.payload[segment::kTensorReductions] = {kReductionsOffset, sizeof draft->reductions};
  record.payload[segment::kTensorOptimizer] = {kOptimizerOffset, sizeof draft->optimizer};
  std::memcpy(draft->place + kReductionsOffset, draft->reductions, sizeof draft->reductions);
  std::memcpy(draft->place + kOptimizerOffset, draft->optimizer, sizeof draft->optimizer);
  record.bytes = tensor->record_bytes = round_up(end, segment::kTensorAlign);
  tensor->last_skip = 0;
  ++tensor->snapshots;
  writer_.publish_snapshot(&record);
}

void WeightSampler::write_gradient_looks(const foreshock_gradient_look* looks, size_t count, int64_t step) {
  constexpr uint64_t kOffset = round_up(sizeof(TensorRecord), 8);
  constexpr uint64_t kBytes = round_up(kOffset + sizeof(segment::GradientLook), segment::kTensorAlign);
  const auto copy = [](const foreshock_sketch& from, segment::GradientSketch* to) {
    std::copy_n(from.products, segment::kSketchProducts, to->products);
    to->norm = from.norm;
  };
  for (size_t n = 0; n < count && step >= 0; ++n) {
    const foreshock_gradient_look& look = looks[n];
    uint64_t room = 0;
    if (look.number >= count_ || !is_measured_format(look.dtype)) continue;
    const uint64_t least = std::min(kBytes + checksum_room(), writer_.largest_record());
    char* place = reinterpret_cast<char*>(writer_.begin(least, &room));
    if (place == nullptr) return;
    TensorRecord record;
    describe(*weight(look.number), look.number, static_cast<DType>(look.dtype), step, &record);
    record.kind = segment::TensorKind::kGradientLook;
    record.bytes = kBytes;
    record.payload[segment::kTensorGradientLook] = {kOffset, sizeof(segment::GradientLook)};
    segment::GradientLook seen = {};
    copy(look.local, &seen.local);
    copy(look.last, &seen.last);
    copy(look.before, &seen.before);
    copy(look.used, &seen.used);
    copy(look.value, &seen.value);
    seen.contributions = look.contributions;
    seen.is_whole = look.is_whole;
    seen.parameters = look.parameters;
    seen.mesh = look.mesh;
    std::memcpy(place + kOffset, &seen, sizeof seen);
    writer_.publish_uncounted(&record);
  }
}

void WeightSampler::measure_on_host(const foreshock_weight_state& state, int64_t step) {
  Weight& tensor = *weight(state.number);
  const foreshock_tensor& values = state.parameter;
  const auto type = static_cast<DType>(values.dtype);
  const uint64_t bytes = tensor.elements * size_of(type);
  Draft draft;
  if (!begin_record(tensor, &draft)) return write_checksum(state, step);
  TensorRecord* record = &draft.record;
  describe(tensor, state.number, type, step, record);
  bytes_measured_ += bytes;
  // Packing comes first, because it may fail.
  const size_t packed = packer_.pack(values.data, type, tensor.elements, draft.histogram(),
                                     draft.histogram_room(), &record->form);
  if (packed == kPackFailed) {
    skip_next_turns(&tensor, draft.room);
    return write_checksum(state, step);
  }
  record->payload[segment::kTensorHistogram] = {kHistogramOffset, packed};
  record->checksum = checksum(values.data, bytes);
  reduce(tensor, values, type, step, draft.reductions);
  uint64_t compared = 0, unmoved = 0;
  tensor.sample.renew(values.data, type, tensor.elements, &compared, &unmoved);
  draft.reductions[segment::kSampleElements] = static_cast<double>(compared);
  draft.reductions[segment::kSampleUnmoved] = static_cast<double>(unmoved);
  optimizer_numbers(optimizer_of(state), draft.optimizer);
  publish_record(&tensor, &draft, kHistogramOffset + packed);
  ++host_records_;
  host_step_ = step;
}

MeasuredWeights WeightSampler::end_step(bool is_brief) {
  ++ended_steps_;
  return {.bytes = is_brief ? 0 : std::exchange(bytes_measured_, 0),
          .all_bytes = count_ > 0 ? rank_bytes_ : 0,
          .keeps_interval = has_replicas_};
}

bool WeightSampler::allow(const WeightAllowance& allowed) {
  const bool has_changed = std::exchange(allowed_, allowed).interval != allowed.interval;
  if (count_ > 0) writer_.set_interval(allowed.interval);
  return has_changed;
}

// Sends the measurement of a tensor to its device. Its record is written when the results have arrived. It
// lacks the change made by the step, which would need a copy of the tensor on the device.
void WeightSampler::send(const foreshock_weight_state& state, int64_t step) {
  const uint64_t begin = monotonic_ns();
  PendingWeight* pending = pending_.next();
  if (pending == nullptr) return writer_.count_skipped(segment::kTensorDeviceFull);
  const uint64_t elements = weight(state.number)->elements;
  pending->optimizer = optimizer_of(state);
  if (!plan_weight(state.parameter, elements, pending->optimizer, &pending->work))
    return writer_.count_skipped(segment::kTensorTooLarge);
  void* stream = state.stream;
  DeviceTurn turn;
  // The FORESHOCK_SKIP_ reason (>= 0) for which the measurement cannot be sent, or -1.
  int why = devices_->begin_weights({state.parameter.device_index, stream}, &turn, &pending->device_place);
  if (why < 0 && !turn.weights().can_fit(pending->work))
    return writer_.count_skipped(segment::kTensorTooLarge);
  if (why < 0) why = turn.weights().send(pending->work, static_cast<cuda::Stream>(stream), &pending->sent);
  if (why >= 0) return writer_.count_skipped(skip_of(why));
  pending->number = state.number;
  pending->step = step;
  pending->time_ns = realtime_ns();
  pending->interval = allowed_.interval;
  pending->ended_steps = ended_steps_;
  pending->host_records = host_records_;
  pending->is_forgotten = false;
  pending_.push();
  writer_.set_awaited(writer_.counts().awaited + 1);
  pending->launch_ns = monotonic_ns() - begin;
  deferred_ns_ += pending->launch_ns;  // not charged to the budget until collect() returns it as before_ns
}

WeightSampler::Spent WeightSampler::collect() {
  Spent spent;
  if (pending_.count() == 0) return spent;
  const uint64_t begin = monotonic_ns();
  while (PendingWeight* pending = pending_.oldest()) {
    if (!settle(pending, &spent)) break;
    if (!pending->is_forgotten) writer_.set_awaited(writer_.counts().awaited - 1);
    pending_.pop();
  }
  spent.host_ns = monotonic_ns() - begin;
  return spent;
}

// Ends a measurement whose results have arrived or are given up. Returns false if they are still awaited.
bool WeightSampler::settle(PendingWeight* pending, Spent* spent) {
  bool is_settled = false;
  devices_->visit_weights(pending->device_place, [&](WeightStaging& staging) {
    char* results = staging.results(pending->sent);
    const uint64_t age = ended_steps_ - pending->ended_steps;
    const bool is_given_up = !staging.is_awaited(pending->sent) || age > kStepsAwaited;
    if (results == nullptr && !is_given_up) return;
    is_settled = true;
    if (results == nullptr) {
      if (!pending->is_forgotten) writer_.count_skipped(segment::kTensorDevice);
      return;  // the memory of the results is not released, since a slow device may still store into it
    }
    const WeightResults measured = read_results(results);
    // The time from the begin of the first kernel to the end of the last. Invalid times are ignored.
    if (measured.first[0] <= measured.last[1]) spent->device_ns += measured.last[1] - measured.first[0];
    spent->before_ns += pending->launch_ns;
    bytes_measured_ += pending->work.count * size_of(pending->work.type);
    if (!pending->is_forgotten) write_device_record(*pending, results);
    staging.release(pending->sent);
  });
  return is_settled;
}

// Packs the histogram from `payload`: the device's counters (is_counted), or the values that it has copied.
size_t WeightSampler::pack(const PendingWeight& pending, char* payload, Draft* draft) {
  const uint64_t room = draft->histogram_room();
  if (pending.work.is_counted)
    return HistogramPacker::pack_counted(payload, pending.work.type, draft->histogram(), room,
                                         &draft->record.form);
  return packer_.pack(payload, pending.work.type, pending.work.count, draft->histogram(), room,
                      &draft->record.form);
}

void WeightSampler::write_device_record(const PendingWeight& pending, char* results) {
  // If a host tensor of another step was recorded after send(), the result is dropped: to the agent, a record
  // with an earlier step than the record before it means that the training resumed from a checkpoint.
  if (host_records_ != pending.host_records && host_step_ != pending.step)
    return writer_.count_skipped(segment::kTensorDevice);
  const WeightResults measured = read_results(results);
  const WeightWork& work = pending.work;
  char* payload = results + WeightWork::kPayload;
  Weight& tensor = *weight(pending.number);
  Draft draft;
  if (!begin_record(tensor, &draft)) return;
  segment::TensorRecord* record = &draft.record;
  describe(tensor, pending.number, work.type, pending.step, record);
  record->time_ns = pending.time_ns;
  record->interval = pending.interval;
  const size_t packed = pack(pending, payload, &draft);
  if (packed == kPackFailed) return skip_next_turns(&tensor, draft.room);
  record->payload[segment::kTensorHistogram] = {kHistogramOffset, packed};
  record->checksum = work.is_counted ? measured.checksum : checksum(payload, work.count * size_of(work.type));
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::fill_n(draft.reductions, segment::kTensorReductionCount, kUnknown);
  if (!work.is_counted)
    draft.reductions[segment::kSumOfSquares] = sum_of_squares(payload, work.type, work.count);
  else if (measured.values.nonfinite == 0)
    draft.reductions[segment::kSumOfSquares] = measured.values.squares;
  const AdamSums& moment = measured.moment;
  const bool has_moment =
      work.has_moment && moment.counted + moment.nonfinite_gradient + moment.unusable_state > 0;
  write_optimizer_numbers(pending.optimizer, work.has_gradient ? &measured.gradient : nullptr,
                          has_moment ? &moment : nullptr, draft.optimizer);
  publish_record(&tensor, &draft, kHistogramOffset + packed);
}

}  // namespace foreshock
