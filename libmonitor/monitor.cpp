// The parts of Monitor that decide which steps and attention calls are sampled, and store samples.
#include "libmonitor/monitor.h"

#include <algorithm>
#include <utility>

#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/sampling.h"

namespace foreshock {

constinit Monitor g_monitor;

namespace {

thread_local OpenCall t_open;

// Sampling intervals until the agent stores one. With several nodes the interval stays fixed, since nothing
// coordinates it between nodes.
constexpr uint64_t kFirstInterval = 8;
constexpr uint64_t kSeveralNodesInterval = 64;

}  // namespace

// -- which steps and calls are sampled --

// Returns the sampling interval of the burst that contains `step`; 0: there is no burst.
uint64_t Monitor::burst_at(int64_t step) const {
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t asked = std::atomic_ref<uint64_t>(control.burst_interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.burst_from_step).load(std::memory_order_relaxed);
  const int64_t until = std::atomic_ref<int64_t>(control.burst_until_step).load(std::memory_order_relaxed);
  if (g_process.settings().every != 0 || from < 0 || until <= from) return 0;
  return until - from <= segment::kMostBurstSteps && step >= from && step < until ? asked : 0;
}

// Returns the sampling interval at `step`. The interval in the control file takes effect at its first step.
uint64_t Monitor::interval_at(int64_t step) {
  const uint64_t fixed = g_process.settings().every;
  if (fixed != 0) return fixed;
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t asked = std::atomic_ref<uint64_t>(control.interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.interval_from_step).load(std::memory_order_relaxed);
  if (asked != 0 && step >= from) base_interval_ = asked;
  const uint64_t burst = burst_at(step);
  return burst != 0 ? std::min(burst, base_interval_) : base_interval_;
}

// Returns how many slices the budget allows in the step that begins.
uint32_t Monitor::plan_slices() {
  if (samples_without_limit()) {
    columns_are_affordable_.store(true, std::memory_order_relaxed);
    return segment::kMaxSlots;
  }
  TryLock lock(cost_busy_);
  if (!lock) return affordable_slices_.load(std::memory_order_relaxed);
  const double granted = first_look_.seconds();
  if (granted <= 0 && !budget_.allows()) return 0;
  const double saved = budget_.balance_seconds() - gradient_cost_.seconds();
  // Key positions are affordable if a quarter of the balance would pay for rows of every call.
  const uint64_t calls =
      std::min<uint64_t>(calls_last_step_.load(std::memory_order_relaxed), segment::kMaxSlots);
  const double seconds = std::max(granted, saved);
  const double agent_seconds = granted > 0 ? 0 : agent_forecast_.slice_seconds();
  columns_are_affordable_.store(
      calls > 0 && cost_.slices_within(seconds / 4, is_cold(), agent_seconds) >= calls,
      std::memory_order_relaxed);
  return cost_.slices_within(seconds, is_cold(), agent_seconds);
}

// With a limit of 100 %, or an interval that the user gave without a limit, no sample is refused for its
// cost.
bool Monitor::samples_without_limit() const {
  return budget_.is_unlimited() || g_process.settings().every_is_promised;
}

void Monitor::begin_step() {
  TryLock lock(clock_busy_);
  if (!lock) return;
  const int64_t step = next_step_.load(std::memory_order_relaxed);
  g_process.clear_bits(kHotTickPending | kHotSampledStep | kHotNoBudget);
  step_.store(step, std::memory_order_relaxed);
  interval_.store(interval_at(step), std::memory_order_relaxed);
  budget_.set_limit(g_process.settings().max_slowdown, burst_at(step) != 0 ? segment::kBurstSlowdown : 1);
  call_in_step_.store(0, std::memory_order_relaxed);
  read_switches();
  if ((g_process.hot() & kHotSwitchedOff) != 0 || !is_due(step)) return;
  const uint32_t paid = plan_slices();
  if (paid == 0) return g_process.set_bits(kHotNoBudget);
  affordable_slices_.store(paid, std::memory_order_relaxed);
  const uint32_t free = g_process.writer().free_slots();
  free_slots_.store(free, std::memory_order_relaxed);
  const uint64_t rows = std::min<uint64_t>(free_slices(), calls_last_step_.load(std::memory_order_relaxed));
  column_slots_.store(int64_t{free} - static_cast<int64_t>(rows * slots_per_slice_.load()),
                      std::memory_order_relaxed);
  step_was_sampled_ = true;
  if (TryLock layers(layer_busy_); layers) ordinal_.begin_step();
  g_process.set_bits(kHotSampledStep);
}

// Whether a step that begins with step number `step` is to be sampled, regardless of the budget.
bool Monitor::is_due(int64_t step) const {
  if (first_look_.is_open()) return step >= 0;
  return is_sampled_step(step, interval_.load(std::memory_order_relaxed),
                         period_steps_.load(std::memory_order_relaxed));
}

// -- attention --

void Monitor::count_call(const Counting& counting, int32_t op) {
  counting.add(counting.block->calls[op]);
  // Atomic, because threads without a block of their own share the last block.
  const uint64_t calls = std::atomic_ref<uint64_t>(counting.block->calls[op]).load(std::memory_order_relaxed);
  if ((calls & 1023) == 0 && (g_process.hot() & kHotArmed) != 0) read_switches();
}

// enter() before the segment exists.
int Monitor::enter_unarmed(int32_t op, uint32_t flags) {
  t_open = {};
  const bool trains = (flags & FORESHOCK_NEEDS_GRADIENT) != 0 || g_process.pass_of(op) == FORESHOCK_BACKWARD;
  if (!trains && g_process.is_inherited()) return 0;  // e.g. a data loader's worker
  const Counting counting = g_process.counting();
  counting.add(counting.block->calls[op]);
  counting.add(counting.block->unsampled[g_process.pass_of(op)]);
  if (!trains) return 0;
  t_open = {.op = op, .sizes_segment = true};
  return 1;
}

int Monitor::enter(int32_t op, uint32_t flags) {
  if (op < 0 || op >= static_cast<int32_t>(segment::kMaxOps) || g_process.is_off()) return 0;
  if ((g_process.hot() & kHotArmed) == 0) return enter_unarmed(op, flags);
  const uint32_t pass = g_process.pass_of(op);
  const bool in_backward = (flags & FORESHOCK_IN_BACKWARD) != 0;
  if ((g_process.hot() & kHotTickPending) != 0 && pass == FORESHOCK_FORWARD && !in_backward) begin_step();

  const Counting counting = g_process.counting();
  // The previous call on this thread is still open: it threw, and its hook did not notice.
  if (t_open.op >= 0) skip(-1, FORESHOCK_SKIP_UNKNOWN);
  count_call(counting, op);
  const uint32_t hot = g_process.hot();
  if ((hot & kHotSwitchedOff) != 0) {
    counting.add(counting.block->skipped[pass][FORESHOCK_SKIP_OFF]);
    return 0;
  }
  if ((hot & kHotNoBudget) != 0) {
    counting.add(counting.block->skipped[pass][FORESHOCK_SKIP_BUDGET]);
    return 0;
  }
  if ((hot & kHotSampledStep) == 0) {
    counting.add(counting.block->unsampled[pass]);
    return 0;
  }
  const uint64_t call = call_in_step_.fetch_add(1, std::memory_order_relaxed);
  int ordinal = -1;
  if (TryLock lock(layer_busy_); lock) ordinal = ordinal_.next(pass == FORESHOCK_BACKWARD, in_backward);
  if (!is_sampled_call(g_process.settings().seed, step_.load(std::memory_order_relaxed), call, free_slices(),
                       calls_last_step_.load(std::memory_order_relaxed))) {
    counting.add(counting.block->unsampled[pass]);
    return 0;
  }
  t_open = {.op = op, .call = call, .ordinal = ordinal};
  return 1;
}

void Monitor::leave(const foreshock_attention_call& call) {
  const OpenCall open = t_open;
  t_open = {};
  if (open.op < 0) return;
  const uint32_t pass = g_process.pass_of(open.op);
  if (open.sizes_segment) {
    ValidatedCall checked;
    const bool usable = validate_call(call, pass, &checked) < 0;
    const uint64_t bytes = usable ? slot_bytes_for(checked) : 0;
    if (ensure_segment(bytes)) cost_.expect(bytes);
    return;
  }
  const uint64_t begin = monotonic_ns();
  const Counting counting = g_process.counting();
  const Taken taken = take_sample(counting, call, open, pass);
  const uint64_t own_ns = monotonic_ns() - begin + call.prepare_ns;
  counting.add(counting.block->hook_ns, own_ns);
  slices_ns_.fetch_add(own_ns, std::memory_order_relaxed);
  if (taken.bytes == 0) return;
  if (TryLock lock(cost_busy_); lock)
    cost_.observe_slice(taken.bytes, taken.is_cold, static_cast<double>(own_ns) * 1e-9);
}

Monitor::Taken Monitor::take_sample(const Counting& counting, const foreshock_attention_call& call,
                                    const OpenCall& open, uint32_t pass) {
  segment::ThreadBlock& block = *counting.block;
  const auto skip = [&](int reason) {
    counting.add(block.skipped[pass][reason]);
    return Taken{};
  };
  ValidatedCall checked;
  if (const int reason = validate_call(call, pass, &checked); reason >= 0) return skip(reason);
  segment::SegmentWriter& writer = g_process.writer();
  if (writer.slots() == 0) return skip(FORESHOCK_SKIP_OFF);

  const int64_t step = step_.load(std::memory_order_relaxed);
  const Settings& settings = g_process.settings();
  if (checked.packed.count > 0) {
    const uint32_t place = choose_place(settings.seed, step, open.call, settings.rank);
    checked.packed.place = place;  // offsets on a device are read by the kernel
    if (checked.device_type == FORESHOCK_DEVICE_CPU)
      if (const int reason = take_sequence(place, &checked); reason >= 0) return skip(reason);
  }
  DeviceTurn turn;  // empty for host tensors
  SlotRoom room = {writer.slot_bytes(), writer.slots()};
  if (checked.device_type != FORESHOCK_DEVICE_CPU) {
    if (const int reason = devices_.begin(checked, &turn); reason >= 0) return skip(reason);
    room = {turn.state().capacity(), turn.state().most_parts()};
  }
  Slice rows = choose_slice(checked.shape, settings.seed, step, open.call, settings.rank);
  SlicePlan plan;
  if (!plan_slice(checked, room.bytes, room.slots, &rows, &plan)) return skip(FORESHOCK_SKIP_TOO_LARGE);
  slots_per_slice_.store(plan.slots, std::memory_order_relaxed);
  // Only for every second call, since the count takes at least half as long as the copy. Each random choice
  // has its own last argument of mix(), here 6; the others are in sampling.cpp.
  if (mix(settings.seed, static_cast<uint64_t>(step), open.call, 6) % 2 == 0)
    plan.all.nonfinite_out = count_nonfinite_out(checked, rows);
  plan.all.step = step;
  plan.all.time_ns = realtime_ns();
  plan.all.call = open.call;
  plan.all.op = open.op;
  name_layer(call, open, &plan.all);
  // The weights of query and key projections are divided into heads by these counts (heads.h).
  observed_heads_.see(checked);

  // The call is counted before its slot's sequence turns odd. If the process dies in between, the sample is
  // counted as torn instead of not at all.
  counting.add(block.sampled[pass]);
  Taken taken;
  if (const int reason = put_slice(checked, rows, plan, &turn, &taken); reason >= 0) {
    counting.take_back(block.sampled[pass]);
    return skip(reason);
  }
  if (has_columns(checked)) add_columns(checked, plan.all, room, &turn, &taken);
  return taken;
}

// Copies a slice of host tensors, or launches the copy of a slice of device tensors. Returns -1, or the
// FORESHOCK_SKIP_ reason.
int Monitor::put_slice(const ValidatedCall& checked, const Slice& slice, const SlicePlan& plan,
                       DeviceTurn* turn, Taken* taken) {
  segment::SegmentWriter& writer = g_process.writer();
  const uint64_t ticket = ticket_.fetch_add(plan.slots, std::memory_order_relaxed) + 1;
  segment::Slot* slots[segment::kMaxSlots];
  if (!writer.claim(ticket, plan.slots, slots)) return FORESHOCK_SKIP_RING_FULL;
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < plan.slots; ++part) {
    const segment::Slot header = slot_of(plan, part);
    for (const segment::Payload& payload : header.payload) bytes += payload.bytes;
    writer.describe(slots[part], header);
    if (!*turn) copy_slot(checked, slice, *slots[part], reinterpret_cast<char*>(slots[part]));
  }
  if (!*turn) {
    writer.publish(slots, ticket, plan.slots);
  } else if (const int reason = turn->state().send(checked, slice, {slots, ticket, plan.slots},
                                                   static_cast<cuda::Stream>(checked.stream));
             reason >= 0) {
    writer.give_back(ticket, plan.slots);
    return reason;
  }
  taken->bytes += bytes;
  // In the first round of tickets the slots are new: the operating system had to map their pages.
  taken->is_cold |= ticket <= writer.slots();
  return -1;
}

