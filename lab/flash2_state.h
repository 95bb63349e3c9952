// FlashAttention-2 with its running state in the format, with a choice of the maximum that is subtracted.
#ifndef FORESHOCK_LAB_FLASH2_STATE_H_
#define FORESHOCK_LAB_FLASH2_STATE_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// The value a tile offers as maximum of row i of its scores.
using TileMaximum = double (*)(const Tensor& scores, int i);

Tensors flash2_state_in_format(const Tensors& inputs, const Settings& settings, TileMaximum tile_maximum,
                               Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_FLASH2_STATE_H_
