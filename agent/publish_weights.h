// Writes the state of the weights as metrics and JSON.
#ifndef FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
#define FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "agent/rank_state.h"
#include "agent/weights.h"
#include "exporters/registry.h"

namespace foreshock {

// The newest step of any rank of a run, and the longest interval of its weight snapshots.
struct RunPosition {
  int64_t step = -1;  // -1: unknown
  uint64_t interval = 0;
};

// Sets the series of a run's weights; each tensor of the node counts once. Snapshots older than three
// intervals are left out, since a reader would assume that they are current.
void publish_weights(const std::string& run, const Weights& weights, const RunPosition& now,
                     Registry* registry);

// Sets the series of the optimizer's health, from the latest measurement of each tensor of the run.
void publish_optimizer(const std::string& run, const OptimizerHealth& optimizer, Registry* registry);

// Sets the series of the spectra of updates to the run's attention projections.
void publish_spectra(const std::string& run, const HeadSpectra& spectra, Registry* registry);

// Sets the series from which Prometheus compares a rank's weights with those of replicas on other nodes.
void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry);

// Returns where the data-parallel replicas of these weights are: "here", "elsewhere" (on other nodes;
// Prometheus compares them) or "none" (one rank, or a full shard). Null if unknown.
const char* replicas_place(const Weights& weights, int world_size, size_t ranks_here);

// Return the parts "weights", "optimizer" and "update_spectra" of a rank's summary. The last two describe the
// whole node. Unknown values are null. `ranks_here` is the number of ranks of the run on this node.
nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here);
nlohmann::json optimizer_json(const OptimizerHealth& optimizer);
nlohmann::json spectra_json(const RankStatistics& rank, const HeadSpectra& spectra);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_WEIGHTS_H_
