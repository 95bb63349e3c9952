// Checks two sums over all keys of one kv-head, which every correct backward kernel must fulfil. The rows of
// P sum to 1, hence
//
//   sum_j dV_j = sum_i dO_i,   sum_j dK_j = 0
//
// P are the attention weights, dO, dK and dV the gradients of out, keys and values. The check finds errors at
// keys that no slice samples. It is not valid if the call saw only a part of the keys that its log_sum_exp
// covers (context parallelism, sinks). The caller must discard the result of such a call.
//
// Symbols, for query row i, key j and column c:
//   u      half an ulp at 1 in the storage format (the relative variance of one rounding is at most u^2/3)
//   e      precision of the arithmetic: 2^-23, for fp64 2^-52
//   v, k   twice the largest |v_j| and twice the largest |k_j| of the sampled keys
//   ulp    unit in the last place of a number in the storage format
//   eta_i  relative error of the weights of row i, from the errors of scores and log_sum_exp (lse_i):
//          e' |lse_i| + e scale |q_i| k, e' being e, or the precision of log_sum_exp if that is coarser
//   eta    the largest eta_i of the rows with dO_i != 0
//   delta_i = dO_i . out_i,   dS the gradients of the scores
//   R      how often a sum over the rows is rounded to the storage format while terms are added.
//          PyTorch's CPU kernel adds a block of queries at a time, so R is heads times blocks. For fp32 and
//          fp64 storage R is the number of rows, since the storage is at least as fine as the arithmetic
//
// The tolerances are variances of the two sums, per column c; `keys` is the number of keys:
//
//   dV: sum_i dO_ic^2 (u^2/3 + eta_i^2) + R sum_j ulp(dV_jc)^2/12
//   dK: scale^2 sum_i q_ic^2 (u^2/3 (sum_c' dO_ic'^2 out_ic'^2 + 2 delta_i^2) + keys (e |dO_i| v)^2)
//       + (1 + eta^2 3/u^2) sum_j ulp(dK_jc)^2 + R sum_j ulp(dK_jc)^2/12
//
// In dV, u^2/3 covers the rounding of P before it multiplies dO (sum_j P_ij^2 <= 1). In dK, u^2/3 covers the
// error of delta_i, which has two sources. The first is the rounding of out: sum_c' dO_ic'^2 out_ic'^2. The
// second is the rounding of P inside out: sum_j P_ij^2 (dO_i.v_j)^2 <= 2 sum_j dS_ij^2 + 2 delta_i^2. The sum
// over dS^2 and the rounding of dS add at most u^2 sum_j dK_jc^2 <= sum_j ulp(dK_jc)^2, unless terms cancel.
#ifndef FORESHOCK_SHADOW_CONSERVATION_H_
#define FORESHOCK_SHADOW_CONSERVATION_H_

#include <optional>

#include "shadow/key_columns.h"

namespace foreshock {

// Root mean square of the violation of a sum over the columns, divided by the root mean square tolerance.
// Below 1 if only rounding violates the sum. Absent if the call has no key sums or some value is not finite.
struct ConservationRatios {
  std::optional<double> grad_key, grad_value;
};
ConservationRatios conservation_of(const KeyColumns& columns);

// R of the formulas above: how often a sum of dK or dV is rounded to the storage format.
double roundings_of_sum(const KeyColumns& columns);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_CONSERVATION_H_
