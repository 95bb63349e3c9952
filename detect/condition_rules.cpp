// The board of conditions, their sentences, and the rules over the steps of one rank.
#include "detect/condition_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "detect/loss_rules.h"

namespace foreshock {
namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

template <size_t kSize>
double median_of(const Window<kSize>& window) {
  std::array<double, kSize> values = {};
  const auto end = std::copy_n(window.data(), window.size(), values.begin());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(window.size() / 2);
  std::nth_element(values.begin(), middle, end);
  return *middle;
}

// Returns " in steps 12 to 43", or " since step 12" while the condition holds.
std::string when_text(const Condition& condition) {
  const std::string since = std::to_string(condition.since_step);
  if (!condition.is_over) return " since step " + since;
  if (condition.last_step == condition.since_step) return " at step " + since;
  return " from step " + since + " to " + std::to_string(condition.last_step);
}

}  // namespace

std::string sentence_of(const Condition& condition) {
  const std::string since = std::to_string(condition.since_step);
  const std::string value = number_text(condition.value), usual = number_text(condition.usual);
  const std::string count = std::to_string(condition.count);
  const std::string on_rank = condition.rank > 0 ? " on rank " + std::to_string(condition.rank) : "";
  switch (condition.id) {
    case ConditionId::kNoStepTaken:
      return (condition.is_over ? "no optimizer step was taken for some time"
                                : "no optimizer step is taken") +
             when_text(condition) + on_rank + ": the gradient scaler has skipped " + count + " in a row";
    case ConditionId::kStepsSkipped:
      return "the gradient scaler skips " + percent_text(condition.value) + " of the optimizer steps" +
             when_text(condition) + on_rank;
    case ConditionId::kStepsStopped:
      return (condition.is_over ? "no step ended for some time after step "
                                : "no step has ended since step ") +
             since + on_rank + ", and backward passes " + (condition.is_over ? "went" : "go") +
             " on: " + count + " backward calls of attention, no step before had more than " + usual +
             " calls";
    case ConditionId::kRateZero:
      return "the learning rate of the first parameter group is " +
             (condition.value > 0 ? "below " + value : "0") + when_text(condition) + on_rank +
             (condition.usual > 0 ? " (largest before: " + usual + ")" : "");
    case ConditionId::kRateJump:
      return "the learning rate jumps at step " + since + on_rank + " to " + value +
             ", its largest value before was " + usual;
    case ConditionId::kRateComesBack:
      return "the learning rate was at its end at step " + since + on_rank + " and rises again: to " + value +
             " at step " + std::to_string(condition.last_step) + " (largest before: " + usual + ")";
    case ConditionId::kRateNotRestored:
      return "the learning rate of a new process is " + value + " at step " + since + on_rank +
             ", where the earlier process had at most " + usual;
    case ConditionId::kNothingTrained:
      return (condition.is_over ? "nothing was trained" : "nothing is trained") + when_text(condition) +
             ": none of " + count + " tensors has changed" +
             (condition.place.empty() ? "" : "; " + condition.place);
    case ConditionId::kWeightsNonfinite:
      return "weights hold NaN or Inf" + when_text(condition) +
             ", while their gradients are finite: " + condition.place +
             (condition.count > 1 ? " and others" : "");
    case ConditionId::kNoGradient:
      return count + (condition.count == 1 ? " parameter got" : " parameters got") + " no gradient" +
             when_text(condition) + ": " + condition.place;
    case ConditionId::kZeroGradient:
      return "the gradient of " + count + (condition.count == 1 ? " parameter" : " parameters") +
             " is exactly 0" + when_text(condition) + ": " + condition.place;
    case ConditionId::kWeightsStuck:
      return percent_text(condition.value) + " of the 16-bit weights did not change between two looks" +
             when_text(condition) + ": the updates are below the spacing of the format";
    case ConditionId::kOptimizerBeganAgain:
      if (!condition.place.empty())
        return "the optimizer's state began again at step " + since +
               " while the weights went on: it counts " + value + " steps for " + condition.place +
               ", and counted " + usual + " before";
      return (condition.count > 0 ? "after step " + count + " an optimizer counts its steps from "
                                  : "a new process counts its steps from ") +
             since + on_rank + ", but its loss continues at " + value + " where the earlier one stopped at " +
             usual + ": the optimizer's state began again";
    case ConditionId::kLoneLoss:
      return (condition.episodes > 1
                  ? std::to_string(condition.episodes) + " losses stand out alone, the first"
                  : "one loss stands out alone") +
             std::string(" at step ") + since + on_rank + ": " + value + ", the losses before it are near " +
             usual +
             (condition.episodes > 1 ? "; the last at step " + std::to_string(condition.last_step) : "");
    case ConditionId::kZeroLoss:
      return "loss and gradient are exactly 0" + when_text(condition) + on_rank;
    case ConditionId::kZeroNorm:
      return "the gradient norm is exactly 0" + when_text(condition) + on_rank + ", and the loss is not";
    case ConditionId::kEarlyRise:
      return "the loss is above its first values" + when_text(condition) + on_rank + ": up to " + value +
             ", the first ones were at most " + usual;
    case ConditionId::kUnseenKeys:
      return "causal attention hides the last " + value + " of " + usual + " keys from all queries" +
             when_text(condition) + on_rank +
             (condition.place.empty() ? "" : ", first seen in layer " + condition.place);
    case ConditionId::kSameLosses:
      return "ranks " + condition.place + (condition.is_over ? " had the same loss" : " have the same loss") +
             ", bit for bit," + when_text(condition);
    case ConditionId::kLossFactor:
      return "the gradient is that of " + value + " times the mean cross-entropy of the step" +
             when_text(condition) + on_rank;
    case ConditionId::kRankApart:
      if (condition.count == 2 && condition.place.find("more") == std::string::npos)
        return "the losses of ranks " + condition.place + (condition.is_over ? " were apart" : " are apart") +
               when_text(condition) + ": " + value + " and " + usual;
      return "the loss of rank " + condition.place + " is apart from those of the other ranks" +
             when_text(condition) + ": " + value + ", the median of the ranks is " + usual;
    case ConditionId::kGradientRise:
      return "the gradient norm is high" + when_text(condition) + on_rank + ": " + value +
             ", in the first half of the run it was at most " + usual;
    case ConditionId::kGradientUnused:
      return count +
             (condition.count == 1 ? " parameter has gradients and does"
                                   : " parameters have gradients and do") +
             " not change" + when_text(condition) + ": " + condition.place;
    case ConditionId::kClippedAway:
      return "clipping leaves little of the gradient" + when_text(condition) + ": a norm of " + value +
             " of at least " + usual;
    case ConditionId::kGainsDecay:
      return "weight decay shrinks " + count + (condition.count == 1 ? " vector" : " vectors") +
             " that began near 1" + when_text(condition) + ", to " + value + " now: " + condition.place;
    case ConditionId::kTiedApart:
      return condition.place + when_text(condition) + ": the earlier process had no tensor of this name";
    case ConditionId::kGradientNotSummed:
      return condition.place +
             ": the gradient used is that of its own rank only, the ranks were not summed," +
             when_text(condition);
    case ConditionId::kGradientLastOnly:
      return condition.place + ": the gradient used is that of the last backward pass only," +
             when_text(condition);
    case ConditionId::kGradientLacksLast:
      return condition.place + ": the gradient used lacks that of the last backward pass," +
             when_text(condition);
    case ConditionId::kGradientDropped:
      return condition.place + ": the gradient used is 0, although backward passes contributed to it," +
             when_text(condition);
    case ConditionId::kGradientMultiplied:
      return condition.place + ": the gradient used is " + value +
             " times the sum of its contributions, compared with the other parameters," +
             when_text(condition);
    case ConditionId::kGradientPiledUp:
      return condition.place + ": the gradient used has the gradients of earlier steps in it," +
             when_text(condition);
    case ConditionId::kGradientRounded:
      return condition.place + ": the gradient used is rounded as by a sum in bf16, though it is in fp32," +
             when_text(condition);
    case ConditionId::kCopiesDiffer:
      return condition.place + " hold copies and use different gradients, by up to " + value +
             " of their norm," + when_text(condition);
    case ConditionId::kCopiesApart:
      return condition.place + " held equal values, which have moved apart by " + value +
             " of the way that they have moved," + when_text(condition);
    case ConditionId::kCount:
      break;
  }
  return "";
}

