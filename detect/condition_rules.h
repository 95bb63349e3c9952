// The table of conditions (conditions.h), and the rules over the steps of one rank.
#ifndef FORESHOCK_DETECT_CONDITION_RULES_H_
#define FORESHOCK_DETECT_CONDITION_RULES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "detect/loss_rules.h"
#include "detect/state.h"
#include "detect/window.h"

namespace foreshock {

// The conditions, in the order of the table below.
enum class ConditionId : int {
  kNoStepTaken,
  kNothingTrained,
  kWeightsNonfinite,
  kStepsSkipped,
  kStepsStopped,
  kRateZero,
  kRateJump,
  kRateComesBack,
  kRateNotRestored,
  kOptimizerBeganAgain,
  kLoneLoss,
  kZeroLoss,
  kZeroNorm,
  kEarlyRise,
  kLossFactor,
  kSameLosses,
  kRankApart,
  kUnseenKeys,
  kGradientRise,
  kNoGradient,
  kZeroGradient,
  kWeightsStuck,
  kGradientUnused,
  kClippedAway,
  kGainsDecay,
  kTiedApart,
  kGradientNotSummed,
  kGradientLastOnly,
  kGradientLacksLast,
  kGradientDropped,
  kGradientMultiplied,
  kGradientPiledUp,
  kGradientRounded,
  kCopiesDiffer,
  kCopiesApart,
  kCount
};
inline constexpr size_t kConditions = static_cast<size_t>(ConditionId::kCount);

// kFault: the training is certainly wrong; the condition is a headline of its own. kLook: the condition is
// true but may be intended; the run stays "healthy", and the condition is "worth a look".
enum class ConditionKind : int { kFault, kLook };
constexpr const char* name_of(ConditionKind kind) { return kind == ConditionKind::kFault ? "fault" : "look"; }

struct ConditionInfo {
  ConditionId id;
  const char* name;
  ConditionKind kind;
  const char* headline;  // of a fault, in capitals; "" for kLook
  const char* help;      // the rule
  const char* delay;     // from the onset until the rule finds it
  const char* action;    // what to do first
};

// Limits of the rules, with the reason why sound trainings do not reach them.

// A scaler halves its scale at each skipped step, and begins at 2^32 at most (DeepSpeed; torch begins at
// 2^16). After 32 halvings in a row the scale was divided by 2^32, so an overflow comes from the training
// and not from the scale. A sound training never has so many in a row.
inline constexpr uint64_t kSkipsInRow = 32;
// A scaler at its ceiling skips one step in each growth interval (2000 steps by default). A share of a
// quarter needs a growth interval of 3. The first kSkipsLearning steps do not count, since the scale is then
// still searched.
inline constexpr uint64_t kSkipBlock = 128;
inline constexpr double kSkipShare = 0.25;
inline constexpr uint64_t kSkipsLearning = 8;
// Backward calls of attention since the last step, in units of the largest number of attention calls, forward
// and backward, of a step before. A step is as long as the earlier ones or a few times longer (accumulation
// that grows, a line search). Some trainings measure gradients for longer and drop them, on purpose. The
// calls of kStopLearning steps must be known.
inline constexpr uint64_t kStopFactor = 64, kStopLearning = 8;
// A warm-up from 0 has one step of rate 0. A longer row of zeros trains nothing in these steps.
// A rate counts as 0 below kNoRate of its maximum. A cosine that ends at 0 has 32 such steps at its end if it
// has a million steps or more, a linear decay if it has 3e10.
inline constexpr uint64_t kZeroRates = 32;
inline constexpr double kNoRate = 1e-9;
// A restart of a schedule returns to an earlier rate at most, and a warm-up rises by small factors. Stepwise
// warm-ups rise tenfold at most (0.01 to 0.1 in the residual networks of 2015), so more than ten times the
// largest earlier rate, in one step, is not a usual schedule. The rate of kRateLearning steps must be known.
inline constexpr double kRateJumpFactor = 10;
inline constexpr uint64_t kRateLearning = 32;
// Warm restarts return to the maximum within a step or a short warm-up. Cyclic rates rise as slowly in their
// first cycle as in later ones. What remains is a schedule that runs beyond its end: it falls to 1 % of the
// maximum, and then rises for at least kRateRise steps, not faster than four times the fall, and more than
// twice as long as the first rise. It is found at a quarter of the maximum.
inline constexpr double kRateTrough = 0.01;
inline constexpr double kRateBack = 0.25;
inline constexpr int64_t kRateRise = 16;
// A new process continues at a rate that exceeds, by more than this factor, the largest rate that the earlier
// process had at that step or later. Only the first steps of a warm-up change a rate by a factor of 2 in one
// step, so both processes must be beyond kRateLearning steps; a process that begins before is another
// training. Warm restarts exactly at the first step of a process remain.
inline constexpr double kRateRestored = 2;
// Ordinary losses in a row after a single loss that stands out (loss_rules.h): a spike has none.
inline constexpr int kLoneAfter = 3;
// A gradient of exactly 0 in so many steps in a row. One batch without labels, or whose loss is at its bound,
// can occur by chance. Rounding gives no exact 0: all values of the gradient would have to underflow.
inline constexpr uint64_t kZeroLosses = 8;
// Among the first kEarlySteps losses, kEarlyInRow in a row exceed the largest of the first kEarlyFirst losses
// by a quarter of it. The window of loss_rules.h is not full then, and would learn the high losses. For
// independent losses with an exponential tail (heavier than that of a mean over tokens), the largest of n = 8
// is M with E[exp(-k M)] = n! k! / (n + k)!; k = 1.25 * 16 gives 3e-7 for a row of 16, and 8e-5 for a run.
// Only negative log likelihoods count: the losses of adversaries may rise. If the loss explodes within the
// first kEarlyFirst steps, the losses since then are not the first values: a loss that is kEarlyJump nats
// above the very first one means targets that are 55 times less probable.
inline constexpr uint64_t kEarlyFirst = 8, kEarlyInRow = 16, kEarlySteps = 256;
inline constexpr double kEarlyFactor = 1.25, kEarlyJump = 4;
// After a restart at step 1, the weights went on if the first losses are nearer to the last losses before the
// restart than a quarter of the whole fall of the loss. The fall must exceed kRestartSpread standard
// deviations of the last losses, so that untrained weights (loss at its first level) can be distinguished.
inline constexpr size_t kRestartLosses = 16;
inline constexpr double kRestartShare = 0.25;
inline constexpr double kRestartSpread = 6;

// Ranks whose weights are not divided have the same loss in so many steps in a row, and in so many of these
// the loss differs from that of the step before. Of batches that are drawn independently, two ranks have the
// same loss with a probability q, and so have two steps of one rank (q may be 0.2 for losses in bf16). The
// rule holds by chance in 64 steps with the probability q^64 P(at least 32 of 63 steps differ), which is
// largest for q = 0.74: 1e-13.
inline constexpr uint64_t kSameLosses = 64;
inline constexpr uint64_t kSameLossChanges = 32;

// A rank's loss is apart if in kApartSteps steps in a row it is far from the median of the ranks, always on
// the same side of it (of an even number of ranks, the lower of the two middle losses). Far is
//   - kApartFactor times the median, or less than 1 / kApartFactor of it;
//   - or above it, and the rank's loss has not fallen with the others: since the step at which its mean was
//     nearest to that of the median, the median has fallen by kLagLeast of its size or more, and the rank by
//     less than 1 - kLagShare of that. Both are means with a weight of 1 / kApartMean for the last loss.
// If ranks draw their batches alike, each one is above the median with a probability of 1/2 at most, whatever
// the losses, so kApartSteps steps give 2^-63 by chance. Ranks with batches of their own kind may stay on one
// side; the two limits leave out slightly unlike data. The first kApartFirst steps have no mean yet.
inline constexpr uint64_t kApartSteps = 64;
inline constexpr double kApartFactor = 2;
inline constexpr uint64_t kApartMean = 16, kApartFirst = 8;
inline constexpr double kLagLeast = 0.1, kLagShare = 0.75;

// Sampled backward calls without a mask in which the last sampled query sees the keys up to its own position,
// though there are more keys than queries. Only a causal mask that begins at the first key does that: without
// one the query sees all keys, and a mask that ends at the last key shows it key_length - query_length more.
// So one call proves it, and chance cannot; kUnseenSlices leave out a single odd batch. Calls without a
// gradient do not count: in generation, the keys beyond the queries may be empty places of a cache.
inline constexpr uint64_t kUnseenSlices = 3;

// The norm of the gradient is largest in the first steps of most trainings, and later changes by a few times.
// It has risen if two medians of kRiseBlock norms in a row exceed the largest such median of the first half
// of the run by kRiseFactor. Single spikes do not move a median. At least kRiseLearning blocks must be known.
inline constexpr size_t kRiseBlock = 32;
inline constexpr double kRiseFactor = 10;
inline constexpr uint64_t kRiseLearning = 8;

// A tensor never had a gradient if two looks found none, its values have not changed since the first of them,
// and either the looks are kNoGradientSteps steps apart, or the optimizer, which counts so many steps for
// other tensors, has no state for this one. A single look is not enough, since a tensor may have no gradient
// in one step, and some optimizers count no steps. Frozen tensors (which require no gradient) do not count.
// If other tensors of the same name but for a number have a gradient, as experts do, the steps are
// kUnusedSteps: an expert that is used in one step of 20 is unused in 512 steps with a probability of 4e-12.
// A gradient of exactly 0 needs a second moment that is 0 everywhere after twice the steps, or three looks
// and values that have not changed.
inline constexpr int64_t kNoGradientSteps = 64;
inline constexpr int64_t kUnusedSteps = 512;
// A tensor with a gradient in three looks over twice kNoGradientSteps, and no changed value, is not trained.
// The gradient must be large enough to change values of the tensor's size in an SGD step: where a gradient is
// 0 but for rounding, as that of the bias of keys is, the update may be below half a spacing (2^-24 of the
// value).
inline constexpr double kUnusedLeast = 0x1p-23;
// Nothing is trained if so many looks over kNoGradientSteps steps have seen no changed value in any tensor.
inline constexpr uint64_t kNothingLooks = 8;
// Share of sampled values of 16-bit weights whose bits are those of the look before, usually 64 steps before.
// A value that moves with probability p per step stays with (1 - p)^64: below 0.5 from p = 0.011 on, so
// stochastic rounding is silent unless the updates are below a hundredth of the spacing. The mean is over at
// least kUnmovedTensors tensors (or all), each with 32 values: its standard error is below 0.5 / sqrt(256).
inline constexpr double kUnmovedShare = 0.5;
inline constexpr size_t kUnmovedTensors = 8;

// The gradients that the optimizer uses have at most 1 / kClippedAway of the norm before clipping. If a
// gradient is clipped while it is still multiplied by the scale of a gradient scaler, and then divided by the
// scale, the norm falls by about scale^2: 2^16 for a scale of 2^8, and 2^32 for the first scale of torch. A
// limit on the norm that divides sound gradients by 4096 in all steps of an interval would be a mistake too.
inline constexpr double kClippedAway = 4096;
// Looks at gradients find the same if so many in a row, over kNoGradientSteps steps, have seen it.
inline constexpr uint64_t kLittleLooks = 3;

// A vector whose values are all near 1 at the first look is a gain. It has decayed if less than kGainLeft of
// its first mean magnitude is left, and the weight decay since then explains at least half of the fall: rate
// * decay, summed over the steps, is half of log(1 / kGainLeft) or more. If the matrices shrink as fast, the
// whole model decays and the gains do not stand apart, so less than kGainLeft of what the median matrix has
// left must be left.
inline constexpr double kGainLeft = 0.5;

inline constexpr ConditionInfo kConditionTable[kConditions] = {
    {ConditionId::kNoStepTaken, "no_step_taken", ConditionKind::kFault, "NO STEP IS TAKEN",
     "a gradient scaler has skipped 32 optimizer steps in a row", "32 iterations",
     "find the layer whose gradient is not finite and lower its scale, or train in bf16"},
    {ConditionId::kNothingTrained, "nothing_trained", ConditionKind::kFault, "NOTHING IS TRAINED",
     "8 looks at weights over 64 steps have seen no changed value", "64 steps",
     "look at the learning rate and at what was passed to the optimizer"},
    {ConditionId::kWeightsNonfinite, "weights_nonfinite", ConditionKind::kFault, "WEIGHTS NOT FINITE",
     "a tensor holds NaN or Inf, its gradient and all losses so far are finite, and it was finite before",
     "one interval of looks", "look at the optimizer: its epsilon, its state and its rate for this tensor"},
    {ConditionId::kStepsSkipped, "steps_skipped", ConditionKind::kLook, "",
     "a gradient scaler skips at least a quarter of 128 iterations", "128 iterations",
     "look for gradients that grow; if the scale is fixed, lower it"},
    {ConditionId::kStepsStopped, "steps_stopped", ConditionKind::kLook, "",
     "since the last step, attention had 64 times as many backward calls as any step had calls, and no "
     "scaler skips steps",
     "128 iterations and 3 s",
     "look for a condition before optimizer.step() that is no longer met; right if gradients are only "
     "measured"},
    {ConditionId::kRateZero, "rate_zero", ConditionKind::kLook, "",
     "the learning rate is 0, or below a billionth of its maximum, in 32 steps in a row", "32 steps",
     "compare the number of steps with the total that the scheduler was given"},
    {ConditionId::kRateJump, "rate_jump", ConditionKind::kLook, "",
     "the learning rate becomes more than 10 times its largest earlier value in one step", "1 step",
     "look for a scheduler that was replaced, loaded or stepped twice at that step"},
    {ConditionId::kRateComesBack, "rate_comes_back", ConditionKind::kLook, "",
     "the learning rate has fallen to 1 % of its maximum and rises slowly to a quarter of it",
     "until a quarter of the maximum",
     "check that the scheduler is stepped once per step and that its total covers the run"},
    {ConditionId::kRateNotRestored, "rate_not_restored", ConditionKind::kLook, "",
     "a new process continues after step 32, at more than twice the learning rate that the earlier one "
     "had at that step or later",
     "1 step", "load the scheduler's state together with the optimizer's"},
    {ConditionId::kOptimizerBeganAgain, "optimizer_began_again", ConditionKind::kLook, "",
     "an optimizer that replaces another one, in a new process or in this one, counts from step 1, and the "
     "loss continues where the earlier one stopped",
     "2 steps",
     "load the optimizer's state together with the weights; right if a new stage of the training begins"},
    {ConditionId::kLoneLoss, "lone_loss", ConditionKind::kLook, "",
     "the loss of a single step is 5 times as far above the median as any of 64 losses before it", "3 steps",
     "look at the batch of that step"},
    {ConditionId::kZeroLoss, "zero_loss", ConditionKind::kLook, "",
     "loss and gradient norm are exactly 0 in 8 steps in a row", "8 steps",
     "check that the batches have labels that count"},
    {ConditionId::kZeroNorm, "zero_norm", ConditionKind::kLook, "",
     "the gradient norm is exactly 0 in 8 steps in a row, and the loss is not", "8 steps",
     "look for a detach between the parameters and the loss, or for a gradient that underflows (fp16 without "
     "a scaler)"},
    {ConditionId::kEarlyRise, "early_rise", ConditionKind::kLook, "",
     "among the first 256 losses, 16 in a row exceed the largest of the first 8 by a quarter; those that are "
     "more than 4 above the very first do not count among the 8",
     "16 steps", "lower the learning rate, or lengthen the warm-up"},
    {ConditionId::kLossFactor, "loss_factor", ConditionKind::kLook, "",
     "backward() is called on losses that are a constant times the mean cross-entropy of the step, for 64 "
     "steps",
     "64 steps; on the CPU only",
     "divide the loss of each micro-batch by their number, once; a factor is right if it is meant"},
    {ConditionId::kSameLosses, "same_losses", ConditionKind::kLook, "",
     "ranks whose weights are not divided, or whose gradients are equal before they are summed, have the "
     "same "
     "loss, bit for bit, in 64 steps in a row",
     "64 steps, and two looks at the weights or the gradients",
     "check that each rank gets its own part of the data; equal losses are right if each rank computes the "
     "loss of all ranks' batches"},
    {ConditionId::kRankApart, "rank_apart", ConditionKind::kLook, "",
     "for 64 steps, the loss of a rank is twice the median of the ranks or more, or half of it or less, or "
     "it "
     "stays up while the median falls",
     "64 steps, and until the median has fallen by a tenth",
     "compare the batches and labels of the ranks; unlike losses are right if their data are unlike"},
    {ConditionId::kUnseenKeys, "unseen_keys", ConditionKind::kLook, "",
     "in 3 sampled backward calls with more keys than queries, a causal mask that begins at the first key "
     "hides "
     "the last keys from all queries",
     "3 sampled calls",
     "if the last query belongs to the last key, pass a mask that is aligned to it (causal_lower_right)"},
    {ConditionId::kGradientRise, "gradient_rise", ConditionKind::kLook, "",
     "the median gradient norm of 32 steps is 10 times the largest one of the first half of the run, twice "
     "in a "
     "row",
     "64 steps", "lower the learning rate, or find in foreshock report what else rose at that step"},
    {ConditionId::kNoGradient, "no_gradient", ConditionKind::kLook, "",
     "parameters that require a gradient never got one, and others did",
     "64 steps; 512 if a parameter of the same name but for a number has a gradient",
     "look for a detach, a custom backward that returns None, or checkpointing of inputs without a gradient"},
    {ConditionId::kZeroGradient, "zero_gradient", ConditionKind::kLook, "",
     "the gradient of parameters is exactly 0, and they were never trained",
     "128 steps; 1024 if a parameter of the same name but for a number has a gradient",
     "look for a factor of 0 before the loss, or for experts that are never chosen"},
    {ConditionId::kWeightsStuck, "weights_stuck", ConditionKind::kLook, "",
     "most sampled values of weights in bf16 or fp16 are the same at two looks in a row, though they have "
     "gradients",
     "two looks, 64 to 128 steps", "keep the weights in fp32 (autocast), or round stochastically"},
    {ConditionId::kGradientUnused, "gradient_unused", ConditionKind::kLook, "",
     "parameters have gradients and never change, and others do", "128 steps, three looks",
     "look for a parameter that no optimizer has, a group with a rate of 0, or code that restores the "
     "values"},
    {ConditionId::kClippedAway, "clipped_away", ConditionKind::kLook, "",
     "over an interval of looks, the gradients that the optimizer uses have less than 1 / 4096 of each norm "
     "before clipping",
     "two looks at a parameter",
     "call the gradient scaler's unscale_() before clipping; without a scaler, raise the limit of the norm"},
    {ConditionId::kGainsDecay, "gains_decay", ConditionKind::kLook, "",
     "weight decay has brought vectors whose values began near 1 below half of that, and matrices keep twice "
     "as "
     "much of their size",
     "until half is left", "give the optimizer the gains of the norms in a group without weight decay"},
    {ConditionId::kTiedApart, "tied_apart", ConditionKind::kLook, "",
     "after a restart a matrix that was tied to another one is trained as a tensor of its own (at most two "
     "tensors are new, and one has the shape of another)",
     "two looks at a tensor", "if both were tied, tie them again before the optimizer is made"},
    {ConditionId::kGradientNotSummed, "gradient_not_summed", ConditionKind::kLook, "",
     "most gradients are summed over the ranks, and each rank uses its own gradient for a parameter of which "
     "all ranks have copies",
     "two looks at the parameter",
     "look for a parameter that DistributedDataParallel ignores, that was added after it was wrapped, or "
     "that a loop over all-reduces leaves out"},
    {ConditionId::kGradientLastOnly, "gradient_last_only", ConditionKind::kLook, "",
     "several backward passes contribute to a gradient, and the optimizer uses the last contribution only",
     "two looks at the parameter", "look for a gradient that is cleared or assigned between the passes"},
    {ConditionId::kGradientLacksLast, "gradient_lacks_last", ConditionKind::kLook, "",
     "several backward passes contribute to a gradient, and the optimizer uses all but the last contribution",
     "two looks at the parameter",
     "look for a gradient that is reduced or copied before the last backward pass ends"},
    {ConditionId::kGradientDropped, "gradient_dropped", ConditionKind::kLook, "",
     "backward passes contribute to a gradient, and the optimizer uses 0", "two looks at the parameter",
     "look for a gradient that is cleared after the backward pass"},
    {ConditionId::kGradientMultiplied, "gradient_multiplied", ConditionKind::kLook, "",
     "the gradient of a parameter is 2 or the number of ranks times what the others are, or the same part of "
     "it",
     "two looks at the parameter", "look for a gradient that is reduced, scaled or added twice"},
    {ConditionId::kGradientPiledUp, "gradient_piled_up", ConditionKind::kLook, "",
     "the optimizer uses the gradients of earlier steps again", "two looks at the parameter",
     "call zero_grad() in each step, for all parameters"},
    {ConditionId::kGradientRounded, "gradient_rounded", ConditionKind::kLook, "",
     "most gradients in fp32 differ from the sums of their contributions by more than fp32 rounds, and by no "
     "more than bf16 rounds",
     "two looks at the parameter",
     "look for a reduction over the ranks in bf16 (reduce_dtype, a communication hook)"},
    {ConditionId::kCopiesDiffer, "copies_differ", ConditionKind::kLook, "",
     "ranks hold copies of a distributed tensor and use gradients that differ by more than a quarter",
     "two looks at the parameter",
     "look for a to_local() without grad_placements, or for an all-reduce that leaves the parameter out"},
    {ConditionId::kCopiesApart, "copies_apart", ConditionKind::kLook, "",
     "ranks had equal values of a parameter, and now differ by more than a quarter of the way that these "
     "have "
     "moved since",
     "two looks at the parameter",
     "look for a gradient that is not summed over these ranks, or for a change of the values on one of them"},
};

constexpr const ConditionInfo& info_of(ConditionId id) { return kConditionTable[static_cast<size_t>(id)]; }

// What a rule has found. Each condition has one entry for each rank; further episodes extend it.
struct Condition {
  ConditionId id = ConditionId::kCount;
  int64_t rank = -1;                      // -1: concerns the whole run
  int64_t since_step = 0, last_step = 0;  // first step of the first episode, last step of the last one
  uint64_t episodes = 0;                  // number of times that it started
  uint64_t count = 0;                     // steps, iterations or tensors; see sentence_of()
  double value = NAN, usual = NAN;        // what was measured, and what it is compared with
  std::string place;                      // the tensors or ranks concerned, if any
  bool is_over = false;                   // it no longer holds
};

inline bool is_fault(const Condition& condition) {
  return info_of(condition.id).kind == ConditionKind::kFault;
}

// Returns the condition as one sentence with its first step: "loss and gradient are exactly 0 since step 12".
std::string sentence_of(const Condition& condition);

// Collects what the rules find.
class ConditionBoard {
 public:
  static constexpr size_t kMost = 256;  // entries; further ones are dropped

