#include "shadow/plain.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "shadow/slice.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shadow/plain.cpp"
#include "hwy/foreach_target.h"
// after foreach_target.h
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "shadow/rows_in_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {

constexpr int kPlainTile = 48;

// Rounds to the nearest value of a format narrower than float, ties to even: adding 1.5 * 2^23 quanta leaves
// exactly the bits from the quantum up. Works on the raw bits for bf16, whose overflow then comes out right
// by itself.
template <class V>
HWY_INLINE V round_lanes(DType type, V x) {
  const hn::DFromV<V> d;
  if constexpr (sizeof(hn::TFromV<V>) == sizeof(float)) {
    const hn::RebindToUnsigned<hn::DFromV<V>> bits;
    if (type == DType::kBf16) {
      const auto raw = hn::BitCast(bits, x);
      const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(bits, 1u));
      const auto up = hn::Add(raw, hn::Add(odd, hn::Set(bits, 0x7fffu)));
      return hn::IfThenElse(hn::IsNaN(x), x, hn::BitCast(d, hn::And(up, hn::Set(bits, 0xffff0000u))));
    }
    if (type == DType::kFp16) {
      const auto exponent = hn::And(hn::BitCast(bits, x), hn::Set(bits, 0x7f800000u));
      const V power = hn::Min(hn::Max(hn::BitCast(d, exponent), hn::Set(d, 0x1p-14f)), hn::Set(d, 0x1p16f));
      const V shift = hn::Mul(power, hn::Set(d, 0x1.8p13f));
      const V rounded = hn::Sub(hn::Add(x, shift), shift);
      const V infinite = hn::CopySign(hn::Set(d, std::numeric_limits<float>::infinity()), x);
      return hn::IfThenElse(hn::Ge(hn::Abs(rounded), hn::Set(d, 0x1p16f)), infinite, rounded);
    }
  }
  return x;
}

// Arrays of one slice. `scores` holds all keys, since an unfused kernel stores the whole matrix of scores.
template <class T>
struct PlainArrays {
  int stride;
  T *query, *out, *partial, *scores, *tile, *grad_out, *grad_query, *grad_scores, *delta;

  PlainArrays(const AttentionSlice& slice, std::vector<double>* scratch)
      : stride(padded_rows<T>(slice.rows)) {
    const size_t rows = stride, head = slice.head_dim, value = slice.value_dim,
                 widest = std::max(head, value);
    const size_t total =
        rows * (2 * head + 2 * value + widest + slice.keys + kPlainTile + 1) + kPlainTile * widest;
    scratch->resize(std::max(scratch->size(), total * sizeof(T) / sizeof(double) + 9 * 8 + 9));
    next_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch->data()) + 63) & ~uintptr_t{63});
    query = take(rows * head);
    out = take(rows * value);
    partial = take(rows * widest);
    scores = take(rows * slice.keys);
    tile = take(kPlainTile * widest);
    grad_out = take(rows * value);
    grad_query = take(rows * head);
    grad_scores = take(rows * kPlainTile);
    delta = take(rows);
  }

 private:
  T* take(size_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
  char* next_;
};

template <class T, class F>
HWY_INLINE void for_lanes(T* values, size_t count, F change) {
  const LanesTag<T> d;
  for (size_t i = 0; i < count; i += lanes_of<T>()) hn::Store(change(hn::Load(d, values + i)), d, values + i);
}

