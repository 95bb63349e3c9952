#include "lab/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foreshock::lab {
namespace {

double ratio(double a, double b) { return a == 0 ? 0 : a / b; }

// 97.5 % quantiles of Student's t for 1..30 degrees of freedom; beyond, within 0.5 % of the limit's
// expansion.
double student_t(size_t degrees) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                               2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return degrees <= std::size(kTable) ? kTable[degrees - 1] : 1.960 + 2.5 / static_cast<double>(degrees);
}

struct Sample {
  double mean = 0, standard_error = 0;
};

Sample sample_of(std::span<const double> values) {
  const double count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / count;
  for (double v : values) squares += (v - mean) * (v - mean);
  return {mean, values.size() < 2 ? 0 : std::sqrt(squares / (count - 1) / count)};
}

}  // namespace

Deviation deviation_of(const Tensor& result, const Tensor& reference, const NumberFormat& format) {
  Deviation deviation;
  const double count = static_cast<double>(result.data.size());
  double sum = 0, reference_squares = 0, largest = 0;
  for (size_t i = 0; i < result.data.size(); ++i) {
    const double expected = reference.data[i], difference = result.data[i] - expected;
    if (!std::isfinite(difference)) {
      ++deviation.non_finite;
      continue;
    }
    const double magnitude = std::fabs(difference);
    deviation.max_abs = std::max(deviation.max_abs, magnitude);
    deviation.signed_sum += difference;
    sum += magnitude;
    deviation.squares += magnitude * magnitude;
    reference_squares += expected * expected;
    deviation.towards += expected < 0 ? -difference : difference;
    deviation.ulps += format.ulp(expected);
    largest = std::max(largest, std::fabs(expected));
  }
  if (deviation.non_finite > 0) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, deviation.non_finite};
  }
  deviation.mean_abs = sum / count;
  deviation.std_abs =
      std::sqrt(std::max(0.0, deviation.squares / count - deviation.mean_abs * deviation.mean_abs));
  deviation.relative_l2 = ratio(std::sqrt(deviation.squares), std::sqrt(reference_squares));
  deviation.bias_ulp = ratio(deviation.towards, deviation.ulps);
  deviation.over_roundoff = ratio(deviation.max_abs, format.unit_roundoff() * largest);
  return deviation;
}

Interval interval_of(std::span<const double> values) {
  if (values.empty()) return {};
  const Sample sample = sample_of(values);
  if (values.size() < 2) return {sample.mean, sample.mean, sample.mean};
  const double half = student_t(values.size() - 1) * sample.standard_error;
  return {sample.mean, sample.mean - half, sample.mean + half};
}

double z_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const Sample sample = sample_of(values);
  return ratio(sample.mean, sample.standard_error);
}

}  // namespace foreshock::lab
