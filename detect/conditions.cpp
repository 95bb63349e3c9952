// Passes the facts of a run to the rules of its ranks.
#include "detect/conditions.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

void append(std::vector<Condition> begun, std::vector<Condition>* to) {
  to->insert(to->end(), begun.begin(), begun.end());
}

// The facts of a look at a gradient about the parameter itself.
LookFacts look_of(const GradientFacts& facts) {
  LookFacts look;
  look.tensor = facts.tensor;
  look.step = facts.step;
  look.is_16_bit = facts.unit > 0x1p-24;
  const bool is_unknown = std::isnan(facts.used.norm);
  look.is_absent = facts.is_whole && facts.contributions == 0 && is_unknown;
  look.is_zero = facts.is_whole && facts.elements > 0 && facts.local.norm == 0 && facts.used.norm == 0;
  look.is_sample = facts.elements > kSketchedElements;
  // Products of values that cannot be read are 0.
  look.is_nonfinite = !std::isfinite(facts.value.norm) && !std::isfinite(facts.value.products[0]);
  look.parameters = facts.parameters;
  look.gradient_norm = facts.used.norm;
  look.values[0] = facts.value.norm;
  for (size_t k = 0; k < kSketchNumbers; ++k) look.values[k + 1] = facts.value.products[k];
  return look;
}

}  // namespace

RunConditions::Rank* RunConditions::rank_of(int64_t rank) {
  const auto found = ranks_.find(rank);
  if (found != ranks_.end()) return &found->second;
  return ranks_.size() < kMostRanks ? &ranks_[rank] : nullptr;
}

void RunConditions::observe_step(int64_t rank, const StepFacts& facts, std::vector<Condition>* begun) {
  Rank* rules = rank_of(rank);
  if (rules == nullptr) return;
  for (const ConditionId id : {ConditionId::kNoStepTaken, ConditionId::kStepsStopped}) board_.end(id, rank);
  if (facts.attention_calls) rules->step_stop.observe_step(*facts.attention_calls);
  rules->restart.observe(facts, rank, &board_);
  if (facts.learning_rate) rules->rate.observe(facts.step, *facts.learning_rate, rank, &board_);
  if (facts.skipped_steps) rules->skips.observe(facts.step, *facts.skipped_steps, rank, &board_);
  if (facts.loss) rules->lone_loss.observe(facts.step, *facts.loss, rank, &board_);
  rules->zero_loss.observe(facts, rank, &board_);
  if (facts.loss_factor)  // the trainer's library has compared 64 steps
    if (Condition* found = board_.note(ConditionId::kLossFactor, rank, facts.step, facts.step))
      found->value = *facts.loss_factor;
  if (facts.loss && facts.is_nll) rules->early_rise.observe(facts.step, *facts.loss, rank, &board_);
  if (facts.gradient_norm) rules->gradient_rise.observe(facts.step, *facts.gradient_norm, rank, &board_);
  tensors_.observe_step(facts, &board_);
  rank_losses_.observe(facts, rank, &board_);
  append(board_.take_begun(), begun);
}

void RunConditions::observe_attention(int64_t rank, const AttentionFacts& facts,
                                      std::vector<Condition>* begun) {
  Rank* rules = rank_of(rank);
  if (rules == nullptr) return;
  rules->unseen_keys.observe(facts, rank, &board_);
  append(board_.take_begun(), begun);
}

void RunConditions::observe_tensor(const TensorFacts& facts) {
  tensors_.observe(facts);
  rank_losses_.observe(facts);
}

void RunConditions::observe_optimizer(const OptimizerFacts& facts, std::vector<Condition>* begun) {
  tensors_.observe(facts, &board_);
  append(board_.take_begun(), begun);
}

void RunConditions::observe_gradient(const GradientFacts& facts, std::vector<Condition>* begun) {
  if (ranks_.empty() || facts.rank == ranks_.begin()->first) tensors_.observe(look_of(facts), &board_);
  gradients_.observe(facts, &board_);
  rank_losses_.observe_gradients(gradients_.have_ranks_equal_gradients());
  append(board_.take_begun(), begun);
}

void RunConditions::observe_skipped(int64_t rank, int64_t step, uint64_t in_row,
                                    std::vector<Condition>* begun) {
  if (in_row < kSkipsInRow) return;
  // No step has a number while none is taken, so the last step of the episode is the step that was tried.
  if (Condition* found = board_.note(ConditionId::kNoStepTaken, rank, step + 1, step + 1))
    found->count = in_row;
  append(board_.take_begun(), begun);
}

void RunConditions::observe_backward_calls(int64_t rank, int64_t step, uint64_t calls,
                                           std::vector<Condition>* begun) {
  const Rank* rules = rank_of(rank);
  if (rules != nullptr) rules->step_stop.observe(step, calls, rank, &board_);
  append(board_.take_begun(), begun);
}

bool RunConditions::have_steps_stopped(int64_t rank, uint64_t backward_calls) const {
  const auto found = ranks_.find(rank);
  return found != ranks_.end() && found->second.step_stop.has_stopped(backward_calls);
}

void RunConditions::observe_process(int64_t rank, int64_t pid) {
  Rank* rules = rank_of(rank);
  if (rules != nullptr && rules->restart.begin_process(pid)) {
    rules->rate.begin_process();
    if (rank == ranks_.begin()->first) tensors_.begin_process();
  }
  gradients_.begin_process(rank, pid);
}

std::vector<Condition> RunConditions::found() const {
  std::vector<Condition> found = board_.found();
  std::stable_sort(found.begin(), found.end(), [](const Condition& a, const Condition& b) {
    const auto rank = [](const Condition& each) { return !is_fault(each); };
    return rank(a) != rank(b) ? rank(a) < rank(b) : a.since_step < b.since_step;
  });
  return found;
}

}  // namespace foreshock
