// Recomputes a slice with the roundings of two correct algorithms, plain (unfused) and fused
// (FlashAttention), in float (double for fp64 storage). The rows of the slice are in the lanes of SIMD
// vectors. Highway (namespace hn), a SIMD library, compiles this file once per instruction set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "shadow/reference.h"
#include "shadow/slice.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shadow/noise_floor.cpp"
#include "hwy/foreach_target.h"
// must follow foreach_target.h
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "shadow/noise_floor_lanes-inl.h"
#include "shadow/rows_in_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {

constexpr int kFloorTile = 48;  // keys of a tile

// Arrays of one slice: [element or key][row], except `tile`, which holds keys or values as [key][element].
// `plain` and `fused` have the scores, later the weights of all keys: an unfused kernel stores the whole
// matrix, and the maximum of a row must be known before its first weight. plain_slope and fused_slope have
// the slopes of the soft cap, if there is one. `rounded`, grad_weight, grad_score and kept (1 or 0: what
// dropout has kept) have the keys of a tile; `partial` is the product of a tile. plain_delta and given_delta
// are the sums of grad_out * out, with the out of plain and with that of the trainer. exponentiate() sets sum
// and factor, one number for each row.
template <class T>
struct FloorArrays {
  int stride;
  T *query, *out, *partial, *plain, *fused, *tile, *grad_out, *plain_grad, *fused_grad, *rounded;
  T *grad_weight, *grad_score, *kept, *plain_slope, *fused_slope, *plain_delta, *given_delta, *sum, *factor;

  FloorArrays(const AttentionSlice& slice, std::vector<double>* scratch)
      : stride(padded_rows<T>(slice.rows)) {
    const size_t rows = stride, head = slice.head_dim, value = slice.value_dim,
                 widest = std::max(head, value), slopes = slice.soft_cap != 0 ? slice.keys : 0;
    const size_t total =
        rows * (3 * head + 2 * value + widest + 2 * slice.keys + 2 * slopes + 4 * kFloorTile + 4) +
        kFloorTile * widest;
    constexpr size_t kArrays = 20;  // at least the 19 take() calls below; each array may need padding
    ArraysIn<T> arrays(scratch, total, kArrays);
    query = arrays.take(rows * head);
    out = arrays.take(rows * value);
    partial = arrays.take(rows * widest);
    plain = arrays.take(rows * slice.keys);
    fused = arrays.take(rows * slice.keys);
    tile = arrays.take(kFloorTile * widest);
    grad_out = arrays.take(rows * value);
    plain_grad = arrays.take(rows * head);
    fused_grad = arrays.take(rows * head);
    rounded = arrays.take(rows * kFloorTile);
    grad_weight = arrays.take(rows * kFloorTile);
    grad_score = arrays.take(rows * kFloorTile);
    kept = arrays.take(rows * kFloorTile);
    plain_slope = arrays.take(rows * slopes);
    fused_slope = arrays.take(rows * slopes);
    plain_delta = arrays.take(rows);
    given_delta = arrays.take(rows);
    sum = arrays.take(rows);
    factor = arrays.take(rows);
  }
};

// to[i] = change(from[i])
template <class T, class F>
HWY_INLINE void map_lanes(const T* from, size_t count, T* to, F change) {
  const LanesTag<T> d;
  for (size_t i = 0; i < count; i += lanes_of<T>()) hn::Store(change(hn::Load(d, from + i)), d, to + i);
}

