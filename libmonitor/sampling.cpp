// Implements the choice of steps and calls, and the arithmetic of the budgets and cost estimates.
#include "libmonitor/sampling.h"

#include <algorithm>
#include <utility>

namespace foreshock {
namespace {

constexpr uint64_t scramble(uint64_t x) {  // the finalizer of splitmix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint32_t reversed(uint32_t bits) {  // the 32 bits in reverse order
  uint32_t result = 0;
  for (int n = 0; n < 32; ++n) result |= (bits >> n & 1) << (31 - n);
  return result;
}

}  // namespace

// 0x9e3779b97f4a7c15 (2^64 divided by the golden ratio) is the increment of splitmix64.
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = scramble(seed + 0x9e3779b97f4a7c15u);
  for (uint64_t word : {a, b, c}) x = scramble(x + word + 0x9e3779b97f4a7c15u);
  return x;
}

int64_t below(uint64_t hash, int64_t bound) {
  return static_cast<int64_t>(((hash >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

uint64_t sampled_step_of(uint64_t seed, uint64_t block, uint64_t interval) {
  constexpr uint64_t kStepInInterval = 1;  // distinguishes these hashes from others of the same seed
  if (!std::has_single_bit(interval)) {
    const uint64_t hash = mix(seed, block, interval, kStepInInterval);
    return block * interval + static_cast<uint64_t>(below(hash, static_cast<int64_t>(interval)));
  }
  // A block is halved until one step is left. The chosen half is a block of half the interval.
  for (uint64_t length = interval; length > 1; length /= 2)
    block = 2 * block + (mix(seed, block, length, kStepInInterval) >> 63);
  return block;
}

bool is_sampled_step(uint64_t seed, int64_t step, uint64_t interval, int64_t steps) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t first = static_cast<uint64_t>(step), end = first + static_cast<uint64_t>(steps);
  // So many steps contain a whole block.
  if (end - first >= 2 * interval) return true;
  for (uint64_t block = first / interval; block * interval < end; ++block) {
    const uint64_t chosen = sampled_step_of(seed, block, interval);
    if (chosen >= first && chosen < end) return true;
  }
  return false;
}

bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls) {
  if (expected_calls <= slices) return slices > 0;
  // Each call moves `slices` ahead on a circle of length `expected_calls`, from a random start. A call is
  // sampled if its move reaches or passes the origin.
  const uint64_t begin = static_cast<uint64_t>(
      below(mix(seed, static_cast<uint64_t>(step), 0, 0), static_cast<int64_t>(expected_calls)));
  return (begin + call * slices) % expected_calls + slices >= expected_calls;
}

void OrdinalFollower::begin_step() { ended_runs_ = run_length_ = backward_calls_ = last_run_length_ = 0; }

// Ends the forward run, and updates the period, the usual length of a forward run.
void OrdinalFollower::end_run() {
  last_run_length_ = run_length_;
  run_length_ = 0;
  const bool is_first = ended_runs_++ == 0;
  if (period_ == 0) period_ = last_run_length_;
  // A run of several periods agrees too: an evaluation between two steps lengthens the run.
  if (last_run_length_ % period_ == 0) {
    ++agreeing_runs_;
  } else if (agreeing_runs_ >= kRunsToTrust || (!is_first && last_run_length_ < period_)) {
    // A trusted period has changed, or a later run of the step is shorter than the period (perhaps a
    // recomputation). No ordinals from now on, since the earlier or the later ones would be wrong.
    unstable_ = true;
  } else {
    period_ = last_run_length_;
    agreeing_runs_ = 1;
  }
}

int OrdinalFollower::next(bool is_backward_call, bool during_backward_pass) {
  if (!is_backward_call && during_backward_pass) return -1;  // checkpointing repeats the forward pass
  if (!is_backward_call) {
    backward_calls_ = 0;
    const uint32_t index = run_length_++;
    return is_trusted() ? static_cast<int>(index % period_) : -1;
  }
  if (run_length_ > 0) end_run();  // the first backward call after forward calls
  const uint32_t index = backward_calls_++;
  if (!is_trusted() || index >= last_run_length_) return -1;
  return static_cast<int>((last_run_length_ - 1 - index) % period_);
}

void Budget::end_step(double step_seconds, double cost_seconds, uint64_t interval,
                      double smallest_sample_seconds) {
  const double trainer_seconds = std::max(step_seconds - cost_seconds, 0.0);
  step_seconds_ += (step_seconds_ == 0 ? 1 : kWeight) * (trainer_seconds - step_seconds_);
  if (steps_ < kFirstSteps) {  // the set-up is not charged
    ++steps_;
    return;
  }
  const auto earnings = [&](uint64_t steps) {
    return max_slowdown_ * static_cast<double>(steps) * step_seconds_;
  };
  const double change = max_slowdown_ * trainer_seconds - cost_seconds;
  const double most_saved = earnings(interval) + smallest_sample_seconds;
  balance_seconds_ =
      std::clamp(balance_seconds_ + change, -kMaxDebtIntervals * earnings(interval), most_saved);
  // A second balance, whose debt has a lower limit, decides whether the budget is overdrawn: from half of
  // this limit on, until the debt is paid off.
  const double most_owed = kMaxDebtIntervals * earnings(std::min(interval, kOverdraftInterval));
  overdraft_balance_ = std::clamp(overdraft_balance_ + change, -most_owed, most_saved);
  is_overdrawn_ = overdraft_balance_ < (is_overdrawn_ ? 0 : -most_owed / 2);
}

constexpr double kNewCost = 0.2;  // weight of a new value in running means of costs
constexpr double kSurprise = 4;   // an observation counts as at most this many times the expected value
constexpr double kSpread = 0.01;  // least relative spread of slice sizes for which a slope is fitted
constexpr uint32_t kMostSlices = 10000;  // in a step; more than any segment holds

// The returned seconds are the time that the agent reports, plus the estimate for this step's slices, minus
// the part of earlier estimates that belongs to the slices that the agent reports.
double AgentForecast::end_step(uint64_t slices, bool is_first_look, const Report& report) {
  const uint64_t settled = std::min(report.slices, outstanding_);
  const double charged_before =
      settled == 0 ? 0 : charged_ * static_cast<double>(settled) / static_cast<double>(outstanding_);
  outstanding_ -= settled;
  charged_ -= charged_before;
  if (report.slices > 0) {
    const double each = report.slices_seconds / static_cast<double>(report.slices);
    const bool is_first = slice_seconds_ == 0;
    const double counted = is_first ? each : std::min(each, kSurprise * slice_seconds_);
    slice_seconds_ += (is_first ? 1 : kNewCost) * (counted - slice_seconds_);
  }
  steps_ = std::min(steps_ + 1, kMostMeanSteps);
  // Slices of the first look are not part of report.seconds, so they are not subtracted from it.
  const double rest = report.seconds - report.tensors_seconds - (is_first_look ? 0 : report.slices_seconds);
  rest_seconds_ += (std::max(rest, 0.0) - rest_seconds_) / steps_;
  const double charged_now = is_first_look ? 0 : static_cast<double>(slices) * slice_seconds_;
  outstanding_ += slices;
  charged_ += charged_now;
  return report.seconds - charged_before + charged_now;
}

// Returns the time for copying `bytes` into a slot that was used before, on the fitted line. If all slices
// are of about one size, no slope can be fitted, and the time is taken as proportional to the size.
double CostModel::reused_seconds(double bytes) const {
  const double mean_bytes = bytes_sum_ / count_, mean_seconds = seconds_sum_ / count_;
  const double variance = bytes_squares_ / count_ - mean_bytes * mean_bytes;
  const double least_deviation = kSpread * mean_bytes;
  const double slope = variance > least_deviation * least_deviation
                           ? (products_sum_ / count_ - mean_bytes * mean_seconds) / variance
                           : mean_seconds / mean_bytes;
  // At least a tenth of the mean, because the fitted line may fall below zero.
  return std::max(mean_seconds + std::max(slope, 0.0) * (bytes - mean_bytes), 0.1 * mean_seconds);
}

void CostModel::observe_slice(uint64_t bytes, bool first_use_of_slot, double seconds) {
  bytes_ = static_cast<double>(bytes);
  const double usual = reused_seconds(bytes_);
  if (first_use_of_slot) {
    // 1e-12: with a limit of 0, a cost that has fallen to 0 could not rise again.
    const double extra = std::clamp((seconds - usual) / bytes_, 0.0, kSurprise * first_use_per_byte_ + 1e-12);
    first_use_per_byte_ += kNewCost * (extra - first_use_per_byte_);
    return;
  }
  seconds = std::min(seconds, kSurprise * usual);
  const auto fade = [](double& sum, double added) { sum = kFading * sum + added; };
  fade(count_, 1);
  fade(bytes_sum_, bytes_);
  fade(bytes_squares_, bytes_ * bytes_);
  fade(seconds_sum_, seconds);
  fade(products_sum_, bytes_ * seconds);
}

void CostModel::observe_device(uint32_t slices, double seconds) {
  const double each = seconds / slices;
  // The first observation counts in full, because there is no expected value yet.
  const double counted = device_seconds_ == 0 ? each : std::min(each, kSurprise * device_seconds_);
  device_seconds_ += (device_seconds_ == 0 ? 1 : kNewCost) * (counted - device_seconds_);
}

void CostModel::observe_step(bool sampled, double seconds) {
  if (sampled)
    last_sampled_[sampled_steps_++ % kLastSampled] = seconds;
  else if (bare_seconds_ == 0 || kSurprise * seconds < bare_seconds_)
    bare_seconds_ = seconds;  // the first value, or one far below a mean that the set-up has raised
  else
    bare_seconds_ += kNewCost * (std::min(seconds, kSurprise * bare_seconds_) - bare_seconds_);
}

double CostModel::slice_seconds(bool first_use_of_slot) const {
  return reused_seconds(bytes_) + device_seconds_ + (first_use_of_slot ? first_use_per_byte_ * bytes_ : 0);
}

double CostModel::sampled_step_extra_seconds() const {
  double sorted[kLastSampled];
  const uint32_t count = std::min(sampled_steps_, kLastSampled);
  std::copy_n(last_sampled_, count, sorted);
  std::sort(sorted, sorted + count);
  return count == 0 ? 0 : std::max(sorted[count / 2] - bare_seconds_, 0.0);
}

uint32_t CostModel::slices_within(double seconds, bool first_use_of_slot, double agent_seconds) const {
  const double for_slices = seconds - sampled_step_extra_seconds();
  const double slices = for_slices / (slice_seconds(first_use_of_slot) + agent_seconds);
  return static_cast<uint32_t>(std::clamp(slices, 0.0, static_cast<double>(kMostSlices)));
}

// owed_ns_: by how much earlier charges were too small, in total; negative: too large.
uint64_t GradientCost::expected_charge_ns() const {
  const double kernels = kKernelNs * static_cast<double>(kernels_);
  const double estimate = ns_per_byte_ * static_cast<double>(bytes_) + kernels;
  return static_cast<uint64_t>(std::max(estimate + owed_ns_, 0.0));
}

uint64_t GradientCost::expect_work(uint64_t bytes, uint64_t kernels) {
  bytes_ = bytes;
  kernels_ = kernels;
  return expected_charge_ns();
}

// Returns the charge for the launched kernels: the estimate plus owed_ns_, but at least 0. If owed_ns_ is far
// below 0, a part of it stays for later charges.
uint64_t GradientCost::record_launch(uint64_t begin, uint64_t end) {
  const double bytes_ns = ns_per_byte_ * static_cast<double>(bytes_);  // the part that is measured later
  const uint64_t charged = expected_charge_ns();
  owed_ns_ += bytes_ns + kKernelNs * static_cast<double>(kernels_) - static_cast<double>(charged);
  launches_[launched_++ % kMostPending] = {begin, end, bytes_, bytes_ns};
  return charged;
}

uint64_t GradientCost::take_owed() {
  const auto owed = static_cast<uint64_t>(std::max(owed_ns_, 0.0));
  owed_ns_ -= static_cast<double>(owed);
  return owed;
}

// Adds (measured time - estimate) to owed_ns_, and moves ns_per_byte_ towards the measured time per byte.
void GradientCost::record_times(const Launch& launch, uint64_t begin_ns, uint64_t end_ns) {
  if (end_ns < begin_ns) return;
  const auto ns = static_cast<double>(end_ns - begin_ns);
  owed_ns_ += ns - launch.expected_ns;
  const double per_byte = ns / static_cast<double>(launch.bytes);
  const double counted = is_measured_ ? std::min(per_byte, kSurprise * ns_per_byte_) : per_byte;
  ns_per_byte_ += (is_measured_ ? kNewCost : 1) * (counted - ns_per_byte_);
  is_measured_ = true;
}

bool WeightSchedule::reserve(uint32_t count) {
  count_ = 0;
  step_ = -1;
  due_not_shown_ = 0;
  next_due_ = 0;
  return turns_.reserve(count * sizeof(uint32_t)) && states_.reserve(count * sizeof(State));
}

// Bit reversal spreads the tensors of any part of the model evenly over an interval that is a power of two.
// If the interval doubles, a tensor keeps every second one of its steps.
void WeightSchedule::add(double begins_at, bool is_here) {
  turns()[count_] = reversed(static_cast<uint32_t>(0x1p32 * begins_at));
  states()[count_++] = {0, 0, is_here};
}

// Calls use(number, &state) for every tensor that is due in one of the `steps` steps from `step` on. Returns
// the number of steps until one of the other tensors is due, at most `interval`.
uint64_t WeightSchedule::for_each_due(int64_t step, int64_t steps, uint64_t interval, const auto& use) {
  uint64_t next = interval;
  const auto length = static_cast<uint32_t>(interval);
  const auto now = static_cast<uint32_t>(static_cast<uint64_t>(step) % length);
  const bool is_power_of_two = (length & (length - 1)) == 0;
  for (uint32_t n = 0; n < count_; ++n) {
    const uint32_t turn = is_power_of_two ? turns()[n] & (length - 1) : turns()[n] % length;
    const uint32_t steps_until_due = turn >= now ? turn - now : turn + (length - now);
    const bool is_due = steps_until_due < static_cast<uint64_t>(steps);
    const bool is_next = steps_until_due < next;  // the nearest of those seen so far that are not due
    if (!is_due && !is_next) continue;
    if (!states()[n].is_here) continue;  // checked last, so that few states are read
    if (is_due)
      use(n, &states()[n]);
    else
      next = steps_until_due;
  }
  return next;
}

size_t WeightSchedule::find_due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers,
                                size_t room, DueCount* count) {
  *count = {};
  if (step != step_) {
    count->lost = forget_due();
    step_ = step;
    ++round_;
  }
  size_t found = 0;
  const uint64_t next = for_each_due(step, steps, interval, [&](uint32_t number, State* state) {
    if (state->end_round == round_) return;  // mark_done() was called in this step
    if (state->due_round != round_) {        // not yet counted in this step
      ++due_not_shown_;
      ++count->due;
    }
    state->due_round = round_;
    if (found < room) numbers[found++] = number;
  });
  // If reports have several steps, the next report may include a due step that is after its own number.
  next_due_ = step + (steps == 1 ? static_cast<int64_t>(next) : 1);
  return found;
}

WeightSchedule::DueCount WeightSchedule::count_missed(int64_t step, int64_t steps, uint64_t interval) {
  DueCount count;
  if (step == step_) return count;  // find_due() has counted the step
  for_each_due(step, steps, interval, [&](uint32_t, State*) { ++count.due; });
  count.lost = count.due;
  return count;
}

uint64_t WeightSchedule::mark_done(uint32_t number, int64_t step) {
  if (step != step_) return 1;  // find_due() was not called in this step
  State& state = states()[number];
  const bool is_counted = state.due_round == round_ && state.end_round != round_;  // as due and not shown
  due_not_shown_ -= is_counted;
  state.end_round = round_;
  return is_counted ? 0 : 1;
}

uint64_t WeightSchedule::forget_due() { return std::exchange(due_not_shown_, 0); }

void WeightCadence::start(double max_slowdown, uint64_t fixed) {
  *this = {};
  max_slowdown_ = max_slowdown;
  share_ = kShare * max_slowdown;
  is_unlimited_ = max_slowdown >= 1;
  is_fixed_ = fixed != 0;
  interval_ = is_fixed_ ? std::min(fixed, kLongestInterval) : kFirstInterval;
}

void WeightCadence::end_step(double step_seconds, double cost_seconds, double bytes,
                             double unavoidable_seconds) {
  double free_seconds = std::max(step_seconds - cost_seconds, 0.0);
  if (max_slowdown_ > 0) {
    // Length of training that pays for the unavoidable costs: each second pays for max_slowdown_ seconds.
    const double used_seconds = unavoidable_seconds / max_slowdown_;
    free_seconds = std::max(free_seconds - used_seconds, kMinShareLeft * free_seconds);
  }
  free_seconds_ += (free_seconds_ == 0 ? 1 : kWeight) * (free_seconds - free_seconds_);
  new_cost_ += cost_seconds;
  if (bytes > 0) {
    // The outlier rule of kMaxTimesUsual: `most` is the largest cost that counts.
    const double usual = seconds_per_byte() * bytes + kFixedSeconds;
    const double at_last_rate = last_per_byte_ * bytes;
    const double most = std::max(kMaxTimesUsual * usual, at_last_rate);
    cost_sum_ = kKept * cost_sum_ + std::min(new_cost_, most);
    byte_sum_ = kKept * byte_sum_ + bytes;
    last_per_byte_ = new_cost_ / bytes;
    new_cost_ = 0;
  }
  // Debt is limited to the earnings of 8 intervals, savings to those of one.
  balance_ = std::clamp(balance_ + share_ * free_seconds - cost_seconds, -8 * interval_earnings(),
                        interval_earnings());
}

// Returns the shortest interval, kFirstInterval times a power of two, that pays for measuring `bytes` bytes.
uint64_t WeightCadence::interval_for(double bytes) const {
  uint64_t interval = kFirstInterval;
  const double cost = bytes * seconds_per_byte(), earned_per_step = share_ * free_seconds_;
  while (interval < kLongestInterval && cost > earned_per_step * static_cast<double>(interval)) interval *= 2;
  return interval;
}

void WeightCadence::choose_interval(double bytes) {
  if (is_fixed_ || is_unlimited_ || free_seconds_ == 0) return;
  const uint64_t wanted = interval_for(bytes);
  if (wanted >= interval_) {
    interval_ = wanted;
    affordable_steps_ = 0;
    return;
  }
  longest_needed_ = affordable_steps_ == 0 ? wanted : std::max(longest_needed_, wanted);
  if (++affordable_steps_ < kStepsToShorten) return;
  interval_ = longest_needed_;
  affordable_steps_ = 0;
}

bool WeightCadence::allows_debt(double intervals) const {
  return is_unlimited_ || (!is_budget_overdrawn_ && share_ > 0 && free_seconds_ > 0 &&
                           balance_ >= -intervals * interval_earnings());
}

}  // namespace foreshock
