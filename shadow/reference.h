// Recomputes a slice of an attention call: in fp64 (the reference), and with two correct algorithms in the
// trainer's storage format, whose errors (the noise floors) a kernel's error is compared with.
#ifndef FORESHOCK_SHADOW_REFERENCE_H_
#define FORESHOCK_SHADOW_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "shadow/slice.h"

namespace foreshock {

// -- the reference --

// The reference is computed from the stored inputs by tiles of 48 keys (online softmax). A backward slice
// takes a second pass. Every sum is a chain of fused multiply-adds in the order of the keys (or of the
// elements of a head), except the sum of the weights, which has plain additions. At the end, sums over the
// keys are divided by the sum of the weights. Gradients are then multiplied by the scale, and
// given_grad_query by `share` (below) too.
//
// All instruction sets give the same bits (all NaN count as one value): reference_scalar.cpp defines them,
// reference.cpp is fast. The relative error of a row of out and of log_sum_exp is below 1e-13 (tests/shadow).

// Must be raised whenever a bit of any result may change.
inline constexpr int kReferenceVersion = 2;
inline constexpr int kReferenceTile = 48;  // keys
// A second largest score this close to the largest (in nats) is a near tie: bf16 rounds both weights to 1.
inline constexpr double kNearTie = 0x1p-9;

// An object is reused for many slices; its vectors only grow. Use one per thread.
struct Reference {
  std::vector<double> out;            // [rows][value_dim]
  std::vector<double> log_sum_exp;    // [rows], of the scaled, capped, masked scores
  std::vector<double> logit_max;      // [rows], of the scores the row sees; -Inf: the row sees no key
  std::vector<double> logit_abs_max;  // [rows], largest |score| that the row sees; 0: the row sees no key
  // [rows], the same without the values of the mask, which may be the lowest number of a format; only of
  // slices with a mask
  std::vector<double> product_abs_max;
  std::vector<double> entropy_nats;  // [rows], of the attention weights; 0: the row sees no key
  std::vector<uint8_t> near_tie;     // [rows], 1: the second largest score is within kNearTie of the largest
  // Backward slices only. grad_query is the gradient of attention over the keys of the slice.
  std::vector<double> delta;       // [rows], sum of grad_out * out
  std::vector<double> grad_query;  // [rows][head_dim]
  // The gradient that the given out and log_sum_exp (the trainer's) define, with weights exp(score - given
  // log_sum_exp). A backward kernel must compute this gradient. With context parallelism it differs from
  // grad_query, since the given values then also cover keys that the slice lacks (other ranks have them).
  std::vector<double> given_grad_query;  // [rows][head_dim]
  // [rows], sum of exp(score - given log_sum_exp) over the slice's keys: about 1 if the given log_sum_exp
  // covers no other keys, exactly 1 without a given log_sum_exp.
  std::vector<double> share;
  std::vector<double> given_delta;  // [rows], sum of grad_out * given out
  // [rows][head_dim], mean of the keys, weighted by the attention weights times the slopes of the soft cap
  std::vector<double> key_mean;
  std::vector<uint8_t> partial;  // [rows], 1: the given log_sum_exp covers other keys too (is_above())

  std::vector<double> scratch;
};

// Whether `given`, a row's log-sum-exp from the trainer, exceeds the computed `log_sum_exp` by more than the
// error of sums in fp32. If so, `given` covers more keys than the slice has.
bool is_above(double given, double log_sum_exp, double logit_abs_max);

// Computes the reference of a slice, which must be valid (judgement.h). A row that sees no key has out 0,
// log_sum_exp -Inf and grad_query 0. Infinities and NaN of the inputs propagate. Without a given log_sum_exp,
// the computed one is used.
void reference(const AttentionSlice& slice, Reference* result);

// Defines the result of reference(), one element at a time with std::fma.
void reference_scalar(const AttentionSlice& slice, Reference* result);

// The first two return instruction sets, as bits of hwy/detect_targets.h: the compiled ones that this machine
// supports, and all compiled ones. The third names the one in use; "scalar": reference_scalar(), on machines
// without FMA instructions.
int64_t reference_targets_here();
int64_t reference_targets_compiled();
const char* reference_target_name();

// The following is shared by both implementations. RowSums: reductions of one row's scores over the keys.
struct RowSums {
  double max;       // largest score; -Inf: the row sees no key
  double second;    // second largest score; equals max if two keys tie
  double min;       // smallest score above -Inf; +Inf: no score is above -Inf
  double sum;       // sum of exp(score - max)
  double weighted;  // sum of exp(score - max) * (score - max), <= 0
};

// Sizes the vectors of `result` for the slice.
void resize_reference(const AttentionSlice& slice, Reference* result);
// Raises product_abs_max to the scores of keys [first, first + count) to which the mask is not yet added,
// stored as scores[key - first][row] with `stride` elements from one key to the next. Rows skip keys that
// they do not see.
void observe_products(const AttentionSlice& slice, int first, int count, size_t stride, const double* scores,
                      Reference* result);
// Fills log_sum_exp, logit_max, logit_abs_max, entropy_nats and near_tie of a row.
void finish_row(const RowSums& sums, int row, Reference* result);
// Fills delta, given_delta, share and partial of a row, whose out and log_sum_exp must have been computed.
void prepare_backward(const AttentionSlice& slice, int row, Reference* result);

// Fills element `k` of grad_query, given_grad_query and key_mean of a row from its sums over the keys, with
// weights exp(score - max). `sum` sums the weights, `grad` grad_score * key, `key_sum` weight * key.
// For given_grad_query, key_sum * (delta - given_delta) is added to `grad`, so that given_delta replaces
// delta.
void finish_gradient(const AttentionSlice& slice, int row, int k, double sum, double grad, double key_sum,
                     Reference* result);

// -- the noise floors --

// Computes the noise floors: the errors of correct attention in the trainer's storage format. Two correct
// algorithms, plain and fused, recompute the rows of a slice. A kernel's error is compared with their errors.
//
// Plain computes like a framework without a fused kernel: scores, weights and results are rounded to the
// storage format. Fused computes like FlashAttention: scores and sums stay in fp32. It rounds the weights
// before they multiply V, the gradients of the scores before they multiply K, and the results when they are
// stored. Both sum in fp32 (fp64 for fp64 storage). With large scores plain has a far larger error than any
// fused kernel, since bf16 rounds a score of 120 to a multiple of 0.5.
//
// A soft cap is three operations to plain (division, tanh, multiplication), each rounded, and so are their
// gradients. Under dropout, plain multiplies the rounded weights and their gradients by 1 / (1 - dropout),
// itself rounded as PyTorch's CPU code does, and rounds the products. Fused multiplies sums in fp32. In
// 16-bit formats it rounds the tanh of a soft cap to 11 bits (fused_tanh_lanes()).

// Results, rounded to the storage format. Forward: only `out`. Backward: `out` and `grad_query`.
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
// like a kernel, so the error of its grad_query is taken against Reference::given_grad_query. Plain uses its
// own rounded out and weights, so the error of plain is taken against Reference::grad_query. In a partial row
// the given log_sum_exp covers keys outside of the slice. Plain then multiplies its weights by
// Reference::share, uses the given out, and is compared with given_grad_query. In a row that sees no key, all
// results are 0.
void compute_noise_floors(const AttentionSlice& slice, const Reference& reference, NoiseFloors* floors);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_REFERENCE_H_
