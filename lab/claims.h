// Claims of papers and of this lab about the sweeps of study.h. Each function below takes the measurements of
// one sweep and returns the claims about it, each with whether it holds. fig3 to fig6: of kStability.
#ifndef FORESHOCK_LAB_CLAIMS_H_
#define FORESHOCK_LAB_CLAIMS_H_

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/measure.h"
#include "lab/study.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_fig3(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig4(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig5(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig6(std::span<const Measurement> measured);
std::vector<Claim> claims_of_ties(std::span<const Measurement> measured);
std::vector<Claim> claims_of_logits(std::span<const Measurement> measured);
std::vector<Claim> claims_of_bias(std::span<const Measurement> measured);
std::vector<Claim> claims_of_accumulators(std::span<const Measurement> measured);
std::vector<Claim> claims_of_units(std::span<const Measurement> measured);
std::vector<Claim> claims_of_backward(std::span<const Measurement> measured);
std::vector<Claim> claims_of_winograd(std::span<const Measurement> measured);
std::vector<Claim> claims_of_reductions(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fp32(std::span<const Measurement> measured);

// Helpers that select measurements of a sweep and compare their figures.

using Measured = std::span<const Measurement>;

// Sources of claims.
inline constexpr const char* kStability = "arXiv 2405.02803";
inline constexpr const char* kLowPrecision = "arXiv 2510.04212";
inline constexpr const char* kThisLab = "this lab";

// Formats like printf; at most 511 bytes.
__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

template <class Wanted>
std::vector<Measurement> where(Measured measured, Wanted wanted) {
  std::vector<Measurement> found;
  std::copy_if(measured.begin(), measured.end(), std::back_inserter(found), wanted);
  return found;
}

// Returns the measurements of one output tensor of one algorithm.
inline std::vector<Measurement> of(Measured measured, std::string_view algorithm,
                                   std::string_view tensor = "out") {
  return where(measured,
               [=](const Measurement& m) { return m.point.algorithm == algorithm && m.tensor == tensor; });
}

inline std::vector<Measurement> with_input(Measured measured, std::string_view input) {
  return where(measured, [=](const Measurement& m) { return m.point.input == input; });
}

inline std::vector<Measurement> with_format(Measured measured, std::string_view format) {
  return where(measured, [=](const Measurement& m) { return m.point.format == format; });
}

// The smallest and the largest of some values. If a value is NaN, both are NaN and within() is false.
struct Range {
  double low = INFINITY, high = -INFINITY;
  bool within(double a, double b) const { return low >= a && high <= b; }
};

template <class ValueOf>
Range range_of(Measured measured, ValueOf value_of) {
  Range range;
  for (const Measurement& m : measured) {
    const double value = value_of(m);
    if (std::isnan(value)) return {NAN, NAN};
    range.low = std::min(range.low, value);
    range.high = std::max(range.high, value);
  }
  return range;
}

// Figures of a measurement, as means over the seeds. Ratios are to the error of the plain algorithm.
inline double bias(const Measurement& m) { return m.bias_ulp.mean; }
inline double max_ratio(const Measurement& m) { return m.max_ratio_to_plain.mean; }
inline double l2_ratio(const Measurement& m) { return m.ratio_to_plain.mean; }
inline double largest(const Measurement& m) { return m.max_abs.mean; }
inline double l2(const Measurement& m) { return m.relative_l2.mean; }

// Whether the value of each measurement is above (below) the value of the measurement before it.
template <class ValueOf>
bool is_rising(Measured measured, ValueOf value_of) {
  for (size_t i = 1; i < measured.size(); ++i)
    if (!(value_of(measured[i]) > value_of(measured[i - 1]))) return false;
  return true;
}
template <class ValueOf>
bool is_falling(Measured measured, ValueOf value_of) {
  return is_rising(measured, [&](const Measurement& m) { return -value_of(m); });
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CLAIMS_H_
