// What the monitor costs the training, and whether it may sample again. Plain arithmetic on measured times.
#ifndef FORESHOCK_LIBMONITOR_BUDGET_H_
#define FORESHOCK_LIBMONITOR_BUDGET_H_

#include <algorithm>
#include <cstdint>

namespace foreshock {

// Enforced in the trainer, agent or no agent. Every step earns max_slowdown times its length and pays what
// was ours in it, sampled or not; a sampled step is allowed while nothing is owed, and may take as many
// slices as the balance is expected to pay for (cost_model.h). What is saved up is at most one interval's
// earnings and what the least sample needs, so that a quiet hour does not pay for a dear minute. What is owed
// is at most 64 intervals' earnings, so that one stall (a page fault storm, a stopped process) does not
// silence the monitor for good.
class Budget {
 public:
  // `times` as much in a burst; but a limit stays one.
  void set_limit(double max_slowdown, double times = 1) {
    max_slowdown_ = std::max(max_slowdown, std::min(times * max_slowdown, kMostLimited));
  }

  // A step has ended: its length, what of it was ours, the sampling interval in force, and what a step with
  // one slice is expected to cost.
  void end_step(double step_seconds, double cost_seconds, uint64_t interval, double least_seconds = 0);

  // Whether the sampled step that begins now is allowed. A limit of 100 % allows everything, one of 0
  // nothing.
  bool allows() const { return is_unlimited() || (max_slowdown_ > 0 && balance_seconds_ >= 0); }
  bool is_unlimited() const { return max_slowdown_ >= 1; }

  // More is owed than 256 steps earn, or was and has not been paid yet: what nobody can refuse takes most of
  // the limit, and whoever has a share of his own waits. A stall is paid for by 512 steps at most, whatever
  // the interval.
  bool is_overdrawn() const { return !is_unlimited() && is_overdrawn_; }

  // What has been saved up; negative: owed.
  double balance_seconds() const { return balance_seconds_; }

 private:
  static constexpr double kMostLimited = 0.99;
  static constexpr double kWeight = 0.1;   // of a new step in the running mean of the step time
  static constexpr double kMostOwed = 64;  // earnings of an interval
  // Of those who wait: as much again, but of intervals of so many steps at most; half of it may be owed for a
  // while.
  static constexpr uint64_t kPatientInterval = 8;
  static constexpr int kFirstSteps =
      2;  // set-up falls into them: shown in the cost, not held against sampling

  double max_slowdown_ = 0.01;
  double step_seconds_ = 0;  // running mean, our part taken off
  double balance_seconds_ = 0;
  double patient_balance_ = 0;  // the same, of those who wait
  bool is_overdrawn_ = false;
  int steps_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BUDGET_H_
