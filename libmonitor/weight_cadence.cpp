#include <algorithm>

#include "libmonitor/weights.h"

namespace foreshock {

void WeightCadence::start(double max_slowdown, uint64_t fixed) {
  *this = {};
  share_ = kShare * max_slowdown;
  is_unlimited_ = max_slowdown >= 1;
  is_fixed_ = fixed != 0;
  interval_ = is_fixed_ ? std::min(fixed, kLongestInterval) : kFirstInterval;
}

void WeightCadence::end_step(double step_seconds, double cost_seconds, double bytes) {
  const double theirs = std::max(step_seconds - cost_seconds, 0.0);
  step_seconds_ += (step_seconds_ == 0 ? 1 : kWeight) * (theirs - step_seconds_);
  if (bytes > 0) seconds_per_byte_ += kWeight * (cost_seconds / bytes - seconds_per_byte_);
  balance_ = std::clamp(balance_ + share_ * theirs - cost_seconds, -8 * earnings(), earnings());
}

void WeightCadence::begin_interval(double bytes) {
  if (is_fixed_ || is_unlimited_ || step_seconds_ == 0) return;
  while (interval_ < kLongestInterval && bytes * seconds_per_byte_ > earnings()) interval_ *= 2;
}

bool WeightCadence::allows() const {
  return is_unlimited_ || (!waits_ && share_ > 0 && step_seconds_ > 0 && balance_ >= -earnings());
}

}  // namespace foreshock
