#include "libmonitor/budget.h"

#include <algorithm>

namespace foreshock {

void Budget::end_step(double step_seconds, double cost_seconds, bool sampled) {
  if (sampled) debt_seconds_ += cost_seconds;
  const double theirs = std::max(step_seconds - cost_seconds, 0.0);
  step_seconds_ += (step_seconds_ == 0 ? 1 : kWeight) * (theirs - step_seconds_);
}

bool Budget::allows(uint64_t interval) {
  if (max_slowdown_ >= 1) return true;  // 100 %: the user wants everything
  const double allowance = max_slowdown_ * static_cast<double>(interval) * step_seconds_;
  const bool allowed = debt_seconds_ <= allowance;
  debt_seconds_ = std::clamp(debt_seconds_ - allowance, 0.0, kMostDebts * allowance);
  return allowed;
}

}  // namespace foreshock
