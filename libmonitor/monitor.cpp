#include "libmonitor/monitor.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/sum_of_squares.h"
#include "libmonitor/sampler.h"
#include "libmonitor/slice_copy.h"

namespace foreshock {

constinit Monitor g_monitor;

namespace {

thread_local OpenCall t_open;

// Charged for every call that is only counted, since reading a clock there would cost more than the call's own
// bookkeeping: the adapter's boxed kernel adds 0.3-0.6 us to an attention call (bench/adapter_overhead.py).
constexpr uint64_t kUnsampledCallNs = 500;

// Before the agent has said anything; with several nodes nothing here talks between them, so it stays fixed.
constexpr uint64_t kFirstInterval = 8;
constexpr uint64_t kSeveralNodesInterval = 64;

uint64_t now_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t wall_ns() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Element n of an array whose element size is the caller's, not ours: structs grow at their end.
template <class T>
const T& element(const T* first, size_t n) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + n * first->size);
}

}  // namespace

// -- attention --

void Monitor::count_call(const Counting& counting, int32_t op) {
  counting.add(counting.block->calls[op]);
  if ((counting.block->calls[op] & 1023) == 0 && (g_guest.hot() & kHotArmed) != 0) read_switches();
}

int Monitor::enter_asleep(int32_t op, uint32_t flags) {
  const bool trains = (flags & FORESHOCK_NEEDS_GRADIENT) != 0 || g_guest.pass_of(op) == FORESHOCK_BACKWARD;
  if (!trains && g_guest.is_inherited()) return 0;  // a worker of a trainer, not a trainer
  const Counting counting = g_guest.counting();
  counting.add(counting.block->calls[op]);
  counting.add(counting.block->unsampled[g_guest.pass_of(op)]);
  if (!trains) return 0;
  t_open = {op, true, 0, -1};
  return 1;
}

int Monitor::enter(int32_t op, uint32_t flags) {
  if (op < 0 || op >= static_cast<int32_t>(segment::kMaxOps) || g_guest.is_off()) return 0;
  if ((g_guest.hot() & kHotArmed) == 0) return enter_asleep(op, flags);
  const uint32_t pass = g_guest.pass_of(op);
  const bool recomputed = (flags & FORESHOCK_IN_BACKWARD) != 0;
  if ((g_guest.hot() & kHotTickPending) != 0 && pass == FORESHOCK_FORWARD && !recomputed) begin_step();

  const Counting counting = g_guest.counting();
  count_call(counting, op);
  const uint32_t hot = g_guest.hot();
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
  if (TryLock lock(layer_busy_); lock) ordinal = ordinal_.next(pass == FORESHOCK_BACKWARD, recomputed);
  if (!is_sampled_call(g_guest.settings().seed, step_.load(std::memory_order_relaxed), call,
                       free_slots_.load(std::memory_order_relaxed),
                       calls_last_step_.load(std::memory_order_relaxed))) {
    counting.add(counting.block->unsampled[pass]);
    return 0;
  }
  t_open = {op, false, call, ordinal};
  return 1;
}

void Monitor::leave(const foreshock_attention_call& call) {
  const OpenCall open = t_open;
  t_open = {};
  if (open.op < 0) return;
  const uint32_t pass = g_guest.pass_of(open.op);
  if (open.waking) {
    CheckedCall checked;
    const bool usable = check_call(call, pass, &checked) < 0;
    wake(usable ? slot_bytes_for(checked) : 0);
    return;
  }
  const uint64_t begin = now_ns();
  const Counting counting = g_guest.counting();
  t_open = open;  // take_sample reads it
  take_sample(counting, call, pass);
  t_open = {};
  const bool has_prepare = call.size >= offsetof(foreshock_attention_call, prepare_ns) + sizeof call.prepare_ns;
  counting.add(counting.block->hook_ns, now_ns() - begin + (has_prepare ? call.prepare_ns : 0));
}

void Monitor::take_sample(const Counting& counting, const foreshock_attention_call& call, uint32_t pass) {
  segment::ThreadBlock& block = *counting.block;
  CheckedCall checked;
  if (const int reason = check_call(call, pass, &checked); reason >= 0)
    return counting.add(block.skipped[pass][reason]);
  segment::SegmentWriter& writer = g_guest.writer();
  if (writer.slots() == 0) return counting.add(block.skipped[pass][FORESHOCK_SKIP_OFF]);

  const int64_t step = step_.load(std::memory_order_relaxed);
  const Slice slice =
      choose_slice(checked.shape, g_guest.settings().seed, step, t_open.call, g_guest.settings().rank);
  segment::Slot plan = {};
  if (!plan_slot(checked, slice, writer.slot_bytes(), &plan))
    return counting.add(block.skipped[pass][FORESHOCK_SKIP_TOO_LARGE]);

  // Counted before the slot turns odd, so that a death in between leaves a torn sample, not an uncounted one.
  counting.add(block.sampled[pass]);
  const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  segment::Slot* slot = writer.claim(ticket);
  if (slot == nullptr) {
    counting.take_back(block.sampled[pass]);
    return counting.add(block.skipped[pass][FORESHOCK_SKIP_RING_FULL]);
  }
  const size_t after_ticket = offsetof(segment::Slot, step);
  std::memcpy(reinterpret_cast<char*>(slot) + after_ticket, reinterpret_cast<char*>(&plan) + after_ticket,
              sizeof plan - after_ticket);
  slot->step = step;
  slot->time_ns = wall_ns();
  slot->call = t_open.call;
  slot->op = t_open.op;
  name_layer(call, slot);
  copy_slot(checked, slice, *slot, reinterpret_cast<char*>(slot));
  writer.publish(slot, ticket);
}

