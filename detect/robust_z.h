// How unusual a value is beside others, measured by their median so that a few wild ones do not matter.
#ifndef FORESHOCK_DETECT_ROBUST_Z_H_
#define FORESHOCK_DETECT_ROBUST_Z_H_

#include <cstddef>
#include <optional>

namespace foreshock {

inline constexpr size_t kRobustZMaxValues = 256;

// (x - median) / (1.4826 median |value - median|): for normal values what the usual z is. `values` are
// finite, at most kRobustZMaxValues of them (the first ones are taken). Absent below 16 values, for an x that
// is not finite, or when more than half of the values are equal.
std::optional<double> robust_z(const double* values, size_t count, double x);

// 1.4826 median |value - median|: for normal values their standard deviation. `values` are finite, at most
// kRobustZMaxValues of them (the first ones are taken); 0 for none, and when more than half are equal.
double robust_spread(const double* values, size_t count);

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_ROBUST_Z_H_
