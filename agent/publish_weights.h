// What is known of the weights, to metrics and JSON.
#ifndef FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
#define FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "agent/rank.h"
#include "agent/weights.h"
#include "exporters/registry.h"

namespace foreshock {

// The weights of a run, each tensor of the node once.
void publish_weights(const std::string& run, const Weights& weights, Registry* registry);

// What one of its ranks holds.
void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry);

// Where data-parallel replicas are that these weights can be compared with: "here", "elsewhere" (on other
// nodes: Prometheus compares them), "none" (one rank, or a full shard); null: not known.
const char* replicas_text(const Weights& weights, int world_size, size_t ranks_here);

// "weights" of a rank in the summary. Unknown is null. `ranks_here`: of the run on this node.
nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
