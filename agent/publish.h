// What the agent shows of a rank: its series for Prometheus, its part of the status page's document and of
// the summary.
#ifndef FORESHOCK_AGENT_PUBLISH_H_
#define FORESHOCK_AGENT_PUBLISH_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/flagged.h"
#include "agent/rank_state.h"
#include "exporters/registry.h"

namespace foreshock {

// Rank 0 of the data-parallel dimension owns its layers; kUnknown where no coordinate is known.
enum class Ownership { kUnknown, kReplica, kOwner };
Ownership ownership_of(const segment::Identity& identity);
const char* name_of(Ownership ownership);  // "unknown", "0", "1"

class LayerOwners {
 public:
  // `ranks`: those of the run that are exported now.
  explicit LayerOwners(const std::vector<const RankStatistics*>& ranks);

  // Owners show all their layers, replicas none. Of ranks whose ownership is unknown the lowest one that
  // lives shows a layer, so that no layer is without series whatever the parallelism.
  bool shows(const RankStatistics& rank, const std::string& label) const;

 private:
  std::map<std::string, int> lowest_;  // of unknown ownership, by label
};

// From what is known of the ranks to metrics (/metrics) and to JSON (/api/v1/state, the summary).

// Sets every series of one rank, but for layers that `owners`, if given, says others show.
void publish_rank(const RankStatistics& rank, int cores_per_rank, Registry* registry,
                  const LayerOwners* owners = nullptr);

// One entry of "ranks" in the summary (DESIGN of the summary: docs/summary.md). Unknown is null.
nlohmann::json summary_of(const RankStatistics& rank, int cores_per_rank);

// The same with what only the status page and `status` show: layers, events, what the monitor itself does.
nlohmann::json state_of(const RankStatistics& rank, int cores_per_rank);

// The limits of detect/thresholds.h, which the page draws beside the figures.
nlohmann::json thresholds_json();

// What the page draws by step: one table for the rank and one for each layer.
void add_history(const RankStatistics& rank, std::vector<HistoryTable>* tables);

// Names come from the trainer and may be no UTF-8: then a replacement character, not an exception. `indent`
// -1: one line.
std::string text_of(const nlohmann::json& json, int indent);

// What part of the attention that ran was seen, as metrics and for summaries.

void publish_coverage(const RankStatistics& rank, Registry* registry);

// {"ratio", "source"}, "graphs" where there were CUDA graphs and "kernels" where those were to be counted, as
// in docs/summary.md.
nlohmann::json coverage_json(const RankStatistics& rank);

// What became of the flagged slices of a run, as metrics and for summaries.

void publish_flagged(const std::string& run, const FlaggedWriter& writer, Registry* registry);

// {"directory", "saved": {reason: n}, "dropped": {why: n}, "problem"}, as in docs/summary.md.
nlohmann::json flagged_json(const FlaggedWriter& writer);

// What the detectors of a rank say, as metrics and for pages and summaries.

// Only of detectors that have had a value: what nobody looks at is not quiet.
void publish_precursors(const RankStatistics& rank, Registry* registry);

// {"detectors": [...], "loss_events": [...]}, as in docs/summary.md.
nlohmann::json precursors_json(const RankStatistics& rank);
nlohmann::json precursors_json(const RankWatch& watch);

// Values of the JSON that the agent and `foreshock detect` write: what is not known is null, never 0.

// JSON has no NaN and no infinity either.
inline nlohmann::json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

// A step or another count of which -1 is unknown.
inline nlohmann::json count_or_null(int64_t value) {
  return value >= 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
}

inline nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_H_
