// Matrix products under an accumulator.
#ifndef FORESHOCK_LAB_PRODUCT_H_
#define FORESHOCK_LAB_PRODUCT_H_

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// c[i][j] += a[i][:] . b[:][j] with the products of one (i, j) taken in the order of k. Operands are numbers
// of `format`; c holds what the accumulator holds (fp32 numbers for kFp32 and tensor cores). The kFp32 and
// kFp64 results do not depend on the width of the machine's vectors: every lane is one chain.
void multiply_add(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a,
                  const Tensor& b, Tensor& c);

// The same from zero.
Tensor multiply(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a, const Tensor& b);

// c + a[0..count) . b, the exact real number rounded once to fp64 (Shewchuk's expansions over error-free
// products; no product may underflow below 2^-1022). Non-finite terms give the plain IEEE sum.
double exact_dot(const double* a, const double* b, int b_stride, int count, double c);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_PRODUCT_H_