void Monitor::name_layer(const foreshock_attention_call& call, segment::Slot* slot) {
  const auto is = [&](int layer, segment::LayerSource source) {
    slot->layer = layer;
    slot->layer_source = static_cast<uint32_t>(layer < 0 ? segment::LayerSource::kUnknown : source);
    return layer >= 0;
  };
  if (call.size >= offsetof(foreshock_attention_call, layer_name) + sizeof call.layer_name &&
      call.layer_name != nullptr) {
    TryLock lock(layer_busy_);
    if (lock && is(layers_.index_of(call.layer_name, nullptr), segment::LayerSource::kAnnotation)) return;
  }
  if (is(layers_.find(call.layer_identity), segment::LayerSource::kParameter)) return;
  // A parameter that was found but bears no name is not a call that nothing names.
  is(call.layer_identity == nullptr ? t_open.ordinal : -1, segment::LayerSource::kOrdinal);
}

void Monitor::skip(int32_t op, uint32_t reason) {
  const OpenCall open = t_open;
  t_open = {};
  if (open.op < 0 || open.waking) return;
  const Counting counting = g_guest.counting();
  const bool is_known = open.op == op && reason < FORESHOCK_SKIP_REASONS;
  counting.add(counting.block->skipped[g_guest.pass_of(open.op)][is_known ? reason : uint32_t{FORESHOCK_SKIP_UNKNOWN}]);
}

// -- life --

bool Monitor::wake(uint64_t slot_bytes_needed) {
  if (!g_guest.arm(slot_bytes_needed)) return false;
  // In a child that trains by itself nothing of its parent's clock is left. What was seen before the first segment
  // stays: a first pass without gradients (reentrant checkpoint, compiled graph) has a loss but wakes nobody.
  if (std::exchange(has_woken_, true)) {
    loss_ = {};
    skipped_steps_.store(0);
  }
  step_.store(-1);
  next_step_.store(-1);
  ticket_.store(0);
  interval_.store(g_guest.settings().every != 0 ? g_guest.settings().every
                  : g_guest.settings().world_size > g_guest.settings().local_ranks ? kSeveralNodesInterval
                                                                                  : kFirstInterval);
  step_was_sampled_ = false;
  last_tick_ns_ = now_ns();
  last_totals_ = {};
  budget_ = {};
  budget_.set_limit(g_guest.settings().max_slowdown);
  ordinal_ = {};
  layers_.attach(g_guest.writer().layers());
  for (std::atomic_flag* flag : {&clock_busy_, &layer_busy_, &loss_busy_}) flag->clear();
  return true;
}

void Monitor::read_switches() {
  const segment::Control& control = *g_guest.writer().control();
  const auto load = [](const uint32_t& word) {
    return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_relaxed);
  };
  const bool on = load(control.agent_switch) == 1 && load(control.command_switch) == 1;
  if (on)
    g_guest.clear_bits(kHotSwitchedOff);
  else
    g_guest.set_bits(kHotSwitchedOff);
}

// -- steps --

// N from the control file, once its step has come.
uint64_t Monitor::interval_at(int64_t step) const {
  const uint64_t fixed = g_guest.settings().every;
  if (fixed != 0) return fixed;
  auto& control = const_cast<segment::Control&>(*g_guest.writer().control());
  const uint64_t asked = std::atomic_ref<uint64_t>(control.interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.interval_from_step).load(std::memory_order_relaxed);
  return asked != 0 && step >= from ? asked : interval_.load(std::memory_order_relaxed);
}

void Monitor::begin_step() {
  TryLock lock(clock_busy_);
  if (!lock) return;
  const int64_t step = next_step_.load(std::memory_order_relaxed);
  g_guest.clear_bits(kHotTickPending | kHotSampledStep | kHotNoBudget);
  step_.store(step, std::memory_order_relaxed);
  interval_.store(interval_at(step), std::memory_order_relaxed);
  call_in_step_.store(0, std::memory_order_relaxed);
  read_switches();
  if (!is_sampled_step(step, interval_.load(std::memory_order_relaxed))) return;
  if (!budget_.allows()) return g_guest.set_bits(kHotNoBudget);
  free_slots_.store(g_guest.writer().free_slots(), std::memory_order_relaxed);
  step_was_sampled_ = true;
  if (TryLock layers(layer_busy_); layers) ordinal_.begin_step();
  g_guest.set_bits(kHotSampledStep);
}

