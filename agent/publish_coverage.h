// What part of the attention that ran was seen, as metrics and for summaries.
#ifndef FORESHOCK_AGENT_PUBLISH_COVERAGE_H_
#define FORESHOCK_AGENT_PUBLISH_COVERAGE_H_

#include <nlohmann/json.hpp>

#include "agent/rank.h"
#include "exporters/registry.h"

namespace foreshock {

void publish_coverage(const RankStatistics& rank, Registry* registry);

// {"ratio", "source"}, "graphs" where there were CUDA graphs and "kernels" where those were to be counted, as
// in docs/summary.md.
nlohmann::json coverage_json(const RankStatistics& rank);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_COVERAGE_H_
