#include "shadow/reference.h"

// The fast implementation of reference(), i.e. of attention in fp64 for the query rows of one slice. The rows
// are in the lanes of SIMD vectors. Each lane does the operations of reference_scalar.cpp in the same order,
// so both give the same bits. Highway (namespace hn), a SIMD library, compiles this file once per instruction
// set. Keys are processed in tiles of kReferenceTile; t is a key's index in its tile.
//
// The functions at the end are compiled once and convert the sums of a row to results. The given out and
// log_sum_exp are the trainer's; they cover more keys than the slice has if the keys are split over calls
// (context parallelism).

#include <algorithm>
#include <cmath>
#include <limits>

#include "shadow/slice.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shadow/reference.cpp"
#include "hwy/foreach_target.h"
// must follow foreach_target.h
#include "hwy/highway.h"
#include "shadow/rows_in_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foreshock {
namespace HWY_NAMESPACE {

#if HWY_NATIVE_FMA

using D = LanesTag<double>;
using V = hn::Vec<D>;
constexpr int kLanes = lanes_of<double>();

// The working arrays in the scratch memory of a Reference: doubles, 64-byte aligned. `keys` and `values` hold
// a tile as [key][element]. The other arrays are [element or key][row], with `stride` (the padded number of
// rows) from one element to the next. By row: the largest, second and smallest score (max, second, min); sums
// of the weights exp(score - max) and of weight * (score - max) (sum, weighted); the maximum before this tile
// (factor, despite its name); the keys the row sees (begin, limit); the sum of grad_out * out (delta).
// slopes: the derivatives of the soft cap in a tile.
struct Workspace {
  int stride;
  double *query, *out, *scores, *keys, *values;
  double *max, *second, *min, *sum, *weighted, *factor, *begin, *limit;
  double *grad_out, *grad_query, *key_sum, *grad_scores, *delta, *slopes;

  Workspace(const AttentionSlice& slice, std::vector<double>* scratch)
      : stride(padded_rows<double>(slice.rows)) {
    const size_t rows = stride, head = slice.head_dim, value = slice.value_dim, tile = kReferenceTile;
    const size_t backward = slice.backward() ? 1 : 0, capped = slice.soft_cap != 0 ? 1 : 0;
    const size_t total =
        rows * (head + value + tile + 8 + backward * (value + 2 * head + tile + 1) + capped * tile) +
        tile * (head + value) + 19 * 8;                           // 19 arrays, each padded to whole 64 bytes
    if (scratch->size() < total + 8) scratch->resize(total + 8);  // 8 more, to align the first array
    next_ = reinterpret_cast<double*>((reinterpret_cast<uintptr_t>(scratch->data()) + 63) & ~uintptr_t{63});
    query = take(head * rows);
    out = take(value * rows);
    scores = take(tile * rows);
    keys = take(tile * head);
    values = take(tile * value);
    for (double** row : {&max, &second, &min, &sum, &weighted, &factor, &begin, &limit}) *row = take(rows);
    grad_out = take(backward * value * rows);
    grad_query = take(backward * head * rows);
    key_sum = take(backward * head * rows);
    grad_scores = take(backward * tile * rows);
    delta = take(backward * rows);
    slopes = take(capped * tile * rows);
  }

