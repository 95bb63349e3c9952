// Floating-point formats, described by precision, exponent range and overflow. All are subsets of fp64.
#ifndef FORESHOCK_LAB_NUMBER_FORMAT_H_
#define FORESHOCK_LAB_NUMBER_FORMAT_H_

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace foreshock::lab {

// The result of rounding an infinite value or one beyond max_finite: infinity, max_finite (kSaturate) or NaN.
enum class Overflow { kInfinity, kSaturate, kNan };

struct NumberFormat {
  std::string name;
  int precision = 53;        // significand bits, the hidden one included
  int min_exponent = -1022;  // the smallest normal number is 2^min_exponent
  double max_finite = 0;     // the largest number; parse_format() sets it
  Overflow overflow = Overflow::kInfinity;

  bool is_fp64() const { return precision == 53; }
  bool is_fp8() const { return precision <= 4; }  // e4m3 has 4 bits of precision, e5m2 has 3
  double overflow_value() const;                  // the result of rounding a positive infinity
  double unit_roundoff() const;                   // half the spacing of the numbers just above 1
  double ulp(double x) const;  // spacing of the numbers around x; near zero, of the subnormal numbers
};

// fp64, fp32, tf32, bf16, fp16, e4m3, e5m2, e4m3nosat, e5m2nosat. e4m3 and e5m2 saturate, as the hardware's
// conversions do by default; e4m3nosat overflows to NaN, e5m2nosat to infinity. Any other format overflows to
// infinity and is written p<precision>e<min exponent>:<max exponent>, for example p5e-14:15. Its precision is
// 2..40, its exponents are within -900..900. Returns nullopt for any other text.
std::optional<NumberFormat> parse_format(std::string_view text);

// Reads a finite number. Returns false if any part of the text does not belong to the number.
template <class Number>
bool read_number(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() &&
         std::isfinite(static_cast<double>(*number));
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_NUMBER_FORMAT_H_