Condition* ConditionBoard::find(ConditionId id, int64_t rank) {
  const auto found = std::find_if(found_.begin(), found_.end(),
                                  [&](const Condition& each) { return each.id == id && each.rank == rank; });
  return found != found_.end() ? &*found : nullptr;
}

Condition* ConditionBoard::note(ConditionId id, int64_t rank, int64_t since, int64_t step) {
  Condition* condition = find(id, rank);
  const bool begins = condition == nullptr || condition->is_over;
  if (condition == nullptr) {
    if (found_.size() >= kMost) return nullptr;
    condition = &found_.emplace_back();
    condition->id = id;
    condition->rank = rank;
    condition->since_step = since;
  }
  if (begins) {
    ++condition->episodes;
    condition->is_over = false;
    begun_.push_back(static_cast<size_t>(condition - found_.data()));
  }
  condition->last_step = step;
  return condition;
}

void ConditionBoard::end(ConditionId id, int64_t rank) {
  if (Condition* condition = find(id, rank)) condition->is_over = true;
}

bool ConditionBoard::holds(ConditionId id, int64_t rank) const {
  return std::any_of(found_.begin(), found_.end(), [&](const Condition& each) {
    return each.id == id && each.rank == rank && !each.is_over;
  });
}

std::vector<Condition> ConditionBoard::take_begun() {
  std::vector<Condition> begun;
  for (const size_t index : begun_) begun.push_back(found_[index]);
  begun_.clear();
  return begun;
}

