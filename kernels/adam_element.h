// What one element of a gradient and of its second moment says, the same on host and device.
#ifndef FORESHOCK_KERNELS_ADAM_ELEMENT_H_
#define FORESHOCK_KERNELS_ADAM_ELEMENT_H_

#include <cfloat>

#include "kernels/adam_sums.h"

namespace foreshock {

// NaN and the infinities times 0 are NaN. No branch, so that all of it is done in vector registers.
constexpr bool is_usable(double g, double v) { return int{g * 0 + v * 0 == 0} & int{v >= 0}; }

struct AdamElement {
  double square;     // g^2, 0 of what is left out
  double moment;     // v, 0 of what is left out
  double corrected;  // v^; of what is left out DBL_MAX, which eps does not dominate
};

constexpr AdamElement adam_element(double g, double v, const AdamConstants& c) {
  const bool ok = is_usable(g, v);
  return {.square = ok ? g * g : 0, .moment = ok ? v : 0, .corrected = ok ? v * c.correction : DBL_MAX};
}

constexpr bool is_counted(double corrected) { return corrected < DBL_MAX; }

constexpr double staleness_of(double square, double corrected, const AdamConstants& c) {
  return square / (corrected > c.floor ? corrected : c.floor);
}

// g^2 > 50 w^ with w^ = (v - (1 - beta2) g^2) / (beta2 (1 - beta2^(t - 1))), without the division.
constexpr bool is_surprising(double square, double moment, const AdamConstants& c) {
  return square * c.before > kSurprise * (moment - c.new_share * square);
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_ADAM_ELEMENT_H_
