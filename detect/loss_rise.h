// The slow failure. The rule of loss_event.h stays as the literature has it, so that figures can be compared,
// and cannot see it: losses just below 6 sigma enter its window and widen it, and a loss that goes up a
// little at a time takes the window along. Needs no twin of the run, only the run's own best.
#ifndef FORESHOCK_DETECT_LOSS_RISE_H_
#define FORESHOCK_DETECT_LOSS_RISE_H_

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "detect/window.h"

namespace foreshock {

// Means of kBlock losses one after the other. Three in a row above the level by 6 times their noise and by
// 5 % of it are a rise. The level is the lowest that kLevel blocks in a row have had on average: of single
// blocks the lowest would sink below what is usual the longer a run is.
//
// Noise of a mean, the larger of two:
//   - between blocks: median and MAD of the differences of neighbours, of which a mean has 1/sqrt(2). The
//     median takes a steady fall of the loss away, and half of kMemory blocks after a steep first descent
//     nothing is left of it;
//   - within them: from the differences of neighbouring losses. It alone would miss slow oscillations, the
//     first alone is a poor estimate while there are few blocks.
// A block that is suspect enters neither level nor noise, a single loss that is high not even its block.
class LossRiseRule {
 public:
  static constexpr uint64_t kBlock = 32;
  static constexpr size_t kMemory = 16;   // blocks
  static constexpr size_t kLearning = 8;  // differences of blocks before anything is said
  static constexpr size_t kLevel = 4;     // blocks
  static constexpr double kSigmas = 6;
  static constexpr double kLeastShare = 0.05;
  static constexpr int kPersistence = 3;

  // The first step of the rise, when this loss makes it one. What the other rule says of the same loss:
  // `is_high`, it is left out; `in_event`, what goes on has been told, and the level that it leaves is no
  // rise.
  std::optional<int64_t> observe(int64_t step, double loss, bool is_high, bool in_event);

  void restart() { *this = LossRiseRule(); }

  template <class State>
  void fields(State& state) {
    for (double* each : {&sum_, &squares_, &last_, &previous_, &best_}) state(*each);
    state(in_block_);
    state.require(in_block_ < kBlock);
    state(has_previous_);
    state(has_best_);
    state(high_in_row_);
    state.require(high_in_row_ >= 0 && high_in_row_ < kPersistence);
    state(block_step_);
    state(onset_step_);
    level_.fields(state);
    differences_.fields(state);
    within_.fields(state);
  }

 private:
  std::optional<int64_t> end_block(double mean, double within);
  // Another level begins; what is known of the noise stays.
  void begin_anew();
  // Absent while it learns.
  std::optional<double> noise() const;
  bool is_above(double mean) const;
  void learn(double mean, double within);

  double sum_ = 0, squares_ = 0, last_ = 0;  // of the block that goes on; of differences of neighbours
  double previous_ = 0, best_ = 0;           // the last usable block; the level
  uint64_t in_block_ = 0;
  bool has_previous_ = false, has_best_ = false;
  int high_in_row_ = 0;
  int64_t block_step_ = 0, onset_step_ = 0;
  Window<kLevel> level_;
  Window<kMemory> differences_, within_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LOSS_RISE_H_
