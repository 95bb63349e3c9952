// Implements the rules for loss events. LossEventRule compares each loss with a window of earlier losses and
// finds spikes and divergences. LossRiseRule compares means of blocks of losses and finds slow rises.
#include "detect/loss_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace foreshock {
namespace {

constexpr size_t kMinValues = 16;              // with fewer values, robust_z() is absent
constexpr double kNormalConsistency = 1.4826;  // normal distribution: std / median distance from the median

// Returns the median; of an even count, the mean of the two middle values. Reorders `values`.
double median(double* values, size_t count) {
  double* middle = values + count / 2;
  std::nth_element(values, middle, values + count);
  if (count % 2 == 1) return *middle;
  return (*std::max_element(values, middle) + *middle) / 2;
}

// Returns the median distance of `values` from `centre`, scaled to a standard deviation. Overwrites `values`.
double spread_about(double centre, double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = std::fabs(values[i] - centre);
  return kNormalConsistency * median(values, count);
}

}  // namespace

double robust_spread(const double* values, size_t count) {
  count = std::min(count, kRobustZMaxValues);
  if (count == 0) return 0;
  std::array<double, kRobustZMaxValues> copy;
  std::copy_n(values, count, copy.begin());
  return spread_about(median(copy.data(), count), copy.data(), count);
}

std::optional<double> robust_z(const double* values, size_t count, double x) {
  count = std::min(count, kRobustZMaxValues);
  if (count < kMinValues || !std::isfinite(x)) return std::nullopt;
  std::array<double, kRobustZMaxValues> copy;
  std::copy_n(values, count, copy.begin());
  const double centre = median(copy.data(), count);
  const double spread = spread_about(centre, copy.data(), count);
  const double z = (x - centre) / spread;
  if (!(spread > 0) || !std::isfinite(z)) return std::nullopt;
  return z;
}

std::optional<double> usual_beside(double loss, const Window<kLoneWindow>& window) {
  if (!window.full()) return std::nullopt;
  std::array<double, kLoneWindow> values;
  std::copy_n(window.data(), kLoneWindow, values.begin());
  const double usual = median(values.data(), kLoneWindow), largest = window.nth_largest(1);
  // If all losses of the window are equal, a distance of rounding errors does not count.
  const double reach = std::max(largest - usual, kLossLeastSpread * std::fabs(usual));
  const bool stands_out = loss - usual > kLoneFactor * reach &&
                          (usual <= 0 || std::log(loss / usual) > kLoneLogFactor * std::log(largest / usual));
  return stands_out ? std::optional(usual) : std::nullopt;
}

// A loss is high if it is not finite, or if the window is full and the loss is more than kLossSigmas spreads
// above the window's mean; else it is quiet. The counts of losses in a row stop at kMostInRow, so they cannot
// overflow.
LossVerdict LossEventRule::observe(int64_t step, double loss, bool takes_turns) {
  LossVerdict verdict;
  const bool finite = std::isfinite(loss);
  if (takes_turns) window_.clear();
  verdict.high = !finite;
  if (window_.full() && finite) {
    const WindowSummary before = *window_.summary();
    const double spread = std::max(before.std, kLossLeastSpread * std::fabs(before.mean));
    verdict.high = loss > before.mean + kLossSigmas * spread;
    if (spread > 0) verdict.z = (loss - before.mean) / spread;
    verdict.robust_z = robust_z(window_.data(), window_.size(), loss);
  }
  nonfinite_in_row_ = finite ? 0 : std::min(nonfinite_in_row_ + 1, kMostInRow);
  if (verdict.high) {
    if (high_in_row_ == 0) onset_step_ = step;
    high_in_row_ = std::min(high_in_row_ + 1, kMostInRow);
    quiet_in_row_ = 0;
    verdict.event = declare(step);
  } else {
    high_in_row_ = 0;
    quiet_in_row_ = std::min(quiet_in_row_ + 1, kMostInRow);
    if (quiet_in_row_ >= kLossPersistence) in_spike_ = diverged_ = false;
  }
  // A spike in the window would hide its own later part.
  if (!verdict.high && !takes_turns) window_.add(loss);
  verdict.in_event = in_spike_ || diverged_;
  return verdict;
}

void LossEventRule::restart() {
  window_.clear();
  high_in_row_ = quiet_in_row_ = nonfinite_in_row_ = 0;
  in_spike_ = diverged_ = false;
}

