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

}  // namespace

std::optional<double> robust_z(const double* values, size_t count, double x) {
  count = std::min(count, kRobustZMaxValues);
  if (count < kMinValues || !std::isfinite(x)) return std::nullopt;
  std::array<double, kRobustZMaxValues> copy;
  std::copy_n(values, count, copy.begin());
  const double centre = median(copy.data(), count);
  for (size_t i = 0; i < count; ++i) copy[i] = std::fabs(copy[i] - centre);
  const double spread = kNormalConsistency * median(copy.data(), count);
  const double z = (x - centre) / spread;
  if (!(spread > 0) || !std::isfinite(z)) return std::nullopt;
  return z;
}

}  // namespace foreshock
