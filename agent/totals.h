// Sums and means over the processes of a run, for its findings and its summary.
#ifndef FORESHOCK_AGENT_TOTALS_H_
#define FORESHOCK_AGENT_TOTALS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/rank_state.h"

namespace foreshock {

using Ranks = std::vector<const RankStatistics*>;

// Sums over all ranks for one pass, forward (0) or backward (1). calls = unsampled (those in unsampled steps)
// + skipped (not copied, for a reason) + sampled. Sampled calls are judged, lost, or wait for the agent.
struct PassTotals {
  uint64_t calls = 0, unsampled = 0, sampled = 0, judged = 0, nonfinite = 0;
  std::map<std::string, uint64_t> skipped, lost;  // by reason
  // Mean error of the kernel divided by that of `yardstick`, in each rank's last 64 values.
  std::optional<double> ratio;
  const char* yardstick = "";  // yardstick_of() the slices of all ranks
  bool is_compared = false;    // an output was compared (of calls with dropout only the scores are compared)
  bool is_damaged = false;     // slices, steps or the file of a rank are damaged
};

class WeightedMean {
 public:
  void add(const std::optional<double>& value, uint64_t weight) {
    if (!value) return;
    weight_ += static_cast<double>(weight);
    sum_ += static_cast<double>(weight) * *value;
  }
  std::optional<double> value() const { return weight_ > 0 ? std::optional(sum_ / weight_) : std::nullopt; }

 private:
  double weight_ = 0, sum_ = 0;
};

PassTotals totals_of(const Ranks& ranks, uint32_t pass);

template <class Value>
uint64_t sum_over(const Ranks& ranks, const Value& value) {
  uint64_t sum = 0;
  for (const RankStatistics* rank : ranks) sum += value(*rank);
  return sum;
}

template <class Value>
uint64_t max_over(const Ranks& ranks, const Value& value) {
  uint64_t most = 0;
  for (const RankStatistics* rank : ranks) most = std::max<uint64_t>(most, value(*rank));
  return most;
}

// Steps of one process, with those whose records the agent did not read in time.
inline uint64_t steps_of(const RankStatistics& rank) { return rank.steps + rank.steps_lost; }

// Returns " on rank 3"; "" if there is one process.
std::string on_rank(const Ranks& ranks, const RankStatistics& rank);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TOTALS_H_
