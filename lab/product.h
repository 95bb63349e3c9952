// Matrix products whose sums are computed by a chosen accumulator (accumulator.h).
#ifndef FORESHOCK_LAB_PRODUCT_H_
#define FORESHOCK_LAB_PRODUCT_H_

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// c[i][j] += sum over k of a[i][k] * b[k][j], in the order of k. The elements of a and b must be numbers of
// `format`. The elements of c must be numbers that the accumulator can hold: fp32 numbers for kFp32 and
// kTensorCore. Results do not depend on the width of vector registers, since one lane computes one element.
void multiply_add(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a,
                  const Tensor& b, Tensor& c);

// Like multiply_add(), starting from c = 0.
Tensor multiply(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a, const Tensor& b);

// Returns c + sum of a[i] * b[i * b_stride], i in [0, count): the exact real number, rounded once to fp64
// (Shewchuk's expansions over error-free products). The rounding error of each product must be exactly
// representable in fp64 (not lost to underflow), as it is for products of at least 2^-969. If the sum in
// plain fp64 is not finite, that sum is the result.
double exact_dot(const double* a, const double* b, int b_stride, int count, double c);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_PRODUCT_H_
