// The rule over the losses of several ranks.
#include "detect/rank_conditions.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

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
  if (facts.step <= own.last_step) {  // the training has gone back to an earlier step
    own = {};
    known_ = {};
  }
  if (own.last_step < 0) compared_ = 0;  // all means begin again
  own.last_step = facts.step;
  const size_t place = static_cast<size_t>(facts.step) % kKept;
  own.kept[place] = {facts.step, *facts.loss};
  Known& known = known_[place];
  if (known.step != facts.step) known = {facts.step, 0};
  if (++known.ranks == ranks_.size() && known.ranks > 1) compare_sizes(facts.step, board);
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

void RankLossRule::compare_sizes(int64_t step, ConditionBoard* board) {
  const size_t place = static_cast<size_t>(step) % kKept;
  std::vector<double> losses;
  for (const auto& [number, rank] : ranks_) losses.push_back(rank.kept[place].loss);
  const auto middle = losses.begin() + static_cast<std::ptrdiff_t>((losses.size() - 1) / 2);
  std::nth_element(losses.begin(), middle, losses.end());
  const double median = *middle;
  const double weight = 1 / static_cast<double>(std::min(++compared_, kApartMean));
  median_ += weight * (median - median_);
  uint64_t apart = 0;
  std::string first;
  const Rank* worst = nullptr;  // the first rank that is apart
  for (auto& [number, rank] : ranks_) {
    const double loss = rank.kept[place].loss;
    rank.mean += weight * (loss - rank.mean);
    compare_size(step, loss, median, &rank);
    if (rank.apart < kApartSteps || apart++ > 0) continue;
    worst = &rank;
    first = std::to_string(number);
  }
  if (worst == nullptr) return board->end(ConditionId::kRankApart, -1);
  if (Condition* found = board->note(ConditionId::kRankApart, -1, worst->apart_since, step)) {
    found->count = apart;
    found->place = first + (apart > 1 ? " and " + std::to_string(apart - 1) + " more" : "");
    found->value = worst->mean;
    found->usual = median_;
    if (ranks_.size() != 2) return;
    // Of two ranks, that with the smaller loss is the median. Either may be wrong, unless the loss of one has
    // not fallen with that of the other, or is exactly 0.
    const double fall = worst->median_then - median_;
    const bool lags = fall > kLagLeast * worst->median_then &&
                      worst->mean - median_ - worst->least_above > kLagShare * fall;
    const bool is_lowest = worst == &ranks_.begin()->second;
    const std::string other = std::to_string(is_lowest ? ranks_.rbegin()->first : ranks_.begin()->first);
    if (median == 0) {
      found->place = other;
      found->value = 0;
      found->usual = worst->mean;
    } else if (!lags) {
      found->count = 2;
      found->place = first + " and " + other;
    }
  }
}

// Losses of either sign are not compared: a loss near 0 has no size.
void RankLossRule::compare_size(int64_t step, double loss, double median, Rank* rank) const {
  const double above = rank->mean - median_;
  // The noise of the means: while the rank falls with the others, the distance stays within it.
  constexpr double kNear = 0.02;  // share of the median
  if (compared_ <= kApartFirst || above < rank->least_above) rank->least_above = above;
  if (above <= rank->least_above + kNear * median_) rank->median_then = median_;
  const double low = std::min(loss, median), high = std::max(loss, median);
  const double fall = rank->median_then - median_;
  const bool is_above = loss > median;
  const bool lags =
      is_above && fall > kLagLeast * rank->median_then && above - rank->least_above > kLagShare * fall;
  const bool is_far = low >= 0 && low != high && (high >= kApartFactor * low || lags);
  if (!is_far || is_above != rank->is_above) rank->apart = 0;
  if (is_far && rank->apart++ == 0) rank->apart_since = step;
  rank->is_above = is_above;
}

void RankLossRule::compare(int64_t step, double loss, double other, Rank* rank, ConditionBoard* board) {
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
  if (!has_equal_gradients_ && (is_divided_ || !has_all_looks_)) return;
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
