// The Wasserstein distance W1 of two weighted samples of numbers, by sorting. Slow and simple: the histogram
// methods are compared with it.
#ifndef FORESHOCK_TESTS_SUPPORT_WASSERSTEIN_H_
#define FORESHOCK_TESTS_SUPPORT_WASSERSTEIN_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace foreshock::test {

// A step of the function F - G: its position and its height.
struct DistributionStep {
  double value, height;
};

inline bool add_steps(std::span<const double> values, std::span<const double> weights, double sign,
                      std::vector<DistributionStep>* steps) {
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) total += weights.empty() ? 1 : weights[i];
  for (size_t i = 0; i < values.size(); ++i)
    steps->push_back({values[i], sign * (weights.empty() ? 1 : weights[i]) / total});
  return !values.empty() &&
         std::none_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

// W1 = integral of |F - G|, where F and G are the distribution functions of x and y. Weights must be
// positive; none means equal weights. NaN if a sample is empty or has a NaN.
inline double wasserstein(std::span<const double> x, std::span<const double> y,
                          std::span<const double> x_weights = {}, std::span<const double> y_weights = {}) {
  std::vector<DistributionStep> steps;
  const bool x_valid = add_steps(x, x_weights, 1, &steps), y_valid = add_steps(y, y_weights, -1, &steps);
  if (!x_valid || !y_valid) return std::numeric_limits<double>::quiet_NaN();
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  double distance = 0, difference = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    difference += steps[i].height;
    distance += std::fabs(difference) * (steps[i + 1].value - steps[i].value);
  }
  return distance;
}

}  // namespace foreshock::test

#endif  // FORESHOCK_TESTS_SUPPORT_WASSERSTEIN_H_
