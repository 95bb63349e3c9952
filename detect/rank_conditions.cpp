// The rule over the losses of several ranks.
#include "detect/rank_conditions.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace foreshock {

void RankLossRule::observe(const TensorFacts& facts) {
  if (!facts.parts) return;
  is_divided_ = is_divided_ || *facts.parts > 1;
  if (first_tensor_.empty()) {
    first_tensor_ = facts.tensor;
    first_tensor_step_ = facts.step;
  }
  // Each tensor is looked at once in an interval, so the second look at one follows the first at all others.
  has_all_looks_ = has_all_looks_ || (facts.tensor == first_tensor_ && facts.step > first_tensor_step_);
}

void RankLossRule::observe(const StepFacts& facts, int64_t rank, ConditionBoard* board) {
  if (!facts.is_local_loss || !facts.loss || !std::isfinite(*facts.loss) || facts.step < 0) return;
  if (!ranks_.contains(rank) && ranks_.size() >= kMostRanks) return;
  Rank& own = ranks_[rank];
  if (facts.step <= own.last_step) own = {};  // the training has gone back to an earlier step
  own.last_step = facts.step;
  const size_t place = static_cast<size_t>(facts.step) % kKept;
  own.kept[place] = {facts.step, *facts.loss};
  const auto lowest = ranks_.begin();
  if (rank != lowest->first) {
    const Loss& other = lowest->second.kept[place];
    if (other.step != facts.step) return;
    compare(facts.step, *facts.loss, other.loss, &own, board);
  } else {
    for (auto each = std::next(lowest); each != ranks_.end(); ++each)
      if (const Loss& other = each->second.kept[place]; other.step == facts.step)
        compare(facts.step, other.loss, *facts.loss, &each->second, board);
  }
}

// Losses of either sign are not compared: a loss near 0 has no size.
void RankLossRule::compare_size(int64_t step, double loss, double other, Rank* rank, ConditionBoard* board) {
  const bool is_above = loss > other;
  const bool is_far = std::min(loss, other) >= 0 && loss != other &&
                      std::max(loss, other) >= kApartFactor * std::min(loss, other);
  if (!is_far || (rank->apart > 0 && is_above != rank->is_above)) rank->apart = 0;
  if (is_far && rank->apart++ == 0) rank->apart_since = step;
  rank->is_above = is_above;
  const auto is_apart = [](const auto& each) { return each.second.apart >= kApartSteps; };
  if (rank->apart < kApartSteps) {
    if (std::none_of(ranks_.begin(), ranks_.end(), is_apart)) board->end(ConditionId::kRankApart, -1);
    return;
  }
  const auto first = std::find_if(ranks_.begin(), ranks_.end(), is_apart);
  const auto apart = static_cast<size_t>(std::count_if(first, ranks_.end(), is_apart));
  if (Condition* found = board->note(ConditionId::kRankApart, -1, rank->apart_since, step)) {
    found->count = apart;
    found->place = std::to_string(first->first);
    if (apart > 1) found->place += " and " + std::to_string(apart - 1) + " more";
    found->value = loss;
    found->usual = other;
  }
}

void RankLossRule::compare(int64_t step, double loss, double other, Rank* rank, ConditionBoard* board) {
  compare_size(step, loss, other, rank, board);
  if (loss != other) {
    rank->equal = rank->changes = 0;
    const bool any =
        std::any_of(ranks_.begin(), ranks_.end(), [](auto& each) { return each.second.is_same(); });
    if (!any) board->end(ConditionId::kSameLosses, -1);
    return;
  }
  if (rank->equal++ == 0)
    rank->since = step;
  else
    rank->changes += loss != rank->last_equal;
  rank->last_equal = loss;
  if (rank->is_same()) report(step, board);
}

void RankLossRule::report(int64_t step, ConditionBoard* board) const {
  constexpr size_t kMostNamed = 4;
  if (is_divided_ || !has_all_looks_) return;
  std::string names = std::to_string(ranks_.begin()->first);
  uint64_t same = 0;
  int64_t first = step;
  for (const auto& [rank, each] : ranks_) {
    if (!each.is_same()) continue;
    if (++same < kMostNamed) names += ", " + std::to_string(rank);
    first = std::min(first, each.since);
  }
  if (same >= kMostNamed) names += " and " + std::to_string(same + 1 - kMostNamed) + " more";
  if (Condition* found = board->note(ConditionId::kSameLosses, -1, first, step)) {
    found->count = same + 1;
    found->place = names;
  }
}

}  // namespace foreshock
