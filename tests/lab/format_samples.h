// Values that exercise a format: every exponent it has, its subnormals, halfway cases and their neighbours,
// and what lies beyond its range.
#ifndef FORESHOCK_TESTS_LAB_FORMAT_SAMPLES_H_
#define FORESHOCK_TESTS_LAB_FORMAT_SAMPLES_H_

#include <cmath>
#include <limits>
#include <vector>

#include "lab/inputs.h"
#include "lab/number_format.h"

namespace foreshock::lab {

// `count` values. With `fp32`, all of them are fp32 numbers.
inline std::vector<double> format_samples(const NumberFormat& format, int count, bool fp32, uint64_t seed) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> x{0.0, -0.0, inf, -inf, std::nan(""), format.max_finite, -format.max_finite};
  const int low = format.min_exponent - format.precision - 2, high = std::ilogb(format.max_finite) + 2;
  for (uint64_t i = 0; static_cast<int>(x.size()) < count; ++i) {
    const int exponent = low + static_cast<int>(uniform(seed, 4 * i) * (high - low + 1));
    double value = std::ldexp(1 + uniform(seed, 4 * i + 1), exponent);
    const int quantum = std::max(exponent, format.min_exponent) - (format.precision - 1);
    switch (random_bits(seed, 4 * i + 2) % 4) {
      case 0:
        break;
      case 1:  // halfway between two numbers of the format
        value = std::ldexp(std::floor(std::ldexp(value, -quantum)) + 0.5, quantum);
        break;
      case 2:  // just beside halfway
        value = std::ldexp(std::floor(std::ldexp(value, -quantum)) + 0.5, quantum);
        value = fp32 ? std::nextafterf(static_cast<float>(value), i % 2 ? 0.0f : 1e38f)
                     : std::nextafter(value, i % 2 ? 0.0 : inf);
        break;
      default:  // a number of the format
        value = std::ldexp(std::floor(std::ldexp(value, -quantum)), quantum);
    }
    if (fp32) value = static_cast<float>(value);
    x.push_back(random_bits(seed, 4 * i + 3) % 2 ? value : -value);
  }
  return x;
}

// Equal as numbers, or both NaN.
inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace foreshock::lab

#endif  // FORESHOCK_TESTS_LAB_FORMAT_SAMPLES_H_