// Replaces the scaled products from `begin` on by scores under the soft cap, and stores the slopes. NaN is
// kept explicitly, since hn::Tanh may not keep it.
template <class T>
void cap_scores(const AttentionSlice& slice, const FloorArrays<T>& a, size_t begin, size_t size) {
  const LanesTag<T> d;
  const auto cap = hn::Set(d, static_cast<T>(slice.soft_cap)), one = hn::Set(d, T{1});
  const auto rounded = [&](auto x) HWY_ATTR { return round_lanes(slice.dtype, x); };
  const auto tanh = [&](auto x) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x)); };
  for (size_t i = begin; i < begin + size; i += lanes_of<T>()) {
    const auto of_fused = fused_tanh_lanes(slice.dtype, tanh(hn::Div(hn::Load(d, a.fused + i), cap)));
    const auto of_plain = rounded(tanh(rounded(hn::Div(hn::Load(d, a.plain + i), cap))));
    hn::Store(hn::Mul(of_fused, cap), d, a.fused + i);
    hn::Store(rounded(hn::Mul(of_plain, cap)), d, a.plain + i);
    hn::Store(hn::NegMulAdd(of_fused, of_fused, one), d, a.fused_slope + i);
    hn::Store(hn::NegMulAdd(of_plain, of_plain, one), d, a.plain_slope + i);
  }
}

// Computes scaled, masked scores: unrounded into a.fused, rounded into a.plain. Plain adds an additive mask
// in the storage format, so it rounds twice. multiply({lanes, stride, matrix, inner_step, outer_step, inner,
// accumulate}, columns, result) sets result[j][row] to the sum over i < inner of lanes[i][row] times the
// matrix element (i, j), or adds this sum if `accumulate` is true. add_product() adds such a product to its
// last argument.
template <class T>
void compute_scores(const AttentionSlice& slice, const FloorArrays<T>& a) {
  const auto scale = hn::Set(LanesTag<T>(), static_cast<T>(slice.scale));
  const size_t dim = slice.head_dim;
  const bool adds_mask = slice.mask != nullptr && slice.mask_dtype != DType::kBool;
  for (int first = 0; first < slice.keys; first += kFloorTile) {
    const int count = std::min(kFloorTile, slice.keys - first);
    const size_t begin = static_cast<size_t>(first) * a.stride, size = static_cast<size_t>(count) * a.stride;
    T *plain = a.plain + begin, *fused = a.fused + begin;
    load_tile(slice.key, slice.dtype, first * dim, count * dim, a.tile);
    multiply<T>({a.query, a.stride, a.tile, 1, dim, slice.head_dim, false}, count, fused);
    for_lanes(fused, size, [&](auto s) HWY_ATTR { return hn::Mul(s, scale); });
    map_lanes(fused, size, plain, [&](auto s) HWY_ATTR { return round_lanes(slice.dtype, s); });
    if (slice.soft_cap != 0) cap_scores(slice, a, begin, size);
    apply_mask(slice, first, count, a.stride, fused);
    apply_mask(slice, first, count, a.stride, plain);
    if (adds_mask) for_lanes(plain, size, [&](auto s) HWY_ATTR { return round_lanes(slice.dtype, s); });
  }
}

// Replaces scores by exp(score - max). Stores the sum of a row in a.sum and its maximum in a.factor; 1 and 0
// for a row without keys. In a backward slice, fused_weights() then replaces the maximum by a factor. NaN is
// kept explicitly, since hn::Exp may not keep it.
template <class T>
void exponentiate(const AttentionSlice& slice, const FloorArrays<T>& a, T* scores) {
  const LanesTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    auto max = lowest, sum = hn::Zero(d);
    for (int t = 0; t < slice.keys; ++t) {
      const auto score = hn::Load(d, scores + row + static_cast<size_t>(t) * a.stride);
      max = hn::IfThenElse(hn::Gt(score, max), score, max);
    }
    const auto shift = hn::IfThenElse(hn::Eq(max, lowest), hn::Zero(d), max);
    for (int t = 0; t < slice.keys; ++t) {
      T* at = scores + row + static_cast<size_t>(t) * a.stride;
      const auto shifted = hn::Sub(hn::Load(d, at), shift);
      const auto weight = hn::IfThenElse(hn::IsNaN(shifted), shifted, hn::Exp(d, shifted));
      sum = hn::Add(sum, weight);
      hn::Store(weight, d, at);
    }
    hn::Store(hn::IfThenElse(hn::Eq(sum, hn::Zero(d)), hn::Set(d, T{1}), sum), d, a.sum + row);
    hn::Store(shift, d, a.factor + row);
  }
}

