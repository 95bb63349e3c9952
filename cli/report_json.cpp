#include "cli/report_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "agent/measured.h"
#include "agent/publish.h"
#include "cli/report_texts.h"
#include "cli/report_words.h"

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostPoints = 160;  // of a curve
constexpr size_t kMostEpisodes = 600;
constexpr size_t kLongestText = 400;  // of a name from a trainer

// Six digits are more than a chart shows.
Json short_number(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *value);
  return std::strtod(text, nullptr);
}

std::string cut(const std::string& text) {
  return text.size() > kLongestText ? text.substr(0, kLongestText) + "..." : text;
}

Json name_or_null(const std::string& name) { return text_or_null(cut(name)); }

// Indexes of the points to keep: of each stretch the least and the largest, and both ends.
template <class Points, class Value>
std::vector<size_t> kept(const Points& points, const Value& value) {
  std::vector<size_t> indexes;
  if (!points.empty()) indexes.push_back(0);
  const size_t stretches = kMostPoints / 2;
  for (size_t stretch = 0; stretch < stretches; ++stretch) {
    const size_t begin = stretch * points.size() / stretches, end = (stretch + 1) * points.size() / stretches;
    if (begin == end) continue;
    size_t least = begin, largest = begin;
    for (size_t n = begin; n < end; ++n) {
      if (value(points[n]) < value(points[least])) least = n;
      if (value(points[n]) > value(points[largest])) largest = n;
    }
    for (const size_t n : {std::min(least, largest), std::max(least, largest)})
      if (n > indexes.back()) indexes.push_back(n);
  }
  if (!points.empty() && indexes.back() < points.size() - 1) indexes.push_back(points.size() - 1);
  return indexes;
}

Json points_json(const std::vector<SignalPoint>& points) {
  Json list = Json::array();
  for (const size_t n : kept(points, [](const SignalPoint& point) { return point.value; }))
    list.push_back({points[n].step, short_number(points[n].value)});
  return list;
}

// A curve of one number of the steps. One that is not finite breaks the line: null.
Json curve_json(const std::vector<TrailStep>& steps, std::optional<double> TrailStep::*member) {
  std::vector<SignalPoint> points;
  for (const TrailStep& step : steps)
    if (step.*member) points.push_back({step.step, *(step.*member), 0});
  const bool finite = std::all_of(points.begin(), points.end(),
                                  [](const SignalPoint& each) { return std::isfinite(each.value); });
  if (finite) return points_json(points);
  Json list = Json::array();  // few: an event is 353 steps at most
  for (const SignalPoint& point : points) list.push_back({point.step, short_number(point.value)});
  return list;
}

const char* name_of(StoryFact::Mark mark) {
  return mark == StoryFact::Mark::kQuiet     ? "quiet"
         : mark == StoryFact::Mark::kNotable ? "notable"
                                             : "unknown";
}

Json facts_json(const std::vector<StoryFact>& facts) {
  Json list = Json::array();
  for (const StoryFact& fact : facts)
    list.push_back({{"name", fact.name}, {"text", cut(fact.text)}, {"mark", name_of(fact.mark)}});
  return list;
}

// By how many steps a sign may have come earlier than it was seen: it begins in the last stretch without a
// look. A detector that asks for several values moves that many looks later. -1: there was no look before.
int64_t unseen_before(const StorySign& sign) {
  constexpr int kLooks = 4;
  int64_t next = sign.since_step, unseen = -1;
  int looks = 0;
  for (auto point = sign.points.rbegin(); point != sign.points.rend() && looks < kLooks; ++point) {
    if (point->step >= sign.since_step) continue;
    const bool is_long = next - point->step - 1 > StorySign::kLongUnseen;
    if (looks == 0 || is_long) unseen = sign.since_step - point->step - 1;
    if (is_long) break;
    next = point->step;
    ++looks;
  }
  return unseen;
}

