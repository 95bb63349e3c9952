// A model of how tensor cores add products, in fused steps. `unit`, an Accumulator, describes the tensor
// core; `step`, `fraction_bits`, `output_bits` and `promotion` are its members. A fused step adds `step`
// exact products to the running sum: it finds the largest exponent among these terms, truncates each term to
// `fraction_bits` bits below that exponent, adds exactly, and truncates the new sum to `output_bits` fraction
// bits. The exponent of a product is the sum of the exponents stored in its operands, even if the product's
// own exponent is one larger. Products that are zero have no exponent. An exponent below -126 counts as -126.
#ifndef FORESHOCK_LAB_TENSOR_CORE_H_
#define FORESHOCK_LAB_TENSOR_CORE_H_

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// Defines the model: c + sum of a[i] * b[i * b_stride], i in [0, count), in fused steps. If `promotion` is
// not 0, the running sum starts at 0. After every `promotion` products, and at the end, it is added to c in
// fp32 and starts again at 0. `format`: the format of the operands; fp32 operands are truncated to tf32.
double tensor_core_dot(const Accumulator& unit, const NumberFormat& format, const double* a, const double* b,
                       int b_stride, int count, double c);

// c[i][j] += a[i][:] . b[:][j], vectorised over j. Each element equals tensor_core_dot() bit for bit.
void tensor_core_multiply_add(const Accumulator& unit, const NumberFormat& format, const Tensor& a,
                              const Tensor& b, Tensor& c);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TENSOR_CORE_H_
