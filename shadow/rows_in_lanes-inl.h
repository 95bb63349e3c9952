// Vector functions shared by the reference, the noise floors and key_columns.cpp. The rows of a slice are in
// the lanes of vectors, and an element of a key or value is copied to all lanes. So each lane is one chain of
// fused multiply-adds, and the vector width does not change any bit of the results. hwy/foreach_target.h
// includes this file once per instruction set, which needs the toggled include guard.
#if defined(FORESHOCK_SHADOW_ROWS_IN_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FORESHOCK_SHADOW_ROWS_IN_LANES_INL_H_
#undef FORESHOCK_SHADOW_ROWS_IN_LANES_INL_H_
#else
#define FORESHOCK_SHADOW_ROWS_IN_LANES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/dtype.h"
#include "shadow/elementary.h"
#include "shadow/slice.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector is never wider than the rows of a full slice.
template <class T>
using LanesTag = hn::CappedTag<T, kMaxSliceRows>;

template <class T>
constexpr int lanes_of() {
  return static_cast<int>(hn::MaxLanes(LanesTag<T>()));
}

// Returns the rows padded to whole vectors: the stride from column to column of a [column][row] array.
template <class T>
constexpr int padded_rows(int rows) {
  return (rows + lanes_of<T>() - 1) / lanes_of<T>() * lanes_of<T>();
}

// Converts `count` elements from `first` on: whole vectors, then the rest. `Storage` is the type in memory, a
// 16-bit type or float.
template <class T, class Storage>
HWY_INLINE void widen(const void* from, size_t first, size_t count, T* HWY_RESTRICT to) {
  const LanesTag<T> d;
  const hn::Rebind<float, LanesTag<T>> to_float;
  const hn::Rebind<Storage, LanesTag<T>> stored;
  const Storage* at = static_cast<const Storage*>(from) + first;
  size_t i = 0;
  for (; i + lanes_of<T>() <= count; i += lanes_of<T>()) {
    if constexpr (sizeof(T) == sizeof(double) && sizeof(Storage) == 2) {
      hn::StoreU(hn::PromoteTo(d, hn::PromoteTo(to_float, hn::LoadU(stored, at + i))), d, to + i);
    } else {
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(stored, at + i)), d, to + i);
    }
  }
  constexpr DType kType = sizeof(Storage) == 4                       ? DType::kFp32
                          : std::is_same_v<Storage, hwy::bfloat16_t> ? DType::kBf16
                                                                     : DType::kFp16;
  for (; i < count; ++i) to[i] = static_cast<T>(load_as_double(from, kType, first + i));
}

// Converts `count` elements of a dense array, from `first` on, exactly. T must be at least as wide as `type`.
template <class T>
HWY_INLINE void load_tile(const void* from, DType type, size_t first, size_t count, T* HWY_RESTRICT to) {
  if (size_of(type) == sizeof(T)) {
    std::memcpy(to, static_cast<const T*>(from) + first, count * sizeof(T));
  } else if (type == DType::kBf16) {
    widen<T, hwy::bfloat16_t>(from, first, count, to);
  } else if (type == DType::kFp16) {
    widen<T, hwy::float16_t>(from, first, count, to);
  } else if constexpr (sizeof(T) == sizeof(double)) {
    widen<T, float>(from, first, count, to);
  }
}

// Sets lanes[column][row] = array[row][column] * factor for the array at `from`. Padding rows become zero.
template <class T>
HWY_INLINE void load_lanes(const void* from, DType type, int rows, int columns, T factor, T* lanes) {
  const int stride = padded_rows<T>(rows);
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < stride; ++r) {
      lanes[c * stride + r] =
          r < rows ? static_cast<T>(load_as_double(from, type, static_cast<size_t>(r) * columns + c)) * factor
                   : T{0};
    }
  }
}

// The operands of a product: `lanes`, an [inner][row] array, times a matrix, summed over i < inner. Element
// (i, j) of the matrix is matrix[i * inner_step + j * outer_step].
template <class T>
struct Product {
  const T* lanes;
  int stride;  // of lanes and of the result
  const T* matrix;
  size_t inner_step, outer_step;
  int inner;
  bool accumulate;  // add to the result; otherwise start from zero
};

// Sets result[j][row] to the sum over i of lanes[i][row] * matrix(i, j), or adds the sum, for j < kColumns.
template <int kVectors, int kColumns, class T>
HWY_INLINE void multiply_block(const Product<T>& p, const T* HWY_RESTRICT lanes, const T* HWY_RESTRICT matrix,
                               T* HWY_RESTRICT result) {
  const LanesTag<T> d;
  using V = hn::Vec<LanesTag<T>>;
  constexpr int kLanes = lanes_of<T>();
  V sum[kColumns][kVectors];
  HWY_UNROLL(32)
  for (int j = 0; j < kColumns; ++j) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      sum[j][v] = p.accumulate ? hn::LoadU(d, result + j * p.stride + v * kLanes) : hn::Zero(d);
    }
  }
  for (int i = 0; i < p.inner; ++i) {
    V row[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, lanes + i * p.stride + v * kLanes);
    HWY_UNROLL(32)
    for (int j = 0; j < kColumns; ++j) {
      const V element = hn::Set(d, matrix[i * p.inner_step + j * p.outer_step]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::MulAdd(row[v], element, sum[j][v]);
    }
  }
  HWY_UNROLL(32)
  for (int j = 0; j < kColumns; ++j) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[j][v], d, result + j * p.stride + v * kLanes);
  }
}

