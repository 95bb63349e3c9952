// The Wasserstein distance W1 of two histograms: the integral of |F - G| over the line, F and G the
// distribution functions of their finite values. Exact for 16-bit formats; for fp32 inside certified bounds,
// which come from the sum of the values in each bin: wherever F - G keeps its sign, the two bounds are one.
#ifndef FORESHOCK_SHADOW_WASSERSTEIN_H_
#define FORESHOCK_SHADOW_WASSERSTEIN_H_

#include "shadow/histogram.h"

namespace foreshock {

struct Wasserstein {
  double value = 0;          // the best estimate; in the unit of the values
  double low = 0, high = 0;  // it is in [low, high] for certain, rounding of this computation included
};

// NaN in all three when one of them has no finite value.
Wasserstein wasserstein(const Histogram& a, const Histogram& b);

// What W1 would be on average if both were independent draws from one law (their mixture), of as many values
// as they have: sqrt(2 / pi) * sqrt(1 / n + 1 / m) * integral of sqrt(F (1 - F)). Two seeds are that far
// apart; a W1 below it is drift that no comparison of unpaired weights could see. An estimate: inside a bin F
// is taken as its mean. NaN when one has no finite value.
double sampling_noise_floor(const Histogram& a, const Histogram& b);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_WASSERSTEIN_H_