// Takes a slice of key positions for some of the calls whose rows were taken. The call counts as sampled even
// if this fails. `rows` is the slot header of the slice of rows; it supplies the fields that both share.
void Monitor::add_columns(const ValidatedCall& checked, const segment::Slot& rows, const SlotRoom& room,
                          DeviceTurn* turn, Taken* taken) {
  const Settings& settings = g_process.settings();
  if (!takes_columns(checked.shape, checked.head_dim, checked.value_dim,
                     columns_are_affordable_.load(std::memory_order_relaxed), settings.seed, rows.step,
                     rows.call))
    return;
  const Slice slice = choose_columns(checked.shape, settings.seed, rows.step, rows.call, settings.rank);
  SlicePlan plan;
  if (!plan_columns(checked, room.bytes, room.slots, slice, &plan)) return;
  slots_per_columns_.store(plan.slots, std::memory_order_relaxed);
  const int64_t needed = plan.slots;
  // The other free slots are reserved for slices of rows.
  if (column_slots_.fetch_sub(needed, std::memory_order_relaxed) < needed) return;
  plan.all.step = rows.step;
  plan.all.time_ns = rows.time_ns;
  plan.all.call = rows.call;
  plan.all.op = rows.op;
  plan.all.layer = rows.layer;
  plan.all.layer_source = rows.layer_source;
  put_slice(checked, slice, plan, turn, taken);
}

