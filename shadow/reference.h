// The reference: attention of one slice recomputed in fp64 from the stored inputs. One online pass over tiles
// of 48 keys, every sum a chain of fused multiply-adds in the order of the keys (or of the head dimension),
// division by the sum at the end. The result is defined to the bit (NaN counting as one value), whatever the
// instruction set: reference_scalar.cpp is the definition, reference.cpp the fast form of it.
//
// Against exact arithmetic: relative error of a row of out and of log_sum_exp below 1e-13 (tests/shadow).
#ifndef FORESHOCK_SHADOW_REFERENCE_H_
#define FORESHOCK_SHADOW_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "shadow/slice.h"

namespace foreshock {

// Goes up whenever a bit of any result may change.
inline constexpr int kReferenceVersion = 2;
inline constexpr int kReferenceTile = 48;
// A second score this close to the maximum (natural logarithm units) makes a near tie: bf16 casts both
// weights to one.
inline constexpr double kNearTie = 0x1p-9;

// Reused from slice to slice: vectors only grow. Not shared between threads.
struct Reference {
  std::vector<double> out;            // [rows][value_dim]
  std::vector<double> log_sum_exp;    // [rows], of the scaled, masked scores
  std::vector<double> logit_max;      // [rows], of the scores the row sees; -Inf: it sees none
  std::vector<double> logit_abs_max;  // [rows]; 0: it sees none
  std::vector<double> entropy_nats;   // [rows], of the attention weights; 0 when the row sees no key
  std::vector<uint8_t> near_tie;      // [rows]
  // Backward slices only. grad_query is the gradient of attention over the keys of the slice.
  std::vector<double> delta;       // [rows], sum of grad_out * out
  std::vector<double> grad_query;  // [rows][head_dim]
  // The gradient that the given out and log_sum_exp define, with weights exp(score - log_sum_exp): what a
  // backward kernel is asked for. With context parallelism they cover more keys than those of the slice, and
  // only this gradient is meant.
  std::vector<double> given_grad_query;  // [rows][head_dim]
  std::vector<double> share;             // [rows], sum of the weights of this slice's keys: 1 if they are all
  std::vector<double> given_delta;       // [rows], sum of grad_out * given out
  std::vector<double> key_mean;          // [rows][head_dim], of the keys by their weights
  std::vector<uint8_t> partial;          // [rows], the given log_sum_exp is above log_sum_exp: see is_above()

  std::vector<double> scratch;
};

// Whether `given` is above the log-sum-exp of a row by more than sums in fp32 err: it then covers more keys.
bool is_above(double given, double log_sum_exp, double logit_abs_max);

// A row that sees no key has out 0, log_sum_exp -Inf, grad_query 0. Infinities and NaN of the inputs
// propagate. Without a given log_sum_exp, that of the slice is the given one. The
// slice must be valid (judgement.h).
void reference(const AttentionSlice& slice, Reference* result);

// The instruction sets compiled in that this machine has, as bits of hwy/detect_targets.h, and the name of
// the one in use ("scalar" where there is none with fused multiply-add).
int64_t reference_targets_here();
int64_t reference_targets_compiled();
const char* reference_target_name();

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_REFERENCE_H_
