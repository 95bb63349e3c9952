// Writes the detectors of a rank and its loss events, as metrics and as JSON.
#include "agent/detection.h"
#include "agent/publish.h"
#include "detect/detector.h"

namespace foreshock {

using nlohmann::json;

namespace {

// Returns the results of the precursor benchmark for a detector. They are from other trainings than this run.
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
    if (state.values == 0) continue;  // the detector has had no input
    const Measured* measured = measured_of(kDetectorTable[n].name);
    detectors.push_back({{"detector", kDetectorTable[n].name},
                         {"level", name_of(state.level)},
                         {"layer", text_or_null(state.layer)},
                         {"since_step", count_or_null(state.since_step)},
                         {"value", number_or_null(state.value)},
                         {"value_layer", text_or_null(state.value_layer)},
                         {"value_step", count_or_null(state.value_step)},
                         {"score", state.value_step >= 0 ? number_or_null(state.score) : json(nullptr)},
                         {"look", name_of(kDetectorTable[n].look)},
                         {"warn", kDetectorTable[n].warn},
                         {"least", kDetectorTable[n].least},
                         {"learning", kDetectorTable[n].learning},
                         {"measured", measured != nullptr ? measured_json(*measured) : json(nullptr)},
                         {"values", state.values},
                         {"series", state.series},
                         {"series_dropped", state.series_dropped},
                         {"watches", state.watches},
                         {"warnings", state.warnings},
                         {"last_warn_step", count_or_null(state.last_warn_step)}});
  }
  return detectors;
}

// An episode: a time in which a detector was above level quiet. `onset`: first step of the loss event.
json episode_json(const Episode& episode, int64_t onset) {
  return {{"detector", info_of(episode.detector).name},
          {"place", text_or_null(episode.place)},
          {"layer", text_or_null(episode.layer)},
          {"level", name_of(episode.most)},
          {"since_step", episode.since_step},
          {"warn_step", count_or_null(episode.warn_step)},
          // Unsigned, since the steps of a record may be any numbers: a signed difference could overflow.
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
  RankWriter series(rank, registry);
  const auto states = rank.watch->states();
  series.clear(Metric::kPrecursorLayerInfo);
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorState& state = states[n];
    if (state.values == 0) continue;  // without input the level is unknown
    const char* name = kDetectorTable[n].name;
    series.set(Metric::kPrecursorLevel, static_cast<double>(state.level), name);
    series.set(Metric::kPrecursorEventsTotal, static_cast<double>(state.warnings), name);
    if (state.warnings > 0)
      series.set(Metric::kPrecursorLastEventStep, static_cast<double>(state.last_warn_step), name);
    // Not exported as 0, since the number of series is limited and this one would nearly always be 0.
    if (state.series_dropped > 0)
      series.set(Metric::kPrecursorSeriesDropped, static_cast<double>(state.series_dropped), name);
    if (state.level == Level::kWarn && !state.layer.empty())
      series.set(Metric::kPrecursorLayerInfo, 1.0, name, state.layer);
  }
}

json precursors_json(const RankWatch& watch) {
  uint64_t count = 0;
  for (int kind = 0; kind < kLossEventKinds; ++kind)
    count += watch.losses(static_cast<WatchEventKind>(kind)).count;
  return {{"detectors", detectors_json(watch)},
          {"loss_events", loss_events_json(watch)},
          {"loss_event_count", count}};
}

json precursors_json(const RankStatistics& rank) {
  return rank.watch != nullptr
             ? precursors_json(*rank.watch)
             : json{{"detectors", json::array()}, {"loss_events", json::array()}, {"loss_event_count", 0}};
}

}  // namespace foreshock
