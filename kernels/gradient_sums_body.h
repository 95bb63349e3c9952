// The body of kGradientSums.
#ifndef FORESHOCK_KERNELS_GRADIENT_SUMS_BODY_H_
#define FORESHOCK_KERNELS_GRADIENT_SUMS_BODY_H_

#include "kernels/block_sums.h"

namespace foreshock {

template <class Block>
FORESHOCK_DEVICE void add_group(const GradientTensor& tensor, uint64_t first, uint32_t count,
                                const Block& block, GradientSums* sums) {
  double g[kSumGroup];
  load_group(static_cast<DType>(tensor.dtype), tensor.data, first, count, block, g);
  for (uint32_t n = 0; n < kSumGroup; ++n) {
    if (n < count) sums->add(g[n]);
  }
}

template <class Block>
FORESHOCK_DEVICE void gradient_sums_body(const GradientSumsJob& job, Block& block) {
  sum_tensors<GradientSums>(job, block);
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GRADIENT_SUMS_BODY_H_
