// The body of kAdamSums.
#ifndef FORESHOCK_KERNELS_ADAM_SUMS_BODY_H_
#define FORESHOCK_KERNELS_ADAM_SUMS_BODY_H_

#include "kernels/adam_element.h"
#include "kernels/block_sums.h"

namespace foreshock {

constexpr void add_element(double g, double v, const AdamConstants& c, AdamSums* sums) {
  const AdamElement element = adam_element(g, v, c);
  const bool counted = is_counted(element.corrected);
  sums->counted += counted;
  if (!counted) {
    sums->nonfinite_gradient += g * 0 != 0;
    sums->unusable_state += !is_usable(0, v);
  }
  sums->staleness += staleness_of(element.square, element.corrected, c);
  sums->epsilon_dominated += element.corrected < c.eps_squared;
  sums->gradient_squares += element.square;
  if (c.before > 0) {
    sums->surprised += is_surprising(element.square, element.moment, c);
    sums->surprise_counted += counted;
  }
}

template <class Block>
FORESHOCK_DEVICE void add_group(const AdamTensor& tensor, uint64_t first, uint32_t count, const Block& block,
                                AdamSums* sums) {
  double g[kSumGroup], v[kSumGroup];
  load_group(static_cast<DType>(tensor.gradient_dtype), tensor.gradient, first, count, block, g);
  load_group(static_cast<DType>(tensor.moment_dtype), tensor.moment, first, count, block, v);
  for (uint32_t n = 0; n < kSumGroup; ++n) {
    if (n < count) add_element(g[n], v[n], tensor.constants, sums);
  }
}

template <class Block>
FORESHOCK_DEVICE void adam_sums_body(const AdamSumsJob& job, Block& block) {
  sum_tensors<AdamSums>(job, block);
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_ADAM_SUMS_BODY_H_