void Monitor::name_layer(const foreshock_attention_call& call, const OpenCall& open, segment::Slot* slot) {
  const void* identity = call.layer_identity;
  const auto is = [&](int layer, segment::LayerSource source) {
    slot->layer = layer;
    if (layer >= 0) slot->layer_source = static_cast<uint32_t>(source);
    return layer >= 0;
  };
  if (call.layer_name != nullptr) {
    TryLock lock(layer_busy_);
    if (lock && is(layers_.index_of(call.layer_name, nullptr), segment::LayerSource::kAnnotation)) return;
  }
  if (is(layers_.find(identity), segment::LayerSource::kParameter)) return;
  // An ordinal is used if no parameter was found, or if no parameter of this process has a name (a C++
  // trainer, a compiled optimizer).
  const bool is_unnamed = identity != nullptr && layers_.has_names();
  slot->layer_source = static_cast<uint32_t>(is_unnamed ? segment::LayerSource::kUnnamedParameter
                                                        : segment::LayerSource::kUnknown);
  if (!is_unnamed) is(open.ordinal, segment::LayerSource::kOrdinal);
}

void Monitor::skip(int32_t op, uint32_t reason) {
  const OpenCall open = t_open;
  t_open = {};
  if (open.op < 0 || open.sizes_segment) return;
  const Counting counting = g_process.counting();
  const bool is_known = open.op == op && reason < FORESHOCK_SKIP_REASONS;
  counting.add(counting.block->skipped[g_process.pass_of(open.op)]
                                      [is_known ? reason : uint32_t{FORESHOCK_SKIP_UNKNOWN}]);
}

