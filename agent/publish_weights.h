// What is known of the weights, to metrics and JSON.
#ifndef FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
#define FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "agent/rank_state.h"
#include "agent/weights.h"
#include "exporters/registry.h"

namespace foreshock {

// How far the furthest of its ranks has come, and the longest interval of their snapshots.
struct RunPosition {
  int64_t step = -1;  // -1: not known
  uint64_t interval = 0;
};

// The weights of a run, each tensor of the node once. What they were more than three intervals ago is not
// shown: a reader would take it for now.
void publish_weights(const std::string& run, const Weights& weights, const RunPosition& now,
                     Registry* registry);

// The last word on each of its tensors.
void publish_optimizer(const std::string& run, const OptimizerHealth& optimizer, Registry* registry);

// What the updates of its attention's projections do.
void publish_spectra(const std::string& run, const HeadSpectra& spectra, Registry* registry);

// What one of its ranks holds.
void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry);

// Where data-parallel replicas are that these weights can be compared with: "here", "elsewhere" (on other
// nodes: Prometheus compares them), "none" (one rank, or a full shard); null: not known.
const char* replicas_place(const Weights& weights, int world_size, size_t ranks_here);

// "weights", "optimizer" and "update_spectra" of a rank in the summary; the last two are of the node. Unknown
// is null. `ranks_here`: of the run on this node.
nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here);
nlohmann::json optimizer_json(const OptimizerHealth& optimizer);
nlohmann::json spectra_json(const RankStatistics& rank, const HeadSpectra& spectra);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
