// Sums over tensors in host memory: squares, changes between two states, statistics of an Adam-like
// optimizer, and a checksum. Devices use the same formulas (sums_body.h). Uses no heap and no static data.
#ifndef FORESHOCK_KERNELS_SUMS_H_
#define FORESHOCK_KERNELS_SUMS_H_

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

// for_each_joint_block() reads two tensors together, in joint blocks of at most this many values of each. It
// keeps a block on the stack.
inline constexpr size_t kJointBlock = 256;

// Converts `count` elements of a floating type to fp64. Their offsets are first, first + stride, and so on.
void load_block(const TensorView& tensor, int64_t first, int64_t stride, size_t count, double* to);

// Whether both tensors have the same shape, the same order of elements in memory and no gaps. Both can then
// be read as one long row.
bool is_jointly_dense(const TensorView& a, const TensorView& b);

inline int64_t element_count(const TensorView& tensor) {
  return tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
}

// Calls visit(a, b, n) for each block: n <= kJointBlock values of each tensor, at the same indices. The
// shapes must be equal. If the tensors are jointly dense, the order is that of memory. Otherwise they are
// read row by row, and a block never spans two rows.
template <class Visit>
void for_each_joint_block(const TensorView& a, const TensorView& b, const Visit& visit) {
  double of_a[kJointBlock], of_b[kJointBlock];
  const auto row = [&](int64_t at_a, int64_t stride_a, int64_t at_b, int64_t stride_b, int64_t length) {
    for (int64_t begin = 0; begin < length; begin += kJointBlock) {
      const int64_t left = length - begin;
      const size_t n = left < static_cast<int64_t>(kJointBlock) ? static_cast<size_t>(left) : kJointBlock;
      load_block(a, at_a + begin * stride_a, stride_a, n, of_a);
      load_block(b, at_b + begin * stride_b, stride_b, n, of_b);
      visit(of_a, of_b, n);
    }
  };
  if (is_jointly_dense(a, b)) return row(0, 1, 0, 1, element_count(a));
  const auto start = [](const TensorView& t, int64_t i, int64_t j, int64_t k) {
    return i * t.stride[0] + j * t.stride[1] + k * t.stride[2];
  };
  for (int64_t i = 0; i < a.shape[0]; ++i) {
    for (int64_t j = 0; j < a.shape[1]; ++j) {
      for (int64_t k = 0; k < a.shape[2]; ++k)
        row(start(a, i, j, k), a.stride[3], start(b, i, j, k), b.stride[3], a.shape[3]);
    }
  }
}

// The sum of the squares of a dense array, in fp64. `type` must be floating. A NaN or an infinity in the
// array makes the result NaN or infinite. The elements are added in eight chains (partial sums), so the
// relative error is at most (count / 8 + 14) * 2^-53, far below the rounding of any gradient. 14: the first
// chain also adds the last count % 8 elements, then 7 additions join the chains.
double sum_of_squares(const void* data, DType type, size_t count);

// Sums, in fp64, over the changes d = after - before that a step made in an array, and over the values after
// it. A value that is not finite makes its sums not finite. Relative error: at most (count / 8 + 16) * 2^-53
// (16: as for sum_of_squares(), and d is rounded, too, before it is squared).
struct Update {
  double sum_magnitude = 0, sum_squares = 0, max_magnitude = 0;  // of d
  double sum_squares_after = 0;                                  // of the values after the step
};

Update update_between(const void* before, const void* after, DType type, size_t count);  // fp32, bf16, fp16

// The sum of squares of a gradient, and its number of elements. Results of tensors or shards can be added.
struct GradientSums {
  double squares = 0;  // over the finite elements
  uint64_t finite = 0, nonfinite = 0;

  constexpr void add(double g) {
    const bool is_finite = g * 0 == 0;  // otherwise g * 0 is NaN
    squares += is_finite ? g * g : 0;
    finite += is_finite;
    nonfinite += !is_finite;
  }
  constexpr void add(const GradientSums& other) {
    squares += other.squares;
    finite += other.finite;
    nonfinite += other.nonfinite;
  }
};

// Adds a tensor with any strides and a floating type to *sums: in order within each block of at most 256
// elements, then the blocks in order. The relative error of the squares is below (blocks + 257) * 2^-53: one
// rounding for each block, for each of the 256 elements of a block, and for the square.
void add_gradient_sums(const TensorView& gradient, GradientSums* sums);

struct AdamStep {  // parameters of the Adam step that was just taken
  double beta2;    // decay of the second moment v, in [0, 1)
  double eps;
  int64_t step;  // number of this step, from 1
};

