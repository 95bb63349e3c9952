#include "detect/shift.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

constexpr double kSmallest = 1e-30;
// Of a series that hardly moves the spread is rounding; what is usual is known no better than this.
constexpr double kLeastSpread = 1e-6;

}  // namespace

double Shift::observe(const DetectorInfo& info, double value) {
  const double x = std::log(std::max(value, kSmallest));
  const double weight = 1 / info.recent;
  recent_ = usual_.count() == 0 ? x : recent_ + weight * (x - recent_);
  const double sign = info.look == Look::kRise ? 1 : -1;
  const double off = sign * (recent_ - usual_.mean());
  // Variance of an exponential mean of independent values: weight / (2 - weight) of theirs.
  const double error = std::max(usual_.std(), kLeastSpread) * std::sqrt(weight / (2 - weight));
  const bool learned = usual_.count() >= info.learning;
  usual_.add(x, info.memory, info.learning);
  return learned ? std::clamp(std::min(off / error / info.warn, off / info.least), 0.0, 1e6) : 0;
}

}  // namespace foreshock
