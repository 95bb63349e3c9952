// The parts of Monitor for ends of steps, losses, scalars, names, weights and gradients; monitor.cpp and
// monitor_samples.cpp have the rest, monitor.h describes the members. `g_process` (process.h) has the segment
// (the memory shared with the agent), the settings, and the hot word. Flags of the hot word are: armed (the
// segment exists), sampled step, paused, and tick pending (a step has ended and no forward call has begun the
// next one). Counting has this thread's counters. If a TryLock fails (another thread holds the lock), the
// work is skipped.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/sums.h"
#include "libmonitor/base.h"
#include "libmonitor/monitor.h"
#include "libmonitor/sampling.h"
#include "libmonitor/step_numbers.h"

namespace foreshock {

// Estimated cost of a call that is only counted. It is not measured, because reading a clock would cost more
// than the counting. 0.3 to 0.6 us were measured per attention call, with the adapter of PyTorch.
constexpr uint64_t kUnsampledCallNs = 500;

// Reported step numbers from this value on are taken as unknown, since the numbers after them could overflow.
constexpr int64_t kTooManySteps = int64_t{1} << 62;

// Returns the number of the step that ends next; if several steps are reported as one, the first of them.
int64_t Monitor::ending_step() const {
  const bool is_tick_pending = (g_process.hot() & kHotTickPending) != 0;
  return (is_tick_pending ? next_step_ : step_).load(std::memory_order_relaxed);
}

bool Monitor::step_is_sampled() {
  const uint32_t hot = g_process.hot();
  if ((hot & kHotArmed) == 0 || (hot & kHotPaused) != 0) return false;
  if ((hot & kHotTickPending) == 0) return (hot & kHotSampledStep) != 0;
  // No forward call has come since the last step, for example because no hook sees the attention. So
  // begin_step() has not decided, and the ledger is asked here.
  TryLock lock(clock_busy_);
  return lock && is_due(ending_step()) && ledger_.pays_for_sample();
}

// Whether the step that ends is brief: nothing happened in it but calls that were only counted, and losses on
// the host (note_event() reports anything else). The end of a brief step uses few parts of the monitor, since
// a training evicts the monitor's code and data from the caches at every step. Long steps are never brief:
// there the saving is small, and commands and costs of the agent would wait long. A brief step has the source
// (reported or detected) of the last step that was not brief, and reports at most a learning rate.
bool Monitor::is_brief(const foreshock_step& step, uint64_t duration_ns) {
  const bool is_eventful = is_eventful_.exchange(false, std::memory_order_relaxed);
  if (is_eventful || !may_be_brief_ || step_was_sampled_ || brief_steps_ == kMostBriefSteps) return false;
  return duration_ns < kLongestBriefNs && step.step_source == settled_source_ &&
         (step.given & ~uint32_t{FORESHOCK_GIVEN_LEARNING_RATE}) == 0;
}

// Writes the step's record, charges the step's cost (later if the step is brief), and prepares
// the next step. The order matters: pending steps (earlier ones that wait for numbers from a device) are
// completed before this step's loss is taken, and devices' time is added to the counters before their totals
// are read.
void Monitor::end_step(const foreshock_step& step) {
  uint64_t begin = monotonic_ns();
  if ((g_process.hot() & kHotArmed) == 0) ensure_segment(0);  // 0: the slot size is unknown without a call
  if ((g_process.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  // If ensure_segment() has just created the segment, last_tick_ns_ is later than `begin`.
  begin = std::max(begin, last_tick_ns_);
  if (step.step_source == FORESHOCK_STEP_REPORTED) steps_are_explicit_ = true;
  // Steps that were only detected are ignored if the trainer reports its steps.
  if (steps_are_explicit_ && step.step_source != FORESHOCK_STEP_REPORTED) return;
  const int64_t expected = (g_process.hot() & kHotTickPending) != 0 ? next_step_.load() : step_.load();
  const bool is_known = step.step >= 0 && step.step < kTooManySteps;
  segment::StepRecord record = {};
  record.step = is_known ? step.step : std::max<int64_t>(expected, 1);  // `expected` -1: the first step
  record.duration_ns = begin - last_tick_ns_;
  const bool is_brief_step = is_brief(step, record.duration_ns);
  const Counting counting = g_process.counting();
  refresh_control(begin, is_brief_step ? kControlAgeNs : 0);
  if (!is_brief_step) [[unlikely]] {
    g_process.drain_local();  // calls that were counted before the segment existed
    g_process.publish_described();
    charge_devices(counting);
    if (TryLock busy(weights_busy_); busy) collect_weights(counting);
  }

  record.time_ns = realtime_ns();
  record.given = step.given & ~uint32_t{FORESHOCK_GIVEN_LOSS};  // set below if loss_ has a loss
  record.learning_rate = step.learning_rate;
  record.gradient_norm = step.gradient_norm;
  record.batch_id = step.batch_id;
  record.step_source = step.step_source;
  if ((step.given & FORESHOCK_GIVEN_LOSS) != 0) observe_loss(step.loss, FORESHOCK_LOSS_REPORTED);
  TryLock losses(loss_busy_);
  if (!losses) note_event();  // the next step is then not brief: its end completes what is pending
  if (losses && !is_brief_step) complete_pending(/*is_step_end=*/true);
  // complete_open() returns false if numbers of this step are still on a device.
  const bool is_late = losses && !is_brief_step && !complete_open();
  if (losses && !is_late && loss_.take(&record.loss, &record.loss_source))
    record.given |= FORESHOCK_GIVEN_LOSS;
  if (!is_brief_step) [[unlikely]]
    take_logged_and_norm(is_late, &record);
  const CallTotals totals = call_totals(g_process.blocks());
  record.calls = totals.calls - last_totals_.calls;
  record.sampled = step_was_sampled_;
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  if (skips_unseen_.load(std::memory_order_relaxed)) record.given |= segment::kSkipsUnseen;
  record.interval = interval_.load(std::memory_order_relaxed);
  // prepare_ns, the caller's time for the monitor, may include time before the segment was created.
  const uint64_t prepare_ns = std::min(step.prepare_ns, record.duration_ns);
  const uint64_t measured_until = monotonic_ns();
  // The time of the last end_step() after its measured_until.
  const uint64_t unreported_ns = std::exchange(unreported_ns_, 0);
  const uint64_t own_ns =
      measured_until - begin + unreported_ns + prepare_ns + record.calls * kUnsampledCallNs;
  counting.add(counting.block->step_ns, own_ns);
  record.cost_ns = totals.cost_ns - last_totals_.cost_ns + own_ns;
  if (is_late) record.given |= segment::kNumbersPending;
  if (!is_brief_step && ledger_.is_first_look()) record.given |= segment::kFirstLook;
  if (skipped_in_row_.load(std::memory_order_relaxed) != 0) {
    skipped_in_row_.store(0, std::memory_order_relaxed);
    store_skipped_in_row(0);
  }
  const uint64_t number = g_process.writer().append_step(record);
  if (is_late) pending_steps_.end_step(number, record);

  const EndedStep ended = {record, totals, begin, own_ns};
  if (is_brief_step) [[likely]] {
    brief_[brief_steps_++] = {record.duration_ns, record.cost_ns};
    if (record.calls == 0) read_switches();  // begin_step() reads them in a trainer with attention calls
  } else {
    numbers_requested_.store(0, std::memory_order_relaxed);
    settle_step(ended);
    graphs_.end_step();
    count_kernels();
    read_switches();  // here too, since begin_step() never runs in a trainer without attention calls
    // With a device, results may arrive in any later step. The first look, captures of graphs, and counting
    // kernels need the whole end_step() of every step.
    may_be_brief_ = !ledger_.is_first_look() && !devices_.is_any_used() && !pending_steps_.has_waiting() &&
                    !graphs_.is_capturing() && g_process.settings().count_kernels == 0;
  }
  advance(ended);
  if ((g_process.hot() & kHotTickPending) != 0) begins_in_backward_.store(true, std::memory_order_relaxed);
  g_process.set_bits(kHotTickPending);
  if (!is_brief_step) g_process.writer().publish_facts();
  unreported_ns_ = monotonic_ns() - measured_until;
  if (!is_brief_step && devices_.needs_set_up()) set_up_devices(counting);
}

// Adds the values that the training has logged, and the gradient norm. The norm is, best first: reported with
// the step, measured (`norm`), logged. Once a norm was reported or measured (norm_is_seen_), logged norms are
// not used. `is_late`: numbers of the step are still on a device.
void Monitor::take_logged_and_norm(bool is_late, segment::StepRecord* record) {
  std::optional<double> logged_norm;
  if (TryLock busy(scalars_busy_); busy) {
    if (const auto factor = is_late ? std::nullopt : loss_.factor())
      scalars_.observe(segment::kLossFactorName, *factor, -1);
    scalars_.take(record);
    logged_norm = std::exchange(logged_norm_, std::nullopt);
  } else {
    note_event();  // the values join the next step's record
  }
  double norm = 0;
  if (layers_.publish_gradients(record->step, &norm) &&
      (record->given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record->gradient_norm = norm;
    record->given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  if ((record->given & FORESHOCK_GIVEN_GRADIENT_NORM) != 0 ||
      (is_late && pending_steps_.open().gradient_count > 0)) {
    norm_is_seen_ = true;
  } else if (logged_norm && !norm_is_seen_) {
    record->gradient_norm = *logged_norm;
    record->given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
}

void Monitor::count_kernels() {
  if (g_process.settings().count_kernels == 0) return;
  PassCalls calls;
  g_process.add_calls_to(calls.of);
  kernels_.end_step(calls, graphs_.calls_in_graphs(), g_process.writer().coverage());
}

// Writes the records of weight tensors whose results have arrived from devices. Charges the time of their
// kernels. Returns the host time of this call in ns, which is not charged here. Needs the lock weights_busy_.
uint64_t Monitor::collect_weights(const Counting& counting) {
  const WeightSampler::Spent spent = weights_.collect();
  counting.add(counting.block->hook_ns, spent.device_ns);
  weights_ns_.fetch_add(spent.host_ns + spent.before_ns + spent.device_ns, std::memory_order_relaxed);
  return spent.host_ns;
}

// Charges the device time of copying slices and of summing gradients, which delays the trainer's stream, to
// the step in which the measured times arrive on the host.
void Monitor::charge_devices(const Counting& counting) {
  ledger_.gradients().collect_times(
      [this](uint64_t number, double* value) { return find_number(number, value); });
  const uint64_t owed_ns = ledger_.gradients().take_owed();
  gradients_ns_ += owed_ns;
  counting.add(counting.block->step_ns, owed_ns);
  const CopyTiming::Spent spent = devices_.take_spent();
  if (spent.slices == 0) return;
  counting.add(counting.block->hook_ns, spent.ns);
  slices_ns_.fetch_add(spent.ns, std::memory_order_relaxed);
  ledger_.observe_device(spent.slices, seconds(spent.ns));
}

// Called after the step's record was written, so the next record contains the time of this set-up.
void Monitor::set_up_devices(const Counting& counting) {
  const uint64_t begin = monotonic_ns();
  devices_.set_up_wanted();
  set_up_ns_ = monotonic_ns() - begin;
  counting.add(counting.block->step_ns, set_up_ns_);
}

void Monitor::note_unseen(const char* name, uint32_t evidence) {
  const bool has_segment = (g_process.hot() & kHotArmed) != 0;
  unseen_.note(name, evidence, has_segment);
  if (has_segment) g_process.writer().publish_facts();
}

// Values join the record of the step that ends next. A training logs a value after the step that it belongs
// to, or as a mean over several steps, so a logged loss or norm is one step late and some steps have none.
int Monitor::observe_scalars(const foreshock_scalar* scalars, size_t count) {
  TryLock lock(scalars_busy_);
  if (!lock || (g_process.hot() & kHotArmed) == 0) return 0;
  note_event();
  int kept = 0;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_scalar& scalar = scalars[n];
    kept += scalars_.observe(scalar.name, scalar.value, scalar.step);
    const Logged meaning = logged_as(scalar.name);
    if (meaning == Logged::kLoss) observe_loss(scalar.value, FORESHOCK_LOSS_LOGGED);
    if (meaning == Logged::kGradientNorm) logged_norm_ = scalar.value;
  }
  return kept;
}

// -- parameters --

// Stores the layers of parameters and returns how many were stored. A count of 0 forgets all parameters.
int Monitor::name_parameters(const foreshock_parameter* parameters, size_t count) {
  TryLock lock(layer_busy_);
  if (!lock) return 0;
  // Names alone do not create the segment, since a process may have a model and not train it.
  if ((g_process.hot() & kHotArmed) == 0) layers_.use_early_layers();
  if (count == 0) layers_.forget_names();
  int stored = 0;
  for (size_t n = 0; n < count; ++n) stored += layers_.name(parameters[n]);
  if (count > 0) parameters_without_room_ = count - static_cast<size_t>(stored);
  if ((g_process.hot() & kHotArmed) != 0) {
    store_unnamed_parameters();
    g_process.writer().publish_facts();
  }
  return stored;
}

int Monitor::name_mixers(const foreshock_mixer* mixers, size_t count) {
  TryLock lock(layer_busy_);
  if (!lock) return -1;
  const bool has_segment = (g_process.hot() & kHotArmed) != 0;
  if (!has_segment) layers_.use_early_layers();
  layers_.name_mixers(mixers, count, has_segment ? g_process.writer().coverage() : nullptr);
  if (has_segment) g_process.writer().publish_facts();
  return static_cast<int>(count);
}

void Monitor::store_unnamed_parameters() {
  std::atomic_ref<uint64_t>(g_process.writer().coverage()->parameters_unnamed)
      .store(parameters_without_room_, std::memory_order_relaxed);
}

// Counts a step without gradient norms: it had more gradients than the adapter's table can hold.
void Monitor::count_missing_norms() {
  if ((g_process.hot() & kHotArmed) == 0) return;
  g_process.writer().count(&segment::Coverage::norms_untold, 1);
  g_process.writer().publish_facts();
}

// -- weights --

int Monitor::name_weights(const foreshock_weight* weights, size_t count) {
  ensure_segment(0);
  if ((g_process.hot() & kHotArmed) == 0) return 0;
  TryLock lock(weights_busy_);
  if (!lock) return -1;
  no_weights_before_.store(0, std::memory_order_relaxed);
  if (g_process.has_other_ranks()) weights_.share_interval();  // the agent compares ranks at equal steps
  const int named = weights_.name_tensors(weights, count);
  g_process.writer().publish_facts();
  return named;
}

size_t Monitor::weights_due(uint32_t* numbers, size_t room) {
  const int64_t now = ending_step();
  if (now < no_weights_before_.load(std::memory_order_relaxed)) return 0;
  TryLock lock(weights_busy_);
  if (!lock) {
    deferred_steps_.add(now);  // the next call counts the tensors of this step as missed
    return 0;
  }
  // Results that have arrived from devices are collected first, to free memory for the tensors of this step.
  const Counting counting = g_process.counting();
  counting.add(counting.block->step_ns, collect_weights(counting));
  const int64_t steps = period_steps_.load(std::memory_order_relaxed);
  deferred_steps_.take([&](int64_t step) { weights_.count_missed(step, steps); });
  const size_t found = weights_.find_due(now, steps, numbers, room);
  // Calls before the step no_weights_before_ return at once. It is 0 if the next call must run in full: after
  // tensors were due, to count those that were not passed to observe_weights(); or if another thread has
  // ended the step, since next_due() may be old.
  if (found > 0) g_process.writer().publish_tensor_counts();
  const bool has_ended = ending_step() != now;
  no_weights_before_.store(found > 0 || has_ended ? 0 : weights_.next_due(), std::memory_order_relaxed);
  return found;
}

void Monitor::observe_weights(const foreshock_weight_state* states, size_t count, uint32_t when) {
  const uint64_t begin = monotonic_ns();
  TryLock lock(weights_busy_);
  if (!lock) return;
  note_event();
  const bool has_ended = (when & FORESHOCK_ENDED_STEP) != 0;  // the step's end was reported before this work
  const int64_t step = ending_step() - (has_ended ? 1 : 0);
  if ((when & FORESHOCK_AFTER_STEP) == 0)
    weights_.before_step(states, count, step);
  else
    weights_.after_step(states, count, step);
  g_process.writer().publish_tensor_counts();
  const uint64_t own_ns = monotonic_ns() - begin;
  // The time for launching kernels is added to weights_ns_ later, with their results (collect_weights()).
  const uint64_t launches = std::min(own_ns, weights_.take_deferred());
  launches_ns_.fetch_add(launches, std::memory_order_relaxed);
  weights_ns_.fetch_add(own_ns - launches, std::memory_order_relaxed);
  has_observed_weights_.store(true, std::memory_order_relaxed);
  const Counting counting = g_process.counting();
  counting.add(counting.block->step_ns, own_ns);
}

// Whether the gradient that the optimizer uses is the sum of all contributions, or a multiple of it
// (clipping). A sum of gradients that were rounded to fp32 has the direction of `local` to about 2^-23 of
// each summand.
static bool is_summed(const foreshock_gradient_look& look) {
  double product = 0, local = 0, used = 0;
  for (size_t n = 0; n < std::size(look.local.products); ++n) {
    product += look.local.products[n] * look.used.products[n];
    local += look.local.products[n] * look.local.products[n];
    used += look.used.products[n] * look.used.products[n];
  }
  return look.is_whole != 0 && product > (1 - 1e-6) * std::sqrt(local * used);
}

// The caller counts the time of this call with that of its own work.
void Monitor::observe_gradient_looks(const foreshock_gradient_look* looks, size_t count) {
  TryLock lock(weights_busy_);
  if (!lock) return;
  note_event();
  weights_.write_gradient_looks(looks, count, ending_step());
  TryLock losses(loss_busy_);
  if (!losses) return;
  for (size_t n = 0; n < count; ++n)
    if (is_summed(looks[n])) loss_.observe_summed(looks[n].contributions);
}

// -- losses, and numbers that are still on a device when their step ends (step_numbers.h) --

// A number identifies a value that is read back from a device. Its lowest three bits are the device's index.
// kNoDevice marks a value that no kernel of ours copies; fetched() stores it if the training itself reads it.
constexpr uint64_t kNoDevice = 7;
static bool is_without_kernel(uint64_t number) { return number % 8 == kNoDevice; }
static_assert(kMostDevices <= kNoDevice);

// Estimated time of the copying kernel on the trainer's stream; measuring it would take longer than it runs.
// An empty kernel takes 2 to 3 us from launch to launch; two loads and stores over the bus about 1 us.
constexpr uint64_t kScalarKernelNs = 4000;

// Launches a kernel that copies the values to the host, and sets their numbers. If the kernel cannot be
// launched, losses get numbers with kNoDevice, and other values get none. Returns whether numbers are set.
bool Monitor::fetch(const foreshock_tensor* values, size_t count, void* stream, uint32_t what,
                    uint64_t* numbers) {
  const bool is_loss = what == FORESHOCK_FETCH_LOSS;
  if (is_loss && loss_is_reported_.load(std::memory_order_relaxed)) return false;  // no other loss is used
  for (size_t n = 0; n < count; ++n)
    if (!is_scalar_on_device(values[n]) || values[n].device_index != values[0].device_index) return false;
  const uint64_t begin = monotonic_ns();
  note_event();
  const Counting counting = g_process.counting();
  segment::SegmentWriter& writer = g_process.writer();
  writer.count(&segment::Coverage::numbers_fetched, count);
  const bool has_room = numbers_requested_.load(std::memory_order_relaxed) + count <= kMaxNumbersPerStep;
  const int why = has_room ? devices_.send_scalars({values[0].device_index, stream}, values, count, numbers)
                           : FORESHOCK_SKIP_TOO_LARGE;
  const bool is_sent = why < 0;  // if not, `why` is the reason (FORESHOCK_SKIP_) why no kernel was launched
  if (is_sent) numbers_requested_.fetch_add(count, std::memory_order_relaxed);
  for (size_t n = 0; n < count && !is_sent && is_loss; ++n)
    numbers[n] = (host_numbers_.fetch_add(1) + 1) * 8 + kNoDevice;
  if (!is_sent && !is_loss) writer.count_skipped_numbers(static_cast<uint32_t>(why), count);
  counting.add(counting.block->step_ns, monotonic_ns() - begin + (is_sent ? kScalarKernelNs : 0));
  return is_sent || is_loss;
}

bool Monitor::find_number(uint64_t number, double* value) const {
  return (!is_without_kernel(number) && devices_.find_scalar(number, value)) || fetched_.find(number, value);
}

// The observations below must be applied in the order of the training. If an earlier number has not arrived
// (must_wait()), they are stored as events in the open step, which is the step that has not ended. The fields
// of a PendingEvent are: its kind, or the source of a loss; value; factor or weight; whether a gradient
// scaler sets the factor. Value and factor are {value, number}; number 0: the value is on the host already.

void Monitor::observe_loss(double value, uint32_t source) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (source == FORESHOCK_LOSS_REPORTED) loss_is_reported_.store(true, std::memory_order_relaxed);
  if (!must_wait()) return loss_.observe(value, source);
  pending_steps_.open().add(PendingEvent{source, {value, 0}, {1, 0}, false});
}

void Monitor::observe_root_divisor(double divisor) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (!must_wait()) return loss_.observe_divisor(divisor);
  pending_steps_.open().add(PendingEvent{PendingEvent::kDivisor, {divisor, 0}, {1, 0}, false});
}

// The losses so far belong to another optimizer. Moves them to the scalar `name`, or drops those on a device.
void Monitor::loss_is_of(const char* name) {
  double loss = 0;
  uint32_t source = 0;
  {
    TryLock lock(loss_busy_);
    if (!lock) return;
    note_event();
    if (must_wait())
      return pending_steps_.open().add(PendingEvent{PendingEvent::kOtherOptimizer, {0, 0}, {1, 0}, false});
    if (!loss_.take(&loss, &source)) return;
  }
  if (TryLock lock(scalars_busy_); lock && (g_process.hot() & kHotArmed) != 0)
    scalars_.observe(name, loss, -1);
}

void Monitor::observe_loss_sum(double sum, double weight) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (!must_wait()) return loss_.observe_sum(sum, weight);
  pending_steps_.open().add(PendingEvent{PendingEvent::kSum, {sum, 0}, {weight, 0}, false});
}

void Monitor::observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source) {
  if (source < FORESHOCK_LOSS_REPORTED || source > FORESHOCK_LOSS_LOGGED) return;
  TryLock lock(loss_busy_);
  note_event();
  if (lock) pending_steps_.open_with_room().add(PendingEvent{source, {0, number}, {1, scale}, scale != 0});
}

void Monitor::observe_fetched_loss_sum(uint64_t sum, uint64_t weight) {
  TryLock lock(loss_busy_);
  note_event();
  if (lock)
    pending_steps_.open_with_room().add(PendingEvent{PendingEvent::kSum, {0, sum}, {0, weight}, false});
}

// Publishes the skipped steps since the last step, since no step record is written while all are skipped.
void Monitor::store_skipped_in_row(uint64_t count) {
  if ((g_process.hot() & kHotArmed) == 0) return;
  std::atomic_ref<uint64_t>(g_process.writer().coverage()->skipped_in_row)
      .store(count, std::memory_order_relaxed);
}

void Monitor::skip_step() {
  store_skipped_in_row(skipped_in_row_.fetch_add(1, std::memory_order_relaxed) + 1);
  if ((g_process.hot() & kHotArmed) != 0) g_process.writer().publish_facts();
  {
    TryLock lock(loss_busy_);
    note_event();
    if (lock && must_wait()) {
      pending_steps_.open().add(PendingEvent{PendingEvent::kSkip, {1, 0}, {1, 0}, false});
    } else {
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      if (lock) loss_.forget_step();
    }
  }
  // The gradients of the skipped step must not count for the next one.
  if (TryLock lock(clock_busy_); lock) {
    layers_.begin_gradients();
    pending_steps_.open().begin_gradients();
  }
}

void Monitor::skip_step_if(uint64_t number) {
  TryLock lock(loss_busy_);
  note_event();
  if (number == 0 || !lock) return mark_skips_unknown();  // 0: no value has this number
  pending_steps_.open_with_room().add(PendingEvent{PendingEvent::kSkip, {0, number}, {1, 0}, false});
}

// -- completion of pending steps --

// Applies the events of a step to loss_ and skipped_steps_, when its numbers have arrived or are given up. If
// not `with_losses`, some numbers are missing; only losses that the trainer reported or logged are then used.
void Monitor::apply_events(const PendingStep& step, bool with_losses) {
  for (uint32_t n = 0; n < step.event_count; ++n) {
    const PendingEvent& event = step.event[n];
    const bool has_value = event.value.number == 0;
    if (event.source == PendingEvent::kSkip) {
      if (!has_value) mark_skips_unknown();
      if (!has_value || event.value.value == 0) continue;  // 0: the step was not skipped
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      loss_.forget_step();  // the losses observed before belong to the skipped step
      continue;
    }
    if (event.source == PendingEvent::kOtherOptimizer) {
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
    if (with_losses || (has_value && is_certain))
      loss_.observe(event.value.value * event.scale.value, event.source);
  }
}

// Stores the loss, the norm and the skipped steps into the step's record, which was written without them.
void Monitor::complete_record(PendingStep* step) {
  segment::StepRecord record = step->so_far;
  if (!step->has_all_events) mark_skips_unknown();                   // some events were dropped
  apply_events(*step, step->knows_losses() && step->knows_skips());  // losses may belong to a skipped step
  if (loss_.take(&record.loss, &record.loss_source)) record.given |= FORESHOCK_GIVEN_LOSS;
  double norm = 0;
  if (step->knows_gradients() &&
      layers_.publish_late(step->gradient, step->gradient_count, record.step, &norm) &&
      (record.given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record.gradient_norm = norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  if (skips_unseen_.load(std::memory_order_relaxed)) record.given |= segment::kSkipsUnseen;
  g_process.writer().count(&segment::Coverage::numbers_late,
                           step->count_missing([](uint64_t) { return true; }));
  g_process.writer().complete_step(step->record, record);
}

// Completes pending steps, oldest first, until one still waits for a number. At the end of a step
// (`is_step_end`) a pending step stops waiting for numbers that only the training itself can supply
// (is_without_kernel()), and if pending_steps_ is full, the oldest step stops waiting for any number.
void Monitor::complete_pending(bool is_step_end) {
  const auto find = [this](uint64_t number, double* value) { return find_number(number, value); };
  while (pending_steps_.has_waiting()) {
    PendingStep& oldest = pending_steps_.oldest();
    const bool is_complete = oldest.store_arrived(find);
    const bool some_will_come =
        oldest.count_missing([](uint64_t number) { return !is_without_kernel(number); }) > 0;
    const bool may_wait = !is_step_end || (some_will_come && !pending_steps_.is_full());
    if (!is_complete && may_wait) return;
    complete_record(&oldest);
    pending_steps_.drop_oldest();
  }
}

// Applies the events and gradients of the open step, or returns false if it must wait: for a number, or for
// an earlier step that is pending.
bool Monitor::complete_open() {
  PendingStep& open = pending_steps_.open();
  if (pending_steps_.has_waiting()) return false;
  const bool is_unused =
      open.event_count == 0 && open.gradient_count == 0 && open.has_all_events && open.has_all_gradients;
  if (is_unused) return true;
  if (!open.store_arrived([this](uint64_t number, double* value) { return find_number(number, value); }))
    return false;
  if (!open.has_all_events) mark_skips_unknown();
  apply_events(open, open.knows_losses());  // false: events were dropped, or a scale is unknown
  for (uint32_t n = 0; n < open.gradient_count && open.has_all_gradients; ++n)
    layers_.add_gradient_of(open.gradient[n].layer, open.gradient[n].square());
  open.clear();
  return true;
}

void Monitor::finish_at_exit() {
  {
    TryLock clock(clock_busy_);
    TryLock busy(loss_busy_);
    if (clock && busy) complete_pending(/*is_step_end=*/false);
  }
  if (TryLock busy(weights_busy_); busy) collect_weights(g_process.counting());
  g_process.publish_described();
  g_process.writer().publish_threads();
  g_process.writer().publish_facts();
}

// Called when the training itself has read the value behind a number from the device.
void Monitor::fetched(uint64_t number, double value) {
  TryLock clock(clock_busy_);
  TryLock busy(loss_busy_);
  note_event();
  if (!clock || !busy) return;
  // With several ranks the training may have averaged the value over the ranks before it read it.
  if (!g_process.has_other_ranks()) fetched_.add(number, value);
  pending_steps_.open().store_arrived(
      [this](uint64_t wanted, double* found) { return find_number(wanted, found); });
  complete_pending(/*is_step_end=*/false);
}

// -- gradients --
//
// The trainer reports norms that it has computed on a device (norm_fetched), sums of squares, or values.
// Values on the host are summed here, values on a device by kernels on the trainer's stream.

namespace {

// Whether the predicate is true for any of the gradients.
bool any_gradient(const foreshock_gradient* gradients, size_t count, const auto& predicate) {
  for (size_t n = 0; n < count; ++n)
    if (predicate(gradients[n])) return true;
  return false;
}

bool lies_on_device(const foreshock_gradient& gradient) {
  return gradient.values.data != nullptr && gradient.values.device_type == FORESHOCK_DEVICE_CUDA;
}

// The gradients of one step whose values lie on a device. `is_whole`: kernels can read all, on one stream.
struct DeviceGradients {
  DeviceStream stream = {-1, nullptr};  // of the first gradient: index of the device, handle
  uint64_t bytes = 0;
  size_t tensors = 0;
  bool is_whole = true;

  void add(const foreshock_gradient& gradient) {
    const foreshock_tensor& values = gradient.values;
    if (values.data == nullptr) return;
    if (tensors == 0) stream = {values.device_index, gradient.stream};
    ++tensors;
    is_whole &= is_gradient_on_device(gradient) && values.device_index == stream.device_index &&
                gradient.stream == stream.handle;
    if (is_whole) bytes += static_cast<uint64_t>(values.shape[0]) * size_of(static_cast<DType>(values.dtype));
  }
  // Number of launches besides the kernels that sum gradients: 4 (a memset, two kernels that read the
  // device's clock, one that copies both times), and the kernels that copy the sums to the host.
  uint64_t further_launches() const { return 4 + (tensors + kMostScalars - 1) / kMostScalars; }
};

}  // namespace

void Monitor::observe_gradients(const foreshock_gradient* gradients, size_t count) {
  const uint64_t begin = monotonic_ns();
  ensure_segment(0);
  if ((g_process.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  note_event();
  // Drops earlier gradients: a trainer may step several times before it reports a step, or repeat a step.
  layers_.begin_gradients();
  pending_steps_.open().begin_gradients();
  uint64_t on_device_ns = 0;
  if (any_gradient(gradients, count, [](const auto& one) { return one.norm_fetched != 0; })) {
    for (size_t n = 0; n < count; ++n) {
      const foreshock_gradient& one = gradients[n];
      // With norm_fetched 0 the value is valid; else it is replaced by the norm when that arrives.
      const PendingNumber norm = {std::sqrt(one.sum_of_squares), one.norm_fetched};
      pending_steps_.open_with_room().add(PendingGradient{layers_.find(one.identity), false, norm});
    }
  } else if (any_gradient(gradients, count, lies_on_device)) {
    on_device_ns = send_gradients(gradients, count);
  } else {
    for (size_t n = 0; n < count; ++n) add_gradient(gradients[n]);
  }
  const Counting counting = g_process.counting();
  counting.add(counting.block->step_ns, monotonic_ns() - begin + on_device_ns);
}

// Marks a step that is due as sampled, since its gradients are read. If it has attention calls, begin_step()
// has done this.
void Monitor::mark_sampled_by_gradients() {
  step_was_sampled_ |= (g_process.hot() & kHotTickPending) != 0 && is_due(ending_step());
}

// Adds the sum of squares of a gradient: computed from its values on the host, or reported without values.
void Monitor::add_gradient(const foreshock_gradient& gradient) {
  const foreshock_tensor& values = gradient.values;
  double squares = gradient.sum_of_squares;
  if (values.data != nullptr) {
    if (values.dims != 1 || values.stride[0] != 1 || values.device_type != FORESHOCK_DEVICE_CPU) return;
    squares =
        sum_of_squares(values.data, static_cast<DType>(values.dtype), static_cast<size_t>(values.shape[0]));
    mark_sampled_by_gradients();
  }
  layers_.add_gradient(gradient.identity, squares);
}

// Launches the kernels that sum the squares of the gradients on their device. Returns the device time to be
// charged, in ns; 0: nothing was launched. If the budget cannot pay for the expected time, the gradients are
// not counted as skipped, as in a step that is not sampled.
uint64_t Monitor::send_gradients(const foreshock_gradient* gradients, size_t count) {
  DeviceGradients wanted;
  for (size_t n = 0; n < count; ++n) wanted.add(gradients[n]);
  const uint64_t needed = ledger_.gradients().expect_work(wanted.bytes, wanted.further_launches());
  if (!ledger_.pays_for(seconds(needed))) return 0;
  segment::SegmentWriter& writer = g_process.writer();
  writer.count(&segment::Coverage::numbers_fetched, wanted.tensors);
  const size_t numbers = wanted.tensors + GradientReadback::kTimes;
  SentGradients sent;
  int why = -1;  // FORESHOCK_SKIP_ reason why no kernel was launched; negative: kernels were launched
  if (!wanted.is_whole)
    why = FORESHOCK_SKIP_LAYOUT;
  else if (numbers_requested_.load(std::memory_order_relaxed) + numbers > kMaxNumbersPerStep)
    why = FORESHOCK_SKIP_TOO_LARGE;
  else
    why = devices_.send_gradients(wanted.stream, gradients, count, &sent);
  if (why >= 0) {
    writer.count_skipped_numbers(static_cast<uint32_t>(why), wanted.tensors);
    return 0;
  }
  numbers_requested_.fetch_add(numbers, std::memory_order_relaxed);
  mark_sampled_by_gradients();
  uint64_t number = sent.first;
  for (size_t n = 0; n < count; ++n) {
    const foreshock_gradient& one = gradients[n];
    PendingNumber squares = {one.sum_of_squares, 0};  // a gradient without values has its sum already
    if (one.values.data != nullptr) {
      squares = {0, number};
      number += sent.stride;
    }
    pending_steps_.open_with_room().add(PendingGradient{layers_.find(one.identity), true, squares});
  }
  const uint64_t charged = ledger_.gradients().record_launch(sent.begin, sent.end);
  gradients_ns_ += charged;
  return charged;
}

}  // namespace foreshock

// Runs when the process ends. Completes the last steps with the numbers that have arrived from devices.
__attribute__((destructor)) static void finish_at_exit() {
  using namespace foreshock;
  if ((g_process.hot() & kHotArmed) == 0) return;
  g_monitor.finish_at_exit();
  g_process.publish_exit();  // last: the agent then reads the final state
}