Json sign_json(const StorySign& sign, const StoryEvent& event) {
  const auto lead = [&](int64_t step) {
    return step < 0 ? Json(nullptr) : Json(steps_between(step, event.onset_step));
  };
  const DetectorInfo& info = info_of(sign.detector);
  return {{"detector", info.name},
          {"plain", text_of(sign.detector).plain},
          {"layer", name_or_null(sign.layer)},
          {"rank", sign.rank},
          {"level", foreshock::name_of(sign.most)},
          {"since_step", sign.since_step},
          {"lead_steps", lead(sign.since_step)},
          {"unseen_steps", count_or_null(unseen_before(sign))},
          {"warn_step", count_or_null(sign.warn_step)},
          {"warn_lead_steps", lead(sign.warn_step)},
          {"end_step", count_or_null(sign.end_step)},
          {"sure", how_sure(measured_of(info.name))},
          {"points", points_json(sign.points)}};
}

Json event_json(const StoryEvent& event, size_t number) {
  Json before = Json::array();
  for (const StorySign& sign : event.before) before.push_back(sign_json(sign, event));
  return {{"number", number},
          {"event", foreshock::name_of(event.kind)},
          {"step", event.onset_step},
          {"declared_step", event.declared_step},
          {"attempt", event.attempt},
          {"ranks", event.ranks},
          {"title", event.title},
          {"text", event.text},
          {"first_sign", first_sign_of(event)},
          {"detailed", !event.steps.empty()},
          {"before", before},
          {"loss", curve_json(event.steps, &TrailStep::loss)},
          {"gradient_norm", curve_json(event.steps, &TrailStep::gradient_norm)},
          {"learning_rate", curve_json(event.steps, &TrailStep::learning_rate)},
          {"facts", facts_json(event.facts)},
          {"consistent_with", event.consistent_with},
          {"not_excluded", event.not_excluded},
          {"to_try", event.to_try}};
}

Json detector_json(const StoryDetector& of) {
  const DetectorInfo& info = info_of(of.detector);
  return {{"detector", info.name},
          {"plain", text_of(of.detector).plain},
          {"values", of.values},
          {"layers", of.layers},
          {"watches", of.watches},
          {"warnings", of.warnings},
          {"last_warn_step", count_or_null(of.last_warn_step)},
          {"sure", how_sure(measured_of(info.name))},
          {"why_not", of.values == 0 ? Json(why_without_values(of.detector)) : Json(nullptr)}};
}

Json episode_json(const StoryEpisode& each) {
  return {{"detector", info_of(each.detector).name},
          {"layer", name_or_null(each.layer)},
          {"rank", each.rank},
          {"level", foreshock::name_of(each.most)},
          {"since_step", each.since_step},
          {"warn_step", count_or_null(each.warn_step)},
          {"end_step", count_or_null(each.end_step)}};
}

Json timeline_json(const Story& story) {
  const HistoryTable& table = story.timeline;
  Json timeline = {{"rank", table.rank},
                   {"first_step", table.first_step},
                   {"steps_per_point", table.steps_per_point},
                   {"last_step", story.timeline_last_step}};
  for (const auto& [name, values] : table.columns) {
    Json& list = timeline[std::string(name)] = Json::array();
    for (const float value : values) list.push_back(short_number(static_cast<double>(value)));
  }
  return timeline;
}

}  // namespace

std::string report_json(const Story& story) {
  Json episodes = Json::array(), events = Json::array(), detectors = Json::array(), notes = story.notes;
  for (const StoryEpisode& each : story.episodes)
    if (episodes.size() < kMostEpisodes) episodes.push_back(episode_json(each));
  for (const StoryEvent& each : story.events) events.push_back(event_json(each, events.size() + 1));
  for (const StoryDetector& each : story.detectors) detectors.push_back(detector_json(each));
  const Json document = {{"schema", 1},
                         {"run", name_or_null(story.run)},
                         {"version", name_or_null(story.version)},
                         {"headline", cut(story.headline)},
                         {"verdict", story.verdict},
                         {"facts", facts_json(story.facts)},
                         {"events_from", story.from_record ? "record" : "detectors"},
                         {"events_note", story.events_note},
                         {"timeline", timeline_json(story)},
                         {"episodes", episodes},
                         {"loss_events", events},
                         {"detectors", detectors},
                         {"coverage", facts_json(story.coverage)},
                         {"notes", notes},
                         {"limits", story.limits}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace foreshock::cli