  // Notes that a condition holds at `step`. Begins an episode if the condition did not hold; `since` is then
  // its first step. Returns the entry, to which the rule adds its numbers; null if the board is full.
  Condition* note(ConditionId id, int64_t rank, int64_t since, int64_t step);
  // Notes that the condition no longer holds.
  void end(ConditionId id, int64_t rank);
  // Whether the condition holds.
  bool holds(ConditionId id, int64_t rank) const;

  const std::vector<Condition>& found() const { return found_; }
  // Returns copies of the conditions that are new since the last call.
  std::vector<Condition> take_begun();

  template <class State>
  void fields(State& state) {
    uint64_t size = found_.size();
    if constexpr (State::kReads) {
      size = state.count(kMost);
      found_.assign(size, {});
    } else {
      state(size);
    }
    for (Condition& each : found_) {
      int id = static_cast<int>(each.id);
      state(id);
      const bool in_range = id >= 0 && id < static_cast<int>(kConditions);
      state.require(in_range);
      each.id = static_cast<ConditionId>(in_range ? id : 0);  // require() only marks the state as invalid
      for (int64_t* number : {&each.rank, &each.since_step, &each.last_step}) state(*number);
      for (uint64_t* number : {&each.episodes, &each.count}) state(*number);
      for (double* number : {&each.value, &each.usual}) state(*number);
      state(each.place);
      state(each.is_over);
    }
  }