 private:
  double* take(size_t count) {
    double* taken = next_;
    next_ += (count + 7) / 8 * 8;
    return taken;
  }
  double* next_;
};

// The keys that all rows see: [begin, end).
struct SeenByAll {
  int begin, end;
  // Whether a row does not see one of the keys [first, first + count).
  bool limits(int first, int count) const { return first < begin || end < first + count; }
};

HWY_INLINE V greater_of(V a, V b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }

// Whether a vector of rows sees the key.
HWY_INLINE auto sees_key(const Workspace& w, int row, int key) {
  const D d;
  const V position = hn::Set(d, key);
  return hn::And(hn::Ge(position, hn::Load(d, w.begin + row)), hn::Lt(position, hn::Load(d, w.limit + row)));
}

// Updates max, second and min with the scores of one tile. If `limited`, first sets the scores of keys that a
// row does not see to -Inf. Stores the old maxima in w.factor, and returns whether any maximum changed.
HWY_INLINE bool observe_tile(const Workspace& w, int first, int count, bool limited) {
  const D d;
  const V lowest = hn::Set(d, -std::numeric_limits<double>::infinity());
  const V highest = hn::Set(d, std::numeric_limits<double>::infinity());
  bool moved = false;
  for (int row = 0; row < w.stride; row += kLanes) {
    const V old_max = hn::Load(d, w.max + row);
    V max = old_max, second = hn::Load(d, w.second + row), min = hn::Load(d, w.min + row);
    for (int t = 0; t < count; ++t) {
      V score = hn::Load(d, w.scores + t * w.stride + row);
      if (limited) {
        score = hn::IfThenElse(sees_key(w, row, first + t), score, lowest);
        hn::Store(score, d, w.scores + t * w.stride + row);
      }
      const auto above = hn::Gt(score, max);
      second = greater_of(hn::IfThenElse(above, max, score), second);
      max = hn::IfThenElse(above, score, max);
      const V visible = hn::IfThenElse(hn::Eq(score, lowest), highest, score);
      min = hn::IfThenElse(hn::Lt(visible, min), visible, min);
    }
    moved |= !hn::AllFalse(d, hn::Gt(max, old_max));
    hn::Store(old_max, d, w.factor + row);
    hn::Store(max, d, w.max + row);
    hn::Store(second, d, w.second + row);
    hn::Store(min, d, w.min + row);
  }
  return moved;
}

// The number to subtract from the scores of each row: the maximum, or 0 for a row that has seen no key.
HWY_INLINE V shift_lanes(V max) {
  const D d;
  return hn::IfThenElse(hn::Eq(max, hn::Set(d, -std::numeric_limits<double>::infinity())), hn::Zero(d), max);
}

// Raises x to at least kExpArgumentMin, whose exp is 0. With -Inf, the product 0 * x would be NaN.
HWY_INLINE V clamp_lanes(V x) {
  const V least = hn::Set(D(), kExpArgumentMin);
  return hn::IfThenElse(hn::Lt(x, least), least, x);
}

// Rescales the sums from the old maxima (in w.factor) to the new ones. With change = old - new maximum,
// weighted = sum of weight * (score - max) becomes exp(change) * (weighted + change * sum). Sum and out are
// multiplied by exp(change), the local `factor`: exactly 1 if the maximum is unchanged, 0 before any key.
HWY_INLINE void rescale(const Workspace& w, int value_dim) {
  const D d;
  for (int row = 0; row < w.stride; row += kLanes) {
    const V shift = shift_lanes(hn::Load(d, w.max + row));
    const V change = clamp_lanes(hn::Sub(hn::Load(d, w.factor + row), shift));
    const V factor = exp_lanes(change);
    const V sum = hn::Load(d, w.sum + row);
    const V weighted = hn::MulAdd(change, sum, hn::Load(d, w.weighted + row));
    hn::Store(hn::Mul(factor, weighted), d, w.weighted + row);
    hn::Store(hn::Mul(sum, factor), d, w.sum + row);
    for (int c = 0; c < value_dim; ++c) {
      double* out = w.out + c * w.stride + row;
      hn::Store(hn::Mul(hn::Load(d, out), factor), d, out);
    }
  }
}

// Replaces the scores of a tile by the weights exp(score - max), and adds the weights to sum and weighted.
HWY_INLINE void weigh_tile(const Workspace& w, int count) {
  const D d;
  for (int row = 0; row < w.stride; row += kLanes) {
    const V shift = shift_lanes(hn::Load(d, w.max + row));
    V sum = hn::Load(d, w.sum + row), weighted = hn::Load(d, w.weighted + row);
    for (int t = 0; t < count; ++t) {
      double* at = w.scores + t * w.stride + row;
      const V shifted = clamp_lanes(hn::Sub(hn::Load(d, at), shift));
      const V weight = exp_lanes(shifted);
      sum = hn::Add(sum, weight);
      weighted = hn::MulAdd(weight, shifted, weighted);
      hn::Store(weight, d, at);
    }
    hn::Store(sum, d, w.sum + row);
    hn::Store(weighted, d, w.weighted + row);
  }
}

// Replaces products by scores, and stores the slopes.
HWY_INLINE void cap_tile(const AttentionSlice& slice, const Workspace& w, int count) {
  const D d;
  for (int i = 0; i < count * w.stride; i += kLanes) {
    V slope;
    hn::Store(soft_capped_lanes(hn::Load(d, w.scores + i), slice.soft_cap, &slope), d, w.scores + i);
    hn::Store(slope, d, w.slopes + i);
  }
}

// Computes the scores of keys [first, first + count) without the mask. multiply({lanes, stride, matrix,
// inner_step, outer_step, inner, accumulate}, columns, result): for j < columns, result[j][row] = (if
// accumulate: +=) the sum over i < inner of lanes[i][row] * matrix[i * inner_step + j * outer_step].
HWY_INLINE void multiply_tile(const AttentionSlice& slice, const Workspace& w, int first, int count) {
  const size_t dim = slice.head_dim;
  load_tile(slice.key, slice.dtype, first * dim, count * dim, w.keys);
  multiply<double>({w.query, w.stride, w.keys, 1, dim, slice.head_dim, false}, count, w.scores);
  if (slice.soft_cap != 0) cap_tile(slice, w, count);
}

// Computes the scores of keys [first, first + count), and applies the mask, if any.
HWY_INLINE void score_tile(const AttentionSlice& slice, const Workspace& w, int first, int count) {
  multiply_tile(slice, w, first, count);
  if (slice.mask != nullptr) apply_mask(slice, first, count, w.stride, w.scores);
}

// Computes the sums and the unnormalized output of all rows in one pass over the keys (online softmax).
HWY_INLINE void forward(const AttentionSlice& slice, const Workspace& w, SeenByAll seen, Reference* result) {
  const size_t dim = slice.value_dim;
  for (int first = 0; first < slice.keys; first += kReferenceTile) {
    const int count = std::min(kReferenceTile, slice.keys - first);
    multiply_tile(slice, w, first, count);
    if (slice.mask != nullptr) {
      observe_products(slice, first, count, w.stride, w.scores, result);
      apply_mask(slice, first, count, w.stride, w.scores);
    }
    if (observe_tile(w, first, count, seen.limits(first, count))) rescale(w, slice.value_dim);
    weigh_tile(w, count);
    apply_dropout(slice, first, count, w.stride, w.scores);
    load_tile(slice.value, slice.dtype, first * dim, count * dim, w.values);
    multiply<double>({w.scores, w.stride, w.values, dim, 1, count, true}, slice.value_dim, w.out);
  }
}

// Replaces the scores of a tile by weights, and each product grad_out . value in w.grad_scores by the
// gradient of the score, weight * (product - delta). If `capped`, multiplies both by the slope of the soft
// cap.
HWY_INLINE void grad_score_tile(const Workspace& w, int first, int count, bool limited, bool capped) {
  const D d;
  const V lowest = hn::Set(d, -std::numeric_limits<double>::infinity());
  for (int row = 0; row < w.stride; row += kLanes) {
    const V shift = shift_lanes(hn::Load(d, w.max + row));
    const V delta = hn::Load(d, w.delta + row);
    for (int t = 0; t < count; ++t) {
      V score = hn::Load(d, w.scores + t * w.stride + row);
      if (limited) score = hn::IfThenElse(sees_key(w, row, first + t), score, lowest);
      double* grad = w.grad_scores + t * w.stride + row;
      V weight = exp_lanes(hn::Sub(score, shift));
      V grad_score = hn::Mul(weight, hn::Sub(hn::Load(d, grad), delta));
      if (capped) {
        const V slope = hn::Load(d, w.slopes + t * w.stride + row);
        weight = hn::Mul(weight, slope);
        grad_score = hn::Mul(grad_score, slope);
      }
      hn::Store(weight, d, w.scores + t * w.stride + row);
      hn::Store(grad_score, d, grad);
    }
  }
}

// Multiplies each product grad_out . value of a tile by the dropout's factor where the weight was kept, by 0
// elsewhere.
HWY_INLINE void drop_products(const AttentionSlice& slice, const Workspace& w, int first, int count) {
  if (slice.kept == nullptr) return;
  const D d;
  const V factor = hn::Set(d, keep_factor(slice));
  for (int i = 0; i < count * w.stride; i += kLanes)
    hn::Store(hn::Mul(hn::Load(d, w.grad_scores + i), factor), d, w.grad_scores + i);
  apply_dropout(slice, first, count, w.stride, w.grad_scores);
}

// Sums grad_score * key (grad_query) and weight * key (key_sum) over the keys; finish_gradient() normalizes.
HWY_INLINE void backward(const AttentionSlice& slice, const Workspace& w, SeenByAll seen) {
  const size_t head = slice.head_dim, value = slice.value_dim;
  for (int first = 0; first < slice.keys; first += kReferenceTile) {
    const int count = std::min(kReferenceTile, slice.keys - first);
    score_tile(slice, w, first, count);
    load_tile(slice.value, slice.dtype, first * value, count * value, w.values);
    multiply<double>({w.grad_out, w.stride, w.values, 1, value, slice.value_dim, false}, count,
                     w.grad_scores);
    drop_products(slice, w, first, count);
    grad_score_tile(w, first, count, seen.limits(first, count), slice.soft_cap != 0);
    multiply<double>({w.grad_scores, w.stride, w.keys, head, 1, count, true}, slice.head_dim, w.grad_query);
    multiply<double>({w.scores, w.stride, w.keys, head, 1, count, true}, slice.head_dim, w.key_sum);
  }
}

// Loads the scaled queries, sets the start values of forward()'s sums, and returns the keys that all rows
// see.
SeenByAll load_rows(const AttentionSlice& slice, const Workspace& w) {
  load_lanes(slice.query, slice.dtype, slice.rows, slice.head_dim, slice.scale, w.query);
  std::fill_n(w.out, slice.value_dim * w.stride, 0.0);
  SeenByAll seen = {0, slice.keys};
  for (int row = 0; row < w.stride; ++row) {
    w.max[row] = w.second[row] = -std::numeric_limits<double>::infinity();
    w.min[row] = std::numeric_limits<double>::infinity();
    w.sum[row] = w.weighted[row] = 0;
    w.begin[row] = row < slice.rows ? slice.first_key(row) : 0;
    w.limit[row] = row < slice.rows ? slice.key_limit[row] : slice.keys;
    seen.begin = std::max(seen.begin, static_cast<int>(w.begin[row]));
    seen.end = std::min(seen.end, static_cast<int>(w.limit[row]));
  }
  return seen;
}

void store_forward(const AttentionSlice& slice, const Workspace& w, Reference* result) {
  for (int row = 0; row < slice.rows; ++row) {
    const double sum = w.sum[row], factor = keep_factor(slice);
    double* out = &result->out[static_cast<size_t>(row) * slice.value_dim];
    for (int c = 0; c < slice.value_dim; ++c)
      out[c] = sum == 0 ? 0 : w.out[c * w.stride + row] / sum * factor;
    finish_row({w.max[row], w.second[row], w.min[row], sum, w.weighted[row]}, row, result);
  }
}

void store_backward(const AttentionSlice& slice, const Workspace& w, Reference* result) {
  for (int row = 0; row < slice.rows; ++row) {
    for (int k = 0; k < slice.head_dim; ++k) {
      const int at = k * w.stride + row;
      finish_gradient(slice, row, k, w.sum[row], w.grad_query[at], w.key_sum[at], result);
    }
  }
}

void reference_lanes(const AttentionSlice& slice, Reference* result) {
  resize_reference(slice, result);
  const Workspace w(slice, &result->scratch);
  const SeenByAll seen = load_rows(slice, w);
  forward(slice, w, seen, result);
  store_forward(slice, w, result);
  if (!slice.backward()) return;
  load_lanes(slice.grad_out, slice.dtype, slice.rows, slice.value_dim, 1.0, w.grad_out);
  std::fill_n(w.grad_query, slice.head_dim * w.stride, 0.0);
  std::fill_n(w.key_sum, slice.head_dim * w.stride, 0.0);
  std::fill_n(w.delta, w.stride, 0.0);
  for (int row = 0; row < slice.rows; ++row) {
    prepare_backward(slice, row, result);
    w.delta[row] = result->delta[row];
  }
  backward(slice, w, seen);
  store_backward(slice, w, result);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

#else  // without fused multiply-add instructions, the scalar definition is used

void reference_lanes(const AttentionSlice& slice, Reference* result) { reference_scalar(slice, result); }

const char* target_name() { return "scalar"; }

#endif  // HWY_NATIVE_FMA

}  // namespace HWY_NAMESPACE
}  // namespace foreshock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the sum of grad_out * out over a row. If `out` is null, the trainer's out is used.
double delta_of(const AttentionSlice& slice, int row, const double* out) {
  double sum = 0;
  for (int c = 0; c < slice.value_dim; ++c) {
    const size_t index = static_cast<size_t>(row) * slice.value_dim + c;
    const double value = out != nullptr ? out[index] : load_as_double(slice.out, slice.dtype, index);
    sum = std::fma(load_as_double(slice.grad_out, slice.dtype, index), value, sum);
  }
  return sum;
}

}  // namespace