bool Monitor::step_is_sampled() const {
  const uint32_t hot = g_guest.hot();
  if ((hot & kHotArmed) == 0 || (hot & kHotSwitchedOff) != 0) return false;
  if ((hot & kHotTickPending) == 0) return (hot & kHotSampledStep) != 0;
  // No forward call since the last step (attention on a path we do not see): the number decides alone.
  return is_sampled_step(next_step_.load(std::memory_order_relaxed), interval_.load(std::memory_order_relaxed));
}

void Monitor::end_step(const foreshock_step& step) {
  const uint64_t begin = now_ns();
  wake(0);
  if ((g_guest.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  g_guest.drain_local();
  const Counting counting = g_guest.counting();

  segment::StepRecord record = {};
  const int64_t expected = (g_guest.hot() & kHotTickPending) != 0 ? next_step_.load() : step_.load();
  record.step = step.step >= 0 ? step.step : std::max<int64_t>(expected, 1);
  record.time_ns = wall_ns();
  record.duration_ns = begin - last_tick_ns_;
  record.given = step.given & ~uint32_t{FORESHOCK_GIVEN_LOSS};
  record.learning_rate = step.learning_rate;
  record.gradient_norm = step.gradient_norm;
  record.batch_id = step.batch_id;
  record.step_source = step.step_source;
  if ((step.given & FORESHOCK_GIVEN_LOSS) != 0) observe_loss(step.loss, FORESHOCK_LOSS_REPORTED);
  if (TryLock busy(loss_busy_); busy && loss_.take(&record.loss, &record.loss_source))
    record.given |= FORESHOCK_GIVEN_LOSS;
  double norm = 0;
  if (layers_.publish_gradients(record.step, &norm) && (step.given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record.gradient_norm = norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  const CallTotals totals = call_totals(g_guest.writer().threads());
  record.calls = totals.calls - last_totals_.calls;
  record.sampled = step_was_sampled_;
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  record.interval = interval_.load(std::memory_order_relaxed);
  const bool has_prepare = step.size >= offsetof(foreshock_step, prepare_ns) + sizeof step.prepare_ns;
  // A step's time counts from the creation of the segment on, so what went before it (that creation) cannot be in its
  // cost.
  const uint64_t prepare_ns = has_prepare ? std::min(step.prepare_ns, record.duration_ns) : 0;
  const uint64_t own = now_ns() - begin + prepare_ns + record.calls * kUnsampledCallNs;
  counting.add(counting.block->step_ns, own);
  record.cost_ns = totals.cost_ns - last_totals_.cost_ns + own;
  g_guest.writer().append_step(record);

  budget_.end_step(static_cast<double>(record.duration_ns) * 1e-9, static_cast<double>(record.cost_ns) * 1e-9,
                   record.interval);
  calls_last_step_.store(record.calls, std::memory_order_relaxed);
  last_totals_ = {totals.calls, totals.cost_ns + own};
  last_tick_ns_ = begin;
  step_was_sampled_ = false;
  next_step_.store(record.step + 1, std::memory_order_relaxed);
  read_switches();  // here too: without attention calls no step ever begins
  g_guest.set_bits(kHotTickPending);
}

void Monitor::skip_step() { skipped_steps_.fetch_add(1, std::memory_order_relaxed); }

void Monitor::observe_loss(double value, uint32_t source) {
  TryLock lock(loss_busy_);
  if (lock) loss_.observe(value, source);
}

// -- parameters --

int Monitor::name_parameters(const foreshock_parameter* parameters, size_t count) {
  wake(0);
  if ((g_guest.hot() & kHotArmed) == 0) return 0;
  TryLock lock(layer_busy_);
  if (!lock) return 0;
  int kept = 0;
  for (size_t n = 0; n < count; ++n) kept += layers_.name(element(parameters, n));
  return kept;
}

void Monitor::observe_gradients(const foreshock_gradient* gradients, size_t count) {
  const uint64_t begin = now_ns();
  wake(0);
  if ((g_guest.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& gradient = element(gradients, n);
    double squares = gradient.sum_of_squares;
    if (gradient.values.data != nullptr) {
      if (gradient.values.dims != 1 || gradient.values.stride[0] != 1 ||
          gradient.values.device_type != FORESHOCK_DEVICE_CPU)
        continue;
      squares = sum_of_squares(gradient.values.data, static_cast<DType>(gradient.values.dtype),
                               static_cast<size_t>(gradient.values.shape[0]));
    }
    layers_.add_gradient(gradient.identity, squares);
  }
  const Counting counting = g_guest.counting();
  counting.add(counting.block->step_ns, now_ns() - begin);
}

}  // namespace foreshock