 private:
  Condition* find(ConditionId id, int64_t rank);

  std::vector<Condition> found_;
  std::vector<size_t> begun_;  // indices in found_
};

// The numbers of an ended optimizer step; unknown numbers are absent.
struct StepFacts {
  int64_t step = 0;
  std::optional<double> loss = {}, gradient_norm = {}, learning_rate = {};
  std::optional<uint64_t> skipped_steps = {};
  bool is_local_loss =
      false;            // computed by this rank, and not a value that the training has reduced and logged
  bool is_nll = false;  // of a function of torch that computes a negative log likelihood
  std::optional<double> loss_factor = {};  // see kLossFactor; absent: 1 or unknown
  bool is_counted = false;  // the step number is a count of this process, not of the optimizer's state
  std::optional<uint64_t> attention_calls = {};
};

// A sampled backward call of attention without a mask.
struct AttentionFacts {
  int64_t step = 0;
  std::string layer;                         // label; "": unknown
  int64_t last_position = 0, seen_keys = 0;  // of the last sampled query: its position, the keys that it sees
  int64_t queries = 0, keys = 0;             // of the call
};

// Finds learning rates of 0, jumps, schedules that run beyond their end, and those that a new process has not
// restored.
class RateRule {
 public:
  void begin_process() { is_new_process_ = true; }
  void observe(int64_t step, double rate, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    for (double* number : {&most_, &last_, &trough_}) state(*number);
    for (int64_t* number : {&first_step_, &peak_step_, &leave_step_, &trough_step_, &zero_since_})
      state(*number);
    for (uint64_t* number : {&known_, &zeros_}) state(*number);
    for (bool* flag : {&has_come_back_, &is_new_process_}) state(*flag);
    uint64_t size = since_.size();
    if constexpr (State::kReads) since_.resize(size = state.count(kMost));
    if constexpr (!State::kReads) state(size);
    for (RateSince& each : since_) {
      state(each.last_step);
      state(each.rate);
    }
  }