// values[key][row] = change(values[key][row], of_row[row]);
template <class T, class F>
HWY_INLINE void for_rows(const FloorArrays<T>& a, int keys, const T* of_row, T* values, F change) {
  const LanesTag<T> d;
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    const auto own = hn::Load(d, of_row + row);
    for (int t = 0; t < keys; ++t) {
      T* at = values + row + static_cast<size_t>(t) * a.stride;
      hn::Store(change(hn::Load(d, at), own), d, at);
    }
  }
}

// Sets a.plain to the rounded weights. They sum to 1 over the slice's keys. In rows whose given log_sum_exp
// covers more keys (Reference::partial), they sum to `share`, the part of all weight that these keys have.
template <class T>
void plain_weights(const AttentionSlice& slice, const Reference& reference, const FloorArrays<T>& a) {
  exponentiate(slice, a, a.plain);
  if (slice.backward())
    for (int row = 0; row < slice.rows; ++row)
      if (reference.partial[row] != 0) a.sum[row] /= static_cast<T>(reference.share[row]);
  for_rows(a, slice.keys, a.sum, a.plain,
           [&](auto w, auto sum) HWY_ATTR { return round_lanes(slice.dtype, hn::Div(w, sum)); });
}

// Sets a.fused to the weights: exp(score - max) in a forward slice, exp(score - log_sum_exp) in a backward
// slice. For the latter, a.factor becomes exp(max - log_sum_exp), by which exp(score - max) and a.sum are
// multiplied. A weight of 0 stays 0 even if this factor is infinite.
template <class T>
void fused_weights(const AttentionSlice& slice, const Reference& reference, const FloorArrays<T>& a) {
  exponentiate(slice, a, a.fused);
  if (!slice.backward()) return;
  for (int row = 0; row < slice.rows; ++row) {
    const double log_sum_exp = slice.log_sum_exp != nullptr
                                   ? load_as_double(slice.log_sum_exp, slice.log_sum_exp_dtype, row)
                                   : reference.log_sum_exp[row];
    a.factor[row] = std::exp(a.factor[row] - static_cast<T>(log_sum_exp));
    a.sum[row] *= a.factor[row];
  }
  for_rows(a, slice.keys, a.factor, a.fused, [&](auto w, auto factor) HWY_ATTR {
    return hn::IfThenElse(hn::Eq(w, hn::Zero(LanesTag<T>())), w, hn::Mul(w, factor));
  });
}

// Multiplies the rounded weights of a tile by what dropout multiplies them by. Plain rounds both factors.
template <class T>
void drop_weights(const AttentionSlice& slice, const FloorArrays<T>& a, int first, int count, bool is_plain) {
  if (slice.kept == nullptr) return;
  const DType dtype = is_plain ? slice.dtype : DType::kNone;
  const auto factor = round_lanes(dtype, hn::Set(LanesTag<T>(), static_cast<T>(keep_factor(slice))));
  apply_dropout(slice, first, count, a.stride, a.rounded);
  for_lanes(a.rounded, static_cast<size_t>(count) * a.stride,
            [&](auto w) HWY_ATTR { return round_lanes(dtype, hn::Mul(w, factor)); });
}