template <class T>
void plain_scores(const AttentionSlice& slice, const PlainArrays<T>& a) {
  const auto scale = hn::Set(LanesTag<T>(), static_cast<T>(slice.scale));
  const size_t dim = slice.head_dim;
  for (int first = 0; first < slice.keys; first += kPlainTile) {
    const int count = std::min(kPlainTile, slice.keys - first);
    T* scores = a.scores + static_cast<size_t>(first) * a.stride;
    load_tile(slice.key, slice.dtype, first * dim, count * dim, a.tile);
    multiply<T>({a.query, a.stride, a.tile, 1, dim, slice.head_dim, false}, count, scores);
    const size_t size = static_cast<size_t>(count) * a.stride;
    for_lanes(scores, size, [&](auto s) HWY_ATTR { return round_lanes(slice.dtype, hn::Mul(s, scale)); });
    apply_mask(slice, first, count, a.stride, scores);
    if (slice.mask != nullptr && slice.mask_dtype != DType::kBool) {
      for_lanes(scores, size, [&](auto s) HWY_ATTR { return round_lanes(slice.dtype, s); });
    }
  }
}

// Softmax over the keys, in place: weights rounded to the storage format.
template <class T>
void plain_weights(const AttentionSlice& slice, const PlainArrays<T>& a) {
  const LanesTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    auto max = lowest, sum = hn::Zero(d);
    T* scores = a.scores + row;
    for (int t = 0; t < slice.keys; ++t) {
      const auto score = hn::Load(d, scores + static_cast<size_t>(t) * a.stride);
      max = hn::IfThenElse(hn::Gt(score, max), score, max);
    }
    const auto shift = hn::IfThenElse(hn::Eq(max, lowest), hn::Zero(d), max);
    for (int t = 0; t < slice.keys; ++t) {
      T* at = scores + static_cast<size_t>(t) * a.stride;
      const auto shifted = hn::Sub(hn::Load(d, at), shift);
      const auto weight = hn::IfThenElse(hn::IsNaN(shifted), shifted, hn::Exp(d, shifted));
      sum = hn::Add(sum, weight);
      hn::Store(weight, d, at);
    }
    const auto divisor = hn::IfThenElse(hn::Eq(sum, hn::Zero(d)), hn::Set(d, T{1}), sum);
    for (int t = 0; t < slice.keys; ++t) {
      T* at = scores + static_cast<size_t>(t) * a.stride;
      hn::Store(round_lanes(slice.dtype, hn::Div(hn::Load(d, at), divisor)), d, at);
    }
  }
}

// total[column][row] += weights [key][row] times matrix [key][column], the keys of one tile summed apart, as
// a blocked matrix product does.
template <class T>
HWY_INLINE void add_product(const PlainArrays<T>& a, const T* weights, int count, int columns, T* total) {
  const LanesTag<T> d;
  multiply<T>({weights, a.stride, a.tile, static_cast<size_t>(columns), 1, count, false}, columns, a.partial);
  for (int i = 0; i < columns * a.stride; i += lanes_of<T>()) {
    hn::Store(hn::Add(hn::Load(d, total + i), hn::Load(d, a.partial + i)), d, total + i);
  }
}

template <class T>
void plain_out(const AttentionSlice& slice, const PlainArrays<T>& a) {
  const size_t dim = slice.value_dim;
  std::fill_n(a.out, dim * a.stride, T{0});
  for (int first = 0; first < slice.keys; first += kPlainTile) {
    const int count = std::min(kPlainTile, slice.keys - first);
    load_tile(slice.value, slice.dtype, first * dim, count * dim, a.tile);
    add_product(a, a.scores + static_cast<size_t>(first) * a.stride, count, slice.value_dim, a.out);
  }
  for_lanes(a.out, dim * a.stride, [&](auto x) HWY_ATTR { return round_lanes(slice.dtype, x); });
}

// From the last column to the first, dP being summed from the first to the last. Where nearly all of a row's
// weight is on one key, both are the same sum, and summed alike they cancel to nothing: plain would have no
// error at all, and any kernel, which sums in an order of its own, would err infinitely more.
template <class T>
void plain_delta(const AttentionSlice& slice, const PlainArrays<T>& a) {
  const LanesTag<T> d;
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    auto sum = hn::Zero(d);
    for (int c = slice.value_dim - 1; c >= 0; --c) {
      sum = hn::MulAdd(hn::Load(d, a.grad_out + c * a.stride + row), hn::Load(d, a.out + c * a.stride + row),
                       sum);
    }
    hn::Store(sum, d, a.delta + row);
  }
}

