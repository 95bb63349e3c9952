// The noise floors: what attention errs in the storage format when nothing is wrong. The same rows as a
// slice, recomputed by two sound algorithms in the same precision; the error of a kernel is set beside
// theirs.
//
// Plain: as a framework without a fused kernel. Scores, weights and results are rounded to the storage
// format. Fused: as FlashAttention and its relatives. Scores and sums stay in fp32; the weights are rounded
// where they multiply V, the gradients of the scores where they multiply K, and the results when they are
// stored. Both sum in fp32 (fp64 for fp64 storage). With large scores plain errs far more than any fused
// kernel does, since a score of 120 is rounded to 0.5 in bf16.
#ifndef FORESHOCK_SHADOW_NOISE_FLOOR_H_
#define FORESHOCK_SHADOW_NOISE_FLOOR_H_

#include <vector>

#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// Values of the storage format. Forward slices fill `out`; backward slices `grad_query`, and plain `out` too.
struct FloorRows {
  std::vector<double> out;         // [rows][value_dim]
  std::vector<double> grad_query;  // [rows][head_dim]
};

// Reused from slice to slice. Not shared between threads.
struct NoiseFloors {
  FloorRows plain, fused;
  std::vector<double> scratch;
};

// `reference` must be that of this slice, which must be valid (judgement.h). Fused takes the given
// log_sum_exp and out of a backward slice, as a kernel does: beside Reference::given_grad_query. Plain takes
// its own rounded out and weights: beside Reference::grad_query. In partial rows that would mean nothing, so
// there plain multiplies its weights by Reference::share and takes the given out. A row that sees no key has
// out 0 and grad_query 0.
void compute_noise_floors(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_NOISE_FLOOR_H_
