// Computes the scores of detectors; `info` is the detector's row in the table of detector.h. A score is
// statistic / info.warn. Drift, Shift and growth() also measure the size of the change (the effect). Their
// score is the smaller of statistic / info.warn and effect / info.least. Detectors warn from score 1 on.
#include "detect/detector.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

constexpr double kSmallest = 1e-30;  // smaller values count as this, so that their logarithm is finite
constexpr double kMostScore = 1e6;   // larger scores are cut to this
// The smallest spread that Shift assumes, since that of a nearly constant series is only rounding errors.
constexpr double kLeastSpread = 1e-6;

}  // namespace

double Baseline::std() const {
  // variance_ divides by n. The sample standard deviation divides by n - 1, since there may be few values.
  const double known = static_cast<double>(std::max<uint64_t>(count_, 2));
  return std::sqrt(std::max(variance_, 0.0) * known / (known - 1));
}

void Baseline::add(double x, double memory, uint64_t learning) {
  if (count_ >= learning && variance_ > 0) x = std::clamp(x, mean_ - kClip * std(), mean_ + kClip * std());
  if (count_ < UINT64_MAX) ++count_;
  // Equal weights for the first `memory` values, then an exponential mean.
  const double weight = 1 / std::min(static_cast<double>(count_), memory);
  const double off = x - mean_;
  mean_ += weight * off;
  variance_ = (1 - weight) * (variance_ + weight * off * off);
}

// Values are divided by `spread`, the larger of two standard deviations, and summed (CUSUM) up to `most`.
double Drift::observe(const DetectorInfo& info, double value, double control) {
  const bool learned = spread_.count() >= info.learning && spread_.std() > 0;
  spread_.add(value, info.memory, info.learning);
  recent_.add(value, kRecent, UINT64_MAX);  // UINT64_MAX: no value is clipped
  const double spread = std::max(spread_.std(), recent_.std());
  if (!learned) return 0;
  // In rows of the kind kDrift, `recent` is the slack.
  const double slack = info.recent, most = 2 * info.warn;
  const auto scaled = [&](double x) { return std::clamp(x / spread, -kMost, kMost); };
  up_.add(scaled(value), slack, most, value);
  down_.add(-scaled(value), slack, most, -value);
  control_up_.add(scaled(control), slack, most, control);
  control_down_.add(-scaled(control), slack, most, -control);
  // `side`: CUSUM of the values in one direction; `other`: CUSUM of the controls in the same direction.
  const auto score = [&](const Cusum& side, const Cusum& other) {
    const double statistic = std::max(side.sum() - other.sum(), 0.0) / info.warn;
    return info.least > 0 ? std::min(statistic, std::max(side.mean(), 0.0) / info.least) : statistic;
  };
  return std::max(score(up_, control_up_), score(down_, control_down_));
}

// Compares recent_, the exponential mean of the last logarithms, with the mean of the baseline usual_.
double Shift::observe(const DetectorInfo& info, double value) {
  const double x = std::log(std::max(value, kSmallest));
  const double weight = 1 / info.recent;
  recent_ = usual_.count() == 0 ? x : recent_ + weight * (x - recent_);
  const double sign = info.look == Look::kRise ? 1 : -1;
  const double off = sign * (recent_ - usual_.mean());
  // The exponential mean of independent values has weight / (2 - weight) times their variance.
  const double error = std::max(usual_.std(), kLeastSpread) * std::sqrt(weight / (2 - weight));
  const bool learned = usual_.count() >= info.learning;
  usual_.add(x, info.memory, info.learning);
  return learned ? std::clamp(std::min(off / error / info.warn, off / info.least), 0.0, kMostScore) : 0;
}

// The statistic is the second largest of the last info.learning values, so that one outlier does not warn.
double Limit::observe(const DetectorInfo& info, double value) {
  last_.add(value);
  const double second = std::max(last_.nth_largest(2, info.learning), 0.0);
  return std::min(second / info.warn, kMostScore);
}

// weight_ is the sum of the weights of all points; xx_, xy_ and yy_ are weighted sums of the products of
// their distances from the weighted means mean_x_ and mean_y_.
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
  // The lower bound: the residuals of a perfect line are only rounding errors, and would give a huge t. 2: a
  // line has two parameters.
  const double residual = std::max(yy_ - slope() * xy_, 1e-12 * yy_) / std::max(weight_ - 2, 1.0);
  return residual > 0 ? slope() / std::sqrt(residual / xx_) : 0;
}

// If values are evenly spaced over s steps, the variance of their step numbers is s^2 / 12.
double Line::span() const { return weight_ > 0 ? std::sqrt(12 * xx_ / weight_) : 0; }

// `hidden` (kGrowth only): the value's square is still below the long-term mean of squares, an exponential
// mean with the memory kLongMemory. Adam's second moment, a mean of this kind, then does not show the growth
// of the gradient.
double Growth::observe(const DetectorInfo& info, int64_t step, double value) {
  const double x = static_cast<double>(step);
  const bool logarithmic = info.look == Look::kGrowth;
  line_.add(x, logarithmic ? std::log(std::max(std::fabs(value), kSmallest)) : value, info.memory);
  const double share = 1 / std::min(static_cast<double>(line_.count()), kLongMemory);
  const double mean_square_before = mean_square_;
  mean_square_ += share * (value * value - mean_square_);
  if (line_.count() < info.learning || !(line_.t() > 0)) return 0;  // t() <= 0: the line does not rise
  const double hidden = value * value < mean_square_before ? 1 : 0;
  return std::clamp(logarithmic ? hidden * growth(info) : forecast(info, x), 0.0, kMostScore);
}

// `left`: steps until the line reaches info.least. The score reaches 1 only if `left` is at most the span of
// the line.
double Growth::forecast(const DetectorInfo& info, double step) const {
  const double left = (info.least - line_.at(step)) / line_.slope();
  const double nearness = left > 0 ? line_.span() / left : kMostScore;
  return std::min(line_.t() / info.warn, nearness);
}

double Growth::growth(const DetectorInfo& info) const {
  return std::min(line_.t() / info.warn, line_.slope() * line_.span() / info.least);
}

namespace {

// Joins lambdas into one function object for std::visit.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang 14 needs it

}  // namespace

Detector::Detector(DetectorId id) : id_(id) {
  switch (info_of(id).look) {
    case Look::kDrift:
      statistic_ = Drift();
      break;
    case Look::kRise:
    case Look::kDrop:
      statistic_ = Shift();
      break;
    case Look::kLimit:
      statistic_ = Limit();
      break;
    case Look::kForecast:
    case Look::kGrowth:
      statistic_ = Growth();
      break;
  }
}

Reading Detector::observe(int64_t step, double value, double control) {
  if (!std::isfinite(value) || !std::isfinite(control)) return {rule_.level(), 0};
  const DetectorInfo& info = info_of(id_);
  const double score =
      std::visit(Overloaded{[&](Drift& drift) { return drift.observe(info, value, control); },
                            [&](Shift& shift) { return shift.observe(info, value); },
                            [&](Limit& limit) { return limit.observe(info, value); },
                            [&](Growth& growth) { return growth.observe(info, step, value); }},
                 statistic_);
  return {rule_.observe(score, info.watch), score};
}

}  // namespace foreshock
