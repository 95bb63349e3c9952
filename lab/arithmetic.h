// The arithmetic in which an algorithm runs: number format, rounding, and accumulator of matrix products.
// Every algorithm of the lab is written once, in terms of this class. All values are held as doubles.
#ifndef FORESHOCK_LAB_ARITHMETIC_H_
#define FORESHOCK_LAB_ARITHMETIC_H_

#include <cmath>
#include <cstdint>

#include "lab/accumulator.h"
#include "lab/number_format.h"
#include "lab/product.h"
#include "lab/rounding.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// Use one object per run of an algorithm: the random numbers of stochastic rounding depend on the number of
// earlier calls of cast() and store().
class Arithmetic {
 public:
  Arithmetic(NumberFormat format, Accumulator accumulator, Rounding rounding = Rounding::kNearestEven,
             uint64_t seed = 0);

  // The format under test, to which the operands of matrix products are rounded.
  const NumberFormat& format() const { return format_; }
  // The format of stored tensors, and of running sums unless an algorithm keeps them in registers. It is bf16
  // if format() is fp8, whose range is too small for scores and sums; else it is format().
  const NumberFormat& storage() const { return storage_; }

  void cast(Tensor& x);  // rounds an operand of a matrix product to format()
  // Rounds to storage().
  void store(Tensor& x);
  double store(double x);

  // Returns x as a register holds it: rounded to fp32, or unchanged if format() is more precise than fp32.
  double in_register(double x) const { return is_wider_than_fp32_ ? x : static_cast<float>(x); }
  double exp(double x) const { return in_register(std::exp(x)); }

  // Computes a . b, or adds it to c. The operands must be in format(). Only the accumulator rounds.
  Tensor multiply(const Tensor& a, const Tensor& b) const;
  void multiply_add(const Tensor& a, const Tensor& b, Tensor& c) const;

  // The sum and the largest element of a row. The sum is computed as in vector units and warps: sixteen
  // interleaved partial sums in registers, merged pairwise. This has a smaller error than a sum in order.
  double row_sum(const Tensor& x, int row) const;
  static double row_max(const Tensor& x, int row);

 private:
  NumberFormat format_, storage_;
  Accumulator accumulator_;
  Rounding rounding_;
  uint64_t seed_, roundings_ = 0;  // of stochastic rounding; roundings_: calls of cast() and store() so far
  bool is_wider_than_fp32_;        // format_ has more precision than fp32
};

// For fp8: scales each block of `block_rows` rows so that its largest magnitude becomes the format's largest
// number, then casts. Returns one scale per row: the original x[i][j] was about scale[i] times the new one.
// NaN is ignored. If the largest magnitude of a block is 0 or infinite, the block is not scaled and its scale
// is 1. For other formats x stays unchanged and all scales are 1.
std::vector<double> quantise(Arithmetic& arithmetic, Tensor& x, int block_rows);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ARITHMETIC_H_