// grad_scores of one tile: from dP as it comes out of the product to rounded dS.
template <class T>
HWY_INLINE void plain_grad_scores(const AttentionSlice& slice, const PlainArrays<T>& a, int first,
                                  int count) {
  const LanesTag<T> d;
  const T* weights = a.scores + static_cast<size_t>(first) * a.stride;
  for (int t = 0; t < count; ++t) {
    for (int row = 0; row < a.stride; row += lanes_of<T>()) {
      const size_t at = static_cast<size_t>(t) * a.stride + row;
      const auto grad_weight = round_lanes(slice.dtype, hn::Load(d, a.grad_scores + at));
      const auto centred = hn::Sub(grad_weight, hn::Load(d, a.delta + row));
      hn::Store(round_lanes(slice.dtype, hn::Mul(hn::Load(d, weights + at), centred)), d, a.grad_scores + at);
    }
  }
}

template <class T>
void plain_grad_query(const AttentionSlice& slice, const PlainArrays<T>& a) {
  const auto scale = hn::Set(LanesTag<T>(), static_cast<T>(slice.scale));
  const size_t head = slice.head_dim, value = slice.value_dim;
  std::fill_n(a.grad_query, head * a.stride, T{0});
  for (int first = 0; first < slice.keys; first += kPlainTile) {
    const int count = std::min(kPlainTile, slice.keys - first);
    load_tile(slice.value, slice.dtype, first * value, count * value, a.tile);
    multiply<T>({a.grad_out, a.stride, a.tile, 1, value, slice.value_dim, false}, count, a.grad_scores);
    plain_grad_scores(slice, a, first, count);
    load_tile(slice.key, slice.dtype, first * head, count * head, a.tile);
    add_product(a, a.grad_scores, count, slice.head_dim, a.grad_query);
  }
  for_lanes(a.grad_query, head * a.stride,
            [&](auto x) HWY_ATTR { return round_lanes(slice.dtype, hn::Mul(x, scale)); });
}

template <class T>
void store_rows(const T* lanes, int stride, int rows, int columns, std::vector<double>* to) {
  if (to->size() < static_cast<size_t>(rows) * columns) to->resize(static_cast<size_t>(rows) * columns);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) (*to)[static_cast<size_t>(r) * columns + c] = lanes[c * stride + r];
  }
}

template <class T>
void plain_as(const AttentionSlice& slice, PlainWorkspace* workspace) {
  const PlainArrays<T> a(slice, &workspace->scratch);
  load_lanes<T>(slice.query, slice.dtype, slice.rows, slice.head_dim, 1, a.query);
  plain_scores(slice, a);
  plain_weights(slice, a);
  plain_out(slice, a);
  store_rows(a.out, a.stride, slice.rows, slice.value_dim, &workspace->out);
  if (!slice.backward()) return;
  load_lanes<T>(slice.grad_out, slice.dtype, slice.rows, slice.value_dim, 1, a.grad_out);
  plain_delta(slice, a);
  plain_grad_query(slice, a);
  store_rows(a.grad_query, a.stride, slice.rows, slice.head_dim, &workspace->grad_query);
}

void plain_lanes(const AttentionSlice& slice, PlainWorkspace* workspace) {
  if (slice.dtype == DType::kFp64) {
    plain_as<double>(slice, workspace);
  } else {
    plain_as<float>(slice, workspace);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {

HWY_EXPORT(plain_lanes);

void plain(const AttentionSlice& slice, PlainWorkspace* workspace) {
  HWY_DYNAMIC_DISPATCH(plain_lanes)(slice, workspace);
}

}  // namespace foreshock
#endif  // HWY_ONCE