// Statistics of an Adam-like optimizer from one pass over a gradient and its second moment. g is the gradient
// that the optimizer read (after clipping), v its second moment after step t. v^ ("v hat", not a power) is
// v / (1 - beta2^t); Adam divides by sqrt(v^). An element is counted if g is finite, and v is finite and not
// negative; all sums are over the counted elements. The results of several tensors or shards can be added.
struct AdamSums {
  uint64_t counted = 0;
  uint64_t nonfinite_gradient = 0;  // elements not counted because g is NaN or infinite
  uint64_t unusable_state = 0;      // elements not counted because v is NaN, infinite or negative
  double staleness = 0;             // sum of g^2 / max(v^, eps^2); RMS staleness = sqrt(staleness / counted)
  uint64_t epsilon_dominated = 0;   // elements with sqrt(v^) < eps: the update is about g / eps
  // surprised: elements whose g^2 exceeds kSurprise (50) times w^. Here w = (v - (1 - beta2) g^2) / beta2 is
  // the second moment before the step, and w^ is w / (1 - beta2^(t - 1)). v^ would hide surprises, since v
  // includes g: v >= (1 - beta2) g^2. surprise_counted: elements with a known w^; 0 in the first step.
  uint64_t surprised = 0, surprise_counted = 0;
  double gradient_squares = 0;  // sum of g^2

  constexpr void add(const AdamSums& other) {
    counted += other.counted;
    nonfinite_gradient += other.nonfinite_gradient;
    unusable_state += other.unusable_state;
    staleness += other.staleness;
    epsilon_dominated += other.epsilon_dominated;
    surprised += other.surprised;
    surprise_counted += other.surprise_counted;
    gradient_squares += other.gradient_squares;
  }
};

// Values that are constant over a tensor in one step, for the functions of one element below.
struct AdamConstants {
  double correction;   // 1 / (1 - beta2^t), so that v^ = v * correction
  double eps_squared;  // eps dominates if v^ is below this
  double floor;        // the least divisor in `staleness`: eps^2, but always above 0
  double new_share;    // 1 - beta2
  // beta2 (1 - beta2^(t - 1)), so that w^ times it is v - (1 - beta2) g^2; 0: w^ is unknown
  double old_moment_factor;
};

AdamConstants adam_constants(const AdamStep& step);

inline constexpr double kSurprise = 50;  // the limit of a gradient spike in SPAM (arXiv 2501.06842)

// Adds the statistics of a tensor to *sums. Both tensors must have the same shape and floating formats;
// formats and strides may differ. The order is fixed: within each joint block element n is added to chain n
// mod 8, then the chains are added in order, then the blocks. So a sum's relative error is below (blocks + 60
// + 2 / (1 - beta2)) * 2^-53, and its bits do not depend on the machine. 60 covers the additions in a block,
// 2 / (1 - beta2) the powers of beta2. Adds nothing if the step is below 1, beta2 is outside [0, 1) or eps is
// negative or NaN.
void add_adam_sums(const TensorView& gradient, const TensorView& second_moment, const AdamStep& step,
                   AdamSums* sums);

// The functions up to is_surprising() handle one element of a gradient and its second moment, on host and
// device.

// Whether an element is counted; x * 0 is 0 only if x is finite. Has no branch, so that loops are vectorized.
constexpr bool is_usable(double g, double v) { return int{g * 0 + v * 0 == 0} & int{v >= 0}; }

struct AdamElement {
  double square;     // g^2; 0 for an element that is not counted
  double moment;     // v; 0 for an element that is not counted
  double corrected;  // v^; DBL_MAX for an element that is not counted, so that eps does not dominate it
};

constexpr AdamElement adam_element(double g, double v, const AdamConstants& c) {
  const bool ok = is_usable(g, v);
  return {.square = ok ? g * g : 0, .moment = ok ? v : 0, .corrected = ok ? v * c.correction : DBL_MAX};
}

constexpr bool is_counted(double corrected) { return corrected < DBL_MAX; }

constexpr double staleness_of(double square, double corrected, const AdamConstants& c) {
  return square / (corrected > c.floor ? corrected : c.floor);
}

// Whether g^2 > 50 w^ with w^ = (v - (1 - beta2) g^2) / (beta2 (1 - beta2^(t - 1))), without the division.
constexpr bool is_surprising(double square, double moment, const AdamConstants& c) {
  return square * c.old_moment_factor > kSurprise * (moment - c.new_share * square);
}

// A checksum of a dense array: the sum modulo 2^64 of w[n] * m[n] over the 32-bit words w[n] of `bytes` bytes
// (the last word filled up with zeros). checksum_factor() gives m[n] = 2 * (n * 0x9e3779b1 mod 2^31) + 1.
// 0x9e3779b1 is a prime near 2^32 / golden ratio. Words can be added in any order. Every factor is odd and
// below 2^32, so a change of one word always changes the checksum. So does a change of one bit in each of two
// words that are fewer than 2^31 words apart, since their factors differ.
uint64_t checksum(const void* data, size_t bytes);

constexpr uint32_t checksum_factor(uint64_t n) { return static_cast<uint32_t>(n) * 2 * 0x9e3779b1u + 1; }

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SUMS_H_