void RateRule::observe(int64_t step, double rate, int64_t rank, ConditionBoard* board) {
  if (!std::isfinite(rate) || rate < 0) return;
  if (is_new_process_ && step <= static_cast<int64_t>(kRateLearning)) *this = RateRule();  // another training
  if (rate <= kNoRate * most_) {
    if (zeros_++ == 0) zero_since_ = step;
    if (zeros_ >= kZeroRates)
      if (Condition* found = board->note(ConditionId::kRateZero, rank, zero_since_, step)) {
        found->value = rate == 0 ? 0 : kNoRate * most_;
        found->usual = most_;
        found->count = zeros_;
      }
  } else if (zeros_ > 0) {
    if (zeros_ >= kZeroRates) board->end(ConditionId::kRateZero, rank);
    zeros_ = 0;
  }
  // The factor allows for the rounding of a rate that is computed by multiplication.
  if (known_ >= kRateLearning && rate > kRateJumpFactor * most_ * (1 + 1e-9))
    if (Condition* found = board->note(ConditionId::kRateJump, rank, step, step)) {
      if (found->episodes == 1) found->value = rate, found->usual = most_;
      found->is_over = true;
    }
  compare_with_earlier_process(step, rate, rank, board);
  keep(step, rate);
  follow_cycle(step, rate, rank, board);
  known_ += rate > 0;
  last_ = rate;
}

void RateRule::compare_with_earlier_process(int64_t step, double rate, int64_t rank, ConditionBoard* board) {
  if (!std::exchange(is_new_process_, false) || known_ < kRateLearning || since_.empty()) return;
  // The new process may repeat steps. If it begins after the last step, the last rate counts.
  const auto found = std::find_if(since_.begin(), since_.end() - 1,
                                  [&](const RateSince& each) { return each.last_step >= step; });
  if (rate <= kRateRestored * found->rate || found->rate == 0) return;
  if (Condition* noted = board->note(ConditionId::kRateNotRestored, rank, step, step)) {
    noted->value = rate;
    noted->usual = found->rate;
    noted->is_over = true;
  }
}

