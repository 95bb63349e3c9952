// Rounds doubles to a storage format (DType), and computes the spacing (ulp) of its values.
#include "shadow/elementary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace foreshock {
namespace {

constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Returns the power of two above all finite numbers of the type. Magnitudes that round to it become infinite.
double overflow_of(DType type) { return type == DType::kFp16 ? 0x1p16 : 0x1p128; }

}  // namespace

double ulp_at(DType type, double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
  // The exponent bits alone are 2^e. For the subnormals of double they are 0, which the maximum below raises.
  const double power = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000);
  const Format format = format_of(type);
  return std::max(power, power_of_two(format.min_exponent)) * power_of_two(1 - format.precision);
}

double round_to(DType type, double x) {
  if (type == DType::kFp64 || !std::isfinite(x)) return x;
  // Doubles near shift, 1.5 * 2^52 ulp, are one ulp apart. |x| < 2^24 ulp, since formats have at most 24
  // bits. So the sum x + shift is near shift and rounds x to a multiple of the ulp. The sum could overflow
  // only for huge x, for which this function returns infinity first.
  const double overflow = overflow_of(type);
  if (std::fabs(x) >= overflow) return std::copysign(std::numeric_limits<double>::infinity(), x);
  const double shift = 0x1.8p52 * ulp_at(type, x);
  const double rounded = std::copysign((x + shift) - shift, x);
  return std::fabs(rounded) >= overflow ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

}  // namespace foreshock
