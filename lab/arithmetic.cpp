// Implements the class Arithmetic (rounding, matrix products, row sums in a chosen number format), and
// quantise(), which scales fp8 operands.
#include "lab/arithmetic.h"

#include <algorithm>

#include "lab/inputs.h"

namespace foreshock::lab {

Arithmetic::Arithmetic(NumberFormat format, Accumulator accumulator, Rounding rounding, uint64_t seed)
    : format_(std::move(format)),
      storage_(format_.is_fp8() ? *parse_format("bf16") : format_),
      accumulator_(accumulator),
      rounding_(rounding),
      seed_(seed),
      is_wider_than_fp32_(format_.precision > 24) {}  // 24: the precision of fp32

// For stochastic rounding, round_to() makes the random number of an element from its index and the last
// argument, which is different in each call.
void Arithmetic::cast(Tensor& x) {
  round_to(format_, rounding_, x.data.data(), x.data.size(), mix(seed_ + ++roundings_));
}

void Arithmetic::store(Tensor& x) {
  round_to(storage_, rounding_, x.data.data(), x.data.size(), mix(seed_ + ++roundings_));
}

double Arithmetic::store(double x) {
  round_to(storage_, rounding_, &x, 1, mix(seed_ + ++roundings_));
  return x;
}

Tensor Arithmetic::multiply(const Tensor& a, const Tensor& b) const {
  return lab::multiply(accumulator_, format_, a, b);
}

void Arithmetic::multiply_add(const Tensor& a, const Tensor& b, Tensor& c) const {
  lab::multiply_add(accumulator_, format_, a, b, c);
}

// in_register() rounds to fp32, the format of a register, unless the format under test is more precise.
double Arithmetic::row_sum(const Tensor& x, int row) const {
  constexpr int kChains = 16;  // partial sums, as in vector units and warps
  double chain[kChains] = {};
  for (int j = 0; j < x.cols; ++j) chain[j % kChains] = in_register(chain[j % kChains] + x.at(row, j));
  for (int width = kChains / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) chain[i] = in_register(chain[i] + chain[i + width]);
  return chain[0];
}

double Arithmetic::row_max(const Tensor& x, int row) {
  return *std::max_element(x.row(row), x.row(row) + x.cols);
}

// For fp8: scales each block of rows so that its largest magnitude becomes the format's largest number, then
// rounds. Returns a factor for each row: an old value is about the factor times the new one.
std::vector<double> quantise(Arithmetic& arithmetic, Tensor& x, int block_rows) {
  std::vector<double> scale(x.rows, 1.0);
  if (!arithmetic.format().is_fp8()) return scale;
  for (int begin = 0; begin < x.rows; begin += block_rows) {
    const int end = std::min(begin + block_rows, x.rows);
    double largest = 0;
    for (int i = begin; i < end; ++i)
      for (int j = 0; j < x.cols; ++j) largest = std::max(largest, std::fabs(x.at(i, j)));
    if (!(largest > 0) || !std::isfinite(largest)) continue;  // the block keeps its values and scale 1
    const double factor = arithmetic.in_register(largest / arithmetic.format().max_finite);
    for (int i = begin; i < end; ++i) {
      scale[i] = factor;
      for (int j = 0; j < x.cols; ++j) x.at(i, j) = arithmetic.in_register(x.at(i, j) / factor);
    }
  }
  arithmetic.cast(x);
  return scale;
}

}  // namespace foreshock::lab
