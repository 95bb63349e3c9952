// Measures the differences d of two arrays by element. The Wasserstein distance W1 compares distributions
// only. W1 / mean |d| is at most 1: near 1 if all elements moved in one direction (drift), near 0 for noise.
#ifndef FORESHOCK_SHADOW_DIFFERENCE_H_
#define FORESHOCK_SHADOW_DIFFERENCE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// Sums in fp64 over the pairs (a, b) whose elements are finite. d = b - a is exact for 16-bit formats, and
// for fp32 except at the extremes of fp32. Each sum has a relative error below pairs / 8 * 2^-53.
struct Difference {
  uint64_t pairs = 0;
  uint64_t non_finite = 0;  // pairs left out
  double sum_magnitude = 0, sum_squares = 0, max_magnitude = 0;
  double sum_squares_of_a = 0;

  void add(const Difference& other);
  double mean_magnitude() const;  // NaN without pairs
  double relative_l2() const;     // |b - a| / |a| as vectors; infinite if only a is 0, NaN if both are
};

// Compares `count` packed elements. The formats may differ but must be floating. Any alignment, any thread.
Difference difference(const void* a, DType type_a, const void* b, DType type_b, size_t count);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_DIFFERENCE_H_
