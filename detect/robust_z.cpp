#include "detect/robust_z.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace foreshock {
namespace {

constexpr size_t kMinValues = 16;
constexpr double kNormalConsistency = 1.4826;  // 1 / the upper quartile of the normal distribution

// Reorders.
double median(double* values, size_t count) {
  double* middle = values + count / 2;
  std::nth_element(values, middle, values + count);
  if (count % 2 == 1) return *middle;
  return (*std::max_element(values, middle) + *middle) / 2;
}

// Of the copied values, which are reordered and then replaced by what they are off.
double spread_about(double centre, double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = std::fabs(values[i] - centre);
  return kNormalConsistency * median(values, count);
}

}  // namespace

double robust_spread(const double* values, size_t count) {
  count = std::min(count, kRobustZMaxValues);
  if (count == 0) return 0;
  std::array<double, kRobustZMaxValues> copy;
  std::copy_n(values, count, copy.begin());
  return spread_about(median(copy.data(), count), copy.data(), count);
}

std::optional<double> robust_z(const double* values, size_t count, double x) {
  count = std::min(count, kRobustZMaxValues);
  if (count < kMinValues || !std::isfinite(x)) return std::nullopt;
  std::array<double, kRobustZMaxValues> copy;
  std::copy_n(values, count, copy.begin());
  const double centre = median(copy.data(), count);
  const double spread = spread_about(centre, copy.data(), count);
  const double z = (x - centre) / spread;
  if (!(spread > 0) || !std::isfinite(z)) return std::nullopt;
  return z;
}

}  // namespace foreshock