// Number of sums kept in registers: 24 of 32 registers, or 12 of the 16 of AVX2. That is two vectors of rows
// by 12 (AVX2: 6) columns. Shares of peak speed, measured at 47429d93 with its bench/reference.cpp on Zen 5,
// 16 rows, as vectors x columns: share at dimension 64, share at dimension 128.
//   AVX2     2x6: 0.63, 0.71; 2x7: 0.40, 0.49 (spills); 2x4: 0.61, 0.67; 4x3: 0.64, 0.65; 4x2: 0.54, 0.59
//   AVX-512  2x12: 0.60, 0.66; 2x14: 0.59, 0.63; 2x10: 0.62, 0.65
template <class T>
constexpr int sums_in_registers() {
  return (HWY_TARGET == HWY_AVX2) ? 12 : 24;
}

// Computes all columns for kVectors vectors of rows: kWide columns at a time, then kNarrow, then single ones.
template <int kVectors, class T>
HWY_INLINE void multiply_vectors(const Product<T>& p, int first_row, int columns, T* result) {
  constexpr int kWide = sums_in_registers<T>() / kVectors;
  constexpr int kNarrow = kWide >= 8 ? 4 : 2;
  const T* lanes = p.lanes + first_row;
  T* to = result + first_row;
  int j = 0;
  for (; j + kWide <= columns; j += kWide) {
    multiply_block<kVectors, kWide>(p, lanes, p.matrix + j * p.outer_step, to + j * p.stride);
  }
  for (; j + kNarrow <= columns; j += kNarrow) {
    multiply_block<kVectors, kNarrow>(p, lanes, p.matrix + j * p.outer_step, to + j * p.stride);
  }
  for (; j < columns; ++j) {
    multiply_block<kVectors, 1>(p, lanes, p.matrix + j * p.outer_step, to + j * p.stride);
  }
}

// Computes result[j][row] for all padded rows and j in [0, columns).
template <class T>
HWY_NOINLINE void multiply(const Product<T>& p, int columns, T* result) {
  constexpr int kLanes = lanes_of<T>();
  int row = 0;
  for (; row + 2 * kLanes <= p.stride; row += 2 * kLanes) multiply_vectors<2>(p, row, columns, result);
  for (; row < p.stride; row += kLanes) multiply_vectors<1>(p, row, columns, result);
}

// The functions below are those of elementary.h with the same operations, so that each lane has the same
// bits.
template <class V>
struct ExpPartsLanes {
  V fraction, power;
};

template <class V>
HWY_INLINE ExpPartsLanes<V> exp_parts_lanes(V x) {
  const hn::DFromV<V> d;
  const hn::RebindToUnsigned<hn::DFromV<V>> bits;
  const double* c = kExpCoefficient;
  const V round = hn::Set(d, kExpRoundToInteger);
  const V least = hn::Set(d, kExpArgumentMin);
  x = hn::IfThenElse(hn::Lt(x, least), least, x);
  const V biased = hn::MulAdd(x, hn::Set(d, kLog2E), round);
  const V n = hn::Sub(biased, round);
  V r = hn::MulAdd(n, hn::Set(d, -kLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, -kLn2Low), r);
  const V r2 = hn::Mul(r, r);
  const V r4 = hn::Mul(r2, r2);
  const V c23 = hn::MulAdd(hn::Set(d, c[3]), r, hn::Set(d, c[2]));
  const V c45 = hn::MulAdd(hn::Set(d, c[5]), r, hn::Set(d, c[4]));
  const V c67 = hn::MulAdd(hn::Set(d, c[7]), r, hn::Set(d, c[6]));
  const V c89 = hn::MulAdd(hn::Set(d, c[9]), r, hn::Set(d, c[8]));
  const V c1011 = hn::MulAdd(hn::Set(d, c[11]), r, hn::Set(d, c[10]));
  const V low = hn::MulAdd(c45, r2, c23);
  const V middle = hn::MulAdd(c89, r2, c67);
  const V high = hn::MulAdd(hn::Set(d, c[12]), r2, c1011);
  const V tail = hn::MulAdd(hn::MulAdd(high, r4, middle), r4, low);
  const V power = hn::BitCast(d, hn::ShiftLeft<52>(hn::BitCast(bits, biased)));
  return {hn::MulAdd(r2, tail, r), power};
}

// exp_nonpositive()
template <class V>
HWY_INLINE V exp_lanes(V x) {
  const hn::DFromV<V> d;
  const ExpPartsLanes<V> parts = exp_parts_lanes(x);
  return hn::Mul(hn::Mul(hn::Add(parts.fraction, hn::Set(d, 1.0)), parts.power), hn::Set(d, kExpUnscale));
}

// soft_capped(): returns the score and stores the slope.
template <class V>
HWY_INLINE V soft_capped_lanes(V product, double cap, V* slope) {
  const hn::DFromV<V> d;
  const V one = hn::Set(d, 1.0), caps = hn::Set(d, cap);
  const V y = hn::Div(product, caps);
  const ExpPartsLanes<V> parts = exp_parts_lanes(hn::Mul(hn::Set(d, -2.0), hn::Abs(y)));
  const V unit = hn::Mul(parts.power, hn::Set(d, kExpUnscale));
  const V minus_one = hn::MulAdd(unit, parts.fraction, hn::Sub(unit, one));
  const V divisor = hn::Add(hn::Set(d, 2.0), minus_one);
  const V exponential = hn::Mul(hn::Mul(hn::Add(parts.fraction, one), parts.power), hn::Set(d, kExpUnscale));
  *slope = hn::Div(hn::Mul(hn::Set(d, 4.0), exponential), hn::Mul(divisor, divisor));
  return hn::Mul(caps, hn::CopySign(hn::Div(hn::Neg(minus_one), divisor), y));
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
