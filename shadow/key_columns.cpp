// Computes the gradients of key positions, dK and dV, in vectors whose lanes are the sampled keys: exactly
// (in fp64), and with the roundings of the two noise floors, plain (unfused) and fused attention. Highway
// compiles these functions once per instruction set. At the end: the scalar definition of the exact result.
#include "shadow/key_columns.h"

#include <algorithm>
#include <cmath>

#include "shadow/elementary.h"
#include "shadow/slice.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shadow/key_columns.cpp"
#include "hwy/foreach_target.h"
// must follow foreach_target.h
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "shadow/noise_floor_lanes-inl.h"
#include "shadow/rows_in_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {

constexpr int kColumnTile = 48;  // query rows of a tile

// Working arrays, 64-byte aligned. The sampled columns (key positions) are in the lanes. Query rows are
// processed in tiles and broadcast. Arrays per column are indexed [n][column] with row length `stride` (the
// padded number of columns); n is an element of the head, or a row of the tile. Arrays per tile (query,
// grad_out, out) are [row][element]. first_query, query_end: the query positions that see the key. bias: what
// the mask adds to the scores, -Inf where a row does not see a key, all 0 without a mask. kept: 1 where
// dropout has kept the weight, else 0. slope: of the soft cap, 1 without one. add_product() adds the product
// of a tile to a sum over all tiles, and forms it first in `partial`.
template <class T>
struct ColumnArrays {
  int stride;
  T *key, *value, *first_query, *query_end;
  T *query, *grad_out, *out, *log_sum_exp, *delta;
  T *bias, *kept, *slope, *score, *grad_weight, *weight, *grad_score, *partial;
  T *grad_key[2], *grad_value[2];  // [0] exact, [1] unused; or [0] plain, [1] fused

  ColumnArrays(const KeyColumns& c, std::vector<double>* scratch) : stride(padded_rows<T>(c.columns)) {
    const size_t columns = stride, head = c.head_dim, value_dim = c.value_dim, tile = kColumnTile;
    const size_t total = columns * (3 * head + 3 * value_dim + 2 + 7 * tile + std::max(head, value_dim)) +
                         tile * (head + 2 * value_dim + 2);
    constexpr size_t kArrays = 21;  // number of take() calls below; each array may need padding
    ArraysIn<T> arrays(scratch, total, kArrays);
    key = arrays.take(columns * head);
    value = arrays.take(columns * value_dim);
    first_query = arrays.take(columns);
    query_end = arrays.take(columns);
    query = arrays.take(tile * head);
    grad_out = arrays.take(tile * value_dim);
    out = arrays.take(tile * value_dim);
    log_sum_exp = arrays.take(tile);
    delta = arrays.take(tile);
    for (T** array : {&bias, &kept, &slope, &score, &grad_weight, &weight, &grad_score})
      *array = arrays.take(columns * tile);
    partial = arrays.take(columns * std::max(head, value_dim));
    for (int n = 0; n < 2; ++n) {
      grad_key[n] = arrays.take(columns * head);
      grad_value[n] = arrays.take(columns * value_dim);
    }
  }
};

// Loads the sampled keys, multiplied by `factor`, and values, and sets their gradients to 0.
template <class T>
void load_columns(const KeyColumns& c, T factor, const ColumnArrays<T>& a) {
  load_lanes<T>(c.key, c.dtype, c.columns, c.head_dim, factor, a.key);
  load_lanes<T>(c.value, c.dtype, c.columns, c.value_dim, 1, a.value);
  for (int column = 0; column < a.stride; ++column) {
    a.first_query[column] = static_cast<T>(column < c.columns ? c.first_query[column] : 0);
    a.query_end[column] = static_cast<T>(column < c.columns ? c.end_of(column) : 0);
  }
  std::fill_n(a.bias, kColumnTile * a.stride, T{0});
  std::fill_n(a.kept, kColumnTile * a.stride, T{1});
  std::fill_n(a.slope, kColumnTile * a.stride, T{1});
  for (int n = 0; n < 2; ++n) {
    std::fill_n(a.grad_key[n], c.head_dim * a.stride, T{0});
    std::fill_n(a.grad_value[n], c.value_dim * a.stride, T{0});
  }
}

