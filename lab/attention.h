// Attention algorithms. Inputs and outputs as in algorithm.h (family attention); all of them compute
// out = softmax(scale * query . key^T) . value.
#ifndef FORESHOCK_LAB_ATTENTION_H_
#define FORESHOCK_LAB_ATTENTION_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// Unfused: scores, probabilities and output are stored in the format, softmax works in registers.
Tensors attention_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-1 re-implemented tensor by tensor: *every* intermediate, the normalised running output
// included, is stored in the format after every tile. The object of arXiv 2405.02803.
Tensors flash_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 with running maximum, sum and output in the format.
Tensors flash2_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same with the maximum shifted where it is repeated (arXiv 2510.04212, algorithm 1).
Tensors flash2_dynamic_max(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 as shipped: registers hold all state, P is cast for the second product, the sum takes P
// uncast.
Tensors flash2_shipped(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same, the sum taken from the cast P: what the near-tie bias of flash2_shipped goes away with.
Tensors flash2_cast_sum(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-4's lazy rescaling: the maximum is renewed only when it grew by more than a factor 2^8.
Tensors flash4_lazy(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-3 in fp8: query, key and value quantised with one scale per tile, P shifted by 2^8 before
// its cast.
Tensors flash3_fp8(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Keys split into parts, each flash2_shipped, merged by their log-sum-exp in registers.
Tensors split_k(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ATTENTION_H_
