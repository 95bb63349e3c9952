// Writes the state of the weights of a run on this node as metrics for Prometheus and as JSON. PoolSnapshot:
// statistics of all tensors, each measured once in an interval of steps; step -1: no interval is complete.
#include <algorithm>

#include "agent/publish.h"

namespace foreshock {
namespace {

// Returns the share of the model's elements whose change in a single step is known.
std::optional<double> update_coverage(const PoolSnapshot& model) {
  if (model.step < 0 || model.elements == 0) return std::nullopt;
  return static_cast<double>(model.update_elements) / static_cast<double>(model.elements);
}

// `tensor`: the name of the tensor that has the value `max`.
nlohmann::json mean_max(const std::optional<double>& mean, const std::optional<double>& max,
                        const std::string& tensor) {
  return {{"mean", number_or_null(mean)}, {"max", number_or_null(max)}, {"tensor", text_or_null(tensor)}};
}

// After this many intervals the last snapshot is stale. More than one, since the trainer may have skipped
// snapshots to keep its budget, or may have made the interval longer.
constexpr int64_t kMostIntervals = 3;

bool is_stale(const PoolSnapshot& model, const RunPosition& now) {  // `now`: newest step, longest interval
  const auto interval = static_cast<int64_t>(std::max(model.interval, now.interval));
  return now.step - model.step > kMostIntervals * interval;
}

void set_if_known(Metric metric, std::initializer_list<std::string_view> labels,
                  const std::optional<double>& value, Registry* registry) {
  if (value) registry->set(metric, labels, *value);
}

}  // namespace

void publish_weights(const std::string& run, const Weights& weights, const RunPosition& now,
                     Registry* registry) {
  const PoolSnapshot& model = weights.model();
  if (model.step >= 0 || weights.snapshots_dropped() > 0)
    registry->set(Metric::kWeightSnapshotsDroppedTotal, {run},
                  static_cast<double>(weights.snapshots_dropped()));
  // Removes the series of the last call: their values may be unknown, and their label `interval` may differ.
  for (Metric metric : {Metric::kWeightWassersteinDistance, Metric::kLayerWeightWassersteinDistance,
                        Metric::kWeightUpdateMeanAbs, Metric::kWeightUpdateCoverageRatio, Metric::kWeightRms,
                        Metric::kWeightSnapshotStep})
    registry->clear_metric(metric, run);
  if (model.step < 0 || is_stale(model, now)) return;
  registry->set(Metric::kWeightSnapshotStep, {run}, static_cast<double>(model.step));
  const std::string interval = std::to_string(model.interval);
  const auto set = [&](const char* ref, const char* stat, const std::optional<double>& value) {
    set_if_known(Metric::kWeightWassersteinDistance, {run, ref, "node", stat, interval}, value, registry);
  };
  set("previous", "pooled", value_of(model.previous));
  set("previous", "max", model.previous_max);
  set("initial", "pooled", value_of(model.initial));
  set("initial", "max", model.initial_max);
  for (const auto& [label, layer] : weights.layers()) {
    constexpr Metric kDistance = Metric::kLayerWeightWassersteinDistance;
    set_if_known(kDistance, {run, label, "previous", interval}, layer.previous_max, registry);
    set_if_known(kDistance, {run, label, "initial", interval}, layer.initial_max, registry);
  }
  set_if_known(Metric::kWeightUpdateMeanAbs, {run, "mean"}, model.update_mean_abs, registry);
  set_if_known(Metric::kWeightUpdateMeanAbs, {run, "max"}, model.update_mean_abs_max, registry);
  set_if_known(Metric::kWeightUpdateCoverageRatio, {run}, update_coverage(model), registry);
  set_if_known(Metric::kWeightRms, {run}, model.rms, registry);
}

void publish_optimizer(const std::string& run, const OptimizerHealth& optimizer, Registry* registry) {
  for (Metric metric : {Metric::kOptimizerRmsStaleness, Metric::kOptimizerSurpriseRatio,
                        Metric::kOptimizerUpdateRatio, Metric::kOptimizerEpsilonDominatedRatio})
    registry->clear_metric(metric, run);
  const auto summary = optimizer.summary();
  if (!summary) return;
  const OptimizerSums& pooled = summary->pooled;
  set_if_known(Metric::kOptimizerRmsStaleness, {run, "mean"}, pooled.rms_staleness(), registry);
  set_if_known(Metric::kOptimizerRmsStaleness, {run, "max"}, summary->staleness_max, registry);
  set_if_known(Metric::kOptimizerSurpriseRatio, {run}, pooled.surprise_ratio(), registry);
  set_if_known(Metric::kOptimizerUpdateRatio, {run, "mean"}, pooled.update_ratio(), registry);
  set_if_known(Metric::kOptimizerUpdateRatio, {run, "max"}, summary->update_ratio_max, registry);
  set_if_known(Metric::kOptimizerEpsilonDominatedRatio, {run}, pooled.epsilon_dominated_ratio(), registry);
}

void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry) {
  if (rank.tensors.tensors == 0) return;  // the rank measures no weights
  const std::string number = std::to_string(rank.identity.rank);
  const auto set = [&](Metric metric, uint64_t value) {
    registry->set(metric, {rank.run, number}, static_cast<double>(value));
  };
  set(Metric::kWeightSnapshotIntervalSteps, rank.tensors.interval);
  set(Metric::kWeightChecksumMismatchTotal, replicas.mismatches(rank.identity.rank));
  for (uint32_t reason = 0; reason < segment::kTensorSkips; ++reason)
    registry->set(Metric::kWeightSkippedTotal, {rank.run, number, segment::kTensorSkipNames[reason]},
                  static_cast<double>(rank.tensors.skipped[reason]));
  // One checksum over all weights of the rank, and the checksum's step: only checksums of one step may be
  // compared. The label `group` is equal on ranks that hold the same tensors.
  const Replicas::RankChecksum* own = replicas.checksum_of(rank.identity.rank);
  if (own == nullptr) return;  // no checksum is complete yet
  registry->clear_metric(Metric::kWeightChecksum, rank.run, number);
  registry->clear_metric(Metric::kWeightChecksumStep, rank.run, number);
  registry->set(Metric::kWeightChecksum, {rank.run, number, own->group}, own->checksum);
  registry->set(Metric::kWeightChecksumStep, {rank.run, number, own->group}, static_cast<double>(own->step));
}

