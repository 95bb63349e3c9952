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

// What a value becomes that rounds beyond max_finite, or is infinite; kSaturate: max_finite.
enum class Overflow { kInfinity, kSaturate, kNan };

struct NumberFormat {
  std::string name;
  int precision = 53;        // significand bits, the hidden one included
  int min_exponent = -1022;  // the smallest normal number is 2^min_exponent
  double max_finite = 0;
  Overflow overflow = Overflow::kInfinity;

  bool is_fp64() const { return precision == 53; }
  bool is_fp8() const { return precision <= 4; }
  double overflow_value() const;  // what a positive infinity becomes
  // Half the spacing of the numbers just above 1.
  double unit_roundoff() const;
  // Spacing of the format's numbers around x (the subnormal spacing near zero).
  double ulp(double x) const;
};

// fp64, fp32, tf32, bf16, fp16; e4m3 and e5m2 saturate as the hardware's conversions do by default, e4m3nosat
// and e5m2nosat overflow to NaN and infinity. Any other format is written p<precision>e<min>:<max exponent>,
// for example p5e-14:15, and overflows to infinity; precision 2..40, exponents within -900..900. Returns
// nullopt for any other text.
std::optional<NumberFormat> parse_format(std::string_view text);

// Reads a text that is a number from its first character to its last, and finite.
template <class Number>
bool read_number(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() &&
         std::isfinite(static_cast<double>(*number));
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_NUMBER_FORMAT_H_
