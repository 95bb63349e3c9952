// A straight line through the last values of a series, and what it says of the next ones.
#ifndef FORESHOCK_DETECT_GROWTH_H_
#define FORESHOCK_DETECT_GROWTH_H_

#include <cstdint>
#include <initializer_list>

#include "detect/thresholds.h"

namespace foreshock {

// Least squares with exponential forgetting, in sums about the running means (West's update), so that large
// step numbers cost no digits.
class Line {
 public:
  // Forgets with 1 - 1 / memory; memory > 2.
  void add(double x, double y, double memory);
  double slope() const { return xx_ > 0 ? xy_ / xx_ : 0; }
  double at(double x) const { return mean_y_ + slope() * (x - mean_x_); }
  // Slope over its standard error, residuals being independent; 0 below four values.
  double t() const;
  // Steps that the remembered values span, if they lie evenly.
  double span() const;
  uint64_t count() const { return count_; }

  template <class State>
  void fields(State& state) {
    for (double* each : {&weight_, &mean_x_, &mean_y_, &xx_, &xy_, &yy_}) state(*each);
    state(count_);
  }

 private:
  double weight_ = 0, mean_x_ = 0, mean_y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;
  uint64_t count_ = 0;
};

// kForecast: the line meets info.least within the span once more. kGrowth: the line through the logarithms
// rises by info.least over its span, while the square is below the mean square of the last kLongMemory
// values: what scales the steps still shrinks (Adam's second moment), though the gradient grows.
class Growth {
 public:
  static constexpr double kLongMemory = 1000;

  double observe(const DetectorInfo& info, int64_t step, double value);

  template <class State>
  void fields(State& state) {
    line_.fields(state);
    state(mean_square_);
  }

 private:
  double forecast(const DetectorInfo& info, double step) const;
  double growth(const DetectorInfo& info) const;

  Line line_;
  double mean_square_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_GROWTH_H_
