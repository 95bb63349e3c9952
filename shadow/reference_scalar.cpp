// Defines the reference (attention in fp64) to the bit, one element at a time; reference.cpp must give the
// same bits, and converts the sums of a row to results for both files.
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

double product_of(const AttentionSlice& slice, int row, int key) {
  double sum = 0;
  for (int k = 0; k < slice.head_dim; ++k) {
    const double scaled = element(slice, slice.query, row, slice.head_dim, k) * slice.scale;
    sum = std::fma(scaled, element(slice, slice.key, key, slice.head_dim, k), sum);
  }
  return sum;
}

// The score without the mask.
CappedScore capped_of(const AttentionSlice& slice, int row, int key) {
  const double product = product_of(slice, row, key);
  return slice.soft_cap == 0 ? CappedScore{product, 1} : soft_capped(product, slice.soft_cap);
}

double score_of(const AttentionSlice& slice, int row, int key) {
  return masked_score(slice, row, key, capped_of(slice, row, key).score);
}

double keep_of(const AttentionSlice& slice, int row, int key) {
  return is_kept(slice, static_cast<size_t>(row) * slice.keys + key) ? 1 : 0;
}

// Raises the largest score without the mask, in size, of the keys that the row sees.
void observe_product(const AttentionSlice& slice, int row, int key, double* most) {
  if (score_of(slice, row, key) == -kInfinity) return;
  const double size = std::fabs(capped_of(slice, row, key).score);
  if (size > *most) *most = size;
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
  RowSums sums = {-kInfinity, -kInfinity, kInfinity, 0, 0};  // max, second, min, sum, weighted
  for (int first = 0; first < slice.keys; first += kReferenceTile) {
    const int count = std::min(kReferenceTile, slice.keys - first);
    const double old_max = sums.max;
    for (int t = 0; t < count; ++t) {
      scores[t] = score_of(slice, row, first + t);
      observe(scores[t], &sums);
      if (slice.mask != nullptr) observe_product(slice, row, first + t, &result->product_abs_max[row]);
    }
    if (sums.max > old_max) rescale(old_max, &sums, out, slice.value_dim);
    for (int t = 0; t < count; ++t) {
      const double shifted = clamped(scores[t] - shift_of(sums.max));
      const double weight = exp_nonpositive(shifted);
      sums.sum += weight;
      sums.weighted = std::fma(weight, shifted, sums.weighted);
      const double kept = weight * keep_of(slice, row, first + t);
      for (int c = 0; c < slice.value_dim; ++c) {
        out[c] = std::fma(kept, element(slice, slice.value, first + t, slice.value_dim, c), out[c]);
      }
    }
  }
  const double factor = keep_factor(slice);
  for (int c = 0; c < slice.value_dim; ++c) out[c] = sums.sum == 0 ? 0 : out[c] / sums.sum * factor;
  finish_row(sums, row, result);
  result->scratch[row] = sums.sum;  // for backward_row()
}

// Computes the gradient of the row's query: the sum over the keys of weight * (grad_weight - delta) * slope *
// key, with the dot products grad_weight = grad_out . value (times the dropout's factor) and delta = grad_out
// . out; slope is that of the soft cap. From key_sum, the sum of weight * slope * key, finish_gradient()
// computes the gradient for the trainer's delta too.
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
    grad_weight = grad_weight * keep_factor(slice) * keep_of(slice, row, key);
    const double slope = capped_of(slice, row, key).slope;
    const double weight = exp_nonpositive(score_of(slice, row, key) - shift_of(result->logit_max[row]));
    const double grad_score = weight * (grad_weight - result->delta[row]) * slope;
    for (int k = 0; k < slice.head_dim; ++k) {
      const double key_k = element(slice, slice.key, key, slice.head_dim, k);
      grad[k] = std::fma(grad_score, key_k, grad[k]);
      key_sum[k] = std::fma(weight * slope, key_k, key_sum[k]);
    }
  }
  for (int k = 0; k < slice.head_dim; ++k)
    finish_gradient(slice, row, k, result->scratch[row], grad[k], key_sum[k], result);
}

}  // namespace

void reference_scalar(const AttentionSlice& slice, Reference* result) {
  resize_reference(slice, result);
  // scratch has the sum of the weights of each row, the scores of a tile, and backward_row()'s two sums.
  resize_up(&result->scratch, kMaxSliceRows + kReferenceTile + 2 * slice.head_dim);
  double* scores = result->scratch.data() + kMaxSliceRows;
  for (int row = 0; row < slice.rows; ++row) {
    forward_row(slice, row, scores, result);
    if (slice.backward()) backward_row(slice, row, scores + kReferenceTile, result);
  }
}

}  // namespace foreshock
