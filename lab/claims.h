// Checks claims of papers and of this lab about the sweeps of study.h. claims_of_X() takes the measurements
// of sweep X and returns the claims about it. The sweeps fig3 to fig6 repeat figures of arXiv 2405.02803.
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

using Measured = std::span<const Measurement>;  // all measurements of a sweep, or some of them

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

// Returns the measurements m for which is_wanted(m) is true, in their order.
template <class IsWanted>
std::vector<Measurement> where(Measured measured, IsWanted is_wanted) {
  std::vector<Measurement> selected;
  std::copy_if(measured.begin(), measured.end(), std::back_inserter(selected), is_wanted);
  return selected;
}

// Returns the measurements of one output tensor of one algorithm.
inline std::vector<Measurement> with_algorithm(Measured measured, std::string_view algorithm,
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
  bool within(double least, double most) const { return low >= least && high <= most; }
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

// Errors of a measurement, as means over the seeds. Ratios are to the error of the plain (unfused) algorithm.
inline double bias(const Measurement& m) { return m.bias_ulp.mean; }
inline double max_ratio(const Measurement& m) { return m.max_ratio_to_plain.mean; }
inline double l2_ratio(const Measurement& m) { return m.ratio_to_plain.mean; }
inline double largest(const Measurement& m) { return m.max_abs.mean; }
inline double l2(const Measurement& m) { return m.relative_l2.mean; }

// Whether the value of each measurement is above (is_falling: below) that of the measurement before it.
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
