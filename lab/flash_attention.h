// FlashAttention-2 with its running state in the format, with a choice of the maximum that is subtracted.
#ifndef FORESHOCK_LAB_FLASH_ATTENTION_H_
#define FORESHOCK_LAB_FLASH_ATTENTION_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// The value a tile offers as maximum of row i of its scores.
using TileMaximum = double (*)(const Tensor& scores, int i);

Tensors flash2_state_in_format(const Tensors& inputs, const Settings& settings, TileMaximum tile_maximum,
                               Arithmetic& arithmetic);

// FlashAttention with its running state in registers, as kernels ship it: the parts in which they differ are
// options.

struct FlashKernel {
  bool sum_after_cast = false;  // the sum takes P after its cast to the format
  double lazy_log2 = 0;         // the maximum is renewed when it grew by more than this many powers of two
  double shift_log2 = 0;        // P is 2^shift times larger, to use the range of fp8
  bool scale_per_tile = false;  // fp8: one scale per tile instead of one per tensor
};

// Output and log-sum-exp before the output's cast: [rows][d], [rows][1].
Tensors flash2_in_registers(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                            Arithmetic& arithmetic);

// The whole algorithm: the above, the cast, and the backward if asked for.
Tensors flash2_kernel(const Tensors& inputs, const Settings& settings, const FlashKernel& kernel,
                      Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_FLASH_ATTENTION_H_
