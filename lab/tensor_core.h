// A model of how tensor cores add. One fused step takes k exact products and the accumulator, aligns all of
// them to the largest exponent (of a product: the sum of its operands' exponents, as stored, not normalised),
// cuts each to F fraction bits towards zero, adds exactly, and cuts the sum towards zero to the output's
// fraction bits. Zero products take no part in the alignment; below 2^-126 there is only the spacing of
// fp32's subnormals.
#ifndef FORESHOCK_LAB_TENSOR_CORE_H_
#define FORESHOCK_LAB_TENSOR_CORE_H_

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// The definition, in plain library calls: c + sum of a[i] * b[i * b_stride], i in [0, count), in steps of the
// unit. `format` is that of the operands (fp32 operands are cut to tf32, as the hardware does). Promotion
// included.
double tensor_core_dot(const Accumulator& unit, const NumberFormat& format, const double* a, const double* b,
                       int b_stride, int count, double c);

// c[i][j] = c[i][j] + a[i][:] . b[:][j], vectorised over j; bit for bit the definition above.
void tensor_core_multiply_add(const Accumulator& unit, const NumberFormat& format, const Tensor& a,
                              const Tensor& b, Tensor& c);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TENSOR_CORE_H_
