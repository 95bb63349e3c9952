// Rounding of fp64 values to any narrower format. One rounding of an fp64 result equals the format's own
// operation for + - * / and square root whenever 53 >= 2p + 2, that is p <= 25; sums and fused chains are
// rounded where the emulated hardware rounds (accumulator.h).
#ifndef FORESHOCK_LAB_ROUNDING_H_
#define FORESHOCK_LAB_ROUNDING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lab/number_format.h"

namespace foreshock::lab {

// RNE, RTZ (which never rounds a finite value beyond max_finite), and up or down with probability equal to
// the fraction of the spacing.
enum class Rounding { kNearestEven, kTowardZero, kStochastic };

std::optional<Rounding> parse_rounding(std::string_view text);  // "rne", "rtz", "stochastic"
std::string_view name_of(Rounding rounding);

// The definition: one value, in plain library calls. `u` in [0, 1) decides a stochastic rounding.
double round_scalar(const NumberFormat& format, Rounding rounding, double x, double u = 0);

// The same, in place, vectorised. Element i of a stochastic rounding uses uniform(key, i) of random.h.
void round_to(const NumberFormat& format, Rounding rounding, double* values, size_t count, uint64_t key = 0);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ROUNDING_H_