// Rates within a tenth of each other share an element, and the lowest ones if there are too many.
void RateRule::keep(int64_t step, double rate) {
  while (!since_.empty() && since_.back().rate <= rate) since_.pop_back();
  if (!since_.empty() && (since_.back().rate <= 1.1 * rate || since_.size() == kMost))
    since_.back().last_step = step;
  else
    since_.push_back({step, rate});
}

// Follows the fall of the rate from its maximum to its trough, and the rise after it. A jump upwards, or a
// fall that begins before a quarter of the maximum is reached, begins another cycle of the schedule.
void RateRule::follow_cycle(int64_t step, double rate, int64_t rank, ConditionBoard* board) {
  constexpr double kNear = 0.99;  // share of the maximum that counts as the maximum
  const auto begin_fall = [&] {
    trough_ = rate;
    trough_step_ = step;
  };
  if (known_ == 0 && rate > 0) first_step_ = step;
  if (rate >= kNear * most_) {
    if (kNear * rate > most_) peak_step_ = step;
    most_ = std::max(most_, rate);
    leave_step_ = step;
    return begin_fall();
  }
  const bool jumps = rate > 4 * last_ && rate >= kRateBack * most_;
  const bool falls = rate < last_;
  if (rate <= trough_ || jumps) return begin_fall();
  if (falls && trough_ > kRateTrough * most_) return begin_fall();
  if (falls || trough_ > kRateTrough * most_) return;
  if (rate < kRateBack * most_ || has_come_back_) return;
  const int64_t rise = step - trough_step_, fall = trough_step_ - leave_step_;
  const int64_t first_rise = peak_step_ - first_step_;
  has_come_back_ = rise >= kRateRise && 4 * rise >= fall && rise > 2 * first_rise;
  if (!has_come_back_) return begin_fall();
  if (Condition* found = board->note(ConditionId::kRateComesBack, rank, trough_step_, step)) {
    found->value = rate;
    found->usual = most_;
    found->is_over = true;
  }
}

void SkipRule::observe(int64_t step, uint64_t skipped, int64_t rank, ConditionBoard* board) {
  // A count that falls is that of a new process. Many skips in a row are kNoStepTaken.
  uint64_t more = has_last_ && skipped >= last_ ? skipped - last_ : 0;
  if (more >= kSkipsInRow) more = 0;
  last_ = skipped;
  has_last_ = true;
  if (taken_++ < kSkipsLearning) return;
  if (taken_in_block_ + skipped_in_block_ == 0) block_step_ = step;
  ++taken_in_block_;
  skipped_in_block_ += more;
  const uint64_t iterations = taken_in_block_ + skipped_in_block_;
  if (iterations < kSkipBlock) return;
  const double share = static_cast<double>(skipped_in_block_) / static_cast<double>(iterations);
  if (share < kSkipShare) {
    board->end(ConditionId::kStepsSkipped, rank);
  } else if (Condition* found = board->note(ConditionId::kStepsSkipped, rank, block_step_, step)) {
    found->value = share;
    found->count = skipped_in_block_;
  }
  taken_in_block_ = skipped_in_block_ = 0;
}

void StepStopRule::observe_step(uint64_t calls) {
  steps_ += calls > 0;
  most_ = std::max(most_, calls);
}

bool StepStopRule::has_stopped(uint64_t backward_calls) const {
  return steps_ >= kStopLearning && backward_calls / kStopFactor >= most_;
}

