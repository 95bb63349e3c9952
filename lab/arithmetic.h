// The arithmetic an algorithm runs in. Every algorithm of the lab is written in terms of this, so that one
// text of it serves all formats, roundings and accumulators.
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

// One per run of an algorithm; not shared between threads (a stochastic rounding counts its calls).
class Arithmetic {
 public:
  Arithmetic(NumberFormat format, Accumulator accumulator, Rounding rounding = Rounding::kNearestEven,
             uint64_t seed = 0);

  // The format under test: that of the operands of products.
  const NumberFormat& format() const { return format_; }
  // The format of tensors and of state kept "in the format": the format itself, but bf16 around fp8, whose
  // range holds neither scores nor sums.
  const NumberFormat& storage() const { return storage_; }

  // Rounds to the format, for an operand.
  void cast(Tensor& x);
  // Rounds to the storage format.
  void store(Tensor& x);
  double store(double x);

  // What a register makes of an fp64 intermediate: fp32, or fp64 when the format is fp64.
  double in_register(double x) const { return wide_ ? x : static_cast<float>(x); }
  double exp(double x) const { return in_register(std::exp(x)); }

  // a . b with operands in `format`, the sum as the accumulator leaves it.
  Tensor multiply(const Tensor& a, const Tensor& b) const;
  void multiply_add(const Tensor& a, const Tensor& b, Tensor& c) const;

  // Sums and largest elements of rows. A sum is sixteen interleaved chains in registers, merged pairwise, as
  // vector units and warps take it: one chain would lose small terms that no real kernel loses.
  double row_sum(const Tensor& x, int row) const;
  static double row_max(const Tensor& x, int row);

 private:
  NumberFormat format_, storage_;
  Accumulator accumulator_;
  Rounding rounding_;
  uint64_t seed_, roundings_ = 0;
  bool wide_;
};

// fp8 only: x cut into blocks of rows, each scaled so that its largest magnitude is the format's largest
// number, then cast. Returns one scale per row: x[i][j] was about scale[i] * x[i][j]. Other formats are left
// alone: scale 1.
std::vector<double> quantise(Arithmetic& arithmetic, Tensor& x, int block_rows);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ARITHMETIC_H_