// Computes delta = grad_out . out of each row. The noise floors sum from the last element to the first
// (`from_last`). If one key has all weight, out is its value; summed in the same order, delta would then
// equal grad_out . value exactly, unlike in a kernel. Eight rows are interleaved, because each multiply-add
// waits for the previous one of its row.
template <class T>
HWY_INLINE void compute_deltas(const ColumnArrays<T>& a, int count, int width, bool from_last) {
  constexpr int kAtOnce = 8;
  for (int first = 0; first < count; first += kAtOnce) {
    const int rows = std::min(kAtOnce, count - first);
    T sum[kAtOnce] = {};
    for (int n = 0; n < width; ++n) {
      const int element = from_last ? width - 1 - n : n;
      for (int r = 0; r < rows; ++r) {
        const size_t at = static_cast<size_t>(first + r) * width + element;
        sum[r] = std::fma(a.grad_out[at], a.out[at], sum[r]);
      }
    }
    std::copy_n(sum, rows, a.delta + first);
  }
}

// Loads what the mask adds to the scores of the rows [first, first + count).
template <class T>
void load_mask_tile(const KeyColumns& c, const ColumnArrays<T>& a, size_t first, int count) {
  for (int column = 0; column < c.columns; ++column)
    for (int t = 0; t < count; ++t)
      a.bias[static_cast<size_t>(t) * a.stride + column] = mask_term<T>(c, column, first + t);
}

// Loads what dropout has kept of the weights of the rows [first, first + count).
template <class T>
void load_kept_tile(const KeyColumns& c, const ColumnArrays<T>& a, size_t first, int count) {
  for (int column = 0; column < c.columns; ++column)
    for (int t = 0; t < count; ++t)
      a.kept[static_cast<size_t>(t) * a.stride + column] =
          static_cast<T>(is_kept(c, static_cast<size_t>(column) * c.rows() + first + t));
}

// Loads the rows [first, first + count). Computes their delta, the products of the queries with the keys
// (a.score) and those of grad_out with the values (a.grad_weight).
template <class T>
HWY_INLINE void load_rows_tile(const KeyColumns& c, const ColumnArrays<T>& a, size_t first, int count,
                               bool delta_from_last) {
  const size_t head = c.head_dim, value = c.value_dim;
  load_tile(c.query, c.dtype, first * head, count * head, a.query);
  load_tile(c.grad_out, c.dtype, first * value, count * value, a.grad_out);
  load_tile(c.out, c.dtype, first * value, count * value, a.out);
  for (int t = 0; t < count; ++t)
    a.log_sum_exp[t] = static_cast<T>(load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, first + t));
  compute_deltas(a, count, c.value_dim, delta_from_last);
  if (c.mask != nullptr) load_mask_tile(c, a, first, count);
  if (c.kept != nullptr) load_kept_tile(c, a, first, count);
  multiply<T>({.lanes = a.key,
               .stride = a.stride,
               .matrix = a.query,
               .inner_step = 1,
               .outer_step = head,
               .inner = c.head_dim,
               .accumulate = false},
              count, a.score);
  multiply<T>({.lanes = a.value,
               .stride = a.stride,
               .matrix = a.grad_out,
               .inner_step = 1,
               .outer_step = value,
               .inner = c.value_dim,
               .accumulate = false},
              count, a.grad_weight);
}

// One row and a vector of columns. `product` is that of query and key; a.score has it at the start.
template <class V>
struct Elements {
  V product, bias, kept, grad_weight, log_sum_exp, delta;
  V weight, grad_score, slope;  // results: weight is P D, grad_score the gradient of the product
};

