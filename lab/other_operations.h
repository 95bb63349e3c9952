// The operations other than attention (families of algorithm.h): convolution and fused row reductions.
#ifndef FORESHOCK_LAB_OTHER_OPERATIONS_H_
#define FORESHOCK_LAB_OTHER_OPERATIONS_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// Convolution: 3 x 3, without padding, stride 1.

// A matrix product over channels and taps.
Tensors convolution_direct(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Winograd's F(m x m, 3 x 3) (arXiv 1509.09308): transformed image and filter are stored in the format,
// products over channels go through the accumulator, the inverse transform works in registers.
Tensors winograd_f2(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f4(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f6(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Row reductions that are fused in practice: softmax, layer norm, cross-entropy.

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

#endif  // FORESHOCK_LAB_OTHER_OPERATIONS_H_