// Returns the event that the present loss completes, if any. This loss is high and already counted. A
// divergence is kLossPersistence losses in a row that are not finite, or kLossWindow high losses in a row,
// the last one finite. A spike is kLossPersistence high losses in a row while the window is full. A spike can
// turn into a divergence. If all losses between the two events are high, both have the same onset.
std::optional<LossEvent> LossEventRule::declare(int64_t step) {
  if (nonfinite_in_row_ >= kLossPersistence && !diverged_) return raise(LossEventKind::kDivergence, step);
  if (high_in_row_ >= static_cast<int>(kLossWindow) && nonfinite_in_row_ == 0) {
    window_.clear();  // it is filled again at the new level of the loss
    high_in_row_ = 0;
    if (!diverged_) return raise(LossEventKind::kDivergence, step);
    return std::nullopt;  // the divergence has been declared already
  }
  if (high_in_row_ >= kLossPersistence && window_.full() && !in_spike_ && !diverged_) {
    return raise(LossEventKind::kSpike, step);
  }
  return std::nullopt;
}

std::optional<LossEvent> LossEventRule::raise(LossEventKind kind, int64_t step) {
  if (kind == LossEventKind::kSpike) {
    in_spike_ = true;
    ++spikes_;
  } else {
    diverged_ = true;
    ++divergences_;
  }
  return LossEvent{kind, onset_step_, step};
}

// A loss below 0 is not bounded by 0, as a cross-entropy or a squared error is: a share of its level has no
// meaning, and the losses of critics (WGAN) and of policies rise while all is well. Such a loss becomes the
// level, and above a negative level there is no rise (is_above). Spikes and divergences are still found.
std::optional<int64_t> LossRiseRule::observe(int64_t step, double loss, bool is_high, bool in_event) {
  if (in_event) begin_anew();
  if (in_event || is_high || !std::isfinite(loss)) return std::nullopt;  // such a loss is in no block
  if (loss < 0) {
    best_ = has_best_ ? std::min(best_, loss) : loss;
    has_best_ = true;
  }
  if (in_block_ == 0) block_step_ = step;
  if (in_block_ > 0) squares_ += (loss - last_) * (loss - last_);
  last_ = loss;
  sum_ += loss / static_cast<double>(kBlock);
  if (++in_block_ < kBlock) return std::nullopt;
  // sum_ is the mean, since each loss was divided by kBlock. The difference of two losses has twice the
  // variance of a loss. The mean of kBlock losses has 1/kBlock of the variance of a loss.
  const double variance = squares_ / (2 * static_cast<double>(kBlock - 1)), mean = sum_;
  sum_ = squares_ = 0;
  in_block_ = 0;
  return end_block(mean, std::sqrt(variance / static_cast<double>(kBlock)));
}

// `within`: the standard deviation of `mean`, from the differences of neighbouring losses of the block.
std::optional<int64_t> LossRiseRule::end_block(double mean, double within) {
  if (!is_above(mean)) {
    high_in_row_ = 0;
    learn(mean, within);
    return std::nullopt;
  }
  if (high_in_row_++ == 0) onset_step_ = block_step_;
  if (high_in_row_ < kPersistence) return std::nullopt;
  begin_anew();
  return onset_step_;
}

// Updates the noise and best_, the level: the lowest mean of kLevel blocks in a row. end_block() does not
// call learn() for a block above the level (is_above), so such blocks are left out.
void LossRiseRule::learn(double mean, double within) {
  within_.add(within);
  if (has_previous_) differences_.add(mean - previous_);
  previous_ = mean;
  has_previous_ = true;
  level_.add(mean);
  if (!level_.full()) return;
  const double level = level_.summary()->mean;
  best_ = has_best_ ? std::min(best_, level) : level;
  has_best_ = true;
}

void LossRiseRule::begin_anew() {
  sum_ = squares_ = 0;
  in_block_ = 0;
  high_in_row_ = 0;
  has_previous_ = has_best_ = false;
  level_.clear();  // differences_ and within_ stay: noise() needs no second learning period
}

bool LossRiseRule::is_above(double mean) const {
  const std::optional<double> noise = this->noise();
  if (!noise || !has_best_ || best_ < 0) return false;
  const double margin = std::max(kSigmas * *noise, kLeastShare * best_);
  // If level and noise are both exactly 0, no rise is reported: any increase would exceed a margin of 0.
  return margin > 0 && mean > best_ + margin;
}

// The standard deviation of a block's mean: the larger of two estimates, between blocks and within blocks.
// sqrt(2): a difference of two means has twice the variance of one mean.
std::optional<double> LossRiseRule::noise() const {
  if (differences_.size() < kLearning) return std::nullopt;
  const double between = robust_spread(differences_.data(), differences_.size()) / std::sqrt(2.0);
  return std::max(between, within_.summary()->mean);
}

}  // namespace foreshock
