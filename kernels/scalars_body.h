// The body of kScalars.
#ifndef FORESHOCK_KERNELS_SCALARS_BODY_H_
#define FORESHOCK_KERNELS_SCALARS_BODY_H_

#include "kernels/block_sums.h"

namespace foreshock {

template <class Block>
FORESHOCK_DEVICE void scalars_body(const ScalarsJob& job, Block& block) {
  block.each([&](uint32_t thread) {
    for (uint32_t n = thread; n < job.count; n += block.threads()) {
      double value[kSumGroup];
      load_group(static_cast<DType>(job.dtype), job.from[n], 0, 1, block, value);
      const uint64_t cell = job.cells + cell_of(job.first + n) * sizeof(ScalarCell);
      block.store(cell + offsetof(ScalarCell, value), value[0]);
      block.publish(cell + offsetof(ScalarCell, number), job.first + n);
    }
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SCALARS_BODY_H_
