// Rounds to the storage formats: to nearest, ties to even, overflow to infinity, subnormals kept.
#ifndef FORESHOCK_SHADOW_ROUNDING_H_
#define FORESHOCK_SHADOW_ROUNDING_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace foreshock {

// Returns the value of format `type` nearest to `x`, as a double, rounded once. `type` must be floating.
double round_to(DType type, double x);

// Returns the spacing of the format at |x|: 2^(e - precision + 1), and for subnormals their spacing. Always
// positive; NaN if x is not finite.
double ulp_at(DType type, double x);

// Stores round_to(type, x) as element `index` of a packed array.
void store_rounded(DType type, double x, void* data, size_t index);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_ROUNDING_H_
