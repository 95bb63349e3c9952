#include "cli/report_facts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/summary_words.h"

namespace foreshock::cli {
namespace {

using Mark = StoryFact::Mark;

constexpr int64_t kBack = StoryEvent::kBefore;
constexpr int64_t kRecent = 64;       // steps over which a change of the rate counts
constexpr double kRateFactor = 2;     // what schedules do in so few steps in warm-up only
constexpr size_t kMostDetectors = 4;  // whose explanations are given
constexpr size_t kMostNamed = 8;      // layers, ranks in a list

std::string steps(int64_t number) {
  return count(static_cast<double>(number)) + (number == 1 ? " step" : " steps");
}

template <class List>
std::string listed(const List& items) {
  std::string text;
  size_t named = 0;
  for (const auto& item : items) {
    if (named++ == kMostNamed) return text + " and " + std::to_string(items.size() - kMostNamed) + " more";
    if (!text.empty()) text += ", ";
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, std::string>)
      text += item;
    else
      text += std::to_string(item);
  }
  return text;
}

bool is_of(const Notable& each, const StoryEvent& event) {
  return each.attempt == event.attempt &&
         std::find(event.ranks.begin(), event.ranks.end(), each.rank) != event.ranks.end();
}

std::string where_nonfinite(const Notable& of) {
  const std::string what = of.what == "nonfinite"            ? "attention's result"
                           : of.what == "nonfinite_gradient" ? "the gradient"
                                                             : "the gradient norm";
  return what + (of.layer.empty() ? "" : " of layer " + of.layer);
}

// Before the onset, in words: "3 steps before", "at the onset".
std::string before_onset(const StoryEvent& event, int64_t step) {
  const int64_t lead = steps_between(step, event.onset_step);
  return lead > 0 ? steps(lead) + " before" : lead == 0 ? "at the onset" : steps(-lead) + " after";
}

StoryFact nonfinite(const StoryEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const Notable* first = nullptr;
  for (const Notable& each : run.notables) {
    const int64_t lead = steps_between(each.step, event.onset_step);
    const bool counts = each.what.starts_with("nonfinite") && is_of(each, event) && lead <= kBack &&
                        each.step <= event.declared_step;
    if (counts && (first == nullptr || each.step < first->step)) first = &each;
  }
  const bool in_loss = std::any_of(event.steps.begin(), event.steps.end(), [&](const TrailStep& each) {
    return each.step <= event.declared_step && each.loss && !std::isfinite(*each.loss);
  });
  StoryFact fact = {"NaN or infinite values", "none in the " + steps(kBack) + " before", Mark::kQuiet};
  if (in_loss) fact = {fact.name, "in the loss; none was seen before it", Mark::kNotable};
  if (first == nullptr) return fact;
  fact.mark = Mark::kNotable;
  fact.text = "first in " + where_nonfinite(*first) + ", " + before_onset(event, first->step);
  if (first->step < event.onset_step) clues->push_back(Clue::kNonfinite);
  return fact;
}

StoryFact layers(const StoryEvent& event, const RunSeen& run) {
  std::set<std::string> watched, spoke;
  for (const int64_t rank : event.ranks)
    if (const auto of = run.signals.find(rank); of != run.signals.end()) watched.merge(of->second.layers());
  for (const StorySign& sign : event.before)
    if (!sign.layer.empty()) spoke.insert(sign.layer);
  StoryFact fact = {"layers", "no layer was watched", Mark::kUnknown};
  if (watched.empty()) return fact;
  const size_t quiet = watched.size() > spoke.size() ? watched.size() - spoke.size() : 0;
  if (spoke.empty())
    return {fact.name, "all " + std::to_string(watched.size()) + " that were watched stayed quiet",
            Mark::kQuiet};
  return {fact.name,
          "detectors spoke in " + listed(spoke) + "; " +
              (quiet == 0 ? "no other was watched" : "the other " + std::to_string(quiet) + " stayed quiet"),
          Mark::kNotable};
}

StoryFact ranks(const StoryEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const size_t all = run.trails.size();
  if (all < 2) return {"ranks", "there is one rank in the record", Mark::kUnknown};
  if (event.ranks.size() >= all)
    return {"ranks", "seen on all " + std::to_string(all) + " in the record", Mark::kQuiet};
  clues->push_back(Clue::kOneRank);
  return {"ranks",
          "seen on " + std::to_string(event.ranks.size()) + " of " + std::to_string(all) + ": rank " +
              listed(event.ranks),
          Mark::kNotable};
}

StoryFact replicas(const StoryEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  for (const Notable& each : run.notables) {
    if (each.what != "weight_mismatch" || each.attempt != event.attempt || each.step > event.onset_step)
      continue;
    clues->push_back(Clue::kReplicasDiffer);
    return {"replicas",
            "weights that should be equal differ from step " + std::to_string(each.step) + " on, seen " +
                (each.rank < 0 ? "between nodes" : "on rank " + std::to_string(each.rank)) +
                (each.layer.empty() ? "" : ", layer " + each.layer),
            Mark::kNotable};
  }
  if (run.records > 1 && run.tensors > 0)
    return {"replicas", "not compared between the records; `foreshock merge` does that", Mark::kUnknown};
  if (run.replicas_compared > 0)
    return {"replicas", "agreed bit for bit wherever weights were compared", Mark::kQuiet};
  return {"replicas",
          run.tensors > 0 ? "there are none to compare: each tensor is held once"
                          : "not compared: no weights were followed",
          Mark::kUnknown};
}

const TrailStep* step_at(const StoryEvent& event, int64_t step) {
  const auto found = std::find_if(event.steps.begin(), event.steps.end(),
                                  [&](const TrailStep& each) { return each.step >= step; });
  return found != event.steps.end() ? &*found : nullptr;
}

// The rate moves before the step that it makes go wrong: what counts is until the onset.
StoryFact learning_rate(const StoryEvent& event, std::vector<Clue>* clues) {
  const TrailStep* before = step_at(event, event.onset_step - std::min(event.onset_step, kRecent));
  const TrailStep* at = step_at(event, event.onset_step);
  StoryFact fact = {"learning rate", "not known", Mark::kUnknown};
  if (before == nullptr || at == nullptr || !before->learning_rate || !at->learning_rate) return fact;
  const double from = *before->learning_rate, to = *at->learning_rate;
  const auto number = [](double value) { return formatted("%.3g", value); };
  const std::string ago = steps(steps_between(before->step, event.onset_step)) + " before";
  if (from == to) return {fact.name, number(to) + ", as " + ago, Mark::kQuiet};
  fact = {fact.name, number(to) + "; " + number(from) + " " + ago, Mark::kQuiet};
  const double low = std::min(from, to), high = std::max(from, to);
  if (!(high >= kRateFactor * low)) return fact;
  fact.mark = Mark::kNotable;
  clues->push_back(Clue::kLearningRate);
  return fact;
}

StoryFact batch(const StoryEvent& event) {
  const TrailStep* at = step_at(event, event.onset_step);
  if (at == nullptr || !at->batch_id)
    return {"batch", "the training gave no batch_id, so its batches cannot be named", Mark::kUnknown};
  return {"batch", "batch_id " + std::to_string(*at->batch_id) + " at the onset", Mark::kQuiet};
}

StoryFact left_out_steps(const StoryEvent& event, std::vector<Clue>* clues) {
  const TrailStep* at = step_at(event, event.onset_step);
  const TrailStep* before = event.steps.empty() ? nullptr : &event.steps.front();
  if (at == nullptr || !at->skipped_steps || !before->skipped_steps)
    return {"steps left out", "not known", Mark::kUnknown};
  const uint64_t skipped =
      *at->skipped_steps > *before->skipped_steps ? *at->skipped_steps - *before->skipped_steps : 0;
  if (skipped == 0) return {"steps left out", "none before it", Mark::kQuiet};
  clues->push_back(Clue::kSkippedSteps);
  return {"steps left out",
          count(static_cast<double>(skipped)) + " in the " +
              steps(steps_between(before->step, event.onset_step)) + " before, by the gradient scaler",
          Mark::kNotable};
}

StoryFact restart(const StoryEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const auto of = run.trails.find(event.ranks[0]);
  if (of == run.trails.end() || event.attempt >= of->second.attempts().size())
    return {"restarts", "none before it", Mark::kQuiet};
  const Trail::Attempt& attempt = of->second.attempts()[event.attempt];
  std::optional<int64_t> went_on;
  for (const int64_t step : of->second.went_on())
    if (step > attempt.first && step <= std::min(event.onset_step, attempt.last)) went_on = step;
  if (event.attempt == 0 && !went_on) return {"restarts", "none before it", Mark::kQuiet};
  const int64_t first = went_on.value_or(attempt.first);
  const int64_t since = steps_between(first, event.onset_step);
  const std::string text = (went_on ? "another process went on from step " : "went back to step ") +
                           std::to_string(first) + ", " + before_onset(event, first);
  if (since > kBack) return {"restarts", text, Mark::kQuiet};
  clues->push_back(Clue::kResumed);
  return {"restarts", text, Mark::kNotable};
}

// Whether another attempt made the same steps, and what became of it.
StoryFact run_again(const StoryEvent& event, const std::vector<StoryEvent>& events, const RunSeen& run,
                    std::vector<Clue>* clues) {
  constexpr int64_t kNear = 8;
  const auto of = run.trails.find(event.ranks[0]);
  size_t tries = 0, again = 0;
  for (size_t n = 0; of != run.trails.end() && n < of->second.attempts().size(); ++n) {
    const Trail::Attempt& attempt = of->second.attempts()[n];
    if (n == event.attempt || attempt.first >= event.onset_step || attempt.last < event.declared_step)
      continue;
    ++tries;
    again += std::any_of(events.begin(), events.end(), [&](const StoryEvent& each) {
      const int64_t apart = steps_between(each.onset_step, event.onset_step);
      return each.attempt == n && apart >= -kNear && apart <= kNear;
    });
  }
  if (tries == 0) return {"the same steps again", "were not run again in this record", Mark::kUnknown};
  clues->push_back(again > 0 ? Clue::kCameAgain : Clue::kDidNotComeAgain);
  return {"the same steps again",
          "were run " + std::to_string(tries) + (tries == 1 ? " more time" : " more times") +
              ": it came again in " + (again == 0 ? "none" : std::to_string(again)),
          Mark::kNotable};
}

StoryFact gaps(const StoryEvent& event, std::vector<Clue>* clues) {
  int64_t missing = 0;
  const TrailStep* last = nullptr;
  std::optional<uint64_t> interval;
  for (const TrailStep& each : event.steps) {
    if (each.step > event.onset_step) break;
    if (last != nullptr) missing += std::max<int64_t>(steps_between(last->step, each.step), 1) - 1;
    if (each.interval) interval = each.interval;
    last = &each;
  }
  std::string text =
      missing == 0 ? "every step before it was seen" : steps(missing) + " before it were not seen";
  if (interval && *interval > 0)
    text += "; attention was to be sampled in one step of " + std::to_string(*interval);
  if (missing == 0) return {"monitor", text, Mark::kQuiet};
  clues->push_back(Clue::kMonitorGap);
  return {"monitor", text, Mark::kNotable};
}

void add_once(const char* sentence, std::vector<std::string>* list) {
  if (std::find(list->begin(), list->end(), sentence) == list->end()) list->push_back(sentence);
}

void add_text(const ReportText& text, StoryEvent* event) {
  add_once(text.consistent_with, &event->consistent_with);
  add_once(text.not_excluded, &event->not_excluded);
  add_once(text.to_try, &event->to_try);
}

}  // namespace

std::vector<StoryFact> facts_of(const StoryEvent& event, const std::vector<StoryEvent>& events,
                                const RunSeen& run, std::vector<Clue>* clues) {
  if (event.before.empty()) clues->push_back(Clue::kNothingBefore);
  return {nonfinite(event, run, clues),
          learning_rate(event, clues),
          layers(event, run),
          ranks(event, run, clues),
          replicas(event, run, clues),
          batch(event),
          left_out_steps(event, clues),
          restart(event, run, clues),
          run_again(event, events, run, clues),
          gaps(event, clues)};
}

void explain(const std::vector<Clue>& clues, StoryEvent* event) {
  for (const Clue clue : clues) add_text(text_of(clue), event);
  std::set<DetectorId> told;
  for (const StorySign& sign : event->before)
    if (told.size() < kMostDetectors && told.insert(sign.detector).second)
      add_text(text_of(sign.detector), event);
  add_text(text_of(event->kind), event);
}

}  // namespace foreshock::cli
