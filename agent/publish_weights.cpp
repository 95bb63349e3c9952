#include "agent/publish_weights.h"

#include <cmath>

namespace foreshock {

void publish_weights(const std::string& run, const Weights& weights, Registry* registry) {
  const PoolSnapshot& model = weights.model();
  if (model.step >= 0 || weights.snapshots_dropped() > 0)
    registry->set(Metric::kWeightSnapshotsDroppedTotal, {run},
                  static_cast<double>(weights.snapshots_dropped()));
  if (model.step < 0) return;
  const std::string interval = std::to_string(model.interval);
  // Series of another interval, and figures that are no longer known, end here.
  for (Metric metric : {Metric::kWeightWassersteinDistance, Metric::kLayerWeightWassersteinDistance,
                        Metric::kWeightUpdateMeanAbs})
    registry->clear_metric(metric, run);
  const auto value_of = [](const std::optional<Wasserstein>& distance) {
    return distance ? std::optional<double>(distance->value) : std::nullopt;
  };
  const auto set = [&](const char* ref, const char* stat, const std::optional<double>& value) {
    if (value) registry->set(Metric::kWeightWassersteinDistance, {run, ref, "node", stat, interval}, *value);
  };
  set("previous", "pooled", value_of(model.previous));
  set("previous", "max", model.previous_max);
  set("initial", "pooled", value_of(model.initial));
  set("initial", "max", model.initial_max);
  for (const auto& [label, layer] : weights.layers()) {
    if (layer.previous_max)
      registry->set(Metric::kLayerWeightWassersteinDistance, {run, label, "previous", interval},
                    *layer.previous_max);
    if (layer.initial_max)
      registry->set(Metric::kLayerWeightWassersteinDistance, {run, label, "initial", interval},
                    *layer.initial_max);
  }
  if (model.update_mean_abs)
    registry->set(Metric::kWeightUpdateMeanAbs, {run, "mean"}, *model.update_mean_abs);
  if (model.update_mean_abs_max)
    registry->set(Metric::kWeightUpdateMeanAbs, {run, "max"}, *model.update_mean_abs_max);
  if (model.rms) registry->set(Metric::kWeightRms, {run}, *model.rms);
}

void publish_replicas(const RankStatistics& rank, const Replicas& replicas, Registry* registry) {
  if (rank.tensors.tensors == 0) return;
  const std::string number = std::to_string(rank.identity.rank);
  const auto set = [&](Metric metric, uint64_t value) {
    registry->set(metric, {rank.run, number}, static_cast<double>(value));
  };
  set(Metric::kWeightSnapshotIntervalSteps, rank.tensors.interval);
  set(Metric::kWeightChecksumMismatchTotal, replicas.mismatches(rank.identity.rank));
  for (uint32_t reason = 0; reason < segment::kTensorSkips; ++reason)
    registry->set(Metric::kWeightSkippedTotal, {rank.run, number, segment::kTensorSkipNames[reason]},
                  static_cast<double>(rank.tensors.skipped[reason]));
  const Replicas::OfRank* whole = replicas.of(rank.identity.rank);
  if (whole == nullptr) return;
  // Both of one interval, or a reader would compare what cannot be compared.
  registry->clear_metric(Metric::kWeightChecksum, rank.run, number);
  registry->clear_metric(Metric::kWeightChecksumStep, rank.run, number);
  registry->set(Metric::kWeightChecksum, {rank.run, number, whole->group}, whole->checksum);
  registry->set(Metric::kWeightChecksumStep, {rank.run, number, whole->group},
                static_cast<double>(whole->step));
}

const char* replicas_text(const Weights& weights, int world_size, size_t ranks_here) {
  if (weights.replicas().compared() > 0) return "here";
  const Weights::Held held = weights.held();
  if (held.whole_elements == 0 || world_size < 1 || ranks_here == 0) return nullptr;
  // How often the job could hold each value if all nodes held as much as this one.
  const double copies = static_cast<double>(held.elements) / static_cast<double>(held.whole_elements) *
                        world_size / static_cast<double>(ranks_here);
  return copies < 1.5 ? "none" : "elsewhere";
}

nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights, size_t ranks_here) {
  const PoolSnapshot& model = weights.model();
  using nlohmann::json;
  const auto number = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? json(*value) : json(nullptr);
  };
  const auto value_of = [&](const std::optional<Wasserstein>& distance) {
    return number(distance ? std::optional<double>(distance->value) : std::nullopt);
  };
  const char* replicas = replicas_text(weights, rank.identity.world_size, ranks_here);
  json skipped = json::object();
  for (uint32_t reason = 0; reason < segment::kTensorSkips; ++reason)
    skipped[segment::kTensorSkipNames[reason]] = rank.tensors.skipped[reason];
  return {{"tensors", rank.tensors.tensors},
          {"interval_steps", rank.tensors.tensors > 0 ? json(rank.tensors.interval) : json(nullptr)},
          {"snapshots", rank.tensors.taken},
          {"skipped", skipped},
          {"wasserstein_previous", value_of(model.previous)},
          {"wasserstein_initial", value_of(model.initial)},
          {"update_mean_abs", number(model.update_mean_abs)},
          {"step", model.step >= 0 ? json(model.step) : json(nullptr)},
          {"moved_most", model.moved_most.empty() ? json(nullptr) : json(model.moved_most)},
          {"moved_most_wasserstein", number(model.previous_max)},
          {"rms", number(model.rms)},
          {"dropped", weights.snapshots_dropped()},
          {"replicas", replicas != nullptr ? json(replicas) : json(nullptr)},
          {"replica_ranks", weights.replicas().most_ranks()},
          {"replicas_compared", weights.replicas().compared()},
          {"mismatches", weights.replicas().mismatches(rank.identity.rank)}};
}

}  // namespace foreshock
