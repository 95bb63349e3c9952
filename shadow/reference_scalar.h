// Defines the reference computation one element at a time; reference() must agree with it to the bit.
#ifndef FORESHOCK_SHADOW_REFERENCE_SCALAR_H_
#define FORESHOCK_SHADOW_REFERENCE_SCALAR_H_

#include <limits>

#include "shadow/reference.h"

namespace foreshock {

// Computes the same as reference(), one row at a time with std::fma.
void reference_scalar(const AttentionSlice& slice, Reference* result);

// Reductions of one row's scores over the keys.
struct RowSums {
  double max;       // largest score; -Inf: the row sees no key
  double second;    // second largest score; equals max if two keys tie
  double min;       // smallest score above -Inf; +Inf: none
  double sum;       // sum of exp(score - max)
  double weighted;  // sum of exp(score - max) * (score - max), <= 0
};

// The functions below are shared by the scalar and the vectorized form.

// Sizes the vectors of `result` for the slice.
void resize_reference(const AttentionSlice& slice, Reference* result);
// Fills log_sum_exp, logit_max, logit_abs_max, entropy_nats and near_tie of a row.
void finish_row(const RowSums& sums, int row, Reference* result);
// Fills delta, given_delta, share and partial of a row. Needs its out and log_sum_exp.
void prepare_backward(const AttentionSlice& slice, int row, Reference* result);

// Fills element `k` of grad_query, given_grad_query and key_mean of a row from its sums over the keys, with
// weights exp(score - max). `sum` sums the weights, `grad` sums grad_score * key, `key_sum` sums weight *
// key.
void finish_gradient(const AttentionSlice& slice, int row, int k, double sum, double grad, double key_sum,
                     Reference* result);

// Returns the number to subtract from the scores before exp: the maximum, or 0 for a row without keys, so
// that its weights are exp(-Inf) = 0 and not NaN.
inline double shift_of(double max) { return max == -std::numeric_limits<double>::infinity() ? 0.0 : max; }

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_REFERENCE_SCALAR_H_
