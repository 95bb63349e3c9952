// Algorithms for convolution, softmax, layer norm and cross-entropy, for the lab's measurements. algorithm.h
// defines the inputs and outputs. Values "in the format" are rounded to the format under test, values "in
// registers" to fp32. The accumulator (accumulator.h) is the emulated unit that adds products.
#ifndef FORESHOCK_LAB_OTHER_OPERATIONS_H_
#define FORESHOCK_LAB_OTHER_OPERATIONS_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// Convolutions are 3 x 3 with stride 1 and without padding. The direct one is a matrix product whose sums are
// over the channels and the 9 elements of the filter.
Tensors convolution_direct(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Winograd's F(m x m, 3 x 3) (arXiv 1509.09308) for m = 2, 4, 6, in tiles of m x m outputs. The transformed
// image and filter are stored in the format. The accumulator adds products over channels. The inverse
// transform works in registers.
Tensors winograd_f2(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f4(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f6(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Softmax of each row. The first pass finds the maximum, the second the sum, both in registers.
Tensors softmax_two_pass(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Softmax in one pass over blocks of columns; the running maximum and sum are stored in the format.
Tensors softmax_online(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Layer norm of each row. The first pass computes the mean, the second the mean of the centred squares.
Tensors layer_norm_two_pass(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Layer norm in one pass: the variance is the mean of squares minus the square of the mean, in registers.
Tensors layer_norm_fused(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Layer norm in one pass by Welford's recurrence, in registers.
Tensors layer_norm_welford(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Cross-entropy and its gradient. The logits of all classes, hidden . classes^T, are stored in the format.
Tensors cross_entropy_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same with classes in chunks of block_k; logits, running maximum and running sum stay in registers.
Tensors cross_entropy_chunked(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// cross_entropy_chunked with the running maximum and sum stored in the format after every chunk.
Tensors cross_entropy_chunked_reimplemented(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_OTHER_OPERATIONS_H_
