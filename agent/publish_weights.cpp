#include "agent/publish_weights.h"

#include <cmath>

namespace foreshock {

void publish_weights(const std::string& run, const Weights& weights, Registry* registry) {
  const ModelSnapshot& model = weights.model();
  if (model.step < 0) return;
  const std::string interval = std::to_string(model.interval);
  // Series of another interval, and figures that are no longer known, end here.
  for (Metric metric : {Metric::kWeightWassersteinDistance, Metric::kLayerWeightWassersteinDistance,
                        Metric::kWeightUpdateMeanAbs})
    registry->clear_metric(metric, run);
  const auto set = [&](const char* ref, const char* stat, const std::optional<double>& value) {
    if (value) registry->set(Metric::kWeightWassersteinDistance, {run, ref, "node", stat, interval}, *value);
  };
  set("previous", "pooled", model.previous_pooled);
  set("previous", "max", model.previous_max);
  set("initial", "pooled", model.initial_pooled);
  set("initial", "max", model.initial_max);
  for (const auto& [label, layer] : model.layers) {
    if (layer.previous)
      registry->set(Metric::kLayerWeightWassersteinDistance, {run, label, "previous", interval},
                    *layer.previous);
    if (layer.initial)
      registry->set(Metric::kLayerWeightWassersteinDistance, {run, label, "initial", interval},
                    *layer.initial);
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

nlohmann::json weights_json(const RankStatistics& rank, const Weights& weights) {
  const ModelSnapshot& model = weights.model();
  using nlohmann::json;
  const auto number = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? json(*value) : json(nullptr);
  };
  json skipped = json::object();
  for (uint32_t reason = 0; reason < segment::kTensorSkips; ++reason)
    skipped[segment::kTensorSkipNames[reason]] = rank.tensors.skipped[reason];
  return {{"tensors", rank.tensors.tensors},
          {"interval_steps", rank.tensors.tensors > 0 ? json(rank.tensors.interval) : json(nullptr)},
          {"snapshots", rank.tensors.taken},
          {"skipped", skipped},
          {"wasserstein_previous", number(model.previous_pooled)},
          {"wasserstein_initial", number(model.initial_pooled)},
          {"update_mean_abs", number(model.update_mean_abs)},
          {"rms", number(model.rms)},
          {"replicas_compared", weights.replicas().compared()},
          {"mismatches", weights.replicas().mismatches(rank.identity.rank)}};
}

}  // namespace foreshock
