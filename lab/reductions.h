// Row reductions that are fused in practice: softmax, layer norm, cross-entropy (families of algorithm.h).
#ifndef FORESHOCK_LAB_REDUCTIONS_H_
#define FORESHOCK_LAB_REDUCTIONS_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// Maximum first, then the sum, in registers.
Tensors softmax_two_pass(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// One pass over blocks of columns; running maximum and sum stored in the format.
Tensors softmax_online(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Mean first, then the centred squares.
Tensors layer_norm_two_pass(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// One pass: mean of squares minus square of mean, in registers.
Tensors layer_norm_fused(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// One pass by Welford's recurrence, in registers.
Tensors layer_norm_welford(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Logits of all classes stored in the format, then loss and gradient.
Tensors cross_entropy_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Classes in chunks of block_k, logits never stored, running maximum and sum in registers.
Tensors cross_entropy_chunked(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same with the running maximum and sum stored in the format after every chunk.
Tensors cross_entropy_chunked_reimplemented(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_REDUCTIONS_H_
