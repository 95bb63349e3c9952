// The definition of the reference, and its slow form.
#ifndef FORESHOCK_SHADOW_REFERENCE_SCALAR_H_
#define FORESHOCK_SHADOW_REFERENCE_SCALAR_H_

#include <limits>

#include "shadow/reference.h"

namespace foreshock {

// As reference(), row by row with std::fma.
void reference_scalar(const AttentionSlice& slice, Reference* result);

// What one pass over the keys leaves of one row.
struct RowSums {
  double max;       // of the scores; -Inf: none seen
  double second;    // the second largest, ties counted
  double min;       // of the scores above -Inf; +Inf: none
  double sum;       // of exp(score - max)
  double weighted;  // of exp(score - max) * (score - max), <= 0
};

// Shared by both forms. Sizes the vectors; fills the scalars of a row; fills delta, given_delta, share and
// partial of a backward row.
void resize_reference(const AttentionSlice& slice, Reference* result);
void finish_row(const RowSums& sums, int row, Reference* result);
void prepare_backward(const AttentionSlice& slice, int row, Reference* result);

// What the sums over the keys leave of a backward row: of grad_scores * key, and of weight * key, with
// weights exp(score - max). Element `k` of both gradients.
void finish_gradient(const AttentionSlice& slice, int row, int k, double sum, double grad, double key_sum,
                     Reference* result);

// What is subtracted from the scores: the maximum, or 0 for a row without a key, whose weights are then
// exp(-Inf).
inline double shift_of(double max) { return max == -std::numeric_limits<double>::infinity() ? 0.0 : max; }

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_REFERENCE_SCALAR_H_
