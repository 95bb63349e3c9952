// Checks two identities that the gradients of every correct backward kernel fulfil. The sums over j are over
// all keys of one kv-head. The identities hold because each row of the attention weights P sums to 1:
//
//   sum_j dV_j = sum_i dO_i,   sum_j dK_j = 0
//
// dO, dK and dV are the gradients of out, keys and values. The check covers all keys of a call, also those
// that no slice (the copied part of a call) has. It is not valid if log_sum_exp covers more keys than the
// call saw (context parallelism, attention sinks), since the weights of the call's keys then sum to less than
// 1. The caller must discard the result of such a call.
//
// Dropout multiplies the weights by D, whose rows do not have the mean 1 in every call: the first identity
// then does not hold and is not checked. The second holds, since the sum over j of P_ij (D_ij dO_i . v_j -
// delta_i) is 0 for each row. A soft cap multiplies each term of dK_j by its slope: the second is then not
// checked.
//
// A mask or a bias that is added to the scores changes neither identity: hidden keys have the weight 0. But a
// row that sees no key has no weights, so its dO_i is in no dV_j. Such a row has an infinite log_sum_exp in
// some kernels and is left out of the sums. In others (PyTorch's CPU kernel) log_sum_exp and out are 0, as in
// a row whose visible values are all 0. If dO_i is not 0 there, the identities are not checked.
//
// Symbols, for query row i, key j and column c (one component of a key or value):
//   u      half an ulp at 1 in the storage format (the relative variance of one rounding is at most u^2/3)
//   e      precision of the arithmetic: 2^-23, for fp64 2^-52
//   v, k   twice the largest |v_j| and twice the largest |k_j| of the sampled keys, as a bound for all keys
//   ulp    unit in the last place of a number in the storage format
//   eta_i  relative error of the weights of row i, from the errors of scores and log_sum_exp (lse_i):
//          e' |lse_i| + e scale |q_i| k, e' being e, or the precision of log_sum_exp if that is coarser
//   eta    the largest eta_i of the rows with dO_i != 0. Above 1/8 the weights are unknown, e.g. in a row all
//   of
//          whose keys are hidden by the most negative number of a format, and the identities are not checked
//   delta_i = dO_i . out_i,   dS the gradients of the scores, which are scale q_i . k_j
//   R      how often a sum over the rows is rounded to the storage format, each time with variance ulp^2/12.
//          PyTorch's CPU kernel adds a block of queries at a time, so R is query heads times blocks. In fp32
//          and fp64, each row is rounded when it is added, so R is the number of rows
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
// over dS^2 and the rounding of dS add at most u^2 sum_j dK_jc^2, which is at most sum_j ulp(dK_jc)^2 if the
// terms of dK_jc do not cancel. (Under dropout P D and D dO_i . v_j
// take the places of P and dO_i . v_j in these sums, with the same bound.) The factor 1 + eta^2 3/u^2
// enlarges this for weights whose relative variance is u^2/3 + eta^2. The term with `keys` covers the
// arithmetic of dO_i . v_j; dropout multiplies it by the square of its factor.
#ifndef FORESHOCK_SHADOW_CONSERVATION_H_
#define FORESHOCK_SHADOW_CONSERVATION_H_

#include <optional>

#include "shadow/key_columns.h"

namespace foreshock {

// For each identity: root mean square, over the columns c, of the difference of its sides, divided by the
// root of the mean tolerance. Below 1 if only rounding causes the difference. Absent if the trainer sent no
// sums over the keys (KeyColumns::sums is null), if dropout or a soft cap breaks the identity, if a value of
// the identity is not finite, or if it is unknown whether the weights of each row sum to 1.
struct ConservationRatios {
  std::optional<double> grad_key, grad_value;
};
ConservationRatios conservation_of(const KeyColumns& columns);

double roundings_of_sum(const KeyColumns& columns);  // R of the formulas above

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_CONSERVATION_H_
