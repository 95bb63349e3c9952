// Judges what a backward call conserves over all keys of one kv-head. The rows of P sum to 1, hence
//
//   sum_j dV_j = sum_i dO_i,   sum_j dK_j = 0
//
// whatever the kernel. It finds errors at keys that no slice samples. Not valid where the call saw a part of
// the keys that its log_sum_exp covers (context parallelism, sinks): the caller must know.
//
// Tolerances are variances of roundings, of each column c, u being half an ulp at 1 in the storage format:
//
//   dV: sum_i dO_ic^2 (u^2/3 + eta_i^2) + R sum_j ulp(dV_jc)^2/12
//   dK: scale^2 sum_i q_ic^2 (u^2/3 (sum_c' dO_ic'^2 out_ic'^2 + 2 delta_i^2) + keys (e |dO_i| v)^2)
//       + (1 + eta^2 3/u^2) sum_j ulp(dK_jc)^2 + R sum_j ulp(dK_jc)^2/12
//
// u^2/3 is at least the variance of one rounding to the format. It stands for the roundings of P where it
// multiplies dO (sum_j P_ij^2 <= 1), and in dK for those of out, which delta holds: of out itself, and of P
// in it, which is sum_j P_ij^2 (dO_i.v_j)^2 <= 2 sum_j dS_ij^2 + 2 delta_i^2. The sum over dS^2 and the
// rounding of dS are at most u^2 sum_j dK_jc^2 <= sum_j ulp(dK_jc)^2 where the terms of dK do not cancel. e
// is the precision of the arithmetic (2^-23, of fp64 2^-52); v the largest |v_j| and k the largest |k_j| of
// the sampled keys, doubled; eta_i = e (|lse_i| + scale |q_i| k) the error of a row's weights that scores and
// log_sum_exp in this arithmetic leave. R is how often a sum is rounded to the format while terms are added:
// PyTorch's CPU kernel adds a block of queries at a time, and inside a block fp32 storage is at least as fine
// as the arithmetic.
#ifndef FORESHOCK_SHADOW_CONSERVATION_H_
#define FORESHOCK_SHADOW_CONSERVATION_H_

#include <optional>

#include "shadow/key_columns.h"

namespace foreshock {

// Root mean square over the columns of what is not conserved, over the tolerance: below 1 where roundings
// alone are to blame. Absent: not given, or some number is not finite.
struct ConservationRatios {
  std::optional<double> grad_key, grad_value;
};
ConservationRatios conservation_of(const KeyColumns& columns);

// How often a sum of dK or dV is rounded to the format (R above).
double roundings_of_sum(const KeyColumns& columns);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_CONSERVATION_H_