// Computes out from `weights`. Those of fused are not normalised, and its out is divided by a.sum.
template <class T>
void compute_out(const AttentionSlice& slice, const FloorArrays<T>& a, const T* weights, bool is_plain,
                 std::vector<double>* result) {
  const size_t dim = slice.value_dim;
  std::fill_n(a.out, dim * a.stride, T{0});
  for (int first = 0; first < slice.keys; first += kFloorTile) {
    const int count = std::min(kFloorTile, slice.keys - first);
    load_tile(slice.value, slice.dtype, first * dim, count * dim, a.tile);
    map_lanes(weights + static_cast<size_t>(first) * a.stride, static_cast<size_t>(count) * a.stride,
              a.rounded, [&](auto w) HWY_ATTR { return round_lanes(slice.dtype, w); });
    drop_weights(slice, a, first, count, is_plain);
    add_product(a.rounded, a.stride, a.tile, count, slice.value_dim, a.partial, a.out);
  }
  if (!is_plain)
    for_rows(a, slice.value_dim, a.sum, a.out, [](auto x, auto sum) HWY_ATTR { return hn::Div(x, sum); });
  for_lanes(a.out, dim * a.stride, [&](auto x) HWY_ATTR { return round_lanes(slice.dtype, x); });
  store_rows(a.out, a.stride, slice.rows, slice.value_dim, 1, result);
}

// Computes delta = grad_out . a.out, summed from the last column to the first, while grad_weight = grad_out .
// value is summed from the first to the last. If a single key has nearly all weight of a row, delta and
// grad_weight are sums of the same terms. Summed in the same order they would cancel exactly. The floor would
// then have no error, and every kernel that sums in another order would have an infinite deviation ratio.
template <class T>
void compute_delta(const AttentionSlice& slice, const FloorArrays<T>& a, T* delta) {
  const LanesTag<T> d;
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    auto sum = hn::Zero(d);
    for (int c = slice.value_dim - 1; c >= 0; --c) {
      sum = hn::MulAdd(hn::Load(d, a.grad_out + c * a.stride + row), hn::Load(d, a.out + c * a.stride + row),
                       sum);
    }
    hn::Store(sum, d, delta + row);
  }
}

// Computes a.grad_score = weight * (grad_weight - delta) * slope of one tile, rounded. `of_row`: delta of
// each row; `slopes`: those of the tile, if there is a soft cap. Plain rounds after each operation, also
// before and after the gradients of the soft cap's three operations.
template <class T>
HWY_INLINE void compute_grad_scores(const AttentionSlice& slice, const FloorArrays<T>& a, const T* weights,
                                    const T* of_row, const T* slopes, int count, bool is_plain) {
  const LanesTag<T> d;
  const DType of_plain = is_plain ? slice.dtype : DType::kNone;
  const auto factor = round_lanes(of_plain, hn::Set(d, static_cast<T>(keep_factor(slice))));
  const auto cap = hn::Set(d, static_cast<T>(slice.soft_cap));
  for (int row = 0; row < a.stride; row += lanes_of<T>()) {
    const auto delta = hn::Load(d, of_row + row);
    for (int t = 0; t < count; ++t) {
      const size_t at = static_cast<size_t>(t) * a.stride + row;
      auto grad_weight = round_lanes(of_plain, hn::Load(d, a.grad_weight + at));
      if (slice.kept != nullptr)
        grad_weight = round_lanes(of_plain, hn::Mul(hn::Mul(grad_weight, factor), hn::Load(d, a.kept + at)));
      auto product = hn::Mul(hn::Load(d, weights + at), hn::Sub(grad_weight, delta));
      if (slice.soft_cap != 0 && is_plain) {
        product = round_lanes(slice.dtype, hn::Mul(round_lanes(slice.dtype, product), cap));
        product = round_lanes(slice.dtype, hn::Mul(product, hn::Load(d, slopes + at)));
        product = hn::Div(product, cap);
      } else if (slice.soft_cap != 0) {
        product = hn::Mul(product, hn::Load(d, slopes + at));
      }
      hn::Store(round_lanes(slice.dtype, product), d, a.grad_score + at);
    }
  }
}