void resize_reference(const AttentionSlice& slice, Reference* result) {
  const size_t rows = slice.rows;
  resize_up(&result->out, rows * slice.value_dim);
  for (auto* values :
       {&result->log_sum_exp, &result->logit_max, &result->logit_abs_max, &result->entropy_nats}) {
    resize_up(values, kMaxSliceRows);
  }
  if (slice.mask != nullptr) result->product_abs_max.assign(kMaxSliceRows, 0);
  if (result->near_tie.size() < kMaxSliceRows) result->near_tie.resize(kMaxSliceRows);
  if (!slice.backward()) return;
  for (auto* values : {&result->delta, &result->share, &result->given_delta})
    resize_up(values, kMaxSliceRows);
  if (result->partial.size() < kMaxSliceRows) result->partial.resize(kMaxSliceRows);
  resize_up(&result->grad_query, rows * slice.head_dim);
  resize_up(&result->given_grad_query, rows * slice.head_dim);
  resize_up(&result->key_mean, rows * slice.head_dim);
}

void observe_products(const AttentionSlice& slice, int first, int count, size_t stride, const double* scores,
                      Reference* result) {
  for (int t = 0; t < count; ++t)
    for (int row = 0; row < slice.rows; ++row) {
      const double score = scores[t * stride + row], size = std::fabs(score);
      double& most = result->product_abs_max[row];
      if (size > most && masked_score(slice, row, first + t, score) != -kInfinity) most = size;
    }
}