// Calls change(Elements*) for each row and vector of columns. Stores weight and grad_score, or 0 if the row
// does not see the key, and the slope. A row's position is the row modulo c.queries, since rows are stored
// head by head.
template <class T, class F>
HWY_INLINE void for_scores(const KeyColumns& c, const ColumnArrays<T>& a, size_t first, int count, F change) {
  const LanesTag<T> d;
  using V = hn::Vec<LanesTag<T>>;
  const V hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int t = 0; t < count; ++t) {
    const V position = hn::Set(d, static_cast<T>((first + t) % c.queries));
    const V log_sum_exp = hn::Set(d, a.log_sum_exp[t]), delta = hn::Set(d, a.delta[t]);
    for (int column = 0; column < a.stride; column += lanes_of<T>()) {
      const size_t at = static_cast<size_t>(t) * a.stride + column;
      const V bias = hn::Load(d, a.bias + at);
      const auto is_inside = hn::And(hn::Ge(position, hn::Load(d, a.first_query + column)),
                                     hn::Lt(position, hn::Load(d, a.query_end + column)));
      const auto sees = hn::AndNot(hn::Eq(bias, hidden), is_inside);
      Elements<V> e = {.product = hn::Load(d, a.score + at),
                       .bias = bias,
                       .kept = hn::Load(d, a.kept + at),
                       .grad_weight = hn::Load(d, a.grad_weight + at),
                       .log_sum_exp = log_sum_exp,
                       .delta = delta,
                       .weight = hn::Zero(d),
                       .grad_score = hn::Zero(d),
                       .slope = hn::Set(d, T{1})};
      change(&e);
      hn::Store(hn::IfThenElseZero(sees, e.weight), d, a.weight + at);
      hn::Store(hn::IfThenElseZero(sees, e.grad_score), d, a.grad_score + at);
      hn::Store(e.slope, d, a.slope + at);
    }
  }
}

#if HWY_NATIVE_FMA

// exp(x); exp_lanes() takes only x <= 0.
HWY_INLINE hn::Vec<LanesTag<double>> exp_of_any_sign(hn::Vec<LanesTag<double>> x) {
  const LanesTag<double> d;
  const auto above = hn::Gt(x, hn::Zero(d));
  const auto power = exp_lanes(hn::IfThenElse(above, hn::Neg(x), x));
  return hn::IfThenElse(above, hn::Div(hn::Set(d, 1.0), power), power);
}

void exact_lanes(const KeyColumns& c, ColumnReference* result) {
  using V = hn::Vec<LanesTag<double>>;
  const ColumnArrays<double> a(c, &result->scratch);
  load_columns(c, c.scale, a);
  const V factor = hn::Set(LanesTag<double>(), keep_factor(c));
  const size_t rows = c.rows(), head = c.head_dim, value = c.value_dim;
  for (size_t first = 0; first < rows; first += kColumnTile) {
    const int count = static_cast<int>(std::min<size_t>(kColumnTile, rows - first));
    load_rows_tile(c, a, first, count, /*delta_from_last=*/false);
    for_scores(c, a, first, count, [&](Elements<V>* e) HWY_ATTR {
      V score = e->product;
      if (c.soft_cap != 0) score = soft_capped_lanes(score, c.soft_cap, &e->slope);
      const V weight = exp_of_any_sign(hn::Sub(hn::Add(score, e->bias), e->log_sum_exp));
      const V keep = hn::Mul(factor, e->kept);
      e->weight = hn::Mul(weight, keep);
      e->grad_score = hn::Mul(hn::Mul(weight, hn::Sub(hn::Mul(e->grad_weight, keep), e->delta)), e->slope);
    });
    // Adds the tile's terms to dV and dK. The members of the product are in the order of load_rows_tile().
    multiply<double>({a.weight, a.stride, a.grad_out, value, 1, count, true}, c.value_dim, a.grad_value[0]);
    multiply<double>({a.grad_score, a.stride, a.query, head, 1, count, true}, c.head_dim, a.grad_key[0]);
  }
  store_rows(a.grad_key[0], a.stride, c.columns, c.head_dim, c.scale, &result->exact.grad_key);
  store_rows(a.grad_value[0], a.stride, c.columns, c.value_dim, 1, &result->exact.grad_value);
}

#else  // without fused multiply-add instructions, the scalar definition is used

void exact_lanes(const KeyColumns& c, ColumnReference* result) { compute_exact_scalar(c, result); }

#endif  // HWY_NATIVE_FMA

// Scales the sums of dK, rounds dK and dV to the storage format and copies them to *to. n: 0 plain, 1 fused.
template <class T>
void store_rounded_columns(const KeyColumns& c, const ColumnArrays<T>& a, int n, ColumnGradients* to) {
  const auto scale = hn::Set(LanesTag<T>(), static_cast<T>(c.scale));
  const size_t stride = a.stride;
  for_lanes(a.grad_key[n], c.head_dim * stride,
            [&](auto x) HWY_ATTR { return round_lanes(c.dtype, hn::Mul(x, scale)); });
  for_lanes(a.grad_value[n], c.value_dim * stride, [&](auto x) HWY_ATTR { return round_lanes(c.dtype, x); });
  store_rows(a.grad_key[n], a.stride, c.columns, c.head_dim, 1, &to->grad_key);
  store_rows(a.grad_value[n], a.stride, c.columns, c.value_dim, 1, &to->grad_value);
}

