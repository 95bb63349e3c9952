// From what is known of the ranks to metrics (/metrics) and to JSON (/api/v1/state, the summary).
#ifndef FORESHOCK_AGENT_PUBLISH_H_
#define FORESHOCK_AGENT_PUBLISH_H_

#include <nlohmann/json.hpp>

#include "agent/owners.h"
#include "agent/rank.h"
#include "exporters/registry.h"

namespace foreshock {

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

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_H_
