// What the monitor costs the training, and whether it may sample again. Plain arithmetic on measured times.
#ifndef FORESHOCK_LIBMONITOR_BUDGET_H_
#define FORESHOCK_LIBMONITOR_BUDGET_H_

#include <cstdint>

namespace foreshock {

// Enforced in the trainer, agent or no agent: a sampled step may cost at most max_slowdown x interval x the time of
// a step. What it cost beyond that is a debt, and sampled steps are left out until it is paid. The debt of one step
// is bounded, so that a single stall (a page fault storm, a stopped process) does not silence the monitor for long.
class Budget {
 public:
  void set_limit(double max_slowdown) { max_slowdown_ = max_slowdown; }

  // A step has ended: its length, and what of it was ours. `sampled`: it was a sampled one.
  void end_step(double step_seconds, double cost_seconds, bool sampled);

  // Whether the sampled step that begins now is allowed, `interval` steps after the last one.
  bool allows(uint64_t interval);

 private:
  static constexpr double kWeight = 0.1;  // of a new step in the running mean of the step time
  static constexpr double kMostDebts = 8;  // in allowances of one interval

  double max_slowdown_ = 0.01;
  double step_seconds_ = 0;  // running mean, our part taken off
  double debt_seconds_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BUDGET_H_