 private:
  static constexpr size_t kMost = 64;  // elements of since_

  // No rate was above `rate` from the step after the element before until the last step known.
  struct RateSince {
    int64_t last_step = 0;
    double rate = 0;
  };

  void compare_with_earlier_process(int64_t step, double rate, int64_t rank, ConditionBoard* board);
  void keep(int64_t step, double rate);
  void follow_cycle(int64_t step, double rate, int64_t rank, ConditionBoard* board);

  double most_ = 0, last_ = 0;                // largest rate so far, last rate
  double trough_ = 0;                         // lowest rate since the last step near the maximum
  int64_t first_step_ = 0, peak_step_ = 0;    // peak_step_: first step near the maximum
  int64_t leave_step_ = 0, trough_step_ = 0;  // last step near the maximum; step of trough_
  int64_t zero_since_ = 0;
  uint64_t known_ = 0, zeros_ = 0;  // steps with a rate above 0; zeros in a row
  bool has_come_back_ = false, is_new_process_ = false;
  std::vector<RateSince> since_;  // falling rates
};

// Finds gradient scalers that skip many steps.
class SkipRule {
 public:
  void observe(int64_t step, uint64_t skipped, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    for (uint64_t* number : {&last_, &taken_, &taken_in_block_, &skipped_in_block_}) state(*number);
    state(block_step_);
    state(has_last_);
  }

