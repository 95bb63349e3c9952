// The clock of steps, and the names and weights that Monitor is told; the calls themselves are in
// monitor.cpp.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "libmonitor/base.h"
#include "libmonitor/monitor.h"
#include "libmonitor/sampling.h"
#include "libmonitor/step_numbers.h"

namespace foreshock {
namespace {

// Charged for every call that is only counted, since reading a clock there would cost more than the call's
// own bookkeeping: the adapter's boxed kernel adds 0.3-0.6 us to an attention call
// (bench/adapter_overhead.py).
constexpr uint64_t kUnsampledCallNs = 500;

// The balance may grow to this many times what the least sample is expected to cost: an expectation that is a
// little short must not make it wait for ever.
constexpr double kLeastMargin = 1.5;

// Before the optimizer's step the adapter describes the tensors that are due. Where the step was not sampled,
// the share of weights pays for that: the step's cost beyond that of a bare step, up to this many times what
// measuring the tensors took, so that an unrelated stall in the step is not held against weights.
constexpr double kMostDescribed = 4;

// A number of steps that no training reaches; from here on it is taken for unknown, so that counting on from
// it cannot overflow.
constexpr int64_t kTooManySteps = int64_t{1} << 62;

}  // namespace

// N of the burst that this step lies in; 0: in none.
uint64_t Monitor::burst_at(int64_t step) const {
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t asked = std::atomic_ref<uint64_t>(control.burst_interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.burst_from_step).load(std::memory_order_relaxed);
  const int64_t until = std::atomic_ref<int64_t>(control.burst_until_step).load(std::memory_order_relaxed);
  if (g_process.settings().every != 0 || from < 0 || until <= from) return 0;
  return until - from <= segment::kMostBurstSteps && step >= from && step < until ? asked : 0;
}

// N from the control file, once its step has come.
uint64_t Monitor::interval_at(int64_t step) {
  const uint64_t fixed = g_process.settings().every;
  if (fixed != 0) return fixed;
  auto& control = const_cast<segment::Control&>(*g_process.writer().control());
  const uint64_t asked = std::atomic_ref<uint64_t>(control.interval).load(std::memory_order_acquire);
  const int64_t from = std::atomic_ref<int64_t>(control.interval_from_step).load(std::memory_order_relaxed);
  if (asked != 0 && step >= from) lasting_interval_ = asked;
  const uint64_t burst = burst_at(step);
  return burst != 0 ? std::min(burst, lasting_interval_) : lasting_interval_;
}

// What the agent has spent on this rank since the last call. A restarted agent counts from 0. An agent that
// writes nonsense stops the sampling for a while and harms nothing else.
AgentForecast::Report Monitor::take_agent_report(double* tensors_seconds) {
  constexpr uint64_t kMostNs = 1'000'000'000;
  auto& agent = const_cast<segment::AgentCost&>(g_process.writer().control()->agent);
  const auto since = [](uint64_t& total, uint64_t* last, uint64_t most) {
    const uint64_t now = std::atomic_ref<uint64_t>(total).load(std::memory_order_relaxed);
    const uint64_t before = std::exchange(*last, now);
    return std::min(now > before ? now - before : 0, most);
  };
  const auto seconds = [&](uint64_t& total, uint64_t* last) {
    return 1e-9 * static_cast<double>(since(total, last, kMostNs));
  };
  *tensors_seconds = seconds(agent.tensors_ns, &agent_.tensors_ns);
  return {seconds(agent.ns, &agent_.ns), seconds(agent.slices_ns, &agent_.slices_ns),
          since(agent.slices, &agent_.slices, segment::kMaxSlots)};
}

// How many slices the step that begins may take; 0: nothing is left for one.
uint32_t Monitor::plan_slices() {
  if (samples_without_limit()) {
    columns_are_affordable_.store(true, std::memory_order_relaxed);
    return segment::kMaxSlots;
  }
  TryLock lock(cost_busy_);
  if (!lock) return paid_slices_.load(std::memory_order_relaxed);
  const double granted = first_look_.seconds();
  if (granted <= 0 && !budget_.allows()) return 0;
  const double saved = budget_.balance_seconds() - gradient_cost_.seconds();
  // A quarter of what there is pays for the rows of every call.
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
  if ((g_process.hot() & kHotSwitchedOff) != 0 || !falls_due(step)) return;
  const uint32_t paid = plan_slices();
  if (paid == 0) return g_process.set_bits(kHotNoBudget);
  paid_slices_.store(paid, std::memory_order_relaxed);
  const uint32_t free = g_process.writer().free_slots();
  free_slots_.store(free, std::memory_order_relaxed);
  const uint64_t rows = std::min<uint64_t>(free_slices(), calls_last_step_.load(std::memory_order_relaxed));
  column_slots_.store(int64_t{free} - static_cast<int64_t>(rows * slots_per_slice_.load()),
                      std::memory_order_relaxed);
  step_was_sampled_ = true;
  if (TryLock layers(layer_busy_); layers) ordinal_.begin_step();
  g_process.set_bits(kHotSampledStep);
}

// Whether the number of a step whose calls begin with `step` says that it is sampled.
bool Monitor::falls_due(int64_t step) const {
  if (first_look_.is_open()) return step >= 0;
  return is_sampled_step(step, interval_.load(std::memory_order_relaxed),
                         period_steps_.load(std::memory_order_relaxed));
}

// The number of the step that ends next; of several that are told as one, the first.
int64_t Monitor::ending_step() const {
  const bool is_pending = (g_process.hot() & kHotTickPending) != 0;
  return (is_pending ? next_step_ : step_).load(std::memory_order_relaxed);
}

bool Monitor::step_is_sampled() {
  const uint32_t hot = g_process.hot();
  if ((hot & kHotArmed) == 0 || (hot & kHotSwitchedOff) != 0) return false;
  if ((hot & kHotTickPending) == 0) return (hot & kHotSampledStep) != 0;
  // No forward call since the last step (attention on a path we do not see): it has not begun, so what it may
  // cost was not asked yet.
  TryLock lock(clock_busy_);
  return lock && falls_due(ending_step()) &&
         (samples_without_limit() || first_look_.is_open() || budget_.allows());
}

void Monitor::end_step(const foreshock_step& step) {
  uint64_t begin = monotonic_ns();
  wake(0);
  if ((g_process.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  begin = std::max(begin, last_tick_ns_);  // the segment was made just now: time counts from then on
  if (step.step_source == FORESHOCK_STEP_REPORTED) clock_is_reported_ = true;
  if (clock_is_reported_ && step.step_source != FORESHOCK_STEP_REPORTED) return;  // one clock, the best
  g_process.drain_local();
  g_process.publish_late();
  const Counting counting = g_process.counting();
  charge_devices(counting);
  if (TryLock busy(weights_busy_); busy) collect_weights(counting);

  segment::StepRecord record = {};
  const int64_t expected = (g_process.hot() & kHotTickPending) != 0 ? next_step_.load() : step_.load();
  const bool is_known = step.step >= 0 && step.step < kTooManySteps;
  record.step = is_known ? step.step : std::max<int64_t>(expected, 1);
  record.time_ns = realtime_ns();
  record.duration_ns = begin - last_tick_ns_;
  record.given = step.given & ~uint32_t{FORESHOCK_GIVEN_LOSS};
  record.learning_rate = step.learning_rate;
  record.gradient_norm = step.gradient_norm;
  record.batch_id = step.batch_id;
  record.step_source = step.step_source;
  if ((step.given & FORESHOCK_GIVEN_LOSS) != 0) observe_loss(step.loss, FORESHOCK_LOSS_REPORTED);
  TryLock losses(loss_busy_);
  if (losses) settle_late(true);
  const bool is_late = losses && !settle_open();
  if (losses && !is_late && loss_.take(&record.loss, &record.loss_source))
    record.given |= FORESHOCK_GIVEN_LOSS;
  std::optional<double> logged_norm;
  if (TryLock busy(scalars_busy_); busy) {
    scalars_.take(&record);
    logged_norm = std::exchange(logged_norm_, std::nullopt);
  }
  double norm = 0;
  if (layers_.publish_gradients(record.step, &norm) && (step.given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record.gradient_norm = norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  if ((record.given & FORESHOCK_GIVEN_GRADIENT_NORM) != 0 || (is_late && late_.open().gradients > 0)) {
    norm_is_seen_ = true;
  } else if (logged_norm && !norm_is_seen_) {
    record.gradient_norm = *logged_norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  const CallTotals totals = call_totals(g_process.writer().threads());
  record.calls = totals.calls - last_totals_.calls;
  record.sampled = step_was_sampled_;
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  if (skips_unseen_.load(std::memory_order_relaxed)) record.given |= segment::kSkipsUnseen;
  record.interval = interval_.load(std::memory_order_relaxed);
  // A step's time counts from the creation of the segment on, so what went before it (that creation) cannot
  // be in its cost.
  const uint64_t prepare_ns = std::min(step.prepare_ns, record.duration_ns);
  const uint64_t told = monotonic_ns();
  const uint64_t own =
      told - begin + std::exchange(unreported_ns_, 0) + prepare_ns + record.calls * kUnsampledCallNs;
  counting.add(counting.block->step_ns, own);
  record.cost_ns = totals.cost_ns - last_totals_.cost_ns + own;
  if (is_late) record.given |= segment::kNumbersPending;
  if (first_look_.is_open()) record.given |= segment::kFirstLook;
  const uint64_t number = g_process.writer().append_step(record);
  if (is_late) late_.end_step(number, record);
  numbers_asked_.store(0, std::memory_order_relaxed);

  // Setting up devices is shown in the cost; it is not held against sampling, and not taken for the
  // trainer's.
  const double set_up_seconds = static_cast<double>(std::exchange(set_up_ns_, 0)) * 1e-9;
  const double cost_seconds = static_cast<double>(record.cost_ns) * 1e-9 - set_up_seconds;
  const double step_seconds = static_cast<double>(record.duration_ns) * 1e-9 - set_up_seconds;
  double least_seconds = 0;
  // What is foretold by itself.
  const uint64_t apart_ns =
      slices_ns_.exchange(0, std::memory_order_relaxed) + std::exchange(gradients_ns_, 0);
  const double apart = static_cast<double>(apart_ns) * 1e-9;
  const double rest = std::max(cost_seconds - apart, 0.0);
  const uint64_t slices = totals.sampled - last_totals_.sampled;
  const bool is_granted = first_look_.is_open();
  double tensors_seconds = 0;
  const AgentForecast::Report report = take_agent_report(&tensors_seconds);
  double agent_seconds = report.seconds;
  double weights_seconds = static_cast<double>(weights_ns_.exchange(0, std::memory_order_relaxed)) * 1e-9;
  if (TryLock busy(cost_busy_); busy) {
    const double bare = cost_.bare_seconds();
    if (weights_seconds == 0 || bare == 0)
      cost_.observe_step(step_was_sampled_, std::max(rest - weights_seconds, 0.0));
    else if (!step_was_sampled_)
      weights_seconds = std::clamp(rest - bare, weights_seconds, kMostDescribed * weights_seconds);
    agent_seconds = agent_forecast_.end_step(slices, is_granted, report);
    least_seconds = cost_.step_seconds() + cost_.slice_seconds(is_cold()) + agent_forecast_.slice_seconds() +
                    gradient_cost_.seconds();
  }
  // The lasting interval: a burst neither takes what was saved up nor forgives what is owed.
  const double granted = first_look_.end_step(step_was_sampled_, record.calls, slices, cost_seconds);
  budget_.end_step(step_seconds - granted, cost_seconds - granted + agent_seconds, lasting_interval_,
                   kLeastMargin * least_seconds);
  if (TryLock busy(weights_busy_); busy) {
    weights_.set_step_source(step.step_source);
    weights_.end_step(step_seconds, weights_seconds + tensors_seconds, budget_.is_overdrawn());
  }
  calls_last_step_.store(record.calls, std::memory_order_relaxed);
  last_totals_ = {totals.calls, totals.sampled, totals.cost_ns + own};
  last_tick_ns_ = begin;
  step_was_sampled_ = false;
  stride_.tell(record.step);
  period_steps_.store(stride_.steps(), std::memory_order_relaxed);
  next_step_.store(record.step + 1, std::memory_order_relaxed);
  graphs_.end_step();
  count_kernels();
  read_switches();  // here too: without attention calls no step ever begins
  g_process.set_bits(kHotTickPending);
  unreported_ns_ = monotonic_ns() - told;
  if (devices_.has_wanted()) set_up_devices(counting);
}

void Monitor::count_kernels() {
  if (g_process.settings().count_kernels == 0) return;
  PassCalls calls;
  g_process.count_calls(calls.of);
  kernels_.end_step(calls, graphs_.calls_in_graphs(), g_process.writer().coverage());
}

// Records of tensors that devices have brought; what it took of their streams is charged as a gather's is.
// Returns what it took of the host now. Under weights_busy_.
uint64_t Monitor::collect_weights(const Counting& counting) {
  const WeightSampler::Spent spent = weights_.collect();
  counting.add(counting.block->hook_ns, spent.device_ns);
  weights_ns_.fetch_add(spent.host_ns + spent.before_ns + spent.device_ns, std::memory_order_relaxed);
  return spent.host_ns;
}

// A gather keeps the trainer's stream as long as a kernel of the trainer would: that is time of the training,
// charged as that of the host is, in the step whose end finds it written down.
void Monitor::charge_devices(const Counting& counting) {
  gradient_cost_.look([this](uint64_t number, double* value) { return find_late(number, value); });
  const uint64_t owed_ns = gradient_cost_.take_owed();
  gradients_ns_ += owed_ns;
  counting.add(counting.block->step_ns, owed_ns);
  const CopyTiming::Spent spent = devices_.take_spent();
  if (spent.slices == 0) return;
  counting.add(counting.block->hook_ns, spent.ns);
  slices_ns_.fetch_add(spent.ns, std::memory_order_relaxed);
  if (TryLock busy(cost_busy_); busy)
    cost_.observe_device(spent.slices, static_cast<double>(spent.ns) * 1e-9);
}

// The next record tells what it took.
void Monitor::set_up_devices(const Counting& counting) {
  const uint64_t begin = monotonic_ns();
  devices_.set_up_wanted();
  set_up_ns_ = monotonic_ns() - begin;
  counting.add(counting.block->step_ns, set_up_ns_);
}

void Monitor::note_unseen(const char* name, uint32_t evidence) {
  unseen_.note(name, evidence, (g_process.hot() & kHotArmed) != 0);
}

// Who logs does so after the step that is meant, or the mean of several: the loss and the norm in it come a
// step late, and not with every step.
int Monitor::observe_scalars(const foreshock_scalar* scalars, size_t count) {
  TryLock lock(scalars_busy_);
  if (!lock || (g_process.hot() & kHotArmed) == 0) return 0;
  int kept = 0;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_scalar& scalar = scalars[n];
    kept += scalars_.observe(scalar.name, scalar.value, scalar.step);
    const Logged as = logged_as(scalar.name);
    if (as == Logged::kLoss) observe_loss(scalar.value, FORESHOCK_LOSS_LOGGED);
    if (as == Logged::kGradientNorm) logged_norm_ = scalar.value;
  }
  return kept;
}

// -- parameters --

int Monitor::name_parameters(const foreshock_parameter* parameters, size_t count) {
  TryLock lock(layer_busy_);
  if (!lock) return 0;
  // Who has a model need not train it: names wake nobody.
  if ((g_process.hot() & kHotArmed) == 0) layers_.name_ahead();
  if (count == 0) layers_.forget_names();
  int kept = 0;
  for (size_t n = 0; n < count; ++n) kept += layers_.name(parameters[n]);
  if (count > 0) unnamed_ = count - static_cast<size_t>(kept);
  if ((g_process.hot() & kHotArmed) != 0) set_unnamed();
  return kept;
}

void Monitor::set_unnamed() {
  std::atomic_ref<uint64_t>(g_process.writer().coverage()->parameters_unnamed)
      .store(unnamed_, std::memory_order_relaxed);
}

void Monitor::invalidate_norms() {
  if ((g_process.hot() & kHotArmed) != 0) bump_shared(g_process.writer().coverage()->norms_untold);
}

// -- weights --

int Monitor::name_weights(const foreshock_weight* weights, size_t count) {
  wake(0);
  if ((g_process.hot() & kHotArmed) == 0) return 0;
  TryLock lock(weights_busy_);
  if (lock && g_process.has_other_ranks()) weights_.share_interval();
  return lock ? weights_.name(weights, count) : -1;
}

size_t Monitor::weights_due(uint32_t* numbers, size_t room) {
  TryLock lock(weights_busy_);
  const int64_t now = ending_step();
  if (!lock) {
    unasked_.add(now);
    return 0;
  }
  // What has come since makes room for those of this step.
  const Counting counting = g_process.counting();
  counting.add(counting.block->step_ns, collect_weights(counting));
  const int64_t steps = period_steps_.load(std::memory_order_relaxed);
  unasked_.take([&](int64_t step) { weights_.unasked(step, steps); });
  return weights_.due(now, steps, numbers, room);
}

void Monitor::observe_weights(const foreshock_weight_state* states, size_t count, uint32_t when) {
  const uint64_t begin = monotonic_ns();
  TryLock lock(weights_busy_);
  if (!lock) return;
  const int64_t step = ending_step() - ((when & FORESHOCK_ENDED_STEP) != 0 ? 1 : 0);
  if ((when & FORESHOCK_AFTER_STEP) == 0) {
    weights_.before_step(states, count, step);
  } else {
    weights_.set_heads(observed_heads_.get(), observed_heads_.has_seen());
    weights_.after_step(states, count, step);
  }
  const uint64_t own = monotonic_ns() - begin;
  weights_ns_.fetch_add(own - std::min(own, weights_.take_deferred()), std::memory_order_relaxed);
  const Counting counting = g_process.counting();
  counting.add(counting.block->step_ns, own);
}

// Numbers of a step that are still on a device when it ends (step_numbers.h), and the losses that they are
// told with.

namespace {

// Of a training that is read on the host alone there is no such number, and nothing here is ever late.
constexpr uint64_t kHostPlace = 7;  // in the last bits, where those of devices tell which one
bool is_of_host(uint64_t number) { return number % 8 == kHostPlace; }
static_assert(kMostDevices <= kHostPlace);

// What one kernel keeps the trainer's stream. Nobody reads its times: that would take more than it does. An
// empty kernel takes 2 to 3 us from launch to launch, and two loads and stores over the bus one more.
constexpr uint64_t kScalarKernelNs = 4000;

}  // namespace

bool Monitor::fetch(const foreshock_tensor* values, size_t count_of, void* stream, uint32_t what,
                    uint64_t* numbers) {
  const bool is_loss = what == FORESHOCK_FETCH_LOSS;
  if (is_loss && loss_is_told_.load(std::memory_order_relaxed)) return false;
  for (size_t n = 0; n < count_of; ++n)
    if (!is_scalar_on_device(values[n]) || values[n].device_index != values[0].device_index) return false;
  const uint64_t begin = monotonic_ns();
  const Counting counting = g_process.counting();
  segment::Coverage& coverage = *g_process.writer().coverage();
  bump_shared(coverage.numbers_fetched, count_of);
  const bool has_room = numbers_asked_.load(std::memory_order_relaxed) + count_of <= kMostInAStep;
  const int why = has_room
                      ? devices_.send_scalars({values[0].device_index, stream}, values, count_of, numbers)
                      : FORESHOCK_SKIP_TOO_LARGE;
  const bool is_sent = why < 0;
  if (is_sent) numbers_asked_.fetch_add(count_of, std::memory_order_relaxed);
  for (size_t n = 0; n < count_of && !is_sent && is_loss; ++n)
    numbers[n] = (host_numbers_.fetch_add(1) + 1) * 8 + kHostPlace;
  if (!is_sent && !is_loss) bump_shared(coverage.numbers_skipped[why], count_of);
  counting.add(counting.block->step_ns, monotonic_ns() - begin + (is_sent ? kScalarKernelNs : 0));
  return is_sent || is_loss;
}

bool Monitor::find_late(uint64_t number, double* value) const {
  return (!is_of_host(number) && devices_.find_scalar(number, value)) || fetched_.find(number, value);
}

// -- told, in the order of the training --

void Monitor::observe_loss(double value, uint32_t source) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (source == FORESHOCK_LOSS_REPORTED) loss_is_told_.store(true, std::memory_order_relaxed);
  if (!late_.has_ended() && late_.open().events == 0) return loss_.observe(value, source);
  late_.open().add(PendingEvent{source, {value, 0}, {1, 0}, false});
}

void Monitor::observe_root_divisor(double divisor) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (!late_.has_ended() && late_.open().events == 0) return loss_.observe_divisor(divisor);
  late_.open().add(PendingEvent{PendingEvent::kDivisor, {divisor, 0}, {1, 0}, false});
}

void Monitor::loss_is_of(const char* name) {
  double loss = 0;
  uint32_t source = 0;
  {
    TryLock lock(loss_busy_);
    if (!lock) return;
    if (late_.has_ended() || late_.open().events > 0)
      return late_.open().add(PendingEvent{PendingEvent::kOfAnother, {0, 0}, {1, 0}, false});
    if (!loss_.take(&loss, &source)) return;
  }
  if (TryLock lock(scalars_busy_); lock && (g_process.hot() & kHotArmed) != 0)
    scalars_.observe(name, loss, -1);
}

void Monitor::observe_loss_sum(double sum, double weight) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (!late_.has_ended() && late_.open().events == 0) return loss_.observe_sum(sum, weight);
  late_.open().add(PendingEvent{PendingEvent::kSum, {sum, 0}, {weight, 0}, false});
}

void Monitor::observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source) {
  if (source < FORESHOCK_LOSS_REPORTED || source > FORESHOCK_LOSS_LOGGED) return;
  TryLock lock(loss_busy_);
  if (lock) late_.open_with_room().add(PendingEvent{source, {0, number}, {1, scale}, scale != 0});
}

void Monitor::observe_fetched_loss_sum(uint64_t sum, uint64_t weight) {
  TryLock lock(loss_busy_);
  if (lock) late_.open_with_room().add(PendingEvent{PendingEvent::kSum, {0, sum}, {0, weight}, false});
}

void Monitor::skip_step() {
  {
    TryLock lock(loss_busy_);
    if (lock && (late_.has_ended() || late_.open().events > 0)) {
      late_.open().add(PendingEvent{PendingEvent::kSkip, {1, 0}, {1, 0}, false});
    } else {
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      if (lock) loss_.forget_step();
    }
  }
  // Its gradients are those of no step.
  if (TryLock lock(clock_busy_); lock) {
    layers_.begin_gradients();
    late_.open().begin_gradients();
  }
}

void Monitor::skip_step_if(uint64_t number) {
  TryLock lock(loss_busy_);
  if (number == 0 || !lock) return mark_skips_unknown();
  late_.open_with_room().add(PendingEvent{PendingEvent::kSkip, {0, number}, {1, 0}, false});
}

// -- when it has come --

// A loss that is not known whole is not known; what the trainer tells or logs is, all the same.
void Monitor::count_late(const PendingStep& step, bool with_losses) {
  for (uint32_t n = 0; n < step.events; ++n) {
    const PendingEvent& event = step.event[n];
    const bool is_there = event.value.number == 0;
    if (event.source == PendingEvent::kSkip) {
      if (!is_there) mark_skips_unknown();
      if (!is_there || event.value.value == 0) continue;
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      loss_.forget_step();  // it is that of no step
      continue;
    }
    if (event.source == PendingEvent::kOfAnother) {
      loss_.forget_step();
      continue;
    }
    if (event.source == PendingEvent::kDivisor) {
      if (with_losses) loss_.observe_divisor(event.value.value);
      continue;
    }
    if (event.source == PendingEvent::kSum) {
      if (with_losses) loss_.observe_sum(event.value.value, event.scale.value);
      continue;
    }
    const bool is_certain = event.source == FORESHOCK_LOSS_REPORTED || event.source == FORESHOCK_LOSS_LOGGED;
    if (with_losses || (is_there && is_certain))
      loss_.observe(event.value.value * event.scale.value, event.source);
  }
}

void Monitor::complete(PendingStep* step) {
  segment::StepRecord record = step->so_far;
  if (!step->has_events) mark_skips_unknown();
  count_late(*step, step->knows_losses() && step->knows_skips());
  if (loss_.take(&record.loss, &record.loss_source)) record.given |= FORESHOCK_GIVEN_LOSS;
  double norm = 0;
  if (step->knows_gradients() && layers_.publish_late(step->gradient, step->gradients, record.step, &norm) &&
      (record.given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record.gradient_norm = norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  if (skips_unseen_.load(std::memory_order_relaxed)) record.given |= segment::kSkipsUnseen;
  bump_shared(g_process.writer().coverage()->numbers_late, step->missing([](uint64_t) { return true; }));
  g_process.writer().complete_step(step->record, record);
}

// Completes steps in their order as far as what they wait for is there, or will not be. What the training has
// not fetched by the end of the next step, where no kernel could, is given up then.
void Monitor::settle_late(bool is_step_end) {
  const auto find = [this](uint64_t number, double* value) { return find_late(number, value); };
  while (late_.has_ended()) {
    PendingStep& oldest = late_.oldest();
    const bool is_there = oldest.look(find);
    const bool will_come = oldest.missing([](uint64_t number) { return !is_of_host(number); }) > 0;
    if (!is_there && (!is_step_end || (will_come && !late_.is_full()))) return;
    complete(&oldest);
    late_.drop_oldest();
  }
}

// Of the step that ends now: false when it has to wait, for a number or for the steps before it.
bool Monitor::settle_open() {
  PendingStep& open = late_.open();
  if (late_.has_ended()) return false;
  if (open.events == 0 && open.gradients == 0 && open.has_events && open.has_gradients) return true;
  if (!open.look([this](uint64_t number, double* value) { return find_late(number, value); })) return false;
  const bool knows = open.knows_losses();
  if (!open.has_events) mark_skips_unknown();
  count_late(open, knows);
  for (uint32_t n = 0; n < open.gradients && open.has_gradients; ++n)
    layers_.add_gradient_of(open.gradient[n].layer, open.gradient[n].square());
  open.clear();
  return true;
}

void Monitor::look_at_the_end() {
  {
    TryLock clock(clock_busy_);
    TryLock busy(loss_busy_);
    if (clock && busy) settle_late(false);
  }
  if (TryLock busy(weights_busy_); busy) collect_weights(g_process.counting());
}

void Monitor::fetched(uint64_t number, double value) {
  TryLock clock(clock_busy_);
  TryLock busy(loss_busy_);
  if (!clock || !busy) return;
  // Several ranks may have made it their mean by then.
  if (!g_process.has_other_ranks()) fetched_.add(number, value);
  late_.open().look([this](uint64_t wanted, double* found) { return find_late(wanted, found); });
  settle_late(false);
}

}  // namespace foreshock

// The last step of a training: what has come since. Its own memory alone is looked at.
__attribute__((destructor)) static void look_at_the_end() {
  using namespace foreshock;
  if ((g_process.hot() & kHotArmed) == 0) return;
  g_monitor.look_at_the_end();
  g_process.publish_exit();
}
