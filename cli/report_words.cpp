#include "cli/report_words.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "agent/measured.h"
#include "cli/report_texts.h"
#include "cli/summary_words.h"
#include "detect/thresholds.h"

namespace foreshock::cli {
namespace {

constexpr int kBackFor = 3;  // losses in a row that make it back
constexpr double kBackWithin = 0.1;
constexpr int kUsual = 32;  // steps before an onset that it is compared with: a loss falls

std::string number(double value) { return formatted("%.4g", value); }
std::string step_text(int64_t step) { return count(static_cast<double>(step)); }

const char* name_of_event(WatchEventKind kind) {
  return kind == WatchEventKind::kLossRise     ? "Slow rise of the loss"
         : kind == WatchEventKind::kDivergence ? "The loss was lost"
                                               : "Loss spike";
}

// The losses before the onset: their mean and the highest of them.
struct Usual {
  double mean = 0, highest = 0;
  size_t count = 0;
};
Usual usual_of(const StoryEvent& event) {
  Usual usual;
  for (const TrailStep& each : event.steps) {
    const int64_t lead = steps_between(each.step, event.onset_step);
    if (lead <= 0 || lead > kUsual || !each.loss || !std::isfinite(*each.loss)) continue;
    usual.highest = usual.count == 0 ? *each.loss : std::max(usual.highest, *each.loss);
    usual.mean += *each.loss;
    ++usual.count;
  }
  if (usual.count > 0) usual.mean /= static_cast<double>(usual.count);
  return usual;
}

// Where the loss is back: the first of kBackFor losses in a row, after its peak, that are no higher than
// before. A slow rise begins below that. -1: not yet.
int64_t back_at(const StoryEvent& event, int64_t peak_at, double highest) {
  int in_row = 0;
  int64_t first = -1;
  for (const TrailStep& each : event.steps) {
    if (each.step < peak_at || !each.loss) continue;
    if (!(*each.loss <= highest)) {
      in_row = 0;
      continue;
    }
    if (in_row++ == 0) first = each.step;
    if (in_row == kBackFor) return first;
  }
  return -1;
}

// Means of kUsual losses in a row from the onset on: the highest, and the first after it that has lost all
// but kBackWithin of its rise above `usual`. A step alone says little of a slow rise.
struct Means {
  double highest = -INFINITY;
  int64_t highest_from = 0, back_from = -1;  // -1: not yet
};
Means means_of(const StoryEvent& event, double usual) {
  Means found;
  std::vector<const TrailStep*> row;
  constexpr size_t kLong = kUsual;
  double sum = 0;
  for (const TrailStep& each : event.steps) {
    if (each.step < event.onset_step || !each.loss || !std::isfinite(*each.loss)) continue;
    row.push_back(&each);
    sum += *each.loss;
    if (row.size() > kLong) sum -= *row[row.size() - kLong - 1]->loss;
    if (row.size() < kLong) continue;
    const double mean = sum / kUsual;
    const int64_t from = row[row.size() - kLong]->step;
    if (mean > found.highest) found = {mean, from, -1};
    if (mean <= usual + kBackWithin * (found.highest - usual) && found.back_from < 0) found.back_from = from;
  }
  return found;
}

std::string lead_text(const StoryEvent& event, int64_t step) {
  return steps_text(steps_between(step, event.onset_step)) + " before";
}

// Of a name from a trainer.
std::string in_layer(const std::string& layer) {
  constexpr size_t kLongest = 64;
  return layer.empty() ? "" : " in layer " + layer.substr(0, kLongest);
}

double median(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1
             ? static_cast<double>(values[middle])
             : (static_cast<double>(values[middle - 1]) + static_cast<double>(values[middle])) / 2;
}

// Of the detectors that warned before events the one that did so before most.
std::string most_frequent_sign(const Story& story) {
  std::map<DetectorId, std::vector<int64_t>> leads;
  for (const StoryEvent& event : story.events) {
    std::map<DetectorId, int64_t> earliest;
    for (const StorySign& sign : event.before)
      if (sign.warn_step >= 0) {
        int64_t& lead = earliest.emplace(sign.detector, 0).first->second;
        lead = std::max(lead, steps_between(sign.warn_step, event.onset_step));
      }
    for (const auto& [detector, lead] : earliest) leads[detector].push_back(lead);
  }
  const auto most = std::max_element(leads.begin(), leads.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), median(a.second)) < std::pair(b.second.size(), median(b.second));
  });
  if (most == leads.end()) return "";
  return std::string(text_of(most->first).plain) + " (before " + std::to_string(most->second.size()) +
         ", a median of " + formatted("%g", median(most->second)) + " steps ahead)";
}

