#include "lab/wasserstein.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace foreshock::lab {
namespace {

// A step of the function F - G: its position and its height.
struct Step {
  double value, height;
};

bool add_steps(std::span<const double> values, std::span<const double> weights, double sign,
               std::vector<Step>* steps) {
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) total += weights.empty() ? 1 : weights[i];
  for (size_t i = 0; i < values.size(); ++i)
    steps->push_back({values[i], sign * (weights.empty() ? 1 : weights[i]) / total});
  return !values.empty() &&
         std::none_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

}  // namespace

double wasserstein(std::span<const double> x, std::span<const double> y, std::span<const double> x_weights,
                   std::span<const double> y_weights) {
  std::vector<Step> steps;
  const bool x_valid = add_steps(x, x_weights, 1, &steps), y_valid = add_steps(y, y_weights, -1, &steps);
  if (!x_valid || !y_valid) return std::numeric_limits<double>::quiet_NaN();
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.value < b.value; });
  double distance = 0, difference = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    difference += steps[i].height;
    distance += std::fabs(difference) * (steps[i + 1].value - steps[i].value);
  }
  return distance;
}

}  // namespace foreshock::lab