 private:
  uint64_t last_ = 0, taken_ = 0, taken_in_block_ = 0, skipped_in_block_ = 0;
  int64_t block_step_ = 0;
  bool has_last_ = false;
};

// Finds trainings whose steps stop while their backward passes go on.
class StepStopRule {
 public:
  void observe_step(uint64_t calls);  // `calls`: of attention, in the step that has ended
  // Whether so many backward calls of attention since the last step are far more than any step had calls.
  bool has_stopped(uint64_t backward_calls) const;
  // `step`: the last step that has ended.
  void observe(int64_t step, uint64_t backward_calls, int64_t rank, ConditionBoard* board) const;

  template <class State>
  void fields(State& state) {
    state(steps_);
    state(most_);
  }

 private:
  uint64_t steps_ = 0, most_ = 0;  // steps with attention calls; most calls in a step
};

// Finds single losses that stand out.
class LoneLossRule {
 public:
  void observe(int64_t step, double loss, int64_t rank, ConditionBoard* board);
  void restart() { *this = LoneLossRule(); }

  template <class State>
  void fields(State& state) {
    window_.fields(state);
    state(candidate_step_);
    state(candidate_);
    state(usual_);
    state(after_);
    state.require(after_ >= 0 && after_ <= kLoneAfter);
  }