// -- segment and reset --

bool Monitor::ensure_segment(uint64_t slot_bytes_needed) {
  return g_process.arm(slot_bytes_needed, [] { g_monitor.reset(); });
}

void Monitor::reset() {
  // A forked child that trains drops its parent's observations. Observations made before the first segment
  // are kept: a first pass without gradients (reentrant checkpoint, compiled graph) has a loss but creates no
  // segment.
  if (std::exchange(had_segment_, true)) {
    loss_ = {};
    loss_is_reported_.store(false);
    logged_norm_.reset();
    norm_is_seen_ = false;
    skipped_steps_.store(0);
    skips_unseen_.store(false);
    graphs_.forget();
  }
  step_.store(-1);
  next_step_.store(-1);
  ticket_.store(0);
  slots_per_slice_.store(1);
  slots_per_columns_.store(0);
  interval_.store(g_process.settings().every != 0 ? g_process.settings().every
                  : g_process.settings().world_size > g_process.settings().local_ranks ? kSeveralNodesInterval
                                                                                       : kFirstInterval);
  base_interval_ = interval_.load();
  step_was_sampled_ = steps_are_explicit_ = false;
  last_tick_ns_ = monotonic_ns();
  last_totals_ = {};
  last_agent_cost_ = {};
  agent_forecast_ = {};
  gradient_cost_ = {};
  gradients_ns_ = 0;
  stride_ = {};
  period_steps_.store(1);
  budget_ = {};
  cost_ = {};
  first_look_ = FirstLook(g_process.settings().every == 0 && g_process.settings().max_slowdown > 0);
  slices_ns_.store(0);
  budget_.set_limit(g_process.settings().max_slowdown);
  ordinal_ = {};
  layers_.attach(g_process.writer().layers());
  if (!layers_.has_names()) parameters_without_room_ = 0;  // the count came from the parent process
  set_unnamed();
  devices_.attach(&g_process.writer());
  pending_steps_.forget();
  fetched_ = {};
  numbers_requested_.store(0);
  scalars_.attach(g_process.writer().scalar_names());
  unseen_.attach(g_process.writer().unseen_names());
  graphs_.store(g_process.writer().coverage());
  kernels_.ask(g_process.settings().count_kernels, find_cupti_);
  segment::SegmentWriter& writer = g_process.writer();
  const Settings& settings = g_process.settings();
  weights_.attach(writer.tensors(), writer.tensor_bytes(), writer.control(), settings.max_slowdown,
                  settings.weights_every, settings.memory, !settings.weights, &devices_);
  weights_ns_.store(0);
  set_up_ns_ = unreported_ns_ = 0;
  deferred_steps_.take([](int64_t) {});
  observed_heads_.reset();
  for (std::atomic_flag* flag :
       {&clock_busy_, &layer_busy_, &loss_busy_, &scalars_busy_, &cost_busy_, &weights_busy_})
    flag->clear();
}

void Monitor::read_switches() {
  const segment::Control& control = *g_process.writer().control();
  const auto load = [](const uint32_t& word) {
    return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_relaxed);
  };
  const bool on = load(control.agent_switch) == 1 && load(control.command_switch) == 1;
  if (on)
    g_process.clear_bits(kHotSwitchedOff);
  else
    g_process.set_bits(kHotSwitchedOff);
}

}  // namespace foreshock
