// Computes the noise floors: the errors of correct attention in the trainer's storage format. Two correct
// algorithms, plain and fused, recompute the rows of a slice. A kernel's error is compared with their errors.
//
// Plain computes like a framework without a fused kernel: scores, weights and results are rounded to the
// storage format. Fused computes like FlashAttention: scores and sums stay in fp32. It rounds the weights
// before they multiply V, the gradients of the scores before they multiply K, and the results when they are
// stored. Both sum in fp32 (fp64 for fp64 storage). With large scores plain has a far larger error than any
// fused kernel, since bf16 rounds a score of 120 to a multiple of 0.5.
#ifndef FORESHOCK_SHADOW_NOISE_FLOOR_H_
#define FORESHOCK_SHADOW_NOISE_FLOOR_H_

#include <vector>

#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// Results, rounded to the storage format. Forward: only `out`. Backward: `grad_query`; plain also has `out`.
struct FloorRows {
  std::vector<double> out;         // [rows][value_dim]
  std::vector<double> grad_query;  // [rows][head_dim]
};

// An object is reused for many slices. Use one per thread.
struct NoiseFloors {
  FloorRows plain, fused;
  std::vector<double> scratch;
};

// Computes both floors of a slice. The slice must be valid (judgement.h), and `reference` must be the
// reference of this slice. In a backward slice, fused uses the given log_sum_exp and out (the trainer's),
// like a kernel, so the error of fused is taken against Reference::given_grad_query. Plain uses its own
// rounded out and weights, so the error of plain is taken against Reference::grad_query. In a partial row the
// given log_sum_exp covers keys outside of the slice. Plain then multiplies its weights by Reference::share,
// uses the given out, and is compared with given_grad_query. In a row that sees no key, all results are 0.
void compute_noise_floors(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_NOISE_FLOOR_H_
