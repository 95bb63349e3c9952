// The table of floating-point formats and the spacing (ulp) of numbers. `precision` counts the hidden bit.
#include "lab/number_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace foreshock::lab {
namespace {

double largest(int precision, int max_exponent) {  // the largest number of a format
  return std::ldexp(2 - std::ldexp(1.0, 1 - precision), max_exponent);
}

// Parses "p<precision>e<min exponent>:<max exponent>". The bounds ensure that fp64 has every such number.
std::optional<NumberFormat> parse_general(const std::string& text) {
  int precision = 0, min_exponent = 0, max_exponent = 0, used = 0;
  const int fields =
      std::sscanf(text.c_str(), "p%de%d:%d%n", &precision, &min_exponent, &max_exponent, &used);
  if (fields != 3 || used != static_cast<int>(text.size())) return std::nullopt;
  if (precision < 2 || precision > 40 || min_exponent < -900 || max_exponent > 900) return std::nullopt;
  if (min_exponent > 0 || max_exponent < 0) return std::nullopt;  // 1.0 must be a number of the format
  return NumberFormat{text, precision, min_exponent, largest(precision, max_exponent), Overflow::kInfinity};
}

}  // namespace

double NumberFormat::overflow_value() const {
  if (overflow == Overflow::kSaturate) return max_finite;
  return overflow == Overflow::kNan ? NAN : INFINITY;
}

double NumberFormat::unit_roundoff() const { return std::ldexp(1.0, -precision); }

double NumberFormat::ulp(double x) const {
  // Uses bits, for speed, since ulp() is called for every element. `below` is the largest power of two <=
  // |x|, or 0. The subnormal numbers of a format are as far apart as its smallest normal numbers. For NaN and
  // infinity the result is that for 0.
  const auto power = [](int exponent) {  // 2^exponent
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  };
  const double below = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & 0x7ff0000000000000u);
  const double binade = std::isfinite(x) ? std::max(below, power(min_exponent)) : power(min_exponent);
  return binade * power(1 - precision);
}

std::optional<NumberFormat> parse_format(std::string_view text) {
  const std::string name(text);
  // Name, precision, exponent of the smallest normal number, largest number, overflow.
  if (name == "fp64") return NumberFormat{name, 53, -1022, largest(53, 1023), Overflow::kInfinity};
  if (name == "fp32") return NumberFormat{name, 24, -126, largest(24, 127), Overflow::kInfinity};
  if (name == "tf32") return NumberFormat{name, 11, -126, largest(11, 127), Overflow::kInfinity};
  if (name == "bf16") return NumberFormat{name, 8, -126, largest(8, 127), Overflow::kInfinity};
  if (name == "fp16") return NumberFormat{name, 11, -14, largest(11, 15), Overflow::kInfinity};
  // The highest bit pattern of e4m3 is NaN, so its largest number is 448 and not 480.
  if (name == "e4m3") return NumberFormat{name, 4, -6, 448, Overflow::kSaturate};
  if (name == "e4m3nosat") return NumberFormat{name, 4, -6, 448, Overflow::kNan};
  if (name == "e5m2") return NumberFormat{name, 3, -14, largest(3, 15), Overflow::kSaturate};
  if (name == "e5m2nosat") return NumberFormat{name, 3, -14, largest(3, 15), Overflow::kInfinity};
  return parse_general(name);
}

}  // namespace foreshock::lab
