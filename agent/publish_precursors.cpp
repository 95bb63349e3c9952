#include "agent/publish_precursors.h"

#include <string>

#include "agent/json_values.h"
#include "agent/measured.h"

namespace foreshock {
namespace {

using nlohmann::json;

// Of the benchmark, not of this run.
json measured_json(const Measured& measured) {
  return {{"right", number_or_null(measured.right)},
          {"alarms", number_or_null(measured.alarms)},
          {"precision", number_or_null(measured.precision())},
          {"events", number_or_null(measured.events)},
          {"hits", number_or_null(measured.hits)},
          {"lift", number_or_null(measured.lift)},
          {"lead_median", number_or_null(measured.lead_median)},
          {"false_per_10k", number_or_null(measured.false_per_10k)},
          {"proven", measured.is_proven()}};
}

json detectors_json(const RankWatch& watch) {
  json detectors = json::array();
  const auto states = watch.states();
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorState& state = states[n];
    if (state.values == 0) continue;
    const Measured* measured = measured_of(kDetectorTable[n].name);
    detectors.push_back({{"detector", kDetectorTable[n].name},
                         {"level", name_of(state.level)},
                         {"layer", text_or_null(state.layer)},
                         {"since_step", count_or_null(state.since_step)},
                         {"measured", measured != nullptr ? measured_json(*measured) : json(nullptr)},
                         {"values", state.values},
                         {"watches", state.watches},
                         {"warnings", state.warnings},
                         {"last_warn_step", count_or_null(state.last_warn_step)}});
  }
  return detectors;
}

json episode_json(const Episode& episode, int64_t onset) {
  return {{"detector", info_of(episode.detector).name},
          {"place", text_or_null(episode.place)},
          {"layer", text_or_null(episode.layer)},
          {"level", name_of(episode.most)},
          {"since_step", episode.since_step},
          {"warn_step", count_or_null(episode.warn_step)},
          // Steps are far from the ends of their range wherever they are counted; elsewhere this wraps.
          {"lead_steps",
           static_cast<int64_t>(static_cast<uint64_t>(onset) - static_cast<uint64_t>(episode.since_step))}};
}

json loss_events_json(const RankWatch& watch) {
  json events = json::array();
  for (const LossEventSeen& seen : watch.loss_events()) {
    json before = json::array();
    for (const Episode& episode : seen.preceded_by) before.push_back(episode_json(episode, seen.onset_step));
    events.push_back({{"event", name_of(seen.kind)},
                      {"step", seen.onset_step},
                      {"declared_step", seen.declared_step},
                      {"preceded_by", before}});
  }
  return events;
}

}  // namespace

void publish_precursors(const RankStatistics& rank, Registry* registry) {
  if (rank.watch == nullptr) return;
  const std::string number = std::to_string(rank.identity.rank);
  const auto states = rank.watch->states();
  registry->clear_metric(Metric::kPrecursorLayerInfo, rank.run, number);
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorState& state = states[n];
    if (state.values == 0) continue;
    const auto set = [&](Metric metric, double value) {
      registry->set(metric, {rank.run, number, kDetectorTable[n].name}, value);
    };
    set(Metric::kPrecursorLevel, static_cast<double>(state.level));
    set(Metric::kPrecursorEventsTotal, static_cast<double>(state.warnings));
    if (state.warnings > 0) set(Metric::kPrecursorLastEventStep, static_cast<double>(state.last_warn_step));
    if (state.level == Level::kWarn && !state.layer.empty())
      registry->set(Metric::kPrecursorLayerInfo, {rank.run, number, kDetectorTable[n].name, state.layer}, 1);
  }
}

json precursors_json(const RankWatch& watch) {
  return {{"detectors", detectors_json(watch)}, {"loss_events", loss_events_json(watch)}};
}

json precursors_json(const RankStatistics& rank) {
  return rank.watch != nullptr ? precursors_json(*rank.watch)
                               : json{{"detectors", json::array()}, {"loss_events", json::array()}};
}

}  // namespace foreshock