void StepStopRule::observe(int64_t step, uint64_t backward_calls, int64_t rank, ConditionBoard* board) const {
  if (!has_stopped(backward_calls)) return;
  if (Condition* found = board->note(ConditionId::kStepsStopped, rank, step, step)) {
    found->count = backward_calls;
    found->usual = static_cast<double>(most_);
  }
}

void LoneLossRule::observe(int64_t step, double loss, int64_t rank, ConditionBoard* board) {
  if (!std::isfinite(loss)) return restart();  // reported as a loss event
  const std::optional<double> usual = usual_beside(loss, window_);
  if (!usual) {
    window_.add(loss);
    if (candidate_step_ < 0 || ++after_ < kLoneAfter) return;
    if (Condition* found = board->note(ConditionId::kLoneLoss, rank, candidate_step_, candidate_step_)) {
      if (found->episodes == 1) found->value = candidate_, found->usual = usual_;
      found->is_over = true;
    }
    candidate_step_ = -1;
    return;
  }
  // A second one soon after the first: a spike, or a new level of the loss.
  if (candidate_step_ >= 0) return restart();
  candidate_step_ = step;
  candidate_ = loss;
  usual_ = *usual;
  after_ = 0;
}

void ZeroLossRule::extend(Row* row, bool holds, ConditionId id, int64_t step, int64_t rank,
                          ConditionBoard* board) {
  if (!holds) {
    if (row->length >= kZeroLosses) board->end(id, rank);
    row->length = 0;
    return;
  }
  if (row->length++ == 0) row->since = step;
  if (row->length < kZeroLosses) return;
  if (Condition* found = board->note(id, rank, row->since, step)) found->count = row->length;
}

void ZeroLossRule::observe(const StepFacts& facts, int64_t rank, ConditionBoard* board) {
  if (!facts.is_local_loss || !facts.loss || !facts.gradient_norm) return;
  const bool is_zero = *facts.gradient_norm == 0;
  extend(&both_, is_zero && *facts.loss == 0, ConditionId::kZeroLoss, facts.step, rank, board);
  extend(&norm_, is_zero && *facts.loss != 0 && std::isfinite(*facts.loss), ConditionId::kZeroNorm,
         facts.step, rank, board);
}

void EarlyRiseRule::observe(int64_t step, double loss, int64_t rank, ConditionBoard* board) {
  if (!std::isfinite(loss)) return;  // reported as a loss event
  if (known_ < kEarlyFirst) {
    if (known_++ == 0) first_ = loss;
    const bool is_far = loss > first_ + kEarlyJump;
    if (!is_far) most_first_ = std::max(most_first_, loss);
    extend(is_far, step, loss);
    return;
  }
  const bool is_high = most_first_ > 0 && loss > kEarlyFactor * most_first_;
  if (!is_high) board->end(ConditionId::kEarlyRise, rank);
  // After the first losses only a rise that was found is followed.
  if (known_ >= kEarlySteps && !board->holds(ConditionId::kEarlyRise, rank)) return;
  ++known_;
  extend(is_high, step, loss);
  if (in_row_ < kEarlyInRow) return;
  if (Condition* found = board->note(ConditionId::kEarlyRise, rank, since_, step)) {
    found->value = most_in_row_;
    found->usual = most_first_;
  }
}

void EarlyRiseRule::extend(bool is_high, int64_t step, double loss) {
  if (in_row_ == 0) since_ = step;
  most_in_row_ = in_row_ == 0 ? loss : std::max(most_in_row_, loss);
  in_row_ = is_high ? in_row_ + 1 : 0;
}

void UnseenKeysRule::observe(const AttentionFacts& facts, int64_t rank, ConditionBoard* board) {
  const bool is_unseen = facts.keys > facts.queries && facts.seen_keys == facts.last_position + 1 &&
                         facts.last_position < facts.queries;
  if (!is_unseen) return;
  if (slices_++ == 0) since_ = facts.step;
  if (slices_ < kUnseenSlices) return;
  if (Condition* found = board->note(ConditionId::kUnseenKeys, rank, since_, facts.step);
      found != nullptr && found->count++ == 0) {
    found->value = static_cast<double>(facts.keys - facts.queries);
    found->usual = static_cast<double>(facts.keys);
    found->place = facts.layer;
  }
}

