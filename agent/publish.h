// Writes the state of a rank (one trainer process) and of the weights as metrics for Prometheus, and as JSON
// for the status page and the summary. "Series": a metric with one combination of labels.
#ifndef FORESHOCK_AGENT_PUBLISH_H_
#define FORESHOCK_AGENT_PUBLISH_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/findings.h"
#include "agent/flagged.h"
#include "agent/rank_state.h"
#include "agent/weights.h"
#include "exporters/metrics.h"

namespace foreshock {

// Whether a rank exports the series of its layers. Data-parallel ranks have the same layers, and only the
// rank with the data-parallel coordinate 0 is their owner. kUnknown: the coordinate is unknown.
enum class Ownership { kUnknown, kReplica, kOwner };
Ownership ownership_of(const segment::Identity& identity);
const char* name_of(Ownership ownership);  // "unknown", "0" or "1": values of the label `owner`

// Decides which rank exports the series of a layer, so that replicas do not export them again.
class LayerOwners {
 public:
  // `ranks` are the ranks of the run that are exported now.
  explicit LayerOwners(const std::vector<const RankStatistics*>& ranks);

  // Whether `rank` exports the layer. Owners export all their layers, replicas none. Among ranks of unknown
  // ownership, the lowest live rank that has the layer exports it; if only dead ranks have the layer, the
  // first of these. So every layer has series under any parallelism.
  bool exports(const RankStatistics& rank, const std::string& label) const;

 private:
  std::map<std::string, int> lowest_;  // by label: the rank of unknown ownership that exports the layer
};

// Sets the series of one rank. Unknown values are not exported; series that become unknown are removed.
class RankWriter {
 public:
  RankWriter(const RankStatistics& rank, Registry* registry)
      : run_(rank.run), rank_(std::to_string(rank.identity.rank)), registry_(registry) {}

  // Sets a series; an absent value removes it. Numbers of any type convert to `value`.
  template <class... Labels>
  void set(Metric metric, const std::optional<double>& value, const Labels&... labels) {
    if (value)
      registry_->set(metric, {run_, rank_, std::string_view(labels)...}, *value);
    else
      registry_->unset(metric, {run_, rank_, std::string_view(labels)...});
  }
  // Removes the rank's series of a metric whose labels describe a state, before the present one is set.
  void clear(Metric metric) { registry_->clear_metric(metric, run_, rank_); }

 private:
  std::string run_, rank_;
  Registry* registry_;
};

// Sets the series of one rank, without those of publish_precursors(). If `owners` is given, layers that other
// ranks export are left out. The agent's CPU time counts as slowdown, divided by `cores_per_rank`: an
// agent that keeps one of a rank's n cores busy slows the rank by at most 1/n.
void publish_rank(const RankStatistics& rank, int cores_per_rank, Registry* registry,
                  const LayerOwners* owners = nullptr);

// Returns one entry of "ranks" in the summary (docs/summary.md). Unknown values are null.
nlohmann::json summary_of(const RankStatistics& rank, int cores_per_rank);

// Returns the findings of a run, the most severe first (docs/summary.md).
nlohmann::json findings_json(const std::vector<Finding>& findings);

// Returns summary_of(), and for page and `foreshock status` also layers, events and the cost of foreshock.
nlohmann::json state_of(const RankStatistics& rank, int cores_per_rank);
// Returns the limits of detect/detector.h, which the page shows beside the values.
nlohmann::json thresholds_json();
// Adds the histories that the page plots by step: one table for the rank and one for each layer.
void add_history(const RankStatistics& rank, std::vector<HistoryTable>* tables);

// Serializes `json` without throwing: replaces invalid UTF-8 in names of the trainer. `indent` -1: one line.
std::string text_of(const nlohmann::json& json, int indent);

// Sets the metrics of attention coverage: the share of attention calls that the hooks have seen.
void publish_coverage(const RankStatistics& rank, Registry* registry);
// Returns the coverage as {"ratio", "source"}, with "graphs" if there were CUDA graphs, and "kernels" if the
// user has requested a count of the attention kernels (docs/summary.md).
nlohmann::json coverage_json(const RankStatistics& rank);

// Sets the metrics of the saved and dropped flagged slices (unusual ones, and some ordinary ones for
// comparison) of a run.
void publish_flagged(const std::string& run, const FlaggedWriter& writer, Registry* registry);
// Returns {"directory", "saved": {reason: n}, "dropped": {why: n}, "problem"} (docs/summary.md).
nlohmann::json flagged_json(const FlaggedWriter& writer);

// Sets the metrics of the detectors, which are named precursors in metrics and JSON, since their warnings may
// precede a loss event. A detector that has had no value has no metrics: its level is unknown, not quiet.
void publish_precursors(const RankStatistics& rank, Registry* registry);
// Both return {"detectors": [...], "loss_events": [...], "loss_event_count": n} (docs/summary.md).
nlohmann::json precursors_json(const RankStatistics& rank);
nlohmann::json precursors_json(const RankWatch& watch);  // `watch`: all detectors of one rank

// The next three functions make the values of the JSON that the agent and `foreshock detect` write. Unknown
// values are null, never 0. NaN and infinity, which JSON lacks, are null too.
inline nlohmann::json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

// For a step or another count; a negative value means unknown.
inline nlohmann::json count_or_null(int64_t value) {
  return value >= 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
}

inline nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

// The functions below publish the weights of a run (publish_weights.cpp).

// The newest step of any rank of a run, and the longest interval of its weight snapshots.
struct RunPosition {
  int64_t step = -1;      // -1: unknown
  uint64_t interval = 0;  // steps between two snapshots of a tensor; 0: no snapshots
};

// Sets the series of a run's weights; each tensor of the node counts once, even if several ranks hold it. If
// the last snapshot is more than three intervals older than now.step, its series are removed as outdated.
void publish_weights(const std::string& run, const Weights& weights, const RunPosition& now,
                     Registry* registry);

// Sets the series of the optimizer's health, from the latest measurement of each tensor of the run.
void publish_optimizer(const std::string& run, const OptimizerHealth& optimizer, Registry* registry);
// Sets the series from which Prometheus compares a rank's weights with those of replicas on other nodes.
void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry);

// Returns where the data-parallel replicas of these weights are: "here" (on this node), "elsewhere" (on other
// nodes, so that only Prometheus can compare them) or "none" (each value is held once). Null if unknown.
// `ranks_here`: number of the run's ranks on this node.
const char* replicas_place(const Weights& weights, int world_size, size_t ranks_here);

// These functions return the parts "weights" and "optimizer" of a rank's summary. The
// optimizer's part is the same for all ranks of the node. Unknown values are null. `ranks_here`: as above.
nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here);
nlohmann::json optimizer_json(const OptimizerHealth& optimizer);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_H_
