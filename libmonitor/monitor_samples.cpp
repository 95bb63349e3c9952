// The parts of Monitor that take the sample of an attention call after its operation: leave() checks the
// call, chooses a slice of it (call.h), and has the slice copied into slots of the segment, the memory shared
// with the agent process. On a device, kernels on the trainer's stream copy it (device_sampler.h). Each use
// of a slot has a number, its ticket, from 1 on. All random choices follow from seed, step, call number and
// rank, so a rerun repeats them.
#include <utility>

#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/monitor.h"

namespace foreshock {

// A call that is to be sampled. The slices of a call share its members.
struct SampledCall {
  ValidatedCall checked;
  struct {
    uint64_t bytes;  // size of a slot
    uint32_t slots;  // the largest number of slots that a slice may use
  } limits;
  std::optional<DeviceTurn> turn;  // exclusive access to the call's device; empty for host tensors
};

void Monitor::leave(const foreshock_attention_call& call) {
  const OpenCall open = std::exchange(t_open, {});
  if (open.op < 0) return;
  const uint32_t pass = g_process.pass_of(open.op);
  if (open.sizes_segment) {
    ValidatedCall checked;
    const bool usable = validate_call(call, pass, &checked) < 0;
    const uint64_t slot_bytes = usable ? slot_bytes_for(checked) : 0;  // 0: unknown
    if (ensure_segment(slot_bytes)) cost_.expect_slice(slot_bytes);
    return;
  }
  const uint64_t begin = monotonic_ns();
  const Counting counting = g_process.counting();
  CopiedSlices copied;
  if (const int reason = take_sample(counting, call, open, pass, &copied); reason >= 0)
    counting.add(counting.block->skipped[pass][reason]);
  const uint64_t own_ns = monotonic_ns() - begin + call.prepare_ns;
  counting.add(counting.block->hook_ns, own_ns);
  slices_ns_.fetch_add(own_ns, std::memory_order_relaxed);
  if (copied.bytes == 0) return;  // nothing was copied
  if (TryLock lock(cost_busy_); lock) cost_.observe_slice(copied.bytes, copied.is_cold, seconds(own_ns));
}

// Copies a slice of rows of the call, and perhaps a slice of key positions, and counts the call as sampled.
// Returns -1, or the FORESHOCK_SKIP_ reason why nothing was copied.
int Monitor::take_sample(const Counting& counting, const foreshock_attention_call& call, const OpenCall& open,
                         uint32_t pass, CopiedSlices* copied) {
  SampledCall sampled;
  ValidatedCall& checked = sampled.checked;
  if (const int reason = validate_call(call, pass, &checked); reason >= 0) return reason;
  segment::SegmentWriter& writer = g_process.writer();
  if (writer.slots() == 0) return FORESHOCK_SKIP_OFF;

  const int64_t step = step_.load(std::memory_order_relaxed);
  const Settings& settings = g_process.settings();
  if (checked.packed.count > 0) {
    // `place` is a random position in the packed batch; the sequence that holds it is sampled.
    const uint32_t place = choose_packed_position(settings.seed, step, open.call, settings.rank);
    checked.packed.place = place;  // if the offsets are on a device, the gather kernel finds the sequence
    if (checked.device_type == FORESHOCK_DEVICE_CPU)
      if (const int reason = take_sequence(place, &checked); reason >= 0) return reason;
  }
  sampled.limits = {writer.slot_bytes(), writer.slots()};
  if (checked.device_type != FORESHOCK_DEVICE_CPU) {
    if (const int reason = devices_.begin(checked, &sampled.turn.emplace()); reason >= 0) return reason;
    sampled.limits = {sampled.turn->state().capacity(), sampled.turn->state().most_parts()};
  }
  SlicePlan plan;
  plan.header.step = step;
  plan.header.time_ns = realtime_ns();
  plan.header.call = open.call;
  plan.header.op = open.op;
  name_layer(call, open, &plan.header);
  Slice rows = choose_slice(checked.shape, settings.seed, step, open.call, settings.rank);
  if (!plan_slice(checked, sampled.limits.bytes, sampled.limits.slots, &rows, &plan))
    return FORESHOCK_SKIP_TOO_LARGE;
  slots_per_slice_.store(plan.slots, std::memory_order_relaxed);
  observed_heads_.add(checked);  // stores how many heads there are, to split query and key weights by head

  // The call is counted before put_slice() claims its slot. If the process dies during the copy, the agent
  // finds an unfinished slot and counts it as torn; the call must then already count as sampled.
  counting.add(counting.block->sampled[pass]);
  if (const int reason = put_slice(rows, plan, &sampled, copied); reason >= 0) {
    counting.take_back(counting.block->sampled[pass]);
    return reason;
  }
  if (has_columns(checked)) add_columns(plan.header, &sampled, copied);
  return -1;
}

// Copies a slice of host tensors, or launches the copy of a slice of device tensors. Returns -1, or the
// FORESHOCK_SKIP_ reason. Adds the copied bytes to *copied.
int Monitor::put_slice(const Slice& slice, const SlicePlan& plan, SampledCall* call, CopiedSlices* copied) {
  segment::SegmentWriter& writer = g_process.writer();
  const uint64_t ticket = ticket_.fetch_add(plan.slots, std::memory_order_relaxed) + 1;
  segment::Slot* slots[segment::kMaxSlots];
  const uint64_t bytes = write_slice(call->checked, slice, plan, writer, ticket, slots);
  if (bytes == 0) return FORESHOCK_SKIP_RING_FULL;
  if (!call->turn) {
    writer.publish(slots, ticket, plan.slots);
  } else if (const int reason = call->turn->state().send(call->checked, slice, {slots, ticket, plan.slots},
                                                         static_cast<cuda::Stream>(call->checked.stream));
             reason >= 0) {
    writer.give_back(ticket, plan.slots);
    return reason;
  }
  copied->bytes += bytes;
  // A slot is cold in the first round of tickets: the operating system had to map its pages.
  copied->is_cold |= ticket <= writer.slots();
  return -1;
}

// For some calls, copies a slice of key positions beside the slice of rows. The call counts as sampled even
// if none is copied. `rows` is the slot header of the slice of rows: both slices share some of its fields.
void Monitor::add_columns(const segment::Slot& rows, SampledCall* call, CopiedSlices* copied) {
  const Settings& settings = g_process.settings();
  const ValidatedCall& checked = call->checked;
  if (!takes_columns(checked.shape, checked.head_dim, checked.value_dim,
                     columns_are_affordable_.load(std::memory_order_relaxed), settings.seed, rows.step,
                     rows.call))
    return;
  const Slice slice = choose_columns(checked.shape, settings.seed, rows.step, rows.call, settings.rank);
  SlicePlan plan;
  if (!plan_columns(checked, call->limits.bytes, call->limits.slots, slice, &plan)) return;
  slots_per_columns_.store(plan.slots, std::memory_order_relaxed);
  const int64_t needed = plan.slots;
  // column_slots_ excludes the free slots that are kept for slices of rows.
  if (column_slots_.fetch_sub(needed, std::memory_order_relaxed) < needed) return;
  plan.header.step = rows.step;
  plan.header.time_ns = rows.time_ns;
  plan.header.call = rows.call;
  plan.header.op = rows.op;
  plan.header.layer = rows.layer;
  plan.header.layer_source = rows.layer_source;
  put_slice(slice, plan, call, copied);
}

// Sets the layer of the slice. The sources, best first, are: a name given with the call, the parameter from
// which the call's inputs were computed (`identity`), the order of calls in the step (the ordinal).
void Monitor::name_layer(const foreshock_attention_call& call, const OpenCall& open, segment::Slot* slot) {
  const void* identity = call.layer_identity;
  const auto assign = [&](int layer, segment::LayerSource source) {  // false: the layer is unknown (-1)
    slot->layer = layer;
    if (layer >= 0) slot->layer_source = static_cast<uint32_t>(source);
    return layer >= 0;
  };
  if (call.layer_name != nullptr) {
    TryLock lock(layer_busy_);
    if (lock && assign(layers_.index_of(call.layer_name, nullptr), segment::LayerSource::kAnnotation)) return;
  }
  if (assign(layers_.find(identity), segment::LayerSource::kParameter)) return;
  // An ordinal is used if the call has no parameter, or if the process named no parameters (e.g. in C++).
  const bool is_unnamed = identity != nullptr && layers_.has_names();
  slot->layer_source = static_cast<uint32_t>(is_unnamed ? segment::LayerSource::kUnnamedParameter
                                                        : segment::LayerSource::kUnknown);
  if (!is_unnamed) assign(open.ordinal, segment::LayerSource::kOrdinal);
}

// Counts the thread's open call as skipped. If `op` is not the operation of this call, the reason is unknown.
void Monitor::skip(int32_t op, uint32_t reason) {
  const OpenCall open = std::exchange(t_open, {});
  if (open.op < 0 || open.sizes_segment) return;
  const Counting counting = g_process.counting();
  const bool is_known = open.op == op && reason < FORESHOCK_SKIP_REASONS;
  counting.add(counting.block->skipped[g_process.pass_of(open.op)]
                                      [is_known ? reason : uint32_t{FORESHOCK_SKIP_UNKNOWN}]);
}

}  // namespace foreshock