void finish_row(const RowSums& sums, int row, Reference* result) {
  const double log_sum = log_nonnegative(sums.sum);
  result->logit_max[row] = sums.max;
  result->log_sum_exp[row] = shift_of(sums.max) + log_sum;
  result->logit_abs_max[row] = sums.min == kInfinity ? 0 : std::max(std::fabs(sums.max), std::fabs(sums.min));
  result->entropy_nats[row] = sums.sum == 0 ? 0 : log_sum - sums.weighted / sums.sum;
  result->near_tie[row] = sums.max - sums.second <= kNearTie;
}

// Whether `given` exceeds the computed log_sum_exp by more than rounding: it then covers more keys.
bool is_above(double given, double log_sum_exp, double logit_abs_max) {
  constexpr double kSummedInFp32 = 0x1p-15;  // relative error of sums of thousands of terms
  return given - log_sum_exp > kSummedInFp32 * std::max(1.0, logit_abs_max) && given < kInfinity;
}

void prepare_backward(const AttentionSlice& slice, int row, Reference* result) {
  result->delta[row] = delta_of(slice, row, result->out.data());
  result->given_delta[row] = delta_of(slice, row, nullptr);
  result->share[row] = 1;
  result->partial[row] = 0;
  if (slice.log_sum_exp == nullptr) return;
  const double given = load_as_double(slice.log_sum_exp, slice.log_sum_exp_dtype, row);
  // If log_sum_exp is far above the given one, share overflows to Inf. judgement.cpp then does not
  // compare the row with the fused noise floor.
  result->share[row] = exp_of_any_sign(result->log_sum_exp[row] - given);
  result->partial[row] = is_above(given, result->log_sum_exp[row], result->logit_abs_max[row]);
}

