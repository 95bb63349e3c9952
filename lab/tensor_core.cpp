// Computes the model of tensor cores (tensor_core.h): how they round when they multiply matrices. The
// definition is scalar code (scalar_step); vector code (Highway compiles it for each instruction set) gives
// the same results. A step adds several products to the accumulator c: it truncates all terms to
// `fraction_bits` bits below the largest of their exponents, adds exactly, and truncates the sum. The
// exponent of a product is the sum of its factors' exponents.
#include "lab/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lab/rounding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/tensor_core.cpp"
// No FMA: no gain over SSE2. SVE: as in rounding.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// foreach_target.h includes this file several times, but these types must be defined once.
#ifndef FORESHOCK_LAB_TENSOR_CORE_OPERANDS
#define FORESHOCK_LAB_TENSOR_CORE_OPERANDS
namespace foreshock::lab {

// An operand matrix for the vector code: the values, and for each value its binade, the power of two of its
// stored exponent (0 for the value 0). Zeros, which do not change the result, pad the summed dimension to
// whole steps and the columns to whole vectors.
struct PackedOperand {
  int rows = 0, cols = 0;
  std::vector<double> value, binade;
};

inline constexpr int kColumnPadding = 16;  // at least the doubles in the widest vector
inline constexpr int kRowsAtOnce = 2;      // rows that the vector code computes together

}  // namespace foreshock::lab
#endif

HWY_BEFORE_NAMESPACE();
namespace foreshock::lab {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;

// The largest power of two that is at most |x|: x with only its exponent field.
V binade_of(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::And(hn::BitCast(du, x), hn::Set(du, 0x7ff0000000000000u)));
}

// 2^bits / binade, computed on the exponent fields: that of 2^e stores e + 1023, that of 2^(bits - e) stores
// 1023 + bits - e, and the sum is 2046 + bits. `binade` must be a power of two.
V inverse_of(V binade, uint64_t bits) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::Sub(hn::Set(du, (2046 + bits) << 52), hn::BitCast(du, binade)));
}

// x truncated to `bits` fraction bits. Below 2^-126 (fp32's smallest normal number) the spacing is constant.
V truncated(V x, uint64_t bits) {
  const D d;
  const V binade = hn::Max(binade_of(x), hn::Set(d, 0x1p-126));
  const V quantum = hn::Mul(binade, hn::Set(d, std::ldexp(1.0, -static_cast<int>(bits))));
  return hn::Mul(hn::Trunc(hn::Mul(x, inverse_of(binade, bits))), quantum);
}

// One step for kRows rows of a and one vector of columns of b. c[r] is the accumulator of row r.
template <int kRows>
HWY_INLINE void fused_step(const Accumulator& unit, const double* a, const double* a_binade, size_t a_stride,
                           const double* b, const double* b_binade, size_t b_stride, V* c) {
  const D d;
  V largest[kRows], scale[kRows], sum[kRows];
  for (int r = 0; r < kRows; ++r) largest[r] = hn::Max(binade_of(c[r]), hn::Set(d, 0x1p-126));
  for (int k = 0; k < unit.step; ++k) {
    const V binades = hn::LoadU(d, b_binade + k * b_stride);
    for (int r = 0; r < kRows; ++r)
      largest[r] = hn::Max(largest[r], hn::Mul(hn::Set(d, a_binade[r * a_stride + k]), binades));
  }
  for (int r = 0; r < kRows; ++r) {
    scale[r] = inverse_of(largest[r], unit.fraction_bits);
    sum[r] = hn::Trunc(hn::Mul(c[r], scale[r]));
  }
  for (int k = 0; k < unit.step; ++k) {
    const V values = hn::LoadU(d, b + k * b_stride);
    for (int r = 0; r < kRows; ++r) {
      const V product = hn::Mul(hn::Set(d, a[r * a_stride + k]), values);
      sum[r] = hn::Add(sum[r], hn::Trunc(hn::Mul(product, scale[r])));
    }
  }
  const V ulp = hn::Set(d, std::ldexp(1.0, -unit.fraction_bits));  // largest[r] * ulp equals 1 / scale[r]
  for (int r = 0; r < kRows; ++r)
    c[r] = truncated(hn::Mul(sum[r], hn::Mul(largest[r], ulp)), unit.output_bits);
}

