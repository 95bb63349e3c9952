// Implements the forecasts of costs, and the arithmetic of earning, charging and admission.
#include "libmonitor/ledger.h"

#include <algorithm>
#include <utility>

namespace foreshock {

// -- forecasts --

void Forecast::observe(double units, double seconds) {
  const double expected = per_unit_ * units + rule_->fixed, each = seconds / units;
  if (weight_ == 0 || (rule_->falls_at_once && rule_->most_times_expected * seconds < expected)) {
    per_unit_ = each;
    weight_ = units / (1 - rule_->kept);
  } else {
    // A mean of 0 sets no limit, since it could not rise again.
    double most = expected > 0 ? rule_->most_times_expected * expected : seconds;
    if (rule_->is_repeated_believed) most = std::max(most, last_per_unit_ * units);
    weight_ = rule_->kept * weight_ + units;
    per_unit_ += units / weight_ * (std::min(seconds, most) / units - per_unit_);
  }
  last_per_unit_ = each;
}

double Forecast::charge(double units, bool is_free) {
  const double charged = is_free ? 0 : units * per_unit_;
  unsettled_units_ += units;
  unsettled_ += charged;
  return charged;
}

double Forecast::settle(double units, double seconds) {
  if (units <= 0) return 0;
  const double settled = std::min(units, unsettled_units_);
  const double charged = settled == 0 ? 0 : unsettled_ * settled / unsettled_units_;
  unsettled_units_ -= settled;
  unsettled_ -= charged;
  observe(units, seconds);
  return charged;
}

// Returns the time for copying `bytes` into a slot that was used before, on the fitted line. If all slices
// are of about one size, no slope can be fitted, and the time is taken as proportional to the size.
double SliceCost::reused_seconds(double bytes) const {
  constexpr double kSpread = 0.01;  // least relative spread of slice sizes for which a slope is fitted
  const double mean_bytes = bytes_sum_ / count_, mean_seconds = seconds_sum_ / count_;
  const double variance = bytes_squares_ / count_ - mean_bytes * mean_bytes;
  const double least_deviation = kSpread * mean_bytes;
  const double slope = variance > least_deviation * least_deviation
                           ? (products_sum_ / count_ - mean_bytes * mean_seconds) / variance
                           : mean_seconds / mean_bytes;
  // At least a tenth of the mean, because the fitted line may fall below zero.
  return std::max(mean_seconds + std::max(slope, 0.0) * (bytes - mean_bytes), 0.1 * mean_seconds);
}

void SliceCost::observe(uint64_t bytes, bool first_use_of_slot, double seconds) {
  bytes_ = static_cast<double>(bytes);
  const double usual = reused_seconds(bytes_);
  if (first_use_of_slot) return first_use_byte_.observe(bytes_, std::max(seconds - usual, 0.0));
  seconds = std::min(seconds, ForecastRule{}.most_times_expected * usual);
  const auto fade = [](double& sum, double added) { sum = kFading * sum + added; };
  fade(count_, 1);
  fade(bytes_sum_, bytes_);
  fade(bytes_squares_, bytes_ * bytes_);
  fade(seconds_sum_, seconds);
  fade(products_sum_, bytes_ * seconds);
}

// -- work that is charged before it is measured, and work that a grant pays for --

double FirstLook::end_step(bool was_sampled, uint64_t calls, uint64_t slices, double cost_seconds) {
  if (!is_open()) return 0;
  const double paid = std::min(std::max(cost_seconds, 0.0), seconds_left_);
  seconds_left_ -= paid;
  slices_ += slices;
  if (was_sampled) --sampled_steps_left_;
  ++ended_steps_;
  if (slices_ >= std::max(kSlices, 2 * calls) || ended_steps_ == kMostSteps) sampled_steps_left_ = 0;
  return paid;
}

double AgentForecast::end_step(uint64_t slices, bool is_first_look, const Report& report) {
  const double charged = slice_.settle(static_cast<double>(report.slices), report.slices_seconds);
  ++steps_;
  if (report.seconds > 0) {
    // Slices of the first look are not part of report.seconds, so they are not subtracted from it.
    const double on_slices = is_first_look ? 0 : report.slices_seconds;
    step_.observe(std::exchange(steps_, 0),
                  std::max(report.seconds - report.tensors_seconds - on_slices, 0.0));
  }
  return report.seconds - charged + slice_.charge(static_cast<double>(slices), is_first_look);
}

double GradientCost::forecast_ns() const {
  // A high estimate for each further kernel: an empty one takes 2000 to 3000 ns from launch to launch.
  constexpr double kKernelNs = 4000;
  return 1e9 * byte_.per_unit() * static_cast<double>(bytes_) + kKernelNs * static_cast<double>(kernels_);
}

uint64_t GradientCost::record_launch(uint64_t begin, uint64_t end) {
  owed_ns_ += forecast_ns();
  byte_.charge(static_cast<double>(bytes_));
  launches_[launched_++ % kMostPending] = {begin, end, bytes_};
  return take_owed();
}

uint64_t GradientCost::take_owed() {
  const uint64_t owed = payable(owed_ns_);
  owed_ns_ -= static_cast<double>(owed);
  return owed;
}

void GradientCost::settle(uint64_t bytes, uint64_t begin_ns, uint64_t end_ns) {
  if (end_ns < begin_ns) return;
  const auto ns = static_cast<double>(end_ns - begin_ns);
  owed_ns_ += ns - 1e9 * byte_.settle(static_cast<double>(bytes), 1e-9 * ns);
}

// -- the ledger --

namespace {

// Weights have an account of their own, so that they take no time from attention. Each second of training
// pays for max_slowdown seconds of unavoidable work, that of steps without samples and weights. The seconds
// that are left earn kShare times max_slowdown. At least kMinShareLeft is left, since the unavoidable costs
// are forecasts.
constexpr double kShare = 0.25, kMinShareLeft = 1.0 / 8;

// The adapter's time for describing weight tensors is not measured separately. In steps that measured weights
// but were not sampled, what they cost beyond a bare step is charged to the weights: at most
// kMaxWeightsCharge times the measured time for weights, and kMaxDescribingSeconds more, since a stall may
// have another cause. The adapter took 0.3 ms for small tensors, whose measurement took 0.03 ms.
constexpr double kMaxWeightsCharge = 4, kMaxDescribingSeconds = 5e-4;

}  // namespace

Ledger::Ledger(double max_slowdown, uint64_t weights_interval, bool has_first_look, bool samples_ignore_cost)
    : max_slowdown_(max_slowdown),
      samples_ignore_cost_(samples_ignore_cost),
      keeps_weights_interval_(weights_interval != 0),
      first_look_(has_first_look) {
  set_rate(1);
  weights_.rate = kShare * max_slowdown;
  if (weights_interval != 0) weights_interval_ = std::min(weights_interval, kLongestWeightsInterval);
}

void Ledger::set_rate(double times) {
  constexpr double kMostRaised = 0.99;
  savings_.rate = overdraft_.rate = std::max(max_slowdown_, std::min(times * max_slowdown_, kMostRaised));
}

// Returns how many slices `seconds` pay for in a step. A slice costs the agent `agent_seconds` in addition.
uint32_t Ledger::slices_within(double seconds, double agent_seconds) const {
  const double slices = (seconds - sampled_step_extra_seconds()) / (slice_seconds() + agent_seconds);
  return static_cast<uint32_t>(std::clamp(slices, 0.0, static_cast<double>(segment::kMaxSlots)));
}

Ledger::Slices Ledger::plan_slices(uint64_t calls) const {
  if (ignores_cost()) return {segment::kMaxSlots, true};
  if (!pays_for_sample()) return {0, false};
  // The grant of the first look pays for the agent too. The kernels for gradients also run in sampled steps.
  const double grant = first_look_.seconds_left();
  const double payable = std::max(grant, balance() - gradients_.expected_seconds());
  const double agent_seconds = grant > 0 ? 0 : agent_.slice_seconds();
  return {slices_within(payable, agent_seconds),
          calls > 0 && slices_within(payable / 4, agent_seconds) >= calls};
}

bool Ledger::pays_for_weights(uint64_t intervals) const {
  return is_unlimited() || (!is_overdrawn() && max_slowdown_ > 0 && weights_.step_seconds > 0 &&
                            weights_.balance >= -weights_.earnings(intervals * weights_interval_));
}

void Ledger::end_step(Step step, uint64_t interval, const AgentForecast::Report& agent,
                      const MeasuredWeights& weights) {
  observe_step(&step);
  const double agent_seconds = agent_.end_step(step.slices, is_first_look(), agent);
  // The time that the grant pays for is neither the training's nor charged.
  const double granted = first_look_.end_step(step.was_sampled, step.calls, step.slices, step.cost_seconds);
  settle_step(std::max(step.seconds - step.cost_seconds - agent_seconds, 0.0),
              step.cost_seconds - granted + agent_seconds, interval);
  settle_weights(step.seconds, step.weights_seconds + agent.tensors_seconds, weights);
}

// Adds the step to the forecasts, which are of steps without weights. Until there was a bare step, sampled
// steps with weights are added too.
void Ledger::observe_step(Step* step) {
  const double measured = step->weights_seconds, bare = bare_seconds();
  const double most = kMaxWeightsCharge * measured + (step->has_described ? kMaxDescribingSeconds : 0);
  if (measured == 0 || (step->was_sampled && bare == 0))
    (step->was_sampled ? sampled_step_ : bare_step_).observe(1, std::max(step->rest_seconds - measured, 0.0));
  else if (!step->was_sampled)
    step->weights_seconds = std::clamp(step->rest_seconds - bare, measured, most);
}

void Ledger::settle_step(double training_seconds, double cost, uint64_t interval) {
  constexpr int kFirstSteps = 2;  // they contain the set-up, which is reported but changes no balance
  // Savings: the earnings of an interval and the cost of the smallest sample, with a margin. Without it, a
  // slightly low forecast could keep the balance too small for a sample for ever.
  constexpr double kSavingsMargin = 1.5;
  // Debt: the earnings of 64 intervals. For is_overdrawn(), an interval has at most 8 steps.
  constexpr double kMostDebtIntervals = 64;
  constexpr uint64_t kOverdraftInterval = 8;
  savings_.observe(training_seconds);
  if (steps_ < kFirstSteps) {
    ++steps_;
    return;
  }
  const double smallest_sample =
      sampled_step_extra_seconds() + slice_seconds() + agent_.slice_seconds() + gradients_.expected_seconds();
  const double most_saved = savings_.earnings(interval) + kSavingsMargin * smallest_sample;
  savings_.settle(training_seconds, cost, kMostDebtIntervals * savings_.earnings(interval), most_saved);
  const double most_owed = kMostDebtIntervals * savings_.earnings(std::min(interval, kOverdraftInterval));
  overdraft_.settle(training_seconds, cost, most_owed, most_saved);
  is_overdrawn_ = overdraft_.balance < (is_overdrawn_ ? 0 : -most_owed / 2);
}

void Ledger::settle_weights(double seconds, double cost, const MeasuredWeights& weights) {
  unmeasured_seconds_ += cost;
  if (weights.bytes > 0)
    weight_byte_.observe(static_cast<double>(weights.bytes), std::exchange(unmeasured_seconds_, 0));
  const double training_seconds = std::max(seconds - cost, 0.0);
  const double unavoidable = bare_seconds() + agent_.rest_seconds();
  const double paid = max_slowdown_ > 0 ? unavoidable / max_slowdown_ : 0;
  const double left = std::max(training_seconds - paid, kMinShareLeft * training_seconds);
  weights_.observe(left);
  // Savings: the earnings of one interval. Debt: those of 8.
  const double most_saved = weights_.earnings(weights_interval_);
  weights_.settle(left, cost, 8 * most_saved, most_saved);
  const bool is_fixed = keeps_weights_interval_ || weights.keeps_interval || is_unlimited();
  if (weights.all_bytes > 0 && !is_fixed && weights_.step_seconds > 0)
    choose_weights_interval(static_cast<double>(weights.all_bytes));
}

// Chooses kFirstWeightsInterval times the smallest power of two that pays for measuring `bytes` bytes. If the
// share does not pay for the present interval, a longer one is chosen at once. If it would have paid for a
// shorter interval in each of the last kStepsToShorten steps, the shorter one is chosen.
void Ledger::choose_weights_interval(double bytes) {
  constexpr int kStepsToShorten = 128;
  const double cost = bytes * weight_byte_.per_unit();
  uint64_t wanted = kFirstWeightsInterval;
  while (wanted < kLongestWeightsInterval && cost > weights_.earnings(wanted)) wanted *= 2;
  if (wanted < weights_interval_) {
    longest_needed_ = affordable_steps_ == 0 ? wanted : std::max(longest_needed_, wanted);
    if (++affordable_steps_ < kStepsToShorten) return;
    wanted = longest_needed_;
  }
  weights_interval_ = wanted;
  affordable_steps_ = 0;
}

}  // namespace foreshock