// Some faults reach the loss at once and are known by what warns a little later, before the loss tells
// anything.
std::string warned_after(const Story& story, const StoryEvent& event) {
  const StoryEpisode* first = nullptr;
  for (const StoryEpisode& each : story.episodes) {
    const int64_t after = steps_between(event.onset_step, each.warn_step);
    if (!is_proven(each.detector) || each.warn_step < event.onset_step || after > StoryEvent::kAfter)
      continue;
    if (first == nullptr || each.warn_step < first->warn_step) first = &each;
  }
  if (first == nullptr) return "";
  return " After its onset warned first: " + std::string(text_of(first->detector).plain) +
         in_layer(first->layer) + ", " + steps_text(steps_between(event.onset_step, first->warn_step)) +
         " after.";
}

size_t foretold(const Story& story) {
  return static_cast<size_t>(
      std::count_if(story.events.begin(), story.events.end(), [](const StoryEvent& event) {
        return std::any_of(event.before.begin(), event.before.end(),
                           [](const StorySign& sign) { return sign.warn_step >= 0; });
      }));
}

// The warning that came first, in words.
std::string first_warning(const Story& story) {
  const StoryEpisode* first = nullptr;
  for (const StoryEpisode& each : story.episodes)
    if (each.warn_step >= 0 && (first == nullptr || each.warn_step < first->warn_step)) first = &each;
  if (first == nullptr) return "";
  return ", first at step " + step_text(first->warn_step) + ": " + text_of(first->detector).plain +
         in_layer(first->layer);
}

std::string verdict_without_events(const Story& story, const RunCounts& counts) {
  const std::string begin = counts.losses == 0
                                ? "The loss of this run is not known, so no loss event can be told"
                                : "No loss event in " + steps_text(static_cast<int64_t>(counts.steps));
  if (counts.warnings == 0) return begin + ", and no detector warned.";
  return begin + "; detectors warned " + count(static_cast<double>(counts.warnings)) +
         (counts.warnings == 1 ? " time" : " times") + first_warning(story) + ".";
}

// Of a slow rise, whose steps go up and down by more than it is.
std::string course_of_rise(const StoryEvent& event, double usual) {
  const std::string window = "mean of " + step_text(kUsual) + " steps";
  std::string text = "The loss was " + number(usual) + " in the " + window + " just before";
  const Means means = means_of(event, usual);
  if (!std::isfinite(means.highest)) return text + "; what came after is not in the record.";
  text += "; the highest such mean since was " + number(means.highest) + ", from step " +
          step_text(means.highest_from) + " on. ";
  const bool is_back = means.back_from >= 0;
  text += is_back ? "It was back " + steps_text(steps_between(event.onset_step, means.back_from)) +
                        " after the onset."
                  : "It had not come back " +
                        steps_text(steps_between(event.onset_step, event.steps.back().step)) +
                        " after the onset.";
  return text + " Such a rise is seen late: here at step " + step_text(event.declared_step) + ".";
}

}  // namespace

std::string steps_text(int64_t number) {
  return count(static_cast<double>(number)) + (number == 1 ? " step" : " steps");
}

std::string title_of(const StoryEvent& event) {
  return std::string(name_of_event(event.kind)) + " at step " + step_text(event.onset_step);
}