// All steps for kRows rows of a from row i on and a vector of columns of b from column j on. Adds to `out`.
// If unit.promotion is not 0, c is added to an fp32 register (`promoted`) after that many products.
template <int kRows>
void rows_times_columns(const Accumulator& unit, const PackedOperand& a, const PackedOperand& b, int i, int j,
                        double* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V c[kRows], promoted[kRows];
  for (int r = 0; r < kRows; ++r) {
    promoted[r] = hn::LoadU(d, out + r * lanes);
    c[r] = unit.promotion ? hn::Zero(d) : promoted[r];
  }
  for (int k = 0; k < a.cols; k += unit.step) {
    const size_t at_a = static_cast<size_t>(i) * a.cols + k, at_b = static_cast<size_t>(k) * b.cols + j;
    fused_step<kRows>(unit, &a.value[at_a], &a.binade[at_a], a.cols, &b.value[at_b], &b.binade[at_b], b.cols,
                      c);
    const int done = k + unit.step;  // products added so far
    if (unit.promotion && (done % unit.promotion == 0 || done == a.cols)) {
      const hn::Rebind<float, D> df;
      for (int r = 0; r < kRows; ++r) {
        promoted[r] = hn::PromoteTo(d, hn::DemoteTo(df, hn::Add(promoted[r], c[r])));
        c[r] = hn::Zero(d);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) hn::StoreU(unit.promotion ? promoted[r] : c[r], d, out + r * lanes);
}

// c += a . b, in blocks of kRows rows and one vector of columns.
void multiply_packed(const Accumulator& unit, const PackedOperand& a, const PackedOperand& b, Tensor& c) {
  const D d;
  constexpr int kRows = kRowsAtOnce;
  const int lanes = static_cast<int>(hn::Lanes(d));
  double block[kRows * hn::MaxLanes(D())];
  for (int j = 0; j < c.cols; j += lanes) {
    const int used_lanes = std::min(lanes, c.cols - j);
    for (int i = 0; i < c.rows; i += kRows) {
      std::fill(block, block + kRows * lanes, 0.0);
      for (int r = 0; r < kRows && i + r < c.rows; ++r)
        std::copy(c.row(i + r) + j, c.row(i + r) + j + used_lanes, block + r * lanes);
      rows_times_columns<kRows>(unit, a, b, i, j, block);
      for (int r = 0; r < kRows && i + r < c.rows; ++r)
        std::copy(block + r * lanes, block + r * lanes + used_lanes, c.row(i + r) + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock::lab
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock::lab {
namespace {

HWY_EXPORT(multiply_packed);

constexpr int kLeastExponent = -126;  // of a normal fp32 number

// The operand as the tensor core reads it: fp32, with more than the 11 bits of tf32, is truncated to tf32.
double operand(const NumberFormat& format, double x) {
  static const NumberFormat tf32 = *parse_format("tf32");
  return format.precision > 11 ? round_scalar(tf32, Rounding::kTowardZero, x) : x;
}

// The exponent of x in its format; subnormal numbers have that of the smallest normal one.
int stored_exponent(const NumberFormat& format, double x) {
  return std::max(std::ilogb(x), format.min_exponent);
}

// x truncated to `fraction_bits` fraction bits, as in the vector code.
double truncated(double x, int fraction_bits) {
  if (x == 0) return 0;
  const int quantum = std::max(std::ilogb(x), kLeastExponent) - fraction_bits;
  return std::ldexp(std::trunc(std::ldexp(x, -quantum)), quantum);
}

// One step, the definition. Returns the new accumulator.
double scalar_step(const Accumulator& unit, const NumberFormat& format, const double* a, const double* b,
                   int count, double c) {
  double ieee_sum = c;  // the result if this sum is not finite
  int largest = c == 0 ? kLeastExponent : std::max(std::ilogb(c), kLeastExponent);
  for (int i = 0; i < count; ++i) {
    ieee_sum += a[i] * b[i];
    if (a[i] != 0 && b[i] != 0)
      largest = std::max(largest, stored_exponent(format, a[i]) + stored_exponent(format, b[i]));
  }
  if (!std::isfinite(ieee_sum)) return ieee_sum;
  const int scale = unit.fraction_bits - largest;
  double sum = std::trunc(std::ldexp(c, scale));
  for (int i = 0; i < count; ++i) sum += std::trunc(std::ldexp(a[i] * b[i], scale));
  return truncated(std::ldexp(sum, -scale), unit.output_bits);
}

// Packs x into `rows` rows and `cols` columns, padded with zeros.
PackedOperand packed(const NumberFormat& format, const Tensor& x, int rows, int cols) {
  PackedOperand p{rows, cols, {}, {}};
  p.value.assign(static_cast<size_t>(rows) * cols, 0);
  p.binade.assign(p.value.size(), 0);
  for (int i = 0; i < x.rows; ++i) {
    for (int j = 0; j < x.cols; ++j) {
      const double value = operand(format, x.at(i, j));
      const size_t at = static_cast<size_t>(i) * cols + j;
      p.value[at] = value;
      if (value != 0) p.binade[at] = std::ldexp(1.0, stored_exponent(format, value));
    }
  }
  return p;
}

bool all_finite(const Tensor& x) {
  return std::all_of(x.data.begin(), x.data.end(), [](double v) { return std::isfinite(v); });
}

int padded(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

double tensor_core_dot(const Accumulator& unit, const NumberFormat& format, const double* a, const double* b,
                       int b_stride, int count, double c) {
  double promoted = c;
  double sum = unit.promotion ? 0 : c;
  std::vector<double> left, right;
  for (int k = 0; k < count; k += unit.step) {
    left.clear();
    right.clear();
    for (int i = k; i < std::min(k + unit.step, count); ++i) {
      left.push_back(operand(format, a[i]));
      right.push_back(operand(format, b[static_cast<size_t>(i) * b_stride]));
    }
    sum = scalar_step(unit, format, left.data(), right.data(), static_cast<int>(left.size()), sum);
    const int done = k + unit.step;  // products added so far; more than `count` after a last, shorter step
    if (unit.promotion && (done % unit.promotion == 0 || done >= count)) {
      promoted = static_cast<float>(promoted + sum);
      sum = 0;
    }
  }
  return unit.promotion ? promoted : sum;
}

void tensor_core_multiply_add(const Accumulator& unit, const NumberFormat& format, const Tensor& a,
                              const Tensor& b, Tensor& c) {
  if (!all_finite(a) || !all_finite(b) || !all_finite(c)) {  // rare; the vector code needs finite numbers
    for (int i = 0; i < c.rows; ++i)
      for (int j = 0; j < c.cols; ++j)
        c.at(i, j) = tensor_core_dot(unit, format, a.row(i), &b.data[j], b.cols, a.cols, c.at(i, j));
    return;
  }
  const int depth = padded(a.cols, unit.step);
  HWY_DYNAMIC_DISPATCH(multiply_packed)
  (unit, packed(format, a, padded(a.rows, kRowsAtOnce), depth),
   packed(format, b, depth, padded(b.cols, kColumnPadding)), c);
}

}  // namespace foreshock::lab
#endif  // HWY_ONCE
