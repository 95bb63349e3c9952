// A model of how tensor cores add, with parameters in Accumulator. A step takes `step` exact products and the
// accumulator, and aligns all to the largest exponent. The exponent of a product is the sum of the stored
// exponents of its operands, unnormalised; zero products have none. The step truncates each term to
// `fraction_bits`, adds exactly, and truncates the sum to `output_bits`. Below 2^-126 spacings are those at
// 2^-126.
#ifndef FORESHOCK_LAB_TENSOR_CORE_H_
#define FORESHOCK_LAB_TENSOR_CORE_H_

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// Defines the model: c + sum of a[i] * b[i * b_stride], i in [0, count), in fused steps of the unit. After
// `promotion` products the partial sum is added to an fp32 register. `format`: operands; fp32 becomes tf32.
double tensor_core_dot(const Accumulator& unit, const NumberFormat& format, const double* a, const double* b,
                       int b_stride, int count, double c);

// c[i][j] = c[i][j] + a[i][:] . b[:][j], vectorised over j; bit for bit equal to tensor_core_dot().
void tensor_core_multiply_add(const Accumulator& unit, const NumberFormat& format, const Tensor& a,
                              const Tensor& b, Tensor& c);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TENSOR_CORE_H_
