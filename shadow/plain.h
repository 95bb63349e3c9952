// Plain attention: the same rows as a framework without a fused kernel computes them in the same precision.
// Scores, weights and output are rounded to the storage format, sums are fp32 (fp64 for fp64 storage). Its
// error is the noise floor that the error of a kernel is set beside.
#ifndef FORESHOCK_SHADOW_PLAIN_H_
#define FORESHOCK_SHADOW_PLAIN_H_

#include <vector>

#include "shadow/slice.h"

namespace foreshock {

// Reused from slice to slice. Not shared between threads.
struct PlainWorkspace {
  std::vector<double> out;         // [rows][value_dim], values of the storage format
  std::vector<double> grad_query;  // [rows][head_dim], likewise; backward slices only
  std::vector<double> scratch;
};

// Forward, and for a backward slice dQ with delta taken from the rounded output, and dP and dS rounded too.
// A row that sees no key has out 0 and grad_query 0. The slice must be valid (judgement.h).
void plain(const AttentionSlice& slice, PlainWorkspace* workspace);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_PLAIN_H_
