// Finds the circumstances of a loss event (facts), and those that have an explaining text (clues). An attempt
// is a series of steps that ends when the training goes back to an earlier step. A loss event begins at its
// onset and is declared at a later step, when a rule recognizes it. Its steps are those from kBefore before
// the onset to kAfter after it.
#include "cli/report_facts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "agent/text.h"
#include "cli/report_text.h"

namespace foreshock::cli {
namespace {

using Mark = ReportFact::Mark;  // kQuiet: nothing unusual; kUnknown: the record lacks the data

// Changes of the learning rate are at most this many steps before an event.
constexpr int64_t kRecent = 64;
// A change of the learning rate by this factor within kRecent steps is notable, even in a warm-up.
constexpr double kRateFactor = 2;
constexpr size_t kMostDetectors = 4;  // most detectors that are explained for an event
constexpr size_t kMostNamed = 8;      // most layers or ranks in a list

// Returns "3, 5, 8", for example, and after kMostNamed items " and 2 more".
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

// Events of the record that name NaN or Inf, and where it was, in the order in which a step computes it. The
// loss comes after the first of them.
struct NonfinitePlace {
  std::string_view event, place;
};
constexpr NonfinitePlace kNonfinitePlaces[] = {{"nonfinite", "attention's result"},
                                               {"nonfinite_attention_gradient", "attention's gradients"},
                                               {"nonfinite_gradient", "the gradient"},
                                               {"nonfinite_gradient_norm", "the gradient norm"},
                                               {"weights_nonfinite", "the weights"}};

// Returns the index in kNonfinitePlaces; their number for another event.
size_t nonfinite_place(std::string_view event) {
  return static_cast<size_t>(std::find_if(std::begin(kNonfinitePlaces), std::end(kNonfinitePlaces),
                                          [&](const NonfinitePlace& each) { return each.event == event; }) -
                             std::begin(kNonfinitePlaces));
}

std::string where_nonfinite(const FaultEvent& fault) {
  return std::string(kNonfinitePlaces[nonfinite_place(fault.name)].place) +
         (fault.layer.empty() ? "" : " of layer " + fault.layer);
}

// Returns when `step` was relative to the onset: "3 steps before", "at the onset", "2 steps after".
std::string relative_to_onset(const ReportEvent& event, int64_t step) {
  const int64_t lead = steps_between(step, event.onset_step);
  return lead > 0 ? steps_text(lead) + " before" : lead == 0 ? "at the onset" : steps_text(-lead) + " after";
}

// The functions below that return a ReportFact describe one circumstance of the event and add to *clues.

ReportFact nonfinite(const ReportEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const auto order = [](const FaultEvent& each) { return std::pair(each.step, nonfinite_place(each.name)); };
  const FaultEvent* first = nullptr;
  for (const FaultEvent& each : run.fault_events) {
    if (nonfinite_place(each.name) == std::size(kNonfinitePlaces) || each.attempt != event.attempt ||
        !event.has_rank(each.rank))
      continue;
    const bool is_near = steps_between(each.step, event.onset_step) <= ReportEvent::kBefore &&
                         each.step <= event.declared_step;
    if (is_near && (first == nullptr || order(each) < order(*first))) first = &each;
  }
  const auto loss = std::find_if(event.steps.begin(), event.steps.end(), [&](const TrailStep& each) {
    return each.step <= event.declared_step && each.loss && !std::isfinite(*each.loss);
  });
  ReportFact fact = {"NaN or infinite values", "none in the " + steps_text(ReportEvent::kBefore) + " before",
                     Mark::kQuiet};
  const bool in_loss = loss != event.steps.end();
  if (in_loss) fact = {fact.name, "in the loss; none was seen before it", Mark::kNotable};
  if (first == nullptr || (in_loss && order(*first) >= std::pair(loss->step, size_t{1}))) return fact;
  fact.mark = Mark::kNotable;  // the fault event names a place, so its text replaces the text on the loss
  fact.text = "first in " + where_nonfinite(*first) + ", " + relative_to_onset(event, first->step);
  if (first->step >= event.onset_step) return fact;  // may be a consequence of the event
  clues->push_back(Clue::kNonfinite);
  return fact;
}

ReportFact layers(const ReportEvent& event, const RunSeen& run) {
  std::set<std::string> watched, moved;  // layers with values for detectors; layers in which a detector moved
  for (const int64_t rank : event.ranks)
    if (const auto found = run.signals.find(rank); found != run.signals.end())
      watched.merge(found->second.layers());
  for (const ReportSign& sign : event.signs)
    if (!sign.layer.empty()) moved.insert(sign.layer);
  if (watched.empty()) return {"layers", "no layer was watched", Mark::kUnknown};
  // The agent's signs may be in layers for which this record has no values, so `moved` may be the larger set.
  const size_t quiet = watched.size() > moved.size() ? watched.size() - moved.size() : 0;
  if (moved.empty())
    return {"layers", "all " + std::to_string(watched.size()) + " that were watched stayed quiet",
            Mark::kQuiet};
  return {"layers",
          "detectors spoke in " + listed(moved) + "; " +
              (quiet == 0 ? "no other was watched" : "the other " + std::to_string(quiet) + " stayed quiet"),
          Mark::kNotable};
}

ReportFact ranks(const ReportEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const size_t rank_count = run.trails.size();  // in the records
  if (rank_count < 2) return {"ranks", "there is one rank in the record", Mark::kUnknown};
  if (event.ranks.size() >= rank_count)
    return {"ranks", "seen on all " + std::to_string(rank_count) + " in the record", Mark::kQuiet};
  clues->push_back(Clue::kOneRank);
  return {"ranks",
          "seen on " + std::to_string(event.ranks.size()) + " of " + std::to_string(rank_count) + ": rank " +
              listed(event.ranks),
          Mark::kNotable};
}

ReportFact replicas(const ReportEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  for (const FaultEvent& each : run.fault_events) {
    if (each.name != "weight_mismatch" || each.attempt != event.attempt || each.step > event.onset_step)
      continue;
    clues->push_back(Clue::kReplicasDiffer);
    const std::string where = (each.rank < 0 ? "between nodes" : "on rank " + std::to_string(each.rank)) +
                              (each.layer.empty() ? "" : ", layer " + each.layer);
    return {
        "replicas",
        "weights that should be equal differ from step " + std::to_string(each.step) + " on, seen " + where,
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

// Returns the first of the event's steps from `step` on; null if there is none.
const TrailStep* first_step_from(const ReportEvent& event, int64_t step) {
  const auto found = std::find_if(event.steps.begin(), event.steps.end(),
                                  [&](const TrailStep& each) { return each.step >= step; });
  return found != event.steps.end() ? &*found : nullptr;
}

struct RateJump {  // a change of the learning rate by kRateFactor or more from one step to the next
  double from = 0, to = 0;
  int64_t step = 0;  // the first step with rate `to`
};
// Returns the last jump after step `since` and not after the onset.
std::optional<RateJump> rate_jump(const ReportEvent& event, int64_t since) {
  std::optional<RateJump> jump;
  std::optional<double> last;
  for (const TrailStep& each : event.steps) {
    if (each.step > event.onset_step) break;
    if (!each.learning_rate) continue;
    const double rate = *each.learning_rate;
    if (last && each.step > since && std::max(*last, rate) >= kRateFactor * std::min(*last, rate) &&
        *last != rate)  // false if both are 0
      jump = {*last, rate, each.step};
    last = rate;
  }
  return jump;
}

// Reports a jump of the learning rate within kRecent steps before the onset. Without a jump, reports the
// change over these steps. A rate is set before the step that uses it, so a change at the onset step counts.
ReportFact learning_rate(const ReportEvent& event, std::vector<Clue>* clues) {
  // From kRecent steps before the onset, or from step 0 if the onset is earlier than step kRecent.
  const TrailStep* before = first_step_from(event, event.onset_step - std::min(event.onset_step, kRecent));
  const TrailStep* onset = first_step_from(event, event.onset_step);
  ReportFact fact = {"learning rate", "not known", Mark::kUnknown};
  if (before == nullptr || onset == nullptr || !before->learning_rate || !onset->learning_rate) return fact;
  const double from = *before->learning_rate, to = *onset->learning_rate;
  const auto number = [](double value) { return formatted("%.3g", value); };
  const auto change = [&](double a, double b) { return "went from " + number(a) + " to " + number(b); };
  const std::string ago = steps_text(steps_between(before->step, event.onset_step)) + " before";
  if (const std::optional<RateJump> jump = rate_jump(event, before->step)) {
    const std::string went = change(jump->from, jump->to);
    clues->push_back(Clue::kLearningRate);
    return {fact.name, went + " at step " + grouped(jump->step) + ", " + relative_to_onset(event, jump->step),
            Mark::kNotable};
  }
  if (from == to) return {fact.name, number(to) + ", as " + ago, Mark::kQuiet};
  fact = {fact.name, number(to) + "; " + number(from) + " " + ago, Mark::kQuiet};
  const double low = std::min(from, to), high = std::max(from, to);
  if (!(high >= kRateFactor * low)) return fact;  // also if a rate is NaN
  fact.mark = Mark::kNotable;
  clues->push_back(Clue::kLearningRate);
  return fact;
}

ReportFact batch(const ReportEvent& event) {
  const TrailStep* onset = first_step_from(event, event.onset_step);
  if (onset == nullptr || !onset->batch_id)
    return {"batch", "the training gave no batch_id, so its batches cannot be named", Mark::kUnknown};
  return {"batch", "batch_id " + std::to_string(*onset->batch_id) + " at the onset", Mark::kQuiet};
}

// Reports how many steps the gradient scaler skipped. A step has the total of its process up to this step. In
// a restarted process the total begins at 0, so it may be lower at the onset than before.
ReportFact skipped_by_scaler(const ReportEvent& event, std::vector<Clue>* clues) {
  const TrailStep* onset = first_step_from(event, event.onset_step);  // null if the event has no steps
  const TrailStep* before = event.steps.empty() ? nullptr : &event.steps.front();
  if (onset == nullptr || !onset->skipped_steps || !before->skipped_steps)
    return {"steps left out", "not known", Mark::kUnknown};
  const uint64_t skipped =
      *onset->skipped_steps > *before->skipped_steps ? *onset->skipped_steps - *before->skipped_steps : 0;
  if (skipped == 0) return {"steps left out", "none before it", Mark::kQuiet};
  clues->push_back(Clue::kSkippedSteps);
  return {"steps left out",
          grouped(skipped) + " in the " + steps_text(steps_between(before->step, event.onset_step)) +
              " before, by the gradient scaler",
          Mark::kNotable};
}

// Reports the last restart before the onset: the training went back, or a new process continued its steps.
ReportFact restart(const ReportEvent& event, const RunSeen& run, std::vector<Clue>* clues) {
  const auto trail = run.trails.find(event.ranks[0]);
  if (trail == run.trails.end() || event.attempt >= trail->second.attempts().size())
    return {"restarts", "none before it", Mark::kQuiet};
  const Trail::Attempt& attempt = trail->second.attempts()[event.attempt];
  std::optional<int64_t> continued;  // first step of the last process that continued this attempt
  for (const int64_t step : trail->second.continued_at())
    if (step > attempt.first && step <= std::min(event.onset_step, attempt.last)) continued = step;
  if (event.attempt == 0 && !continued) return {"restarts", "none before it", Mark::kQuiet};
  const int64_t first_step = continued.value_or(attempt.first);
  const std::string first = std::to_string(first_step);
  const std::string text = (continued ? "another process went on from step " : "went back to step ") + first +
                           ", " + relative_to_onset(event, first_step);
  if (steps_between(first_step, event.onset_step) > ReportEvent::kBefore)
    return {"restarts", text, Mark::kQuiet};
  clues->push_back(Clue::kResumed);
  return {"restarts", text, Mark::kNotable};
}

// Reports how many other attempts made the same steps, and in how many of these the event occurred too.
ReportFact run_again(const ReportEvent& event, const std::vector<ReportEvent>& events, const RunSeen& run,
                     std::vector<Clue>* clues) {
  constexpr int64_t kSameOnset = 8;  // steps; onsets that differ by more are different events
  const auto trail = run.trails.find(event.ranks[0]);
  size_t tries = 0, again = 0;
  for (size_t n = 0; trail != run.trails.end() && n < trail->second.attempts().size(); ++n) {
    const Trail::Attempt& attempt = trail->second.attempts()[n];
    // Leaves out attempts that did not make all steps from the onset to the declaration.
    if (n == event.attempt || attempt.first >= event.onset_step || attempt.last < event.declared_step)
      continue;
    ++tries;
    again += std::any_of(events.begin(), events.end(), [&](const ReportEvent& each) {
      const int64_t apart = steps_between(each.onset_step, event.onset_step);
      return each.attempt == n && apart >= -kSameOnset && apart <= kSameOnset;
    });
  }
  if (tries == 0) return {"the same steps again", "were not run again in this record", Mark::kUnknown};
  clues->push_back(again > 0 ? Clue::kCameAgain : Clue::kDidNotComeAgain);
  return {"the same steps again",
          "were run " + std::to_string(tries) + (tries == 1 ? " more time" : " more times") +
              ": it came again in " + (again == 0 ? "none" : std::to_string(again)),
          Mark::kNotable};
}

// Reports the steps before the onset that are missing in the record, and how often attention was sampled.
ReportFact gaps(const ReportEvent& event, std::vector<Clue>* clues) {
  int64_t missing = 0;
  const TrailStep* last = nullptr;
  std::optional<uint64_t> interval;
  for (const TrailStep& each : event.steps) {
    if (each.step > event.onset_step) break;
    // At least 1: a step may be recorded twice.
    if (last != nullptr) missing += std::max<int64_t>(steps_between(last->step, each.step), 1) - 1;
    if (each.interval) interval = each.interval;
    last = &each;
  }
  std::string text =
      missing == 0 ? "every step before it was seen" : steps_text(missing) + " before it were not seen";
  if (interval && *interval > 0)
    text += "; attention was to be sampled in one step of " + std::to_string(*interval);
  if (missing == 0) return {"monitor", text, Mark::kQuiet};
  clues->push_back(Clue::kMonitorGap);
  return {"monitor", text, Mark::kNotable};
}
void add_once(const char* sentence, std::vector<std::string>* list) {
  if (std::find(list->begin(), list->end(), sentence) == list->end()) list->push_back(sentence);
}

void add_text(const ReportText& text, ReportEvent* event) {
  add_once(text.consistent_with, &event->consistent_with);
  add_once(text.not_excluded, &event->not_excluded);
  add_once(text.to_try, &event->to_try);
}
}  // namespace

bool is_fault_event(std::string_view event) {
  return nonfinite_place(event) < std::size(kNonfinitePlaces) || event == "weight_mismatch";
}

std::vector<ReportFact> facts_of(const ReportEvent& event, const std::vector<ReportEvent>& events,
                                 const RunSeen& run, std::vector<Clue>* clues) {
  std::vector<ReportFact> facts = {nonfinite(event, run, clues),
                                   learning_rate(event, clues),
                                   layers(event, run),
                                   ranks(event, run, clues),
                                   replicas(event, run, clues),
                                   batch(event),
                                   skipped_by_scaler(event, clues),
                                   restart(event, run, clues),
                                   run_again(event, events, run, clues),
                                   gaps(event, clues)};
  if (event.signs.empty()) clues->push_back(Clue::kNothingBefore);
  return facts;
}

// The most specific texts come first: circumstances, then detectors, then the kind of event.
void explain(const std::vector<Clue>& clues, ReportEvent* event) {
  for (const Clue clue : clues) add_text(text_of(clue), event);
  std::set<DetectorId> explained;
  for (const ReportSign& sign : event->signs)
    if (explained.size() < kMostDetectors && explained.insert(sign.detector).second)
      add_text(text_of(sign.detector), event);
  add_text(text_of(event->kind), event);
}

}  // namespace foreshock::cli
