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
  const auto earnings = [&](uint64_t steps) {
    return max_slowdown_ * static_cast<double>(steps) * step_seconds_;
  };
  const double change = max_slowdown_ * theirs - cost_seconds;
  const double most_saved = earnings(interval) + least_seconds;
  balance_seconds_ = std::clamp(balance_seconds_ + change, -kMostOwed * earnings(interval), most_saved);
  const double most_owed = kMostOwed * earnings(std::min(interval, kPatientInterval));
  patient_balance_ = std::clamp(patient_balance_ + change, -most_owed, most_saved);
  is_overdrawn_ = patient_balance_ < (is_overdrawn_ ? 0 : -most_owed / 2);
}

}  // namespace foreshock
