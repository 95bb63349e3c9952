// Matrix products with a chosen accumulator: chains of fused multiply-adds in fp32 or fp64, exact sums, or
// the model of tensor_core.h. The chains are vector code: the library Highway compiles this file once for
// each instruction set (target) and selects one at run time.
#include "lab/product.h"

#include <algorithm>
#include <cmath>

#include "lab/tensor_core.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/product.cpp"
// SSE2 suffices: none of the three has FMA instructions. SVE: as in rounding.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace foreshock::lab {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// a * b + c, rounded once on every target; those without FMA instructions use std::fma.
template <class D, class V>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if HWY_TARGET == HWY_SSE2 || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
  using T = hn::TFromD<D>;
  T x[hn::MaxLanes(D())], y[hn::MaxLanes(D())], z[hn::MaxLanes(D())];
  hn::StoreU(a, d, x);
  hn::StoreU(b, d, y);
  hn::StoreU(c, d, z);
  for (size_t i = 0; i < hn::Lanes(d); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::LoadU(d, z);
#else
  (void)d;
  return hn::MulAdd(a, b, c);
#endif
}

// Adds the product of kRows rows of a and two vectors of columns of b to c. `depth`: columns of a, rows of b.
// `columns`: padded row length of b and c.
template <class T, int kRows>
void tile(const T* a, const T* b, T* c, int depth, size_t columns) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) sum[r][v] = hn::LoadU(d, c + r * columns + v * lanes);
  for (int k = 0; k < depth; ++k) {
    const auto b0 = hn::LoadU(d, b + k * columns), b1 = hn::LoadU(d, b + k * columns + lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a[static_cast<size_t>(r) * depth + k]);
      sum[r][0] = fused(d, left, b0, sum[r][0]);
      sum[r][1] = fused(d, left, b1, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) hn::StoreU(sum[r][v], d, c + r * columns + v * lanes);
}

// c += a * b. Each element of c is one chain of fused multiply-adds. rows must be a multiple of kRows,
// columns of tile_columns.
template <class T>
void chain_of(const T* a, const T* b, T* c, int rows, int depth, size_t columns) {
  constexpr int kRows = 4;  // rows of a tile, whose 2 * kRows sums fit into vector registers
  const size_t tile_columns = 2 * hn::Lanes(hn::ScalableTag<T>());
  for (size_t j = 0; j < columns; j += tile_columns)
    for (int i = 0; i < rows; i += kRows)
      tile<T, kRows>(a + static_cast<size_t>(i) * depth, b + j, c + i * columns + j, depth, columns);
}

void chain_fp32(const float* a, const float* b, float* c, int rows, int depth, size_t columns) {
  chain_of(a, b, c, rows, depth, columns);
}
void chain_fp64(const double* a, const double* b, double* c, int rows, int depth, size_t columns) {
  chain_of(a, b, c, rows, depth, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock::lab
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock::lab {
namespace {

HWY_EXPORT(chain_fp32);
HWY_EXPORT(chain_fp64);

constexpr int kRowPadding = 4;      // kRows of chain_of(): zeros pad rows and columns to whole tiles
constexpr int kColumnPadding = 32;  // two of the widest vectors (512 bits) of fp32
int padded(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Returns x with zeros appended up to rows x cols. The conversion to T is exact (precondition of product.h).
template <class T>
std::vector<T> packed(const Tensor& x, int rows, int cols) {
  std::vector<T> p(static_cast<size_t>(rows) * cols, 0);
  for (int i = 0; i < x.rows; ++i)
    std::transform(x.row(i), x.row(i) + x.cols, p.begin() + static_cast<size_t>(i) * cols,
                   [](double v) { return static_cast<T>(v); });
  return p;
}

template <class T, class Chain>
void multiply_add_chain(Chain chain, const Tensor& a, const Tensor& b, Tensor& c) {
  const int rows = padded(c.rows, kRowPadding), cols = padded(c.cols, kColumnPadding);
  const std::vector<T> left = packed<T>(a, rows, a.cols), right = packed<T>(b, b.rows, cols);
  std::vector<T> sum = packed<T>(c, rows, cols);
  chain(left.data(), right.data(), sum.data(), rows, a.cols, cols);
  for (int i = 0; i < c.rows; ++i) std::copy_n(sum.begin() + static_cast<size_t>(i) * cols, c.cols, c.row(i));
}

// Adds x to an expansion (Shewchuk): numbers whose bits do not overlap, smallest first. Its value is their
// sum.
void grow(std::vector<double>& expansion, double x) {
  size_t kept = 0;
  for (double y : expansion) {
    if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
    const double high = x + y;
    const double low = y - (high - x);
    if (low != 0) expansion[kept++] = low;
    x = high;
  }
  expansion.resize(kept);
  expansion.push_back(x);
}

// The value of an expansion, rounded to nearest even. `high` is the rounded sum of the largest terms, `low`
// the error of this sum. If `low` is half an ulp of `high`, the sign of the remaining terms decides.
double rounded(const std::vector<double>& expansion) {
  size_t n = expansion.size();
  double high = expansion[--n];
  double low = 0;
  while (n > 0) {
    const double x = high, y = expansion[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0) break;
  }
  if (n > 0 && ((low < 0 && expansion[n - 1] < 0) || (low > 0 && expansion[n - 1] > 0))) {
    // If and only if `low` is half an ulp of `high`, 2 * low is a signed ulp and this sum is exact.
    const double ulp = 2 * low, other = high + ulp;
    if (ulp == other - high) high = other;
  }
  return high;
}

}  // namespace

double exact_dot(const double* a, const double* b, int b_stride, int count, double c) {
  std::vector<double> expansion{c};
  double plain = c;  // the IEEE sum, which is the result if it is not finite
  for (int i = 0; i < count; ++i) {
    const double right = b[static_cast<size_t>(i) * b_stride];
    const double high = a[i] * right;
    plain += high;
    if (!std::isfinite(high)) continue;  // `plain` is not finite from now on
    const double low = std::fma(a[i], right, -high);
    if (low != 0) grow(expansion, low);
    if (high != 0) grow(expansion, high);
  }
  return std::isfinite(plain) ? rounded(expansion) : plain;
}

void multiply_add(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a,
                  const Tensor& b, Tensor& c) {
  switch (accumulator.kind) {
    case Accumulation::kExact:
      for (int i = 0; i < c.rows; ++i)
        for (int j = 0; j < c.cols; ++j)
          c.at(i, j) = exact_dot(a.row(i), &b.data[j], b.cols, a.cols, c.at(i, j));
      return;
    case Accumulation::kFp64:
      return multiply_add_chain<double>(HWY_DYNAMIC_DISPATCH(chain_fp64), a, b, c);
    case Accumulation::kFp32:
      return multiply_add_chain<float>(HWY_DYNAMIC_DISPATCH(chain_fp32), a, b, c);
    case Accumulation::kTensorCore:
      // for_operands(): the unit's parameters for operands of `format`.
      return tensor_core_multiply_add(for_operands(accumulator, format), format, a, b, c);
  }
}

Tensor multiply(const Accumulator& accumulator, const NumberFormat& format, const Tensor& a,
                const Tensor& b) {
  Tensor c(a.rows, b.cols);
  multiply_add(accumulator, format, a, b, c);
  return c;
}

}  // namespace foreshock::lab
#endif  // HWY_ONCE
