// The health of an Adam-like optimizer, in one pass over a gradient and its second moment. No heap, no
// statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_ADAM_SUMS_H_
#define FORESHOCK_KERNELS_ADAM_SUMS_H_

#include "kernels/tensor.h"

namespace foreshock {

// Of the step that has just been taken.
struct AdamStep {
  double beta2;  // decay of the second moment v, in [0, 1)
  double eps;
  int64_t step;  // steps taken, this one included; from 1
};

// g is the gradient as the optimizer saw it (clipped), v its second moment after the step, v^ = v / (1 -
// beta2^t) what Adam divides by the root of. Sums over the elements counted; sums of tensors and of shards
// add up.
struct AdamSums {
  uint64_t counted = 0;
  uint64_t nonfinite_gradient = 0;  // left out: g is NaN or infinite
  uint64_t unusable_state = 0;      // left out: v is NaN, infinite or negative
  double staleness = 0;             // sum of g^2 / max(v^, eps^2); RMS staleness = sqrt(staleness / counted)
  uint64_t epsilon_dominated = 0;   // sqrt(v^) < eps: the update is g / eps, whatever v is
  // g^2 > 50 w^, w being v before the step took this g in: v cannot say, because v >= (1 - beta2) g^2.
  // Nothing is known of the first step (surprise_counted stays 0).
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

// What of a step is constant over a tensor.
struct AdamConstants {
  double correction;   // 1 / (1 - beta2^t)
  double eps_squared;  // of v^ below it
  double floor;        // eps^2, and above 0
  double new_share;    // 1 - beta2
  double before;       // beta2 (1 - beta2^(t - 1)): what turns w^ into v without this g; 0: not known
};

AdamConstants adam_constants(const AdamStep& step);

inline constexpr double kSurprise = 50;  // SPAM, arXiv 2501.06842, exports this and 5000

// Both tensors have one shape; formats and strides may differ but must be floating. Added to *sums. The order
// is fixed: within each block of kernels/joint_blocks.h element n goes to chain n mod 8, chains are added in
// order, then blocks in order; so a sum's relative error is below (blocks + 60 + 2 / (1 - beta2)) * 2^-53 and
// its bits do not depend on the machine. A step below 1 or a beta2 outside [0, 1) counts nothing.
void add_adam_sums(const TensorView& gradient, const TensorView& second_moment, const AdamStep& step,
                   AdamSums* sums);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_ADAM_SUMS_H_