 private:
  Window<kLoneWindow> window_;   // the last losses that do not stand out
  int64_t candidate_step_ = -1;  // -1: none
  double candidate_ = 0, usual_ = 0;
  int after_ = 0;  // ordinary losses since the candidate
};

// Finds gradients of exactly 0, with a loss of 0 or without.
class ZeroLossRule {
 public:
  void observe(const StepFacts& facts, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    for (Row* row : {&both_, &norm_}) {
      state(row->since);
      state(row->length);
    }
  }

 private:
  struct Row {  // steps in a row
    int64_t since = 0;
    uint64_t length = 0;
  };
  static void extend(Row* row, bool holds, ConditionId id, int64_t step, int64_t rank, ConditionBoard* board);

  Row both_, norm_;  // loss and gradient are 0; only the gradient is
};

// Finds losses that rise above their first values before the rules for loss events can see it.
class EarlyRiseRule {
 public:
  void observe(int64_t step, double loss, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    for (uint64_t* number : {&known_, &in_row_}) state(*number);
    for (double* loss : {&first_, &most_first_, &most_in_row_}) state(*loss);
    state(since_);
  }

 private:
  void extend(bool is_high, int64_t step, double loss);  // the losses that are high in a row

  uint64_t known_ = 0, in_row_ = 0;  // losses so far; the last of them that are high
  double first_ = 0;                 // the first loss
  double most_first_ = 0;            // largest of the first losses that are not far above it
  double most_in_row_ = 0;           // largest of in_row_
  int64_t since_ = 0;                // step of the first of in_row_
};

// Finds causal attention that hides the last keys from all queries.
class UnseenKeysRule {
 public:
  void observe(const AttentionFacts& facts, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    state(slices_);
    state(since_);
  }