// "here": compared on this node. "elsewhere": on other nodes. "none": each value is held once. Null: unknown.
const char* replicas_place(const Weights& weights, int world_size, size_t ranks_here) {
  if (weights.replicas().comparisons() > 0) return "here";
  const Weights::Held held = weights.held();
  if (held.whole_elements == 0 || world_size < 1 || ranks_here == 0) return nullptr;
  // The mean number of copies of a value in the job, if every node holds as many values as this one. Some
  // tensors may have more copies than others. Below 1.5, most values have one copy.
  const double copies = static_cast<double>(held.elements) / static_cast<double>(held.whole_elements) *
                        world_size / static_cast<double>(ranks_here);
  return copies < 1.5 ? "none" : "elsewhere";
}

nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here) {
  const PoolSnapshot& model = weights.model();
  using nlohmann::json;
  const char* replicas = replicas_place(weights, rank.identity.world_size, ranks_here);
  json skipped = json::object();
  for (uint32_t reason = 0; reason < segment::kTensorSkips; ++reason)
    skipped[segment::kTensorSkipNames[reason]] = rank.tensors.skipped[reason];
  json unfollowed = json::object();
  for (uint32_t reason = 0; reason < segment::kTensorUnfollowed; ++reason)
    if (rank.tensors.unfollowed[reason] > 0)
      unfollowed[segment::kTensorUnfollowedNames[reason]] = rank.tensors.unfollowed[reason];
  return {{"tensors", rank.tensors.tensors},
          {"interval_steps", rank.tensors.tensors > 0 ? json(rank.tensors.interval) : json(nullptr)},
          {"snapshots", rank.tensors.snapshots_taken},
          {"due", rank.tensors.due},
          {"awaited", rank.tensors.awaited},
          {"skipped", skipped},
          {"unfollowed", unfollowed},
          {"wasserstein_previous", number_or_null(value_of(model.previous))},
          {"wasserstein_initial", number_or_null(value_of(model.initial))},
          {"update_mean_abs", number_or_null(model.update_mean_abs)},
          {"update_coverage", number_or_null(update_coverage(model))},
          {"step", count_or_null(model.step)},
          {"moved_most", text_or_null(model.moved_most)},
          {"moved_most_wasserstein", number_or_null(model.previous_max)},
          {"rms", number_or_null(model.rms)},
          {"dropped", weights.snapshots_dropped()},
          {"replicas", replicas != nullptr ? json(replicas) : json(nullptr)},
          {"replica_ranks", weights.replicas().most_ranks()},
          {"replica_tensors", weights.replicas().tensors_compared()},
          {"replicas_compared", weights.replicas().comparisons()},
          {"mismatches", weights.replicas().mismatches(rank.identity.rank)}};
}

nlohmann::json optimizer_json(const OptimizerHealth& optimizer) {
  const auto summary = optimizer.summary();
  if (!summary) return nullptr;
  const OptimizerSums& pooled = summary->pooled;
  return {{"rms_staleness", mean_max(pooled.rms_staleness(), summary->staleness_max, summary->stalest)},
          {"update_ratio", mean_max(pooled.update_ratio(), summary->update_ratio_max, summary->fastest)},
          {"surprise_ratio", number_or_null(pooled.surprise_ratio())},
          {"epsilon_dominated_ratio", number_or_null(pooled.epsilon_dominated_ratio())},
          {"gradient_rms", number_or_null(pooled.gradient_rms())}};
}

}  // namespace foreshock
