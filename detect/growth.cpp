#include "detect/growth.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

constexpr double kSmallest = 1e-30;
constexpr double kMostScore = 1e6;

}  // namespace

void Line::add(double x, double y, double memory) {
  const double kept = 1 - 1 / memory;
  const double before = kept * weight_;
  weight_ = before + 1;
  const double dx = x - mean_x_, dy = y - mean_y_;
  mean_x_ += dx / weight_;
  mean_y_ += dy / weight_;
  const double share = before / weight_;
  xx_ = kept * xx_ + share * dx * dx;
  xy_ = kept * xy_ + share * dx * dy;
  yy_ = kept * yy_ + share * dy * dy;
  if (count_ < UINT64_MAX) ++count_;
}

double Line::t() const {
  if (count_ < 4 || !(xx_ > 0)) return 0;
  // Of a perfect line the residuals are rounding errors.
  const double residual = std::max(yy_ - slope() * xy_, 1e-12 * yy_) / std::max(weight_ - 2, 1.0);
  return residual > 0 ? slope() / std::sqrt(residual / xx_) : 0;
}

// n values evenly over s steps have the variance s^2 / 12.
double Line::span() const { return weight_ > 0 ? std::sqrt(12 * xx_ / weight_) : 0; }

double Growth::observe(const DetectorInfo& info, int64_t step, double value) {
  const double x = static_cast<double>(step);
  const bool logarithmic = info.look == Look::kGrowth;
  line_.add(x, logarithmic ? std::log(std::max(std::fabs(value), kSmallest)) : value, info.memory);
  const double share = 1 / std::min(static_cast<double>(line_.count()), kLongMemory);
  const double mean_square_before = mean_square_;
  mean_square_ += share * (value * value - mean_square_);
  if (line_.count() < info.learning || !(line_.t() > 0)) return 0;
  const double hidden = value * value < mean_square_before ? 1 : 0;
  return std::clamp(logarithmic ? hidden * growth(info) : forecast(info, x), 0.0, kMostScore);
}

double Growth::forecast(const DetectorInfo& info, double step) const {
  const double left = (info.least - line_.at(step)) / line_.slope();
  const double nearness = left > 0 ? line_.span() / left : kMostScore;
  return std::min(line_.t() / info.warn, nearness);
}

double Growth::growth(const DetectorInfo& info) const {
  return std::min(line_.t() / info.warn, line_.slope() * line_.span() / info.least);
}

}  // namespace foreshock