template <class T>
double squared_norm(const T* values, int count) {
  double sum = 0;
  for (int n = 0; n < count; ++n) sum += double{values[n]} * values[n];
  return sum;
}

// Adds the mean squared errors that the rows of a tile give a column, if the roundings are independent
// (ColumnReference::mean_square_error). a.weight and a.grad_score are those of fused, P D and dS. A weight
// has the relative error of its rounding and that of its score, whose sum in fp32 has an error of about u
// |score|. A score with a weight is near the log-sum-exp. dS also has the error of D dO . v - delta, about u
// D |dO| |v|, times the slope of the soft cap.
template <class T>
void add_mean_errors(const KeyColumns& c, const ColumnArrays<T>& a, int count, const double* squared_values,
                     ColumnReference* result) {
  const auto square_of_half_ulp = [](DType type) { return std::ldexp(1.0, -2 * format_of(type).precision); };
  const double rounding = square_of_half_ulp(c.dtype) / 3;  // uniform between -1/2 and 1/2 ulp
  const double sum = square_of_half_ulp(c.dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32);
  for (int t = 0; t < count; ++t) {
    const double grad_out = squared_norm(a.grad_out + t * size_t(c.value_dim), c.value_dim);
    const double query = c.scale * c.scale * squared_norm(a.query + t * size_t(c.head_dim), c.head_dim);
    // A row that sees no key has no weight, and an infinite log-sum-exp.
    const double log_sum_exp = a.log_sum_exp[t];
    const double magnitude = std::isfinite(log_sum_exp) ? 1 + std::fabs(log_sum_exp) : 1;
    const double of_weight = rounding + sum * magnitude * magnitude;
    for (int column = 0; column < c.columns; ++column) {
      const double weight = a.weight[t * size_t(a.stride) + column];
      const double grad_score = a.grad_score[t * size_t(a.stride) + column];
      const double slope = a.slope[t * size_t(a.stride) + column];
      result->mean_square_error.grad_value[column] += weight * weight * of_weight * grad_out;
      result->mean_square_error.grad_key[column] +=
          query * (grad_score * grad_score * (of_weight + rounding) +
                   weight * weight * slope * slope * sum * grad_out * squared_values[column]);
    }
  }
}

// The elements of plain attention, which rounds after each operation. keep: what dropout multiplies by,
// rounded.
template <class V>
HWY_INLINE void compute_plain(const KeyColumns& c, V scale, V cap, V keep, Elements<V>* e) {
  const hn::DFromV<V> d;
  const auto rounded = [&](V x) HWY_ATTR { return round_lanes(c.dtype, x); };
  V score = rounded(hn::Mul(e->product, scale));
  if (c.soft_cap != 0) {
    const V y = rounded(hn::Div(score, cap));
    const V tanh = rounded(hn::IfThenElse(hn::IsNaN(y), y, hn::Tanh(d, y)));
    score = rounded(hn::Mul(tanh, cap));
    e->slope = hn::NegMulAdd(tanh, tanh, hn::Set(d, hn::TFromV<V>{1}));
  }
  score = rounded(hn::Add(score, e->bias));
  const V weight = rounded(hn::Exp(d, hn::Sub(score, e->log_sum_exp)));
  V grad_weight = rounded(e->grad_weight);
  e->weight = weight;
  if (c.kept != nullptr) {
    e->weight = rounded(hn::Mul(weight, keep));
    grad_weight = rounded(hn::Mul(grad_weight, keep));
  }
  e->grad_score = rounded(hn::Mul(weight, hn::Sub(grad_weight, e->delta)));
  if (c.soft_cap != 0) {  // the gradients of its three operations
    const V of_tanh = rounded(hn::Mul(rounded(hn::Mul(e->grad_score, cap)), e->slope));
    e->grad_score = rounded(hn::Div(of_tanh, cap));
  }
}

