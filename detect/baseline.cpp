#include "detect/baseline.h"

#include <algorithm>
#include <cmath>

namespace foreshock {

double Baseline::std() const {
  // Of so few values the sample's, n - 1.
  const double known = static_cast<double>(std::max<uint64_t>(count_, 2));
  return std::sqrt(std::max(variance_, 0.0) * known / (known - 1));
}

void Baseline::add(double x, double memory, uint64_t learning) {
  if (count_ >= learning && variance_ > 0) x = std::clamp(x, mean_ - kClip * std(), mean_ + kClip * std());
  if (count_ < UINT64_MAX) ++count_;
  const double weight = 1 / std::min(static_cast<double>(count_), memory);
  const double off = x - mean_;
  mean_ += weight * off;
  variance_ = (1 - weight) * (variance_ + weight * off * off);
}

}  // namespace foreshock
