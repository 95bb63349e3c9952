// The parts of Monitor that charge a step to the ledger, and decide which steps and attention calls are
// sampled. A slice, the copied part of a call, has a few query rows with all keys, or a few key positions
// (columns) with all query rows. `g_process` (process.h) holds the segment (the memory shared with the agent
// process), the settings, and the hot word: flags (kHot...) that every attention call reads first. `control`
// is the last copy of the file with which the agent sets the sampling. Locks are only tried (TryLock): if
// another thread holds a lock, the function leaves out the work that needs the lock.
#include "libmonitor/monitor.h"

#include <algorithm>
#include <utility>

#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/ledger.h"
#include "libmonitor/sampling.h"

namespace foreshock {

constinit Monitor g_monitor;
constinit thread_local OpenCall t_open;

// -- which steps and calls are sampled --

// Returns the sampling interval of the burst that contains `step`, else 0. A burst is a range of steps that
// the agent wants sampled more often after a warning. The interval is loaded first, with acquire order, since
// the agent stores it after the steps. (std::atomic_ref takes no const word, hence the const_cast.)
uint64_t Monitor::burst_at(int64_t step) const {
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t interval = std::atomic_ref<uint64_t>(control.burst_interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.burst_from_step).load(std::memory_order_relaxed);
  const int64_t until = std::atomic_ref<int64_t>(control.burst_until_step).load(std::memory_order_relaxed);
  if (g_process.settings().every != 0 || from < 0 || until <= from) return 0;
  return until - from <= segment::kMostBurstSteps && step >= from && step < until ? interval : 0;
}

// Returns the sampling interval at `step`. The interval in the control file applies from interval_from_step
// on, so that all ranks change it at the same step.
uint64_t Monitor::interval_at(int64_t step) {
  const uint64_t fixed = g_process.settings().every;
  if (fixed != 0) return fixed;
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t interval = std::atomic_ref<uint64_t>(control.interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.interval_from_step).load(std::memory_order_relaxed);
  if (interval != 0 && step >= from) base_interval_ = interval;
  const uint64_t burst = burst_at(step);
  return burst != 0 ? std::min(burst, base_interval_) : base_interval_;
}

// Gives the ledger the expected cost of the next slice. is_cold(): the next slot has never been written, so
// copying into it costs more. If another thread changes the estimate, the ledger keeps the last one.
void Monitor::expect_slice() {
  if (TryLock busy(cost_busy_); busy) ledger_.expect_slice(slice_cost_.seconds(is_cold()));
}

// Returns the time that the agent has spent on this rank since the last call, from totals that the agent
// writes into the control file. A restarted agent counts from 0 again. The results are limited, so that a
// faulty agent can only stop the sampling for a while.
AgentForecast::Report Monitor::take_agent_report() {
  constexpr uint64_t kMostNs = 1'000'000'000;
  auto& agent = const_cast<segment::AgentCost&>(g_process.writer().control()->agent);
  const auto growth = [](uint64_t& total, uint64_t* last, uint64_t most) {
    const uint64_t now = std::atomic_ref<uint64_t>(total).load(std::memory_order_relaxed);
    const uint64_t before = std::exchange(*last, now);
    return std::min(now > before ? now - before : 0, most);
  };
  const auto spent = [&](uint64_t& total, uint64_t* last) { return seconds(growth(total, last, kMostNs)); };
  return {spent(agent.ns, &last_agent_cost_.ns), spent(agent.slices_ns, &last_agent_cost_.slices_ns),
          growth(agent.slices, &last_agent_cost_.slices, segment::kMaxSlots),
          spent(agent.tensors_ns, &last_agent_cost_.tensors_ns)};
}

// Charges the costs of the brief steps since the last call. In a brief step only calls and losses were
// counted, so its end charges nothing. The caller must hold clock_busy_.
void Monitor::settle_brief_steps() {
  const uint32_t brief_steps = std::exchange(brief_steps_, 0);
  for (uint32_t n = 0; n < brief_steps; ++n) {
    const double cost = seconds(brief_[n].cost_ns);
    charge_step({.seconds = seconds(brief_[n].duration_ns), .cost_seconds = cost, .rest_seconds = cost},
                /*is_brief=*/true, {});
  }
}

// Charges the step's cost. The caller must hold clock_busy_.
void Monitor::settle_step(const EndedStep& ended) {
  settle_brief_steps();
  settled_source_ = ended.record.step_source;
  // The time of setting up devices is part of the record. For the ledger it is neither cost nor step time.
  const double set_up = seconds(std::exchange(set_up_ns_, 0));
  const double cost = seconds(ended.record.cost_ns) - set_up;
  // Slices and device gradients have forecasts of their own, and launches for weights are charged when their
  // results arrive, so the forecasts of steps get the rest.
  const uint64_t own_forecast_ns = slices_ns_.exchange(0, std::memory_order_relaxed) +
                                   std::exchange(gradients_ns_, 0) +
                                   launches_ns_.exchange(0, std::memory_order_relaxed);
  charge_step({.seconds = seconds(ended.record.duration_ns) - set_up,
               .cost_seconds = cost,
               .rest_seconds = std::max(cost - seconds(own_forecast_ns), 0.0),
               .weights_seconds = seconds(weights_ns_.exchange(0, std::memory_order_relaxed)),
               .has_described = has_observed_weights_.exchange(false, std::memory_order_relaxed),
               .was_sampled = step_was_sampled_,
               .calls = ended.record.calls,
               .slices = ended.totals.sampled - last_totals_.sampled},
              /*is_brief=*/false, take_agent_report());
}

// Ends a step in the ledger. `is_brief`: nothing was measured in the step; what was measured since its end
// belongs to a later step. `report`: what the agent has reported since the last call. Setting
// no_weights_before_ (no weight is due before this step) to 0 makes weights_due() compute it again.
void Monitor::charge_step(const Ledger::Step& step, bool is_brief, const AgentForecast::Report& report) {
  expect_slice();
  TryLock weights(weights_busy_);
  // base_interval_, since the limits of savings and debt must stay the same in a burst of denser sampling.
  ledger_.end_step(step, base_interval_, report, weights ? weights_.end_step(is_brief) : MeasuredWeights{});
  if (!weights) return;
  weights_.set_step_source(settled_source_);
  if (weights_.allow(ledger_.weights())) no_weights_before_.store(0, std::memory_order_relaxed);
}

// Stores the numbers that the next step starts from. stride_ estimates by how much the step number grows from
// one reported step to the next. The caller must hold clock_busy_.
void Monitor::advance(const EndedStep& ended) {
  calls_last_step_.store(ended.record.calls, std::memory_order_relaxed);
  last_totals_ = {ended.totals.calls, ended.totals.sampled, ended.totals.cost_ns + ended.own_ns};
  last_tick_ns_ = ended.end_ns;
  step_was_sampled_ = false;
  const bool goes_back = ended.record.step < next_step_.load(std::memory_order_relaxed);
  stride_.add(ended.record.step);
  const bool is_other_stride = stride_.steps() != period_steps_.load(std::memory_order_relaxed);
  if (goes_back || is_other_stride) no_weights_before_.store(0, std::memory_order_relaxed);
  period_steps_.store(stride_.steps(), std::memory_order_relaxed);
  next_step_.store(ended.record.step + 1, std::memory_order_relaxed);
}

// Reads the control file if it was last read `age_ns` or more before `now_ns`.
void Monitor::refresh_control(uint64_t now_ns, uint64_t age_ns) {
  const uint64_t last = control_read_ns_.load(std::memory_order_relaxed);
  if (now_ns < last + age_ns) return;
  control_read_ns_.store(now_ns, std::memory_order_relaxed);
  g_process.writer().refresh_control();
}

// Called by the first forward call after a step has ended. Decides whether the step that begins is sampled.
void Monitor::begin_step() {
  TryLock lock(clock_busy_);
  if (!lock) return;
  const int64_t step = next_step_.load(std::memory_order_relaxed);
  refresh_control(monotonic_ns(), is_due(step) ? 0 : kControlAgeNs);
  g_process.clear_bits(kHotTickPending | kHotSampledStep | kHotNoBudget);
  step_.store(step, std::memory_order_relaxed);
  interval_.store(interval_at(step), std::memory_order_relaxed);  // is_due() reads it
  if (is_due(step)) settle_brief_steps();                         // the decisions below read the ledger
  ledger_.set_rate(burst_at(step) != 0 ? segment::kBurstSlowdown : 1);
  call_in_step_.store(0, std::memory_order_relaxed);
  read_switches();
  if ((g_process.hot() & kHotPaused) != 0 || !is_due(step)) return;
  expect_slice();
  const uint64_t last_calls = calls_last_step_.load(std::memory_order_relaxed);
  const Ledger::Slices affordable = ledger_.plan_slices(std::min<uint64_t>(last_calls, segment::kMaxSlots));
  if (affordable.rows == 0) return g_process.set_bits(kHotNoBudget);
  affordable_slices_.store(affordable.rows, std::memory_order_relaxed);
  columns_are_affordable_.store(affordable.columns, std::memory_order_relaxed);
  if (TryLock layers(layer_busy_); layers) ordinal_.begin_step();
  const uint32_t free_slots = g_process.writer().free_slots();
  free_slots_.store(free_slots, std::memory_order_relaxed);
  // Slices of key positions may use the slots that the expected slices of rows leave free.
  const uint64_t row_slices = std::min<uint64_t>(free_slices(), last_calls);
  column_slots_.store(int64_t{free_slots} - static_cast<int64_t>(row_slices * slots_per_slice_.load()),
                      std::memory_order_relaxed);
  step_was_sampled_ = true;
  g_process.set_bits(kHotSampledStep);  // last: other threads now take samples with the values stored above
}

// Returns how many slices of rows this step may take, from the budget and the slots that were free when the
// step began. If possible, the slots of one slice of key positions are kept free.
uint32_t Monitor::free_slices() const {
  const uint32_t free = free_slots_.load(std::memory_order_relaxed);
  const uint32_t per_slice = slots_per_slice_.load(std::memory_order_relaxed);
  const uint32_t for_columns = slots_per_columns_.load(std::memory_order_relaxed);
  const uint32_t for_rows = free >= per_slice + for_columns ? free - for_columns : free;
  return std::min(for_rows / per_slice, affordable_slices_.load(std::memory_order_relaxed));
}

// Whether `step`, or a later step reported together with it, is to be sampled, regardless of the budget.
bool Monitor::is_due(int64_t step) const {
  if (ledger_.is_first_look()) return step >= 0;
  const uint64_t interval = interval_.load(std::memory_order_relaxed);
  const int64_t steps = period_steps_.load(std::memory_order_relaxed);
  const Settings& settings = g_process.settings();
  if (settings.every != 0) return is_multiple_of_every(step, interval, steps);
  return is_sampled_step(settings.seed, step, interval, steps);
}

// -- attention --

// Writes the counts of all threads into the segment if they were not written for kCountsAgeNs. A program
// without steps is thus seen while it runs. Reads the clock in one of kCallsPerClockRead calls, and in the
// first ones.
void Monitor::publish_old_counts(const Counting& counting, int32_t op) {
  const uint64_t calls = std::atomic_ref<uint64_t>(counting.block->calls[op]).load(std::memory_order_relaxed);
  if (calls > kCallsPerClockRead && calls % kCallsPerClockRead != kCallsPerClockRead - 1) return;
  const uint64_t now = clock_ns(CLOCK_MONOTONIC_COARSE);
  uint64_t last = counts_written_ns_.load(std::memory_order_relaxed);
  if (now < last + kCountsAgeNs || !counts_written_ns_.compare_exchange_strong(last, now)) return;
  g_process.writer().publish_threads();
  g_process.writer().publish_facts();
}

void Monitor::count_call(const Counting& counting, int32_t op) {
  counting.add_call(op);
  // Atomic, because threads without a block of counters of their own share the last block.
  const uint64_t calls = std::atomic_ref<uint64_t>(counting.block->calls[op]).load(std::memory_order_relaxed);
  // begin_step() reads the switches (kHotPaused) too, but an evaluation has no steps.
  if (calls % kCallsPerSwitchRead != 0 || (g_process.hot() & kHotArmed) == 0) return;
  g_process.writer().refresh_control();
  read_switches();
}

// Replaces enter() until there is a segment. Returns 1 for a call of a training: leave() creates the segment.
int Monitor::enter_unarmed(int32_t op, uint32_t flags) {
  t_open = {};
  const bool trains = (flags & FORESHOCK_NEEDS_GRADIENT) != 0 || g_process.pass_of(op) == FORESHOCK_BACKWARD;
  if (!trains && g_process.is_inherited()) return 0;  // a forked child of the trainer, e.g. a data loader
  const Counting counting = g_process.counting();
  counting.add_call(op);
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
  // A forward call in a backward pass repeats an earlier call, so it begins no step, unless hooks see no
  // other forward calls: a reentrant checkpoint runs the first ones without autograd.
  if ((g_process.hot() & kHotTickPending) != 0 && pass == FORESHOCK_FORWARD) {
    if (!in_backward) begins_in_backward_.store(false, std::memory_order_relaxed);
    if (!in_backward || begins_in_backward_.load(std::memory_order_relaxed)) begin_step();
  }

  const Counting counting = g_process.counting();
  // The previous call on this thread is still open: it threw, and its hook did not notice.
  if (t_open.op >= 0) skip(-1, FORESHOCK_SKIP_UNKNOWN);
  publish_old_counts(counting, op);  // first: each counted call then has an outcome
  count_call(counting, op);
  segment::ThreadBlock& block = *counting.block;
  const auto leave_out = [&](uint64_t& counter) {
    counting.add(counter);
    return 0;
  };
  const uint32_t hot = g_process.hot();  // after begin_step() and count_call(), which change it
  if ((hot & kHotPaused) != 0) return leave_out(block.skipped[pass][FORESHOCK_SKIP_OFF]);
  if ((hot & kHotNoBudget) != 0) return leave_out(block.skipped[pass][FORESHOCK_SKIP_BUDGET]);
  if ((hot & kHotSampledStep) == 0) return leave_out(block.unsampled[pass]);
  const uint64_t call = call_in_step_.fetch_add(1, std::memory_order_relaxed);
  int ordinal = -1;
  if (TryLock lock(layer_busy_); lock) ordinal = ordinal_.next(pass == FORESHOCK_BACKWARD, in_backward);
  if (!is_sampled_call(g_process.settings().seed, step_.load(std::memory_order_relaxed), call, free_slices(),
                       calls_last_step_.load(std::memory_order_relaxed)))
    return leave_out(block.unsampled[pass]);
  t_open = {
      .op = op, .call = call, .ordinal = ordinal, .needs_gradient = (flags & FORESHOCK_NEEDS_GRADIENT) != 0};
  return 1;
}

// -- segment and reset --

bool Monitor::ensure_segment(uint64_t slot_bytes_needed) {
  return g_process.create_segment_once(slot_bytes_needed, [] { g_monitor.reset(); });
}

// Resets all state for a new segment, before any other thread can see the segment.
void Monitor::reset() {
  // A forked child that trains drops its parent's observations. Observations before the first segment are
  // kept: a first pass without gradients (reentrant checkpoint, compiled graph) has a loss but no segment.
  if (std::exchange(had_segment_, true)) {
    loss_ = {};
    loss_is_reported_.store(false);
    logged_norm_.reset();
    norm_is_seen_ = false;
    skipped_steps_.store(0);
    skipped_in_row_.store(0);
    skips_unseen_.store(false);
    graphs_.forget();
  }
  step_.store(-1);
  next_step_.store(-1);
  ticket_.store(0);
  slots_per_slice_.store(1);
  slots_per_columns_.store(0);
  first_columns_.reset();
  segment::SegmentWriter& writer = g_process.writer();
  const Settings& settings = g_process.settings();
  const bool has_several_nodes = settings.world_size > settings.local_ranks;
  base_interval_ = has_several_nodes ? kSeveralNodesInterval : kFirstInterval;
  if (settings.every != 0) base_interval_ = settings.every;
  interval_.store(base_interval_);
  step_was_sampled_ = steps_are_explicit_ = false;
  last_tick_ns_ = monotonic_ns();
  may_be_brief_ = false;
  brief_steps_ = settled_source_ = 0;
  last_totals_ = {};
  last_agent_cost_ = {};
  gradients_ns_ = 0;
  stride_ = {};
  period_steps_.store(1);
  ledger_ = Ledger(settings.max_slowdown, settings.weights_every,
                   /*has_first_look=*/settings.every == 0 && settings.max_slowdown > 0,
                   settings.every_ignores_cost);
  slice_cost_ = {};
  slices_ns_.store(0);
  ordinal_ = {};
  layers_.attach(writer.layers());
  layers_.store_inventory(writer.coverage());
  if (!layers_.has_names()) parameters_without_room_ = 0;  // the count came from the parent process
  store_unnamed_parameters();
  devices_.attach(&writer);
  pending_steps_.forget();
  fetched_ = {};
  numbers_requested_.store(0);
  scalars_.attach(writer.scalar_names());
  unseen_.attach(writer.unseen_names());
  graphs_.store(writer.coverage());
  kernels_.start(settings.count_kernels, find_cupti_);
  weights_.attach(writer.tensors(), writer.tensor_bytes(), writer.control(), ledger_.weights(),
                  settings.memory, !settings.weights, &devices_, &writer);
  weights_ns_.store(0);
  launches_ns_.store(0);
  has_observed_weights_.store(false);
  set_up_ns_ = unreported_ns_ = 0;
  no_weights_before_.store(0);
  deferred_steps_.take([](int64_t) {});  // empties the set
  control_read_ns_.store(0);
  counts_written_ns_.store(0);
  writer.publish_facts();
  // In a forked child, a thread of the parent may have held these locks at the fork.
  for (std::atomic_flag* flag :
       {&clock_busy_, &layer_busy_, &loss_busy_, &scalars_busy_, &cost_busy_, &weights_busy_})
    flag->clear();
}

void Monitor::begin_graph() {
  PassCalls so_far;
  g_process.add_calls_to(so_far.of);
  graphs_.begin_capture(so_far);
}

bool Monitor::end_graph(PassCalls* calls) {
  PassCalls so_far;
  g_process.add_calls_to(so_far.of);
  const bool is_known = graphs_.end_capture(so_far, calls);
  if ((g_process.hot() & kHotArmed) != 0) graphs_.store(g_process.writer().coverage());
  return is_known;
}

void Monitor::launch_graph(const PassCalls* calls) {
  calls != nullptr ? graphs_.launch(*calls) : graphs_.launch_unknown();
  if ((g_process.hot() & kHotArmed) != 0) graphs_.store(g_process.writer().coverage());
}

// The agent and `foreshock pause` each have a switch; the monitor is on while both are 1.
void Monitor::read_switches() {
  const segment::Control& control = *g_process.writer().control();
  const auto load = [](const uint32_t& word) {
    return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(std::memory_order_relaxed);
  };
  const bool on = load(control.agent_switch) == 1 && load(control.command_switch) == 1;
  if (on)
    g_process.clear_bits(kHotPaused);
  else
    g_process.set_bits(kHotPaused);
}

}  // namespace foreshock
