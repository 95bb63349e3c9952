// Sums the gradients dK and dV of a sampled backward call over all keys of one kv-head. In a correct kernel
// the sum of dV equals that of the output's gradient, and the sum of dK is 0; the agent checks both
// (shadow/conservation.h). Runs inside the trainer, so without heap and static variables.
#ifndef FORESHOCK_KERNELS_KEY_SUMS_H_
#define FORESHOCK_KERNELS_KEY_SUMS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// The sum of one column of dK or dV. The bits of the result depend on the order of the rows.
struct ColumnSum {
  double sum = 0;          // sum of the finite elements x
  double ulp_squares = 0;  // sum of ulp(x)^2 in the format of the elements
  uint64_t nonfinite = 0;  // number of NaN and Inf

  constexpr void add(double x, const Format& format) {
    if (x * 0 != 0) {  // NaN or Inf
      ++nonfinite;
      return;
    }
    sum += x;
    ulp_squares += squared_ulp(x, format);
  }
  constexpr void add(const ColumnSum& other) {
    sum += other.sum;
    ulp_squares += other.ulp_squares;
    nonfinite += other.nonfinite;
  }

  // key_sums.cpp sums squares of 2^exponent in fp32, where squares of smaller powers would underflow.
  static constexpr int kLeastExponent = -62;

  // ulp(x)^2 for a finite x. The exponent of x counts as at least min_exponent and kLeastExponent.
  static constexpr double squared_ulp(double x, const Format& format) {
    const int biased = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);  // exponent + 1023
    const int least = format.min_exponent > kLeastExponent ? format.min_exponent : kLeastExponent;
    const int exponent = biased - 1023 > least ? biased - 1023 : least;
    const int squared = 2 * (exponent - (format.precision - 1)) + 1023;  // biased exponent of ulp^2
    return std::bit_cast<double>(static_cast<uint64_t>(squared) << 52);
  }
};

// Number of sums of a backward call: one for each column of dK and then of dV, over all keys of one batch
// element and kv-head. The last one is for dQ of the kv-head's query heads and has only `nonfinite`.
constexpr size_t key_sum_count(size_t head_dim, size_t value_dim) { return head_dim + value_dim + 1; }

// Writes key_sum_count() sums to `sums`. The tensors must have the same floating format; grad_query is
// [batch, heads, queries, dim], the others are [batch, kv_heads, keys, dim]. Adds rows in order. The device's
// kernel may round differently: each of its threads adds every 16th row, and then their sums are added.
void sum_over_keys(const TensorView& grad_query, const TensorView& grad_key, const TensorView& grad_value,
                   int64_t batch, int64_t kv_head, ColumnSum* sums);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_KEY_SUMS_H_