void finish_gradient(const AttentionSlice& slice, int row, int k, double sum, double grad, double key_sum,
                     Reference* result) {
  const size_t at = static_cast<size_t>(row) * slice.head_dim + k;
  // `grad` was summed with the reference's delta. Divided by `sum`, the sum of the weights, it is the
  // gradient over the slice's own keys. given_grad_query is the gradient for the given out and log_sum_exp:
  // `shift` replaces delta by given_delta, and `share` replaces `sum` by the sum in the given log_sum_exp.
  const double shift = result->delta[row] - result->given_delta[row];
  result->grad_query[at] = sum == 0 ? 0 : grad / sum * slice.scale;
  result->key_mean[at] = sum == 0 ? 0 : key_sum / sum;
  result->given_grad_query[at] =
      sum == 0 ? 0 : std::fma(shift, key_sum, grad) / sum * result->share[row] * slice.scale;
}

HWY_EXPORT(reference_lanes);
HWY_EXPORT(target_name);

void reference(const AttentionSlice& slice, Reference* result) {
  HWY_DYNAMIC_DISPATCH(reference_lanes)(slice, result);
}

int64_t reference_targets_here() { return hwy::SupportedTargets() & HWY_TARGETS; }
int64_t reference_targets_compiled() { return HWY_TARGETS; }
const char* reference_target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace foreshock
#endif  // HWY_ONCE