// The elements of fused attention, which rounds only the factors of the products, and the tanh of a soft cap.
template <class V>
HWY_INLINE void compute_fused(const KeyColumns& c, V scale, V cap, V keep, Elements<V>* e) {
  const hn::DFromV<V> d;
  V score = hn::Mul(e->product, scale);
  if (c.soft_cap != 0) {
    const V y = hn::Div(score, cap);
    const V tanh = fused_tanh_lanes(c.dtype, hn::IfThenElse(hn::IsNaN(y), y, hn::Tanh(d, y)));
    score = hn::Mul(tanh, cap);
    e->slope = hn::NegMulAdd(tanh, tanh, hn::Set(d, hn::TFromV<V>{1}));
  }
  const V exact = hn::Exp(d, hn::Sub(hn::Add(score, e->bias), e->log_sum_exp));
  e->weight = hn::Mul(round_lanes(c.dtype, exact), keep);
  const V grad_score = hn::Mul(exact, hn::Sub(hn::Mul(e->grad_weight, keep), e->delta));
  e->grad_score = round_lanes(c.dtype, hn::Mul(grad_score, e->slope));
}

// Computes the floors in T (float; double for fp64 storage): in each tile plain ([0]), then fused ([1]).
template <class T>
void compute_rounded_as(const KeyColumns& c, ColumnReference* result) {
  using V = hn::Vec<LanesTag<T>>;
  const LanesTag<T> d;
  const ColumnArrays<T> a(c, &result->scratch);
  load_columns<T>(c, 1, a);
  const V scale = hn::Set(d, static_cast<T>(c.scale)), cap = hn::Set(d, static_cast<T>(c.soft_cap));
  const V factor = hn::Set(d, static_cast<T>(keep_factor(c))), rounded_factor = round_lanes(c.dtype, factor);
  const size_t rows = c.rows();
  double squared_values[kMaxSliceRows] = {};
  for (int column = 0; column < c.columns; ++column)
    for (int n = 0; n < c.value_dim; ++n) {
      const double x = a.value[n * size_t(a.stride) + column];
      squared_values[column] += x * x;
    }
  result->mean_square_error.grad_key.assign(c.columns, 0);
  result->mean_square_error.grad_value.assign(c.columns, 0);
  for (size_t first = 0; first < rows; first += kColumnTile) {
    const int count = static_cast<int>(std::min<size_t>(kColumnTile, rows - first));
    load_rows_tile(c, a, first, count, /*delta_from_last=*/true);
    for_scores(c, a, first, count, [&](Elements<V>* e) HWY_ATTR {
      compute_plain(c, scale, cap, hn::Mul(e->kept, rounded_factor), e);
    });
    add_product(a.weight, a.stride, a.grad_out, count, c.value_dim, a.partial, a.grad_value[0]);
    add_product(a.grad_score, a.stride, a.query, count, c.head_dim, a.partial, a.grad_key[0]);
    for_scores(c, a, first, count,
               [&](Elements<V>* e) HWY_ATTR { compute_fused(c, scale, cap, hn::Mul(e->kept, factor), e); });
    add_product(a.weight, a.stride, a.grad_out, count, c.value_dim, a.partial, a.grad_value[1]);
    add_product(a.grad_score, a.stride, a.query, count, c.head_dim, a.partial, a.grad_key[1]);
    add_mean_errors(c, a, count, squared_values, result);
  }
  store_rounded_columns(c, a, 0, &result->plain);
  store_rounded_columns(c, a, 1, &result->fused);
}

