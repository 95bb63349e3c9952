// The body of kScalars.
#ifndef FORESHOCK_KERNELS_SCALARS_BODY_H_
#define FORESHOCK_KERNELS_SCALARS_BODY_H_

#include "kernels/block_sums.h"

namespace foreshock {

template <class Block>
FORESHOCK_DEVICE double scalar_at(uint64_t from, uint32_t dtype, const Block& block) {
  if (dtype != kSquaresOfSums) {
    double value[kSumGroup];
    load_group(static_cast<DType>(dtype), from, 0, 1, block, value);
    return value[0];
  }
  constexpr uint64_t kNan = 0x7ff8000000000000;
  const uint64_t nonfinite = block.template load<uint64_t>(from + offsetof(GradientSums, nonfinite));
  const uint64_t squares = block.template load<uint64_t>(from + offsetof(GradientSums, squares));
  return std::bit_cast<double>(nonfinite == 0 ? squares : kNan);
}

template <class Block>
FORESHOCK_DEVICE void scalars_body(const ScalarsJob& job, Block& block) {
  block.each([&](uint32_t thread) {
    for (uint32_t n = thread; n < job.count; n += block.threads()) {
      const uint64_t cell = job.cells + cell_of(job.first + n) * sizeof(ScalarCell);
      block.store(cell + offsetof(ScalarCell, value), scalar_at(job.from[n], job.dtype, block));
      block.publish(cell + offsetof(ScalarCell, number), job.first + n);
    }
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SCALARS_BODY_H_
