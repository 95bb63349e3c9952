// Measures the differences d = b - a of the elements of two arrays, e.g. of a weight tensor before and after
// training steps. mean |d| is compared with W1 (histogram.h), the Wasserstein distance of the distributions
// of a and b. W1 / mean |d| is at most 1: near 1 if all elements moved in one direction, near 0 for noise.
#ifndef FORESHOCK_SHADOW_DIFFERENCE_H_
#define FORESHOCK_SHADOW_DIFFERENCE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// Sums in fp64 over the pairs (a, b) of finite elements. d = b - a is rounded to fp64; it is exact for fp16,
// and for bf16 and fp32 if a and b are not of very different size. If there are at least 2^16 pairs and few
// other elements, a sum's relative error is below pairs / 8 * 2^-53.
struct Difference {
  uint64_t pairs = 0;
  uint64_t non_finite = 0;                                       // pairs left out of all other members
  double sum_magnitude = 0, sum_squares = 0, max_magnitude = 0;  // of d
  double sum_squares_of_a = 0;

  void add(const Difference& other);
  double mean_magnitude() const;  // NaN without pairs
  double relative_l2() const;     // |b - a| / |a| as vectors; infinite if only a is 0, NaN if both are
};

// Compares `count` contiguous elements at any address. Formats may differ but must be floating. Thread-safe.
Difference difference(const void* a, DType type_a, const void* b, DType type_b, size_t count);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_DIFFERENCE_H_
