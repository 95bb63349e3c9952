// Finds conditions: faults of a training's loop that are visible in the record, such as a learning rate of 0,
// a parameter without a gradient or a batch whose loss stands out. A condition has a first step, a sentence
// and one action. Like the detectors, the rules depend only on the lines of the record and their order, so
// that the agent and a replay find the same conditions.
//
//   ConditionInfo    a row of the table: the rule, its delay, its false-alarm bound and the action
//   Condition        what a rule has found
//   ConditionBoard   collects what the rules find; each condition has one entry for each rank
//   RunConditions    all rules over all ranks of one run
#ifndef FORESHOCK_DETECT_CONDITIONS_H_
#define FORESHOCK_DETECT_CONDITIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "detect/condition_rules.h"
#include "detect/gradient_rules.h"
#include "detect/rank_conditions.h"
#include "detect/tensor_conditions.h"

namespace foreshock {

// All rules over all ranks of a run. Not thread-safe.
class RunConditions {
 public:
  static constexpr size_t kMostRanks = 4096;  // further ranks are ignored

  // Takes the numbers of an ended optimizer step of a rank. Appends the conditions that begin.
  void observe_step(int64_t rank, const StepFacts& facts, std::vector<Condition>* begun);
  // The gradient scaler has skipped `in_row` optimizer steps since `step`, the last step of the rank.
  void observe_skipped(int64_t rank, int64_t step, uint64_t in_row, std::vector<Condition>* begun);
  // Attention had so many backward calls since `step`, the last step of the rank.
  void observe_backward_calls(int64_t rank, int64_t step, uint64_t calls, std::vector<Condition>* begun);
  // Whether so many backward calls since the last step of the rank are far more than any step had calls.
  bool have_steps_stopped(int64_t rank, uint64_t backward_calls) const;
  // Takes a sampled backward call of a rank that has no mask.
  void observe_attention(int64_t rank, const AttentionFacts& facts, std::vector<Condition>* begun);
  // Looks at a tensor of the run. The optimizer's facts must follow the tensor's facts for the same step.
  void observe_tensor(const TensorFacts& facts);
  void observe_optimizer(const OptimizerFacts& facts, std::vector<Condition>* begun);
  // Looks at a gradient. It is judged when all ranks have looked at the same parameters in the same step.
  void observe_gradient(const GradientFacts& facts, std::vector<Condition>* begun);
  const GradientCounts& gradient_counts() const { return gradients_.counts(); }
  const std::set<std::string>& gradients_not_whole() const { return gradients_.not_whole(); }
  // A process of the rank was found. Another process than before means that the training was started again.
  void observe_process(int64_t rank, int64_t pid);

  // All conditions of the run so far, faults first, then in the order in which they began.
  std::vector<Condition> found() const;

  template <class State>
  void fields(State& state) {  // saves or restores the members (state.h)
    board_.fields(state);
    map_fields(state, ranks_, kMostRanks);
    tensors_.fields(state);
    rank_losses_.fields(state);
    gradients_.fields(state);
  }

 private:
  struct Rank {
    RateRule rate;
    SkipRule skips;
    StepStopRule step_stop;
    LoneLossRule lone_loss;
    ZeroLossRule zero_loss;
    EarlyRiseRule early_rise;
    UnseenKeysRule unseen_keys;
    GradientRiseRule gradient_rise;
    RestartRule restart;

    template <class State>
    void fields(State& state) {
      rate.fields(state);
      skips.fields(state);
      step_stop.fields(state);
      lone_loss.fields(state);
      zero_loss.fields(state);
      early_rise.fields(state);
      unseen_keys.fields(state);
      gradient_rise.fields(state);
      restart.fields(state);
    }
  };

  // The rules of a rank; null if there are too many ranks.
  Rank* rank_of(int64_t rank);

  ConditionBoard board_;
  std::map<int64_t, Rank> ranks_;
  TensorRules tensors_;
  RankLossRule rank_losses_;
  GradientRule gradients_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_CONDITIONS_H_
