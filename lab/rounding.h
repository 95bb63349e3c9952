// Rounds fp64 values to narrower formats. For + - * / and square root, an fp64 result that is then rounded to
// p bits of precision equals the result of the format's own operation if 53 >= 2p + 2, that is p <= 25. So
// the lab, which emulates other formats, computes in fp64 and rounds. Only matrix products round in another
// way: as the emulated hardware does (accumulator.h).
#ifndef FORESHOCK_LAB_ROUNDING_H_
#define FORESHOCK_LAB_ROUNDING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lab/number_format.h"

namespace foreshock::lab {

// kNearestEven: to the nearest number of the format, ties to even. kTowardZero: to the neighbour nearer to 0;
// a finite value never exceeds max_finite. kStochastic: to the neighbour farther from 0 with the probability
// (distance of x from the neighbour nearer to 0) / (distance of the neighbours), else to the other one.
enum class Rounding { kNearestEven, kTowardZero, kStochastic };

std::optional<Rounding> parse_rounding(std::string_view text);  // "rne", "rtz", "stochastic"
std::string_view name_of(Rounding rounding);

// Rounds one value: the definition, in plain library calls. kStochastic rounds away from 0 if `u`, a random
// number in [0, 1), is below the probability of doing so.
double round_scalar(const NumberFormat& format, Rounding rounding, double x, double u = 0);
// Rounds an array in place with vector code. The results are those of round_scalar() with the random numbers
// u = uniform(key, index) of inputs.h.
void round_to(const NumberFormat& format, Rounding rounding, double* values, size_t count, uint64_t key = 0);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ROUNDING_H_