void floors_in_lanes(const KeyColumns& c, ColumnReference* result) {
  if (c.dtype == DType::kFp64) {
    compute_rounded_as<double>(c, result);
  } else {
    compute_rounded_as<float>(c, result);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {

// The scalar definition of the exact result, one element at a time.
namespace {

double at(const KeyColumns& c, const void* data, size_t row, int width, int element) {
  return load_as_double(data, c.dtype, row * width + element);
}

double delta_of(const KeyColumns& c, size_t row) {
  double sum = 0;
  for (int n = 0; n < c.value_dim; ++n)
    sum = std::fma(at(c, c.grad_out, row, c.value_dim, n), at(c, c.out, row, c.value_dim, n), sum);
  return sum;
}

double product_of(const KeyColumns& c, size_t row, int column) {
  double sum = 0;
  for (int n = 0; n < c.head_dim; ++n)
    sum = std::fma(at(c, c.key, column, c.head_dim, n) * c.scale, at(c, c.query, row, c.head_dim, n), sum);
  return sum;
}

double grad_weight_of(const KeyColumns& c, size_t row, int column) {
  double sum = 0;
  for (int n = 0; n < c.value_dim; ++n)
    sum = std::fma(at(c, c.value, column, c.value_dim, n), at(c, c.grad_out, row, c.value_dim, n), sum);
  return sum;
}

}  // namespace

bool is_valid(const KeyColumns& c) {
  if (!is_floating(c.dtype) || !is_floating(c.log_sum_exp_dtype) || !std::isfinite(c.scale)) return false;
  if (c.mask != nullptr && c.mask_dtype != DType::kBool && !is_floating(c.mask_dtype)) return false;
  if (!has_valid_rules(c)) return false;
  if (c.columns < 1 || c.columns > kMaxSliceRows || c.heads < 1 || c.queries < 1) return false;
  if (c.head_dim < 1 || c.value_dim < 1 || c.first_query == nullptr) return false;
  for (const void* array :
       {c.query, c.out, c.grad_out, c.log_sum_exp, c.key, c.value, c.grad_key, c.grad_value})
    if (array == nullptr) return false;
  return true;
}

// Without a mask, rows see no key only if the causal limit is aligned at the bottom right and there are more
// queries than keys. Then every key has a first query above 0. (With the other alignment, most keys have
// one.)
bool may_have_rows_without_keys(const KeyColumns& c) {
  const bool is_limited =
      std::any_of(c.first_query, c.first_query + c.columns, [](uint32_t n) { return n > 0; });
  return c.mask != nullptr || (c.keys > 0 && c.queries > c.keys && is_limited);
}

void compute_exact_scalar(const KeyColumns& c, ColumnReference* result) {
  const size_t head = c.head_dim, value = c.value_dim;
  resize_up(&result->exact.grad_key, c.columns * head);
  resize_up(&result->exact.grad_value, c.columns * value);
  for (int column = 0; column < c.columns; ++column) {
    double* grad_key = &result->exact.grad_key[column * head];
    double* grad_value = &result->exact.grad_value[column * value];
    std::fill_n(grad_key, head, 0.0);
    std::fill_n(grad_value, value, 0.0);
    for (size_t row = 0; row < c.rows(); ++row) {
      double weight = 0, grad_score = 0;
      const auto bias = mask_term<double>(c, column, row);
      const size_t position = row % c.queries;
      if (position >= c.first_query[column] && position < c.end_of(column) &&
          bias != -std::numeric_limits<double>::infinity()) {
        // The difference may be positive, since rounding can lift a score above the log-sum-exp.
        const double product = product_of(c, row, column);
        const CappedScore capped =
            c.soft_cap == 0 ? CappedScore{product, 1} : soft_capped(product, c.soft_cap);
        const bool kept = is_kept(c, static_cast<size_t>(column) * c.rows() + row);
        const double keep = keep_factor(c) * (kept ? 1 : 0);
        const double exact =
            exp_of_any_sign(capped.score + bias - load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row));
        weight = exact * keep;
        grad_score = exact * (grad_weight_of(c, row, column) * keep - delta_of(c, row)) * capped.slope;
      }
      for (int n = 0; n < c.value_dim; ++n)
        grad_value[n] = std::fma(weight, at(c, c.grad_out, row, c.value_dim, n), grad_value[n]);
      for (int n = 0; n < c.head_dim; ++n)
        grad_key[n] = std::fma(grad_score, at(c, c.query, row, c.head_dim, n), grad_key[n]);
    }
    for (int n = 0; n < c.head_dim; ++n) grad_key[n] *= c.scale;
  }
}

HWY_EXPORT(exact_lanes);
HWY_EXPORT(floors_in_lanes);

void compute_exact(const KeyColumns& columns, ColumnReference* result) {
  HWY_DYNAMIC_DISPATCH(exact_lanes)(columns, result);
}

void compute_floors(const KeyColumns& columns, ColumnReference* result) {
  HWY_DYNAMIC_DISPATCH(floors_in_lanes)(columns, result);
}

}  // namespace foreshock
#endif  // HWY_ONCE
