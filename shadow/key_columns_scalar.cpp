#include <algorithm>
#include <cmath>

#include "shadow/elementary.h"
#include "shadow/key_columns.h"

namespace foreshock {
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

double score_of(const KeyColumns& c, size_t row, int column) {
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
  if (c.columns < 1 || c.columns > kMaxSliceRows || c.heads < 1 || c.queries < 1) return false;
  if (c.head_dim < 1 || c.value_dim < 1 || c.first_query == nullptr) return false;
  for (const void* array :
       {c.query, c.out, c.grad_out, c.log_sum_exp, c.key, c.value, c.grad_key, c.grad_value})
    if (array == nullptr) return false;
  return true;
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
      if (row % c.queries >= c.first_query[column]) {
        // Rounding can lift a score above the log-sum-exp.
        weight = exp_of_any_sign(score_of(c, row, column) -
                                 load_as_double(c.log_sum_exp, c.log_sum_exp_dtype, row));
        grad_score = weight * (grad_weight_of(c, row, column) - delta_of(c, row));
      }
      for (int n = 0; n < c.value_dim; ++n)
        grad_value[n] = std::fma(weight, at(c, c.grad_out, row, c.value_dim, n), grad_value[n]);
      for (int n = 0; n < c.head_dim; ++n)
        grad_key[n] = std::fma(grad_score, at(c, c.query, row, c.head_dim, n), grad_key[n]);
    }
    for (int n = 0; n < c.head_dim; ++n) grad_key[n] *= c.scale;
  }
}

}  // namespace foreshock
