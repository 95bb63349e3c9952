#include "libmonitor/budget.h"

#include <algorithm>

namespace foreshock {

void Budget::end_step(double step_seconds, double cost_seconds, uint64_t interval, double least_seconds) {
  const double theirs = std::max(step_seconds - cost_seconds, 0.0);
  step_seconds_ += (step_seconds_ == 0 ? 1 : kWeight) * (theirs - step_seconds_);
  if (steps_ < kFirstSteps) {
    ++steps_;
    return;
  }
  const double earnings = max_slowdown_ * static_cast<double>(interval) * step_seconds_;
  const auto patient = static_cast<double>(std::min(interval, kPatientInterval));
  patience_seconds_ = kPatience * max_slowdown_ * patient * step_seconds_;
  balance_seconds_ += max_slowdown_ * theirs - cost_seconds;
  balance_seconds_ = std::clamp(balance_seconds_, -kMostOwed * earnings, earnings + least_seconds);
}

}  // namespace foreshock
