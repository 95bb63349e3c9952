// Sums the gradients dK and dV of a sampled backward call over all keys of one kv-head. The agent compares
// them with the values that a correct kernel conserves (shadow/conservation.h). No heap, no statics.
#ifndef FORESHOCK_KERNELS_KEY_SUMS_H_
#define FORESHOCK_KERNELS_KEY_SUMS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// The sum of one column. The bits of the result depend on the order of the rows.
struct ColumnSum {
  double sum = 0, ulp_squares = 0;  // of the finite elements x: sums of x, and of ulp(x)^2 in their format
  uint64_t nonfinite = 0;           // number of NaN and Inf

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

  // A smaller x counts as if it had this exponent. key_sums.cpp sums the squares of 2^exponent in fp32, where
  // a smaller square would underflow.
  static constexpr int kLeastExponent = -62;

  // ulp(x)^2 for a finite x.
  static constexpr double squared_ulp(double x, const Format& format) {
    const int biased = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
    const int least = format.min_exponent > kLeastExponent ? format.min_exponent : kLeastExponent;
    const int exponent = biased - 1023 > least ? biased - 1023 : least;
    const int squared = 2 * (exponent - (format.precision - 1)) + 1023;  // biased exponent of ulp^2
    return std::bit_cast<double>(static_cast<uint64_t>(squared) << 52);
  }
};

// Number of sums of a backward call: one for each column of dK and then of dV, over all keys of one batch
// element and kv-head, then one for dQ of the query heads that share the kv-head. The last has only
// `nonfinite`.
constexpr size_t key_sum_count(size_t head_dim, size_t value_dim) { return head_dim + value_dim + 1; }

// Number of NaN and Inf in one head. The format must be floating.
uint64_t count_nonfinite(const TensorView& view, int64_t batch, int64_t head);

// Writes key_sum_count() sums. The tensors are [batch, heads or kv_heads, queries or keys, dim] and must have
// the same floating format. The host adds rows in order. The device adds every 16th row in a thread and then
// the sums of the threads, so the results may differ in rounding.
void sum_over_keys(const TensorView& grad_query, const TensorView& grad_key, const TensorView& grad_value,
                   int64_t batch, int64_t kv_head, ColumnSum* to);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_KEY_SUMS_H_
