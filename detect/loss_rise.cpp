#include "detect/loss_rise.h"

#include <algorithm>
#include <cmath>

#include "detect/robust_z.h"

namespace foreshock {

std::optional<int64_t> LossRiseRule::observe(int64_t step, double loss, bool is_high, bool in_event) {
  if (in_event) begin_anew();
  if (in_event || is_high || !std::isfinite(loss)) return std::nullopt;
  if (in_block_ == 0) block_step_ = step;
  if (in_block_ > 0) squares_ += (loss - last_) * (loss - last_);
  last_ = loss;
  sum_ += loss / static_cast<double>(kBlock);
  if (++in_block_ < kBlock) return std::nullopt;
  // A difference of two has twice the variance of one, the mean of kBlock has 1/kBlock of it.
  const double variance = squares_ / (2 * static_cast<double>(kBlock - 1)), mean = sum_;
  sum_ = squares_ = 0;
  in_block_ = 0;
  return end_block(mean, std::sqrt(variance / static_cast<double>(kBlock)));
}

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
  level_.clear();
}

bool LossRiseRule::is_above(double mean) const {
  const std::optional<double> noise = this->noise();
  if (!noise || !has_best_) return false;
  const double margin = std::max(kSigmas * *noise, kLeastShare * std::fabs(best_));
  // A loss of exactly zero has neither noise nor a share: nothing is known of what would be much.
  return margin > 0 && mean > best_ + margin;
}

std::optional<double> LossRiseRule::noise() const {
  if (differences_.size() < kLearning) return std::nullopt;
  const double between = robust_spread(differences_.data(), differences_.size()) / std::sqrt(2.0);
  return std::max(between, within_.summary()->mean);
}

}  // namespace foreshock
