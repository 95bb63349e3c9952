// Rounds fp64 values to narrower formats. For + - * / and square root, an fp64 result that is then rounded to
// p bits of precision equals the result of the format's own operation if 53 >= 2p + 2, that is p <= 25. So
// the lab computes in fp64 and rounds. Matrix products round as the emulated hardware does (accumulator.h).
#ifndef FORESHOCK_LAB_ROUNDING_H_
#define FORESHOCK_LAB_ROUNDING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lab/number_format.h"

namespace foreshock::lab {

// kNearestEven: to the nearest number, ties to even. kTowardZero: a finite value never exceeds max_finite.
// kStochastic: to the number above with probability (x - number below) / spacing, else to the number below.
enum class Rounding { kNearestEven, kTowardZero, kStochastic };

std::optional<Rounding> parse_rounding(std::string_view text);  // "rne", "rtz", "stochastic"
std::string_view name_of(Rounding rounding);

// Rounds one value: the definition, in plain library calls. kStochastic rounds up if `u` < that probability.
double round_scalar(const NumberFormat& format, Rounding rounding, double x, double u = 0);

// Rounds an array in place, vectorised, as round_scalar() does with u = uniform(key, index) of inputs.h.
void round_to(const NumberFormat& format, Rounding rounding, double* values, size_t count, uint64_t key = 0);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ROUNDING_H_
