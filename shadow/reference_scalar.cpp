// Defines the reference (attention in fp64) to the bit, one element at a time; reference.cpp must give the
// same bits. Also converts a row's sums to results, for both files. The given out and log_sum_exp are the
// trainer's; they cover more keys than the slice has if the keys are split over calls (context parallelism).
#include <algorithm>
#include <cmath>
#include <limits>

#include "shadow/elementary.h"
#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double element(const AttentionSlice& slice, const void* data, size_t row, int columns, int column) {
  return load_as_double(data, slice.dtype, row * columns + column);
}

double score_of(const AttentionSlice& slice, int row, int key) {
  double sum = 0;
  for (int k = 0; k < slice.head_dim; ++k) {
    const double scaled = element(slice, slice.query, row, slice.head_dim, k) * slice.scale;
    sum = std::fma(scaled, element(slice, slice.key, key, slice.head_dim, k), sum);
  }
  return masked_score(slice, row, key, sum);
}

// Updates the two largest scores and the smallest above -Inf. NaN reaches only the sums, through its weight.
void observe(double score, RowSums* sums) {
  const double lower = score > sums->max ? sums->max : score;
  sums->second = lower > sums->second ? lower : sums->second;
  sums->max = score > sums->max ? score : sums->max;
  const double visible = score == -kInfinity ? kInfinity : score;
  sums->min = visible < sums->min ? visible : sums->min;
}

double clamped(double x) { return x < kExpArgumentMin ? kExpArgumentMin : x; }  // so that 0 * x is not NaN

// Rescales the sums from the old maximum to the new one: with change = old - new, weighted (the sum of weight
// * (score - max)) becomes exp(change) * (weighted + change * sum). shift_of(): the maximum; 0 without keys.
void rescale(double old_max, RowSums* sums, double* out, int value_dim) {
  const double change = clamped(old_max - shift_of(sums->max));
  const double factor = exp_nonpositive(change);
  sums->weighted = factor * std::fma(change, sums->sum, sums->weighted);
  sums->sum *= factor;
  for (int c = 0; c < value_dim; ++c) out[c] *= factor;
}

// Computes out, log_sum_exp and the other forward results of a row by online softmax: sums exp(score - max)
// and the values with these weights by tiles of keys, and rescales the sums when a tile raises the maximum.
void forward_row(const AttentionSlice& slice, int row, double* scores, Reference* result) {
  double* out = &result->out[static_cast<size_t>(row) * slice.value_dim];
  std::fill_n(out, slice.value_dim, 0.0);
  RowSums sums = {-kInfinity, -kInfinity, kInfinity, 0, 0};
  for (int first = 0; first < slice.keys; first += kReferenceTile) {
    const int count = std::min(kReferenceTile, slice.keys - first);
    const double old_max = sums.max;
    for (int t = 0; t < count; ++t) {
      scores[t] = score_of(slice, row, first + t);
      observe(scores[t], &sums);
    }
    if (sums.max > old_max) rescale(old_max, &sums, out, slice.value_dim);
    for (int t = 0; t < count; ++t) {
      const double shifted = clamped(scores[t] - shift_of(sums.max));
      const double weight = exp_nonpositive(shifted);
      sums.sum += weight;
      sums.weighted = std::fma(weight, shifted, sums.weighted);
      for (int c = 0; c < slice.value_dim; ++c) {
        out[c] = std::fma(weight, element(slice, slice.value, first + t, slice.value_dim, c), out[c]);
      }
    }
  }
  for (int c = 0; c < slice.value_dim; ++c) out[c] = sums.sum == 0 ? 0 : out[c] / sums.sum;
  finish_row(sums, row, result);
  result->scratch[row] = sums.sum;  // for backward_row()
}

// Computes the gradient of the row's query: the sum over the keys of weight * (grad_weight - delta) * key,
// with grad_weight = grad_out * value, delta = grad_out * out. key_sum (weight * key) later changes delta.
void backward_row(const AttentionSlice& slice, int row, double* scratch, Reference* result) {
  double *grad = scratch, *key_sum = scratch + slice.head_dim;
  std::fill_n(scratch, 2 * slice.head_dim, 0.0);
  prepare_backward(slice, row, result);
  for (int key = 0; key < slice.keys; ++key) {
    double grad_weight = 0;
    for (int c = 0; c < slice.value_dim; ++c) {
      grad_weight = std::fma(element(slice, slice.grad_out, row, slice.value_dim, c),
                             element(slice, slice.value, key, slice.value_dim, c), grad_weight);
    }
    const double weight = exp_nonpositive(score_of(slice, row, key) - shift_of(result->logit_max[row]));
    const double grad_score = weight * (grad_weight - result->delta[row]);
    for (int k = 0; k < slice.head_dim; ++k) {
      const double key_k = element(slice, slice.key, key, slice.head_dim, k);
      grad[k] = std::fma(grad_score, key_k, grad[k]);
      key_sum[k] = std::fma(weight, key_k, key_sum[k]);
    }
  }
  for (int k = 0; k < slice.head_dim; ++k)
    finish_gradient(slice, row, k, result->scratch[row], grad[k], key_sum[k], result);
}

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
  if (result->near_tie.size() < kMaxSliceRows) result->near_tie.resize(kMaxSliceRows);
  if (!slice.backward()) return;
  for (auto* values : {&result->delta, &result->share, &result->given_delta})
    resize_up(values, kMaxSliceRows);
  if (result->partial.size() < kMaxSliceRows) result->partial.resize(kMaxSliceRows);
  resize_up(&result->grad_query, rows * slice.head_dim);
  resize_up(&result->given_grad_query, rows * slice.head_dim);
  resize_up(&result->key_mean, rows * slice.head_dim);
}

void finish_row(const RowSums& sums, int row, Reference* result) {
  const double log_sum = log_nonnegative(sums.sum);
  result->logit_max[row] = sums.max;
  result->log_sum_exp[row] = shift_of(sums.max) + log_sum;
  result->logit_abs_max[row] = sums.min == kInfinity ? 0 : std::max(std::fabs(sums.max), std::fabs(sums.min));
  result->entropy_nats[row] = sums.sum == 0 ? 0 : log_sum - sums.weighted / sums.sum;
  result->near_tie[row] = sums.max - sums.second <= kNearTie;
}

bool is_above(double given, double log_sum_exp, double logit_abs_max) {
  constexpr double kSummedInFp32 = 0x1p-15;  // error of sums of thousands of terms
  return given - log_sum_exp > kSummedInFp32 * std::max(1.0, logit_abs_max) && given < kInfinity;
}

void prepare_backward(const AttentionSlice& slice, int row, Reference* result) {
  result->delta[row] = delta_of(slice, row, result->out.data());
  result->given_delta[row] = delta_of(slice, row, nullptr);
  result->share[row] = 1;
  result->partial[row] = 0;
  if (slice.log_sum_exp == nullptr) return;
  const double given = load_as_double(slice.log_sum_exp, slice.log_sum_exp_dtype, row);
  // If log_sum_exp is far above the given one, share overflows to Inf; the row is then not compared to fused.
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

void reference_scalar(const AttentionSlice& slice, Reference* result) {
  resize_reference(slice, result);
  resize_up(&result->scratch, kMaxSliceRows + kReferenceTile + 2 * slice.head_dim);
  double* scores = result->scratch.data() + kMaxSliceRows;
  for (int row = 0; row < slice.rows; ++row) {
    forward_row(slice, row, scores, result);
    if (slice.backward()) backward_row(slice, row, scores + kReferenceTile, result);
  }
}

}  // namespace foreshock
