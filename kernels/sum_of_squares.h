// The sum of the squares of a packed array, in fp64. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_SUM_OF_SQUARES_H_
#define FORESHOCK_KERNELS_SUM_OF_SQUARES_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace foreshock {

// `type` must be floating. A NaN or an infinity among the values makes the result NaN or infinite. The error of
// the sum is at most count / 8 * 2^-53 relative (eight chains), far below the rounding of any gradient.
double sum_of_squares(const void* data, DType type, size_t count);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SUM_OF_SQUARES_H_