 private:
  uint64_t slices_ = 0;
  int64_t since_ = 0;
};

// Finds gradient norms that have risen and stay high.
class GradientRiseRule {
 public:
  void observe(int64_t step, double norm, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    block_.fields(state);
    uint64_t size = medians_.size();
    if constexpr (State::kReads) medians_.resize(size = state.count(kMost));
    if constexpr (!State::kReads) state(size);
    for (double& median : medians_) state(median);
    for (uint64_t* number : {&blocks_, &merged_, &pending_}) state(*number);
    state(most_pending_);
    state(block_step_);
    state(since_);
    state.require(merged_ > 0);
  }

 private:
  static constexpr size_t kMost = 64;  // medians

  void end_block(int64_t step, int64_t rank, ConditionBoard* board);
  void keep(double median);

  Window<kRiseBlock> block_;     // norms of this block
  std::vector<double> medians_;  // of the run so far; each is the largest of merged_ blocks
  uint64_t blocks_ = 0, merged_ = 1, pending_ = 0;
  double most_pending_ = 0;  // largest median of the pending_ blocks that are not in medians_ yet
  int64_t block_step_ = 0;   // first step of this block
  int64_t since_ = -1;       // first step of the first block that exceeds the limit; -1: the last one did not
};

// Finds a new process, or a new optimizer in this one, that starts at step 1 with trained weights.
class RestartRule {
 public:
  // Returns whether the process has replaced another one.
  bool begin_process(int64_t pid);
  void observe(const StepFacts& facts, int64_t rank, ConditionBoard* board);

  template <class State>
  void fields(State& state) {
    last_.fields(state);
    state(pid_);
    for (int64_t* number : {&last_step_, &first_step_, &replaced_step_}) state(*number);
    for (double* number : {&first_sum_, &new_sum_, &usual_, &spread_}) state(*number);
    for (uint64_t* number : {&firsts_, &news_}) state(*number);
    for (bool* flag : {&is_new_process_, &is_checking_}) state(*flag);
  }

 private:
  static constexpr uint64_t kFirst = 4;  // losses that give the level of untrained weights
  static constexpr uint64_t kNew = 2;    // losses of the new process

  Window<kRestartLosses> last_;
  int64_t pid_ = -1;
  int64_t last_step_ = -1, first_step_ = 0;  // first_step_: of the new process or optimizer
  int64_t replaced_step_ = 0;  // last step of the optimizer before, in this process; 0: in an earlier process
  double first_sum_ = 0, new_sum_ = 0;
  double usual_ = 0, spread_ = 0;  // mean and standard deviation of the losses before the restart
  uint64_t firsts_ = 0, news_ = 0;
  bool is_new_process_ = false, is_checking_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_CONDITION_RULES_H_
