// The slow failure, which the rule of loss_event.h cannot see: a loss that goes up a little at a time takes
// its window along. Needs no twin of the run, only the run's own best.
#ifndef FORESHOCK_DETECT_LOSS_RISE_H_
#define FORESHOCK_DETECT_LOSS_RISE_H_

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "detect/baseline.h"

namespace foreshock {

// Means of kBlock losses one after the other. The noise of such a mean is learned from the differences of
// neighbours (their mean square is twice its variance), which a slow fall of the loss hardly touches. Three
// in a row beyond the best so far by 6 of it and by 5 % of the best: a rise. The next one is counted from the
// level reached.
class LossRiseRule {
 public:
  static constexpr uint64_t kBlock = 32;
  static constexpr uint64_t kLearning = 8;  // blocks
  static constexpr double kSigmas = 6;
  static constexpr double kLeastShare = 0.05;
  static constexpr int kPersistence = 3;

  // The first step of the rise, when this loss makes it one. `in_event`: the other rule has said what it is;
  // what goes on then, and the level it leaves, is no rise.
  std::optional<int64_t> observe(int64_t step, double loss, bool in_event);

  void restart() { *this = LossRiseRule(); }

  template <class State>
  void fields(State& state) {
    for (double* each : {&sum_, &previous_, &best_}) state(*each);
    state(in_block_);
    state(blocks_);
    state.require(in_block_ < kBlock);
    state(high_in_row_);
    state.require(high_in_row_ >= 0 && high_in_row_ < kPersistence);
    state(block_step_);
    state(onset_step_);
    squares_.fields(state);
  }

 private:
  std::optional<int64_t> end_block(double mean);
  void begin_anew() { sum_ = 0, in_block_ = blocks_ = 0, high_in_row_ = 0; }

  double sum_ = 0, previous_ = 0, best_ = 0;
  uint64_t in_block_ = 0, blocks_ = 0;
  int high_in_row_ = 0;
  int64_t block_step_ = 0, onset_step_ = 0;
  Baseline squares_;  // of differences of neighbouring means
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LOSS_RISE_H_
