// Turns of tensors that lie on a device: given to it in the step that they belong to, written down when their
// results have come. Of such a tensor everything is told that its values tell, and not what the step has
// changed in it: that would take a copy of it on the device.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "libmonitor/clocks.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/weights.h"

namespace foreshock {
namespace {

// Steps after which what was sent is not awaited any more. A host is ahead of its device by as many kernels
// as a stream queues, which is a few steps.
constexpr uint64_t kPatience = 1024;

// Trainers that were built before it was asked for do not have it.
void* stream_of(const foreshock_weight_state& state) {
  const bool has_stream = state.size >= offsetof(foreshock_weight_state, stream) + sizeof state.stream;
  return has_stream ? state.stream : nullptr;
}

segment::TensorSkip skip_of(int why) {
  switch (why) {
    case FORESHOCK_SKIP_CAPTURE:
      return segment::kTensorCapture;
    case FORESHOCK_SKIP_DEVICE_MEMORY:
      return segment::kTensorDeviceMemory;
    case FORESHOCK_SKIP_RING_FULL:
      return segment::kTensorDeviceFull;
    default:
      return segment::kTensorDevice;
  }
}

WeightResults results_in(const char* results) {
  WeightResults copy;
  std::memcpy(&copy, results, sizeof copy);
  return copy;
}

}  // namespace

void WeightFollower::send(const foreshock_weight_state& state, int64_t step) {
  const uint64_t begin = monotonic_ns();
  WeightErrand* errand = errands_.next();
  if (errand == nullptr) return writer_.count_skipped(segment::kTensorDeviceFull);
  const uint64_t elements = weight(state.number)->elements;
  errand->optimizer = optimizer_of(state);
  if (!plan_weight(state.parameter, elements, errand->optimizer, &errand->work))
    return writer_.count_skipped(segment::kTensorTooLarge);
  void* stream = stream_of(state);
  DeviceTurn turn;
  int why = devices_->begin_weights({state.parameter.device_index, stream}, &turn, &errand->place);
  if (why < 0 && !turn.weights().holds(errand->work)) return writer_.count_skipped(segment::kTensorTooLarge);
  if (why < 0) why = turn.weights().send(errand->work, static_cast<cuda::Stream>(stream), &errand->sent);
  if (why >= 0) return writer_.count_skipped(skip_of(why));
  errand->number = state.number;
  errand->values = state.parameter;
  errand->step = step;
  errand->time_ns = realtime_ns();
  errand->interval = cadence_.interval();
  errand->round = round_;
  errand->host_records = host_records_;
  errand->is_forgotten = false;
  errands_.push();
  writer_.tell_awaited(writer_.ring()->awaited + 1);
  errand->launch_ns = monotonic_ns() - begin;
  deferred_ns_ += errand->launch_ns;
}

WeightFollower::Spent WeightFollower::collect() {
  Spent spent;
  if (errands_.count() == 0) return spent;
  const uint64_t begin = monotonic_ns();
  while (WeightErrand* errand = errands_.oldest()) {
    if (!settle(errand, &spent)) break;
    if (!errand->is_forgotten) writer_.tell_awaited(writer_.ring()->awaited - 1);
    errands_.pop();
  }
  spent.host_ns = monotonic_ns() - begin;
  return spent;
}

// False: it is still waited for.
bool WeightFollower::settle(WeightErrand* errand, Spent* spent) {
  bool is_settled = false;
  devices_->visit_weights(errand->place, [&](WeightStaging& staging) {
    char* results = staging.results(errand->sent);
    const bool never_comes = !staging.is_awaited(errand->sent) || round_ - errand->round > kPatience;
    if (results == nullptr && !never_comes) return;
    is_settled = true;
    if (results == nullptr) {
      if (!errand->is_forgotten) writer_.count_skipped(segment::kTensorDevice);
      return;  // its room stays taken: a device that is only slow may still store into it
    }
    const WeightResults head = results_in(results);
    if (head.first[0] <= head.last[1]) spent->device_ns += head.last[1] - head.first[0];
    spent->before_ns += errand->launch_ns;
    read_ += errand->work.count * size_of(errand->work.type);
    if (!errand->is_forgotten) write(*errand, results);
    staging.release(errand->sent);
  });
  return is_settled;
}

size_t WeightFollower::pack(const WeightErrand& errand, char* payload, const Draft& draft) {
  const uint64_t room = draft.room - draft.histogram_at;
  if (errand.work.is_counted)
    return HistogramPacker::pack_counted(payload, errand.work.type, draft.histogram, room,
                                         &draft.record->form);
  return packer_.pack(payload, errand.work.type, errand.work.count, draft.histogram, room,
                      &draft.record->form);
}

void WeightFollower::write(const WeightErrand& errand, char* results) {
  // An agent takes a step that is less than the one before for a training that went back.
  if (host_records_ != errand.host_records && host_step_ != errand.step)
    return writer_.count_skipped(segment::kTensorDevice);
  const WeightResults head = results_in(results);
  const WeightWork& work = errand.work;
  char* payload = results + WeightWork::kPayload;
  Weight& of = *weight(errand.number);
  Draft draft;
  if (!open(of, &draft)) return;
  segment::TensorRecord* record = draft.record;
  describe(of, errand.number, work.type, errand.step, record);
  record->time_ns = errand.time_ns;
  record->interval = errand.interval;
  const size_t packed = pack(errand, payload, draft);
  if (packed == kPackFailed) return rest(&of, draft.room);
  record->payload[segment::kTensorHistogram] = {draft.histogram_at, packed};
  record->checksum = work.is_counted ? head.checksum : checksum(payload, work.count * size_of(work.type));
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::fill_n(draft.reductions, segment::kTensorReductionCount, kUnknown);
  if (!work.is_counted)
    draft.reductions[segment::kSumOfSquares] = sum_of_squares(payload, work.type, work.count);
  else if (head.values.nonfinite == 0)
    draft.reductions[segment::kSumOfSquares] = head.values.squares;
  const AdamSums& moment = head.moment;
  const bool is_counted =
      work.has_moment && moment.counted + moment.nonfinite_gradient + moment.unusable_state > 0;
  tell_optimizer(errand.optimizer, work.has_gradient ? &head.gradient : nullptr,
                 is_counted ? &moment : nullptr, draft.optimizer);
  foreshock_tensor values = errand.values;
  values.data = work.is_counted ? nullptr : payload;
  close(&of, draft, add_heads(of, values, (draft.histogram_at + packed + 7) / 8 * 8, draft));
}

}  // namespace foreshock
