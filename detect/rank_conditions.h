// Finds ranks that train on the same batches: their losses are equal, bit for bit, step after step. Finds
// ranks whose losses stay apart from the median of the ranks.
#ifndef FORESHOCK_DETECT_RANK_CONDITIONS_H_
#define FORESHOCK_DETECT_RANK_CONDITIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "detect/condition_rules.h"
#include "detect/tensor_conditions.h"

namespace foreshock {

// Compares the losses of the ranks: for equality with those of the lowest rank, for their size with the
// median of all ranks, once all have reported a step. Ranks that hold parts of one model have the same
// batches and losses, so the rule for equal losses needs looks at all tensors, none of them divided.
class RankLossRule {
 public:
  static constexpr size_t kMostRanks = 4096;  // further ranks are ignored

  void observe(const TensorFacts& facts);
  // Whether all ranks had the same gradients of their own. If so, their weights need not be known.
  void observe_gradients(bool are_equal) { has_equal_gradients_ = are_equal; }
  // Takes the loss of a step. The lines of the ranks may be up to kKept steps apart; other steps are ignored.
  void observe(const StepFacts& facts, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    map_fields(state, ranks_, kMostRanks);
    state(first_tensor_);
    state(first_tensor_step_);
    for (bool* flag : {&is_divided_, &has_all_looks_, &has_equal_gradients_}) state(*flag);
    state(compared_);
    state(median_);
  }

 private:
  static constexpr size_t kKept = 128;  // steps

  struct Loss {
    int64_t step = -1;
    double loss = 0;
  };
  struct Known {
    int64_t step = -1;
    size_t ranks = 0;  // that have reported the step
  };
  struct Rank {
    std::array<Loss, kKept> kept = {};  // by step modulo kKept; not saved: an agent that starts again loses
                                        // the steps that only some ranks had reached
    int64_t last_step = -1;
    int64_t since = 0;      // first step of the row
    uint64_t equal = 0;     // steps in a row with the loss of the lowest rank
    uint64_t changes = 0;   // of these, steps whose loss differs from that of the step before
    double last_equal = 0;  // loss of the last of these steps
    int64_t apart_since = 0;
    uint64_t apart = 0;                       // steps in a row with a loss far from the median
    bool is_above = false;                    // of these, on which side
    double mean = 0;                          // of the last losses
    double least_above = 0, median_then = 0;  // least mean - median_ so far; median_ at that step

    template <class State>
    void fields(State& state) {
      for (int64_t* step : {&last_step, &since, &apart_since}) state(*step);
      for (uint64_t* count : {&equal, &changes, &apart}) state(*count);
      for (double* number : {&last_equal, &mean, &least_above, &median_then}) state(*number);
      state(is_above);
    }
    bool is_same() const { return equal >= kSameLosses && changes >= kSameLossChanges; }
  };

  // Adds a step with the losses of a rank and of the lowest rank to the rows of the rank.
  void compare(int64_t step, double loss, double other, Rank* rank, ConditionBoard* board);
  // Compares the losses of all ranks in a step with their median.
  void compare_sizes(int64_t step, ConditionBoard* board);
  void compare_size(int64_t step, double loss, double median, Rank* rank) const;
  void report(int64_t step, ConditionBoard* board) const;

  std::map<int64_t, Rank> ranks_;
  std::array<Known, kKept> known_ = {};  // by step modulo kKept; not saved, as Rank::kept
  uint64_t compared_ = 0;                // steps that all ranks have reported
  double median_ = 0;                    // mean of the medians of the last of these
  std::string first_tensor_;
  int64_t first_tensor_step_ = -1;
  bool has_equal_gradients_ = false;
  bool is_divided_ = false, has_all_looks_ = false;  // a tensor is divided between ranks; each was looked at
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_RANK_CONDITIONS_H_
