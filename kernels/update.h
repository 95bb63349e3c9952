// What one optimizer step changed in a packed array. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_UPDATE_H_
#define FORESHOCK_KERNELS_UPDATE_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace foreshock {

// Sums in fp64 over d = after - before and over the values after; a value that is not finite makes its sums
// so. Relative error of each sum at most count / 8 * 2^-53 (eight chains).
struct Update {
  double sum_magnitude = 0, sum_squares = 0, max_magnitude = 0;
  double sum_squares_after = 0;
};

// `type` must be fp32, bf16 or fp16.
Update update_between(const void* before, const void* after, DType type, size_t count);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_UPDATE_H_