void GradientRiseRule::observe(int64_t step, double norm, int64_t rank, ConditionBoard* board) {
  if (!std::isfinite(norm)) return;
  if (block_.size() == 0) block_step_ = step;
  block_.add(norm);
  if (block_.full()) end_block(step, rank, board);
}

void GradientRiseRule::end_block(int64_t step, int64_t rank, ConditionBoard* board) {
  const double median = median_of(block_);
  block_.clear();
  if (++blocks_ > kRiseLearning) {
    const auto half = medians_.begin() + static_cast<std::ptrdiff_t>(medians_.size() / 2);
    const double usual = *std::max_element(medians_.begin(), half);
    if (usual <= 0 || median <= kRiseFactor * usual) {
      since_ = -1;
      board->end(ConditionId::kGradientRise, rank);
    } else if (since_ < 0) {
      since_ = block_step_;
    } else if (Condition* found = board->note(ConditionId::kGradientRise, rank, since_, step)) {
      found->value = median;
      found->usual = usual;
    }
  }
  keep(median);
}

// If there are too many medians, pairs are merged, so that each covers twice as many blocks.
void GradientRiseRule::keep(double median) {
  most_pending_ = pending_ == 0 ? median : std::max(most_pending_, median);
  if (++pending_ < merged_) return;
  pending_ = 0;
  medians_.push_back(most_pending_);
  if (medians_.size() < kMost) return;
  for (size_t n = 0; n < kMost / 2; ++n) medians_[n] = std::max(medians_[2 * n], medians_[2 * n + 1]);
  medians_.resize(kMost / 2);
  merged_ *= 2;
}

bool RestartRule::begin_process(int64_t pid) {
  // A restarted agent may report a new process again before its first step.
  const bool is_other = pid_ >= 0 && pid != pid_;
  is_new_process_ = is_new_process_ || is_other;
  pid_ = pid;
  return is_other;
}

// The step at which the new process begins is below the last step, or the process has restored its count and
// with it the state of its optimizer. A count of the process itself begins again in each process.
void RestartRule::observe(const StepFacts& facts, int64_t rank, ConditionBoard* board) {
  const int64_t step = facts.step;
  const std::optional<double>& loss = facts.loss;
  const bool goes_back = step <= last_step_;
  const int64_t before = std::exchange(last_step_, step);
  if (is_new_process_ || goes_back) {
    const auto summary = last_.summary();
    // A process that starts at a later step has restored its count from a checkpoint.
    is_checking_ = goes_back && step == 1 && !facts.is_counted && last_.full() && firsts_ == kFirst;
    replaced_step_ = std::exchange(is_new_process_, false) ? 0 : before;
    first_step_ = step;
    new_sum_ = 0;
    news_ = 0;
    if (is_checking_) usual_ = summary->mean, spread_ = summary->std;
    last_.clear();
  }
  if (!loss || !std::isfinite(*loss)) return;
  last_.add(*loss);
  if (firsts_ < kFirst) {
    first_sum_ += *loss;
    ++firsts_;
  }
  if (!is_checking_) return;
  new_sum_ += *loss;
  if (++news_ < kNew) return;
  is_checking_ = false;
  const double untrained = first_sum_ / kFirst, now = new_sum_ / kNew, fall = untrained - usual_;
  if (fall <= kRestartSpread * spread_ || now > usual_ + kRestartShare * fall) return;
  if (Condition* found = board->note(ConditionId::kOptimizerBeganAgain, rank, first_step_, step)) {
    found->value = now;
    found->usual = usual_;
    found->count = static_cast<uint64_t>(replaced_step_);
    found->is_over = true;
  }
}

}  // namespace foreshock