// Computes grad_query of plain and of fused, tile by tile.
template <class T>
void compute_grad_query(const AttentionSlice& slice, const FloorArrays<T>& a, NoiseFloors* floors) {
  const auto scale = hn::Set(LanesTag<T>(), static_cast<T>(slice.scale));
  const size_t head = slice.head_dim, value = slice.value_dim, size = head * a.stride;
  std::fill_n(a.plain_grad, size, T{0});
  std::fill_n(a.fused_grad, size, T{0});
  for (int first = 0; first < slice.keys; first += kFloorTile) {
    const int count = std::min(kFloorTile, slice.keys - first);
    const size_t begin = static_cast<size_t>(first) * a.stride;
    load_tile(slice.value, slice.dtype, first * value, count * value, a.tile);
    multiply<T>({a.grad_out, a.stride, a.tile, 1, value, slice.value_dim, false}, count, a.grad_weight);
    load_tile(slice.key, slice.dtype, first * head, count * head, a.tile);
    std::fill_n(a.kept, static_cast<size_t>(count) * a.stride, T{1});
    apply_dropout(slice, first, count, a.stride, a.kept);
    compute_grad_scores(slice, a, a.plain + begin, a.plain_delta, a.plain_slope + begin, count,
                        /*is_plain=*/true);
    add_product(a.grad_score, a.stride, a.tile, count, slice.head_dim, a.partial, a.plain_grad);
    compute_grad_scores(slice, a, a.fused + begin, a.given_delta, a.fused_slope + begin, count,
                        /*is_plain=*/false);
    add_product(a.grad_score, a.stride, a.tile, count, slice.head_dim, a.partial, a.fused_grad);
  }
  for (T* grad : {a.plain_grad, a.fused_grad})
    for_lanes(grad, size, [&](auto x) HWY_ATTR { return round_lanes(slice.dtype, hn::Mul(x, scale)); });
  store_rows(a.plain_grad, a.stride, slice.rows, slice.head_dim, 1, &floors->plain.grad_query);
  store_rows(a.fused_grad, a.stride, slice.rows, slice.head_dim, 1, &floors->fused.grad_query);
}

// Computes both floors. The order matters: compute_out() of fused needs the a.sum of the weights that were
// exponentiated last, and compute_delta() needs the a.out of plain first, then the trainer's. A
// partial row has keys outside of the slice, so plain cannot compute its out and uses the trainer's.
template <class T>
void floors_as(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors) {
  const FloorArrays<T> a(slice, &floors->scratch);
  load_lanes<T>(slice.query, slice.dtype, slice.rows, slice.head_dim, 1, a.query);
  std::fill_n(a.sum, a.stride, T{1});  // never read: exponentiate() overwrites it first
  compute_scores(slice, a);
  fused_weights(slice, reference, a);
  compute_out(slice, a, a.fused, /*is_plain=*/false, &floors->fused.out);
  plain_weights(slice, reference, a);
  compute_out(slice, a, a.plain, /*is_plain=*/true, &floors->plain.out);
  if (!slice.backward()) return;
  load_lanes<T>(slice.grad_out, slice.dtype, slice.rows, slice.value_dim, 1, a.grad_out);
  compute_delta(slice, a, a.plain_delta);
  load_lanes<T>(slice.out, slice.dtype, slice.rows, slice.value_dim, 1, a.out);
  compute_delta(slice, a, a.given_delta);
  for (int row = 0; row < slice.rows; ++row)
    if (reference.partial[row] != 0) a.plain_delta[row] = a.given_delta[row];
  compute_grad_query(slice, a, floors);
}

void compute_in_lanes(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors) {
  if (slice.dtype == DType::kFp64) {
    floors_as<double>(slice, reference, floors);
  } else {
    floors_as<float>(slice, reference, floors);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {

HWY_EXPORT(compute_in_lanes);

void compute_noise_floors(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors) {
  HWY_DYNAMIC_DISPATCH(compute_in_lanes)(slice, reference, floors);
}

}  // namespace foreshock
#endif  // HWY_ONCE
