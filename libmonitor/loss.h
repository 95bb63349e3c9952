// Which of the values that look like a loss is the loss, and what it was in a step. One writer at a time.
#ifndef FORESHOCK_LIBMONITOR_LOSS_H_
#define FORESHOCK_LIBMONITOR_LOSS_H_

#include <cstdint>

#include "foreshock/hook.h"

namespace foreshock {

// Sources, best first: reported by the trainer, the output of a cross-entropy op, the root of backward(),
// what the training logs. The source is settled by the first backward pass whose values are seen and kept for
// the life of the process; what is logged is the loss as long as none is settled, as where all others lie on
// a device that nobody waits for:
//   - a report settles it at once;
//   - a cross-entropy is the loss if the root of the same backward is that value over a whole number
//   (accumulation)
//     or times a power of two (gradient scaler); label smoothing, auxiliary losses and the like fail this
//     test, and then the root is the loss.
// Of cross-entropies that are summed over their targets the root is the loss. Who divides them by the targets
// of a whole step (the Hugging Face Trainer) makes each root a share of it, to be added; the first step of
// several micro-batches tells: what their roots add up to is nearer to the mean over all targets, or what
// they are in the mean. That mean is the loss where there are no roots.
class LossFollower {
 public:
  void observe(double value, uint32_t source);  // FORESHOCK_LOSS_...
  void observe_sum(double sum, double weight);  // over targets that weigh so much

  // Whether the trainer tells it, so that no other is wanted.
  bool is_reported() const;

  // What was observed since the last take() belongs to no step.
  void forget_step();

  // The mean over the micro-batches (the sum of shares) since the last call of this, or false when the step
  // had none.
  bool take(double* loss, uint32_t* source);

 private:
  static constexpr uint32_t kSummed = FORESHOCK_LOSS_LOGGED + 1;  // told as FORESHOCK_LOSS_NLL
  struct Mean {
    void add(double value, double by) { sum += value, weight += by; }
    double sum = 0, weight = 0;
  };
  enum class Roots { kUnknown, kWhole, kShares };
  void settle(double root);
  void settle_roots();

  uint32_t settled_ = 0;
  Roots roots_ = Roots::kUnknown;
  Mean mean_[kSummed + 1];  // by source
  double last_nll_ = 0;
  uint64_t nll_since_root_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LOSS_H_
