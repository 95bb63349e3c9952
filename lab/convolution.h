// 3 x 3 convolution without padding, stride 1 (family convolution in algorithm.h).
#ifndef FORESHOCK_LAB_CONVOLUTION_H_
#define FORESHOCK_LAB_CONVOLUTION_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// A matrix product over channels and taps.
Tensors convolution_direct(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Winograd's F(m x m, 3 x 3) (arXiv 1509.09308): transformed image and filter are stored in the format,
// products over channels go through the accumulator, the inverse transform works in registers.
Tensors winograd_f2(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f4(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
Tensors winograd_f6(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CONVOLUTION_H_
