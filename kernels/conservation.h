// What every backward of attention conserves, whatever its kernel: over the keys of one batch and kv-head
// and, for the output, over the query heads that read them, sum dV = sum dO, because each row of P sums to 1,
// and sum dK = 0, because a shift of all keys shifts all scores. Not with dropout, sinks, or rows that see no
// key. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_CONSERVATION_H_
#define FORESHOCK_KERNELS_CONSERVATION_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// A column of rows that are added in order.
struct ColumnSum {
  double sum = 0, ulp_squares = 0;
  uint64_t nonfinite = 0;

  constexpr void add(double x, const Format& format) {
    if (x * 0 != 0) {
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

  // Of a finite x; 0 where it is below the range of fp64.
  static constexpr double squared_ulp(double x, const Format& format) {
    const int biased = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
    const int exponent = biased - 1023 > format.min_exponent ? biased - 1023 : format.min_exponent;
    const int squared = 2 * (exponent - (format.precision - 1)) + 1023;  // biased exponent of ulp^2
    if (squared < 1) return 0;
    return std::bit_cast<double>(static_cast<uint64_t>(squared) << 52);
  }
};

// Squares of what is not conserved, over the columns, beside what rounding the gradients to their format
// alone would leave: a variance of ulp^2 / 12 of each element summed. sqrt(squares / noise) is about 1 where
// nothing else errs; what is usual for a kernel has to be learned (dK keeps the error of delta, which is
// computed from a rounded output).
struct Conservation {
  double value_squares = 0, value_noise = 0;
  double key_squares = 0, key_noise = 0;
  uint64_t nonfinite = 0;  // elements of the three, which count as 0

  constexpr void add_value(const ColumnSum& grad_out, const ColumnSum& grad_value) {
    const double excess = grad_value.sum - grad_out.sum;
    value_squares += excess * excess;
    value_noise += grad_value.ulp_squares / 12;
    nonfinite += grad_out.nonfinite + grad_value.nonfinite;
  }
  constexpr void add_key(const ColumnSum& grad_key) {
    key_squares += grad_key.sum * grad_key.sum;
    key_noise += grad_key.ulp_squares / 12;
    nonfinite += grad_key.nonfinite;
  }
  constexpr void add(const Conservation& other) {
    value_squares += other.value_squares;
    value_noise += other.value_noise;
    key_squares += other.key_squares;
    key_noise += other.key_noise;
    nonfinite += other.nonfinite;
  }
};

// Rows are added in order within chunks of so many; chunks in order. Of dO the rows of the first query head
// come first.
inline constexpr uint32_t kColumnChunk = 1024;
// Column c belongs to lane c mod kColumnLanes. A lane adds the squares of its columns in order; then lane l
// takes in lane l + kColumnLanes / 2, and so on to l + 1.
inline constexpr uint32_t kColumnLanes = 128;

// Batch and kv-head of dO [batch, heads, queries, value_dim], dK [batch, kv_heads, keys, head_dim] and dV
// [batch, kv_heads, keys, value_dim], of one floating format. Query heads are a multiple of kv-heads, and
// neighbours share one.
Conservation conservation(const TensorView& grad_out, const TensorView& grad_key,
                          const TensorView& grad_value, int64_t batch, int64_t kv_head);

// What a sampled backward call is summed up by: a ColumnSum for each column of dK, then of dV, over all keys
// of one batch and kv-head, and one for dQ of the query heads that share it, of which only `nonfinite` is
// counted.
constexpr size_t key_sum_count(size_t head_dim, size_t value_dim) { return head_dim + value_dim + 1; }

// Elements of one head that are NaN or Inf. Of a floating format.
uint64_t count_nonfinite(const TensorView& view, int64_t batch, int64_t head);

// Writes key_sum_count() sums. The tensors are [batch, heads or kv_heads, queries or keys, dim], of one
// floating format. Rows are added in order.
void sum_over_keys(const TensorView& grad_query, const TensorView& grad_key, const TensorView& grad_value,
                   int64_t batch, int64_t kv_head, ColumnSum* to);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_CONSERVATION_H_
