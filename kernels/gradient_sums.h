// The squares of a gradient and how many of its elements are not finite, in one pass. No heap, no statics:
// safe inside a trainer.
#ifndef FORESHOCK_KERNELS_GRADIENT_SUMS_H_
#define FORESHOCK_KERNELS_GRADIENT_SUMS_H_

#include "kernels/tensor.h"

namespace foreshock {

// Sums of tensors and of shards add up.
struct GradientSums {
  double squares = 0;  // over the finite elements
  uint64_t finite = 0, nonfinite = 0;

  constexpr void add(double g) {
    const bool is_finite = g * 0 == 0;
    squares += is_finite ? g * g : 0;
    finite += is_finite;
    nonfinite += !is_finite;
  }
  constexpr void add(const GradientSums& other) {
    squares += other.squares;
    finite += other.finite;
    nonfinite += other.nonfinite;
  }
};

// The tensor may have any strides; its type must be floating. Elements in order within each block of
// kernels/joint_blocks.h, then blocks in order: the relative error of the squares is below
// (blocks + 257) * 2^-53.
void add_gradient_sums(const TensorView& gradient, GradientSums* sums);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GRADIENT_SUMS_H_
