// What the detectors of a rank say, as metrics and for pages and summaries.
#ifndef FORESHOCK_AGENT_PUBLISH_PRECURSORS_H_
#define FORESHOCK_AGENT_PUBLISH_PRECURSORS_H_

#include <nlohmann/json.hpp>

#include "agent/rank.h"
#include "exporters/registry.h"

namespace foreshock {

// Only of detectors that have had a value: what nobody looks at is not quiet.
void publish_precursors(const RankStatistics& rank, Registry* registry);

// {"detectors": [...], "loss_events": [...]}, as in docs/summary.md.
nlohmann::json precursors_json(const RankStatistics& rank);
nlohmann::json precursors_json(const RankWatch& watch);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_PRECURSORS_H_