std::string course_of(const StoryEvent& event) {
  if (event.steps.empty()) return "The run has more events than are told of one by one.";
  const Usual usual = usual_of(event);
  double highest = -INFINITY;
  int64_t highest_at = 0;
  const TrailStep* lost = nullptr;  // the first that is no number
  for (const TrailStep& each : event.steps) {
    if (each.step < event.onset_step || !each.loss || lost != nullptr) continue;
    if (!std::isfinite(*each.loss)) lost = &each;
    if (!(*each.loss > highest) || lost != nullptr) continue;
    highest = *each.loss;
    highest_at = each.step;
  }
  if (event.kind == WatchEventKind::kLossRise && usual.count > 0 && lost == nullptr)
    return course_of_rise(event, usual.mean);
  std::string text = usual.count > 0
                         ? "The loss was " + number(usual.mean) + " on average in the steps just before"
                         : "The loss";
  const bool has_risen = std::isfinite(highest);
  if (!has_risen && lost == nullptr) return text + "; what came after is not in the record.";
  if (has_risen)
    text += (usual.count > 0 ? " and rose to " : " rose to ") + number(highest) + " at step " +
            step_text(highest_at);
  if (lost != nullptr)
    return text + (has_risen || usual.count > 0 ? "; from step " : ", from step ") + step_text(lost->step) +
           " on it was NaN or infinite.";
  text += ".";
  const int64_t back = usual.count > 0 ? back_at(event, highest_at, usual.highest) : -1;
  if (back >= 0)
    return text + " It was back " + steps_text(steps_between(event.onset_step, back)) + " after the onset.";
  return text + " It had not come back " +
         steps_text(steps_between(event.onset_step, event.steps.back().step)) + " after the onset.";
}

bool is_proven(DetectorId detector) {
  const Measured* measured = measured_of(info_of(detector).name);
  return measured != nullptr && measured->is_proven();
}

std::string how_sure(const Measured* measured) {
  if (measured == nullptr) return "Experimental: the benchmark has no figure for it.";
  const std::string begin = measured->is_proven() ? "" : "Experimental. ";
  const std::string events = count(measured->events) + " loss events";
  if (!(measured->alarms > 0)) return begin + "In the benchmark it warned before none of " + events + ".";
  std::string text = begin + "In the benchmark it warned before " + count(measured->hits) + " of " + events +
                     "; " + count(measured->right) + " of its " + count(measured->alarms) +
                     (measured->alarms == 1 ? " warning was" : " warnings were") + " followed by one";
  if (std::isfinite(measured->lift))
    text += ", " + formatted("%.2g", measured->lift) + " times what chance gives";
  return text + ".";
}

std::string first_sign_of(const StoryEvent& event) {
  if (event.before.empty()) return "nothing";
  const StorySign& sign = event.before.front();  // they are in order
  return text_of(sign.detector).plain + in_layer(sign.layer) + ", " + lead_text(event, sign.since_step) +
         (is_proven(sign.detector) ? "" : " (an experimental detector)");
}

std::string verdict_of(const Story& story, const RunCounts& counts) {
  if (counts.steps == 0) return "The record has no step of the training: nothing can be said of its loss.";
  if (story.events.empty()) return verdict_without_events(story, counts);
  const StoryEvent& first = story.events.front();
  const size_t warned = foretold(story);
  if (story.events.size() == 1)
    return title_of(first) + ". " +
           (first.before.empty() ? "No detector spoke before it."
            : warned == 0        ? "Nothing warned; first to move: " + first_sign_of(first) + "."
            : is_proven(first.before.front().detector) ? "First proven sign: " + first_sign_of(first) + "."
                                                       : "First to move: " + first_sign_of(first) + ".") +
           (first.attempt == 0 ? warned_after(story, first) : "");
  const std::string events = count(static_cast<double>(story.events.size()));
  return events + " loss events, the first at step " + step_text(first.onset_step) + ". " +
         (warned == 0 ? "No detector warned before any of them."
                      : "A detector had warned before " +
                            (warned == story.events.size() ? std::string("every one")
                                                           : count(static_cast<double>(warned))) +
                            " of them; most often: " + most_frequent_sign(story) + ".");
}

}  // namespace foreshock::cli
