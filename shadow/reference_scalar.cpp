#include "shadow/reference_scalar.h"

#include <algorithm>
#include <cmath>

#include "shadow/elementary.h"
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

// Comparisons are written so that a NaN score changes nothing here; it reaches the sums through the weight.
void observe(double score, RowSums* sums) {
  const double lower = score > sums->max ? sums->max : score;
  sums->second = lower > sums->second ? lower : sums->second;
  sums->max = score > sums->max ? score : sums->max;
  const double visible = score == -kInfinity ? kInfinity : score;
  sums->min = visible < sums->min ? visible : sums->min;
}

double clamped(double x) { return x < kExpArgumentMin ? kExpArgumentMin : x; }

void rescale(double old_max, RowSums* sums, double* out, int value_dim) {
  const double change = clamped(old_max - shift_of(sums->max));
  const double factor = exp_nonpositive(change);
  sums->weighted = factor * std::fma(change, sums->sum, sums->weighted);
  sums->sum *= factor;
  for (int c = 0; c < value_dim; ++c) out[c] *= factor;
}

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
  result->scratch[row] = sums.sum;
}

void backward_row(const AttentionSlice& slice, int row, Reference* result) {
  double* grad = &result->grad_query[static_cast<size_t>(row) * slice.head_dim];
  std::fill_n(grad, slice.head_dim, 0.0);
  finish_delta(slice, row, result);
  for (int key = 0; key < slice.keys; ++key) {
    double grad_weight = 0;
    for (int c = 0; c < slice.value_dim; ++c) {
      grad_weight = std::fma(element(slice, slice.grad_out, row, slice.value_dim, c),
                             element(slice, slice.value, key, slice.value_dim, c), grad_weight);
    }
    const double weight = exp_nonpositive(score_of(slice, row, key) - shift_of(result->logit_max[row]));
    const double grad_score = weight * (grad_weight - result->delta[row]);
    for (int k = 0; k < slice.head_dim; ++k) {
      grad[k] = std::fma(grad_score, element(slice, slice.key, key, slice.head_dim, k), grad[k]);
    }
  }
  const double sum = result->scratch[row];
  for (int k = 0; k < slice.head_dim; ++k) grad[k] = sum == 0 ? 0 : grad[k] / sum * slice.scale;
}

void resize_up(std::vector<double>* values, size_t size) {
  if (values->size() < size) values->resize(size);
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
  resize_up(&result->delta, kMaxSliceRows);
  resize_up(&result->grad_query, rows * slice.head_dim);
}

void finish_row(const RowSums& sums, int row, Reference* result) {
  const double log_sum = log_nonnegative(sums.sum);
  result->logit_max[row] = sums.max;
  result->log_sum_exp[row] = shift_of(sums.max) + log_sum;
  result->logit_abs_max[row] = sums.min == kInfinity ? 0 : std::max(std::fabs(sums.max), std::fabs(sums.min));
  result->entropy_nats[row] = sums.sum == 0 ? 0 : log_sum - sums.weighted / sums.sum;
  result->near_tie[row] = sums.max - sums.second <= kNearTie;
}

void finish_delta(const AttentionSlice& slice, int row, Reference* result) {
  double sum = 0;
  for (int c = 0; c < slice.value_dim; ++c) {
    const size_t index = static_cast<size_t>(row) * slice.value_dim + c;
    sum = std::fma(load_as_double(slice.grad_out, slice.dtype, index), result->out[index], sum);
  }
  result->delta[row] = sum;
}

void reference_scalar(const AttentionSlice& slice, Reference* result) {
  resize_reference(slice, result);
  resize_up(&result->scratch, kMaxSliceRows + kReferenceTile);
  double* scores = result->scratch.data() + kMaxSliceRows;
  for (int row = 0; row < slice.rows; ++row) {
    forward_row(slice, row, scores, result);
    if (slice.backward()) backward_row(slice, row, result);
  }
}

}  // namespace foreshock
