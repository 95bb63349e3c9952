// Builds the data of `foreshock report` (report_builder.h) from a record, the JSON lines that the agent has
// written: loss events, signs (detectors that left level quiet before an event), facts (circumstances of an
// event), and clues (facts that have an explaining text). An attempt is a series of steps that ends when the
// training goes back to an earlier step. A loss event begins at its onset and is declared at a later step,
// when a rule recognizes it. The report shows the steps from kBefore before the onset to kAfter after it.
#include "cli/report_builder.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>
#include <tuple>

#include "agent/condition_list.h"
#include "agent/record_lines.h"
#include "cli/report_text.h"
#include "cli/terminal.h"

namespace foreshock::cli {
namespace {

using Mark = ReportFact::Mark;  // kQuiet: nothing unusual; kUnknown: the record lacks the data

// Changes of the learning rate are at most this many steps before an event.
constexpr int64_t kRecent = 64;
// A change of the learning rate by this factor within kRecent steps is notable, even in a warm-up.
constexpr double kRateFactor = 2;
constexpr size_t kMostDetectors = 4;  // most detectors that are explained for an event
constexpr size_t kMostNamed = 8;      // most layers or ranks in a list

template <class Integer>
std::string grouped(Integer number) {  // "1 234 567", for example
  return grouped_digits(static_cast<double>(number));
}

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

bool has_rank(const ReportEvent& event, int64_t rank) {
  return std::find(event.ranks.begin(), event.ranks.end(), rank) != event.ranks.end();
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
        !has_rank(event, each.rank))
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

// Returns the earlier of two steps; -1: never.
int64_t earlier(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// Returns the later of two end steps; -1 (not ended yet) is later than any step.
int64_t later_end(int64_t end, int64_t other) { return end < 0 || other < 0 ? -1 : std::max(end, other); }

// Adds an episode (a time in which a detector was above quiet) to *signs, the signs of the loss event with
// this onset. A detector has one sign per layer: another episode extends it, replaces it or is ignored.
void add_sign(const Episode& episode, int64_t rank, int64_t onset, std::vector<ReportSign>* signs) {
  const ReportSign sign = {{episode, rank}, {}};
  const auto known = std::find_if(signs->begin(), signs->end(), [&](const ReportSign& each) {
    return each.detector == sign.detector && each.layer == sign.layer;
  });
  if (known == signs->end()) return signs->push_back(sign);
  const auto is_near = [&](const ReportSign& each) {
    return each.end_step < 0 || steps_between(each.end_step, onset) <= ReportSign::kNear;
  };
  if (!is_near(*known) || !is_near(sign)) {
    // If only one of the two episodes is near the onset, that one is kept. If neither is near, the later is
    // kept.
    const bool replaces =
        is_near(sign) == is_near(*known) ? sign.since_step > known->since_step : is_near(sign);
    if (replaces) *known = sign;
    return;
  }
  known->most = std::max(known->most, sign.most);
  known->since_step = std::min(known->since_step, sign.since_step);
  known->warn_step = earlier(known->warn_step, sign.warn_step);
  known->end_step = later_end(known->end_step, sign.end_step);
}

// Sorts signs by three keys: whether the benchmark has shown the detector to be reliable, whether it warned
// (true first in both), and the step at which the sign began.
void sort_signs(std::vector<ReportSign>* signs) {
  const auto order = [](const ReportSign& sign) {
    return std::tuple(!is_proven(sign.detector), sign.most != Level::kWarn, sign.since_step);
  };
  std::stable_sort(signs->begin(), signs->end(),
                   [&](const ReportSign& a, const ReportSign& b) { return order(a) < order(b); });
}

std::optional<WatchEventKind> event_kind_of(std::string_view name) {  // nullopt: unknown name
  for (int kind = 0; kind < kWatchEventKinds; ++kind)
    if (name == name_of(static_cast<WatchEventKind>(kind))) return static_cast<WatchEventKind>(kind);
  return std::nullopt;
}

bool is_loss_event(WatchEventKind kind) {
  return kind == WatchEventKind::kLossSpike || kind == WatchEventKind::kDivergence ||
         kind == WatchEventKind::kLossRise;
}

// Returns what identifies a finding over time, as key_of(Finding) does.
std::string key_of(const FindingLine& line) {
  const bool is_loss_event = line.finding == name_of(WatchEventKind::kLossSpike) ||
                             line.finding == name_of(WatchEventKind::kDivergence) ||
                             line.finding == name_of(WatchEventKind::kLossRise) ||
                             line.finding == "loss_nonfinite";
  return line.finding + '\n' + line.layer + '\n' + line.tensor + '\n' +
         std::to_string(is_loss_event ? -1 : line.rank.value_or(-1)) + '\n' +
         std::to_string(is_loss_event ? line.since_step.value_or(-1) : -1);
}

constexpr std::string_view kHealthy = "healthy", kPartlyChecked = "PARTLY CHECKED";  // verdicts of agents
constexpr size_t kMostFaultEvents = 4096;    // further ones are ignored
constexpr size_t kMostFindings = 1000;       // further ones are ignored
constexpr size_t kLongestFindingText = 400;  // bytes; an agent writes less
constexpr size_t kMostRanks = 4096;          // records with more ranks are an error
constexpr size_t kTimelinePoints = 1024;     // of the loss curve; History merges neighbours beyond this
constexpr History::Column kTimeline[] = {{"loss", History::Keep::kMean}, {"loss_max", History::Keep::kMax}};

// Names in it may come from a trainer.
FindingLine shortened(FindingLine line) {
  for (std::string* text : {&line.headline, &line.text, &line.action, &line.layer})
    *text = text->substr(0, kLongestFindingText);
  return line;
}

// Returns the layer of a line; "" for kinds of lines without a layer, such as steps.
template <class Line>
std::string layer_of(const Line& line) {
  if constexpr (requires { line.layer; }) return line.layer;
  return "";
}

std::optional<double> time_of(const RecordLine& line) {
  return std::visit([](const auto& each) { return each.time; }, line);
}

std::string time_text(double seconds) {  // since 1970
  constexpr double kLatest = 1e11;       // the year 5138; a record may contain any number as a time
  const auto whole = static_cast<time_t>(seconds);
  std::tm parts = {};
  char text[64] = "";
  if (!(std::abs(seconds) < kLatest) || gmtime_r(&whole, &parts) == nullptr) return "not known";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e10) return "not known";  // 1e10 s: 317 years
  if (seconds < 120) return formatted("%.0f s", seconds);
  return seconds < 7200 ? formatted("%.0f min", seconds / 60) : formatted("%.1f h", seconds / 3600);
}

std::vector<std::string> limits() {
  return {
      "The report shows what moved before an event, not what caused it: a sign and an event can have a "
      "common cause, or none.",
      "Attention is sampled: what is shorter than the steps between two samples can be missed, and so can "
      "what befalls a single head or row.",
      "The figures of the benchmark are from small trainings with planted faults, most of their events from "
      "one small net; how often a detector is right in a training like this one is not known.",
      "Layers are named where the place of an attention call is known; a detector of gradients or of the "
      "loss names none.",
  };
}

}  // namespace

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

bool EventCollector::takes(const EventLine& event) {
  return event_kind_of(event.event) && event.rank && event.step;
}

void EventCollector::take(const EventLine& event, size_t attempt, int64_t declared) {
  if (!takes(event)) return;
  const std::optional<WatchEventKind> kind = event_kind_of(event.event);
  ++taken_;
  if (*kind == WatchEventKind::kPrecursor) take_level(event, attempt);
  if (is_loss_event(*kind)) take_loss_event(*kind, event, attempt, declared);
}

void EventCollector::take_level(const EventLine& event, size_t attempt) {
  const std::optional<DetectorId> detector = detector_of(event.detector);
  if (!detector) return;
  const Level level = event.level == name_of(Level::kWarn)    ? Level::kWarn  // the detector's new level
                      : event.level == name_of(Level::kWatch) ? Level::kWatch
                                                              : Level::kQuiet;
  warnings_ += level == Level::kWarn;
  const auto end = episodes_.rend() - static_cast<ptrdiff_t>(first_);
  auto open = std::find_if(episodes_.rbegin(), end, [&](const RankEpisode& each) {
    return each.end_step < 0 && each.detector == *detector && each.layer == event.layer &&
           each.rank == *event.rank && each.attempt == attempt;
  });
  if (level == Level::kQuiet) {
    if (open != end) open->end_step = *event.step;
    return;
  }
  if (open == end) {
    if (episodes_.size() >= kMostEpisodes) return;
    episodes_.push_back({{*detector, event.layer, event.layer, level, *event.step}, *event.rank, attempt});
    open = episodes_.rbegin();
  }
  open->most = std::max(open->most, level);
  if (level == Level::kWarn && open->warn_step < 0) open->warn_step = *event.step;
}

std::vector<Episode> EventCollector::before(int64_t rank, size_t attempt, int64_t onset) const {
  std::vector<const RankEpisode*> latest;  // the last one first
  for (size_t n = episodes_.size(); n > first_ && latest.size() < Precursors::kMost; --n)
    if (episodes_[n - 1].rank == rank && episodes_[n - 1].attempt == attempt)
      latest.push_back(&episodes_[n - 1]);
  Precursors precursors;
  for (auto each = latest.rbegin(); each != latest.rend(); ++each) {
    const auto note = [&](Level level, int64_t step) {
      precursors.note((*each)->detector, (*each)->place, (*each)->layer, level, step);
    };
    note(Level::kWatch, (*each)->since_step);
    if ((*each)->warn_step >= 0) note(Level::kWarn, (*each)->warn_step);
    if ((*each)->end_step >= 0) note(Level::kQuiet, (*each)->end_step);
  }
  return precursors.before(onset);
}

// Joins the loss event with a known event whose onset is at most kSameEvent steps away, else adds it to
// events_. Slow rises are joined only with slow rises. So the same event on several ranks becomes one, and a
// spike becomes the divergence into which it grows. If the known event has the rank already, the new one is
// joined only if it is the rank's first divergence.
void EventCollector::take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt,
                                     int64_t declared) {
  const int64_t rank = *event.rank;
  const bool is_rise = kind == WatchEventKind::kLossRise, is_divergence = kind == WatchEventKind::kDivergence;
  const auto known = std::find_if(events_.begin(), events_.end(), [&](const ReportEvent& each) {
    const int64_t apart = steps_between(each.onset_step, *event.step);
    return (each.kind == WatchEventKind::kLossRise) == is_rise && each.attempt == attempt &&
           apart >= -kSameEvent && apart <= kSameEvent &&
           (!has_rank(each, rank) || (is_divergence && !each.diverged.contains(rank)));
  });
  if (known == events_.end() && events_.size() >= kMostEvents) {
    ++left_out_;
    return;
  }
  ReportEvent& joined = known != events_.end() ? *known : events_.emplace_back();
  if (joined.ranks.empty()) {  // the event is new
    joined.kind = kind;
    joined.onset_step = *event.step;
    joined.declared_step = declared;
    joined.attempt = attempt;
    if (detailed_ < kMostDetailed) {
      open_.push_back(events_.size() - 1);  // close() adds the event's steps and curves
      ++detailed_;
    }
  }
  if (is_divergence) {
    joined.kind = kind;
    joined.diverged.insert(rank);
  }
  if (has_rank(joined, rank)) return;  // the signs of this rank were added before
  joined.ranks.push_back(rank);
  for (const Episode& episode : before(rank, attempt, *event.step))
    add_sign(episode, rank, joined.onset_step, &joined.signs);
  sort_signs(&joined.signs);
}

// Completes the events in open_ whose first rank is `rank`, once kAfter steps have followed the onset or no
// more steps come: adds their steps and the curves of their signs, and removes them from open_.
void EventCollector::close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals,
                           bool no_more_steps) {
  std::erase_if(open_, [&](size_t index) {
    ReportEvent& event = events_[index];
    if (event.ranks[0] != rank || trail.recent().empty()) return false;
    const int64_t now = trail.recent().back().step;
    const bool has_all_steps =
        now >= event.declared_step && steps_between(event.onset_step, now) >= ReportEvent::kAfter;
    if (!has_all_steps && !no_more_steps) return false;
    for (const TrailStep& step : trail.recent()) {
      const int64_t since = steps_between(event.onset_step, step.step);
      if (since >= -ReportEvent::kBefore && since <= ReportEvent::kAfter) event.steps.push_back(step);
    }
    if (event.steps.empty()) return true;  // trail.recent() lacks the steps around the onset
    for (ReportSign& sign : event.signs)
      if (const auto found = signals.find(sign.rank); found != signals.end())
        sign.points = found->second.around(sign.detector, sign.layer, event.steps.front().step,
                                           event.onset_step, event.steps.back().step);
    return true;
  });
}

ReportBuilder::ReportBuilder() : timeline_(kTimeline, kTimelinePoints) { begin_record(); }

// Creates detectors (watches_) for this record alone. end_record() deletes them, so that memory does not grow
// with the number of records. Each watches_->observe() stores the input values of the detectors in readings_.
void ReportBuilder::begin_record() {
  if (watches_ != nullptr) end_record();
  ++records_;
  run_.records = records_;
  replayed_ = std::make_unique<ReplayedRanks>();
  watches_ = std::make_unique<Watches>();
  watches_->collect(&readings_);
}

void ReportBuilder::end_record() {
  for (const std::string& text : left_out(*watches_)) not_watched_.push_back("Not watched: " + text + ".");
  for (const auto& [key, watch] : watches_->all()) {  // key: run and rank
    close_events(key.second, true);
    const auto states = watch.states();
    for (size_t n = 0; n < kDetectors; ++n) {
      totals_[n].values += states[n].values;
      totals_[n].watches += states[n].watches;  // how often the level has risen to watch
      totals_[n].warnings += states[n].warnings;
      totals_[n].last_warn_step = std::max(totals_[n].last_warn_step, states[n].last_warn_step);
    }
  }
  for (const Finding& each : replayed_->findings(*watches_))
    if (derived_.size() < kMostFindings)
      derived_.push_back(shortened(finding_line(run_id_, each, "final", -1)));
  if (const RunConditions* found = watches_->conditions_of(run_id_))
    for (const Condition& each : conditions_of(*found)) conditions_.push_back(each);
  watches_.reset();
  replayed_.reset();
}

std::string ReportBuilder::take(const RecordLine& line) {
  const std::string& run = std::visit([](const auto& each) -> const std::string& { return each.run; }, line);
  if (run_id_.empty()) run_id_ = run;
  // In the first record, lines of other runs are skipped; further records must not have such lines.
  if (run != run_id_ && !run.empty()) {
    ++other_runs_;
    return records_ == 1 ? "" : "it is of run " + run + ", the others of run " + run_id_;
  }
  const std::optional<int64_t> rank = std::visit(
      [](const auto& each) -> std::optional<int64_t> {
        if constexpr (requires { each.rank; }) return each.rank;
        return std::nullopt;
      },
      line);
  if (rank) {
    const auto [known, is_new] = record_of_.emplace(*rank, records_);
    if (!is_new && known->second != records_)
      return "rank " + std::to_string(*rank) + " is in an earlier record too: name each node's record once";
    if (record_of_.size() > kMostRanks) return "more than " + std::to_string(kMostRanks) + " ranks";
  }
  if (const std::optional<double> time = time_of(line); time && std::isfinite(*time)) {
    if (first_time_ == 0) first_time_ = *time;  // 0: no line had a time yet
    last_time_ = std::max(last_time_, *time);
  }
  std::visit(
      [this](const auto& each) {
        observe(each);
        detect(each);
      },
      line);
  if (rank) close_events(*rank, false);
  return "";
}

void ReportBuilder::observe(const RunLine& line) {
  if (!line.foreshock_version.empty()) version_ = line.foreshock_version;
  if (!line.framework.empty()) framework_ = line.framework;
  if (!line.executable.empty()) executable_ = line.executable;
  world_size_ = std::max(world_size_, line.world_size.value_or(0));
  if (!line.rank) return;
  const auto [last, is_new] = last_run_line_.emplace(*line.rank, line);
  if (is_new) return;
  // A restarted agent writes "started" again, even for a process that it followed before.
  const RunLine& before = last->second;
  if (line.state == "started" && (before.state == "ended" || before.pid != line.pid ||
                                  before.attempt != line.attempt || before.host != line.host))
    run_.trails[*line.rank].begin_process();
  last->second = line;
}

void ReportBuilder::observe(const StepLine& line) {
  if (!line.rank || !line.step) return;
  Trail& trail = run_.trails[*line.rank];
  if (trail.goes_back(line)) {  // events must be closed before add() drops the steps of the old attempt
    close_events(*line.rank, true);
    run_.signals[*line.rank].forget_points();
  }
  trail.add(line);
  run_.attention_calls += line.attention_calls.value_or(0);
  if (!line.loss_source.empty()) loss_source_ = line.loss_source;
  if (!line.step_source.empty()) step_source_ = line.step_source;
  add_to_timeline(line);
}

// Counts a known loss and, if the line is of the first rank in the records, adds it to the timeline.
void ReportBuilder::add_to_timeline(const StepLine& line) {
  losses_ += line.loss.has_value();
  if (timeline_rank_ < 0) timeline_rank_ = *line.rank;  // -1: no line yet
  if (*line.rank != timeline_rank_ || !line.loss || *line.step < 0) return;
  timeline_.add(*line.step, 0, *line.loss);  // column "loss", a mean over steps
  timeline_.add(*line.step, 1, *line.loss);  // column "loss_max"
}

void ReportBuilder::observe(const SampleLine& line) {
  // A slice of key positions has two lines, grad_key and grad_value, and is counted once. Index 1: backward.
  if (line.tensor != "grad_value") ++run_.slices[line.pass == "backward"];
  attention_.take(line);
}

void ReportBuilder::observe(const TensorLine& line) {
  ++run_.tensors;
  // If more ranks hold the tensor than it has distinct parts, replicas of a part have been compared.
  run_.replicas_compared += line.ranks.value_or(0) > line.parts.value_or(1);
}

void ReportBuilder::observe(const EventLine& line) {
  take_event(line, /*is_recorded=*/true);
  // This event means that a restarted agent has lost the state of its detectors. The detectors that are run
  // now (watches_) read the event in detect(), and then drop their state too.
  if (line.event == kDetectorsBeginAnew) events_.reset_detectors();
  const bool is_fault =
      nonfinite_place(line.event) < std::size(kNonfinitePlaces) || line.event == "weight_mismatch";
  if (!is_fault || !line.step || run_.fault_events.size() >= kMostFaultEvents) return;
  // Only a mismatch between nodes may lack a rank (-1 below). Such an event gets the attempt of the lowest
  // rank.
  if (!line.rank && (line.event != "weight_mismatch" || run_.trails.empty())) return;
  const auto trail = line.rank ? run_.trails.find(*line.rank) : run_.trails.begin();
  const size_t attempts = trail != run_.trails.end() ? trail->second.attempts().size() : 0;
  run_.fault_events.push_back(
      {line.event, line.layer, line.rank.value_or(-1), *line.step, std::max<size_t>(attempts, 1) - 1});
}

// A finding has a line when it begins, and a line at the end of each command, which replaces it. A finding
// that was not final in the end, such as a spike that became a divergence, is dropped if the record has a
// verdict.
void ReportBuilder::observe(const FindingLine& written) {
  const FindingLine line = shortened(written);
  const std::string key = key_of(line);
  const auto known = findings_.find(key);
  if (known != findings_.end()) {
    if (line.state == "final") known->second = line;
  } else if (findings_.size() < kMostFindings) {
    findings_[key] = line;
    finding_order_.push_back(key);
  }
}

void ReportBuilder::observe(const VerdictLine& line) {
  // A training that failed was healthy as far as it was seen.
  const bool is_cut = line.verdict == kHealthy && line.state == name_of(RunState::kFailed);
  const std::string verdict =
      line.verdict + (is_cut ? " until it failed" : "") +
      (line.verdict == kPartlyChecked && !line.gap.empty() ? ": " + line.gap.substr(0, kLongestFindingText)
                                                           : "");
  if (verdicts_.size() < kMostFindings && !line.verdict.empty()) {
    verdicts_.insert(verdict);
    is_healthy_ = is_healthy_ && verdict.starts_with(kHealthy) && !is_cut;
  }
  run_.replicas_compared = std::max(run_.replicas_compared, line.replicas_compared.value_or(0));
}

template <class Line>
void ReportBuilder::detect(const Line& line) {
  readings_.clear();
  const std::vector<EventLine>& events = watches_->observe(line);
  // last_rank(): the rank whose detectors took this line; lines on tensors have no rank of their own.
  if (!readings_.empty()) run_.signals[watches_->last_rank()].take(layer_of(line), readings_);
  for (const EventLine& event : events) take_event(event, /*is_recorded=*/false);
  replayed_->take(line, events);
}

void ReportBuilder::take_event(const EventLine& event, bool is_recorded) {
  if (!EventCollector::takes(event) || (has_recorded_ && !is_recorded)) return;
  if (is_recorded && !has_recorded_) {  // the first one: what was found so far is not used
    events_ = {};
    has_recorded_ = true;
  }
  const auto trail = run_.trails.find(*event.rank);
  // The rank has no step yet: attempt 0, declared at step 0.
  if (trail == run_.trails.end() || trail->second.attempts().empty()) return events_.take(event, 0, 0);
  const auto& attempts = trail->second.attempts();
  events_.take(event, attempts.size() - 1, attempts.back().last);  // declared at the rank's last step
}

void ReportBuilder::close_events(int64_t rank, bool no_more_steps) {
  const auto trail = run_.trails.find(rank);
  if (trail == run_.trails.end()) return;
  events_.close(rank, trail->second, run_.signals, no_more_steps);
}

Report ReportBuilder::finish() {
  end_record();
  Report report;
  report.from_record = has_recorded_;
  report.run = run_id_;
  report.version = version_;
  report.events = std::move(events_.events());
  report.episodes = events_.episodes();
  std::stable_sort(report.events.begin(), report.events.end(),
                   [](const ReportEvent& a, const ReportEvent& b) {
                     return a.attempt != b.attempt ? a.attempt < b.attempt : a.onset_step < b.onset_step;
                   });
  for (ReportEvent& event : report.events) {
    event.title = title_of(event);
    event.text = course_of(event);
    if (event.steps.empty()) continue;
    std::vector<Clue> clues;
    event.facts = facts_of(event, report.events, run_, &clues);
    explain(clues, &event);
  }
  report.attention = attention_.curve();
  report.attention_layers = attention_.layers();
  report.agent_verdicts = verdicts_;
  report.conditions = conditions_;
  // Conditions of several records: the faults of all come first.
  std::stable_partition(report.conditions.begin(), report.conditions.end(), is_fault);
  std::set<std::string> derived;  // of a record without a verdict, whose other findings may be old
  if (verdicts_.empty()) {
    report.findings = derived_;
    for (const FindingLine& line : derived_) derived.insert(key_of(line));
    report.notes.push_back(
        "The record has no verdict of its agent: the run goes on, or the agent was stopped. The findings are "
        "those that this version finds in the other lines.");
  }
  for (const std::string& key : finding_order_)
    if (verdicts_.empty() ? !derived.contains(key) : findings_[key].state == "final")
      report.findings.push_back(findings_[key]);
  sort_findings(&report.findings);
  report.attention_text = attention_text(attention_.largest());
  RunCounts counts = {0, losses_, events_.warnings()};
  for (const auto& [rank, trail] : run_.trails) counts.steps = std::max(counts.steps, trail.steps());
  report.headline = "Run " + run_id_;
  report.is_healthy = is_healthy_ && !verdicts_.empty() && report.findings.empty() &&
                      std::none_of(report.conditions.begin(), report.conditions.end(), is_fault);
  report.verdict = verdict_of(report, counts);  // uses the events, episodes and faults set above
  report.facts = facts();
  report.coverage = coverage();
  report.detectors = detectors();
  report.events_note = events_note();
  report.timeline.run = run_id_;
  report.timeline.rank = timeline_rank_;
  timeline_.copy_to(&report.timeline);
  if (const auto trail = run_.trails.find(timeline_rank_); trail != run_.trails.end())
    for (const Trail::Attempt& each : trail->second.attempts())
      report.timeline_last_step = std::max(report.timeline_last_step, each.last);
  if (events_.left_out() > 0)
    report.notes.push_back(grouped(events_.left_out()) + " more loss events are not listed.");
  report.notes.insert(report.notes.end(), not_watched_.begin(), not_watched_.end());
  if (other_runs_ > 0)
    report.notes.push_back(grouped(other_runs_) +
                           " lines of other runs were left out: each run has a report of its own.");
  report.limits = limits();
  return report;
}

std::vector<ReportFact> ReportBuilder::facts() const {
  std::vector<ReportFact> facts;
  size_t attempts = 1;
  int64_t first = 0, last = 0;
  bool has_steps = false;
  for (const auto& [rank, trail] : run_.trails) {
    attempts = std::max(attempts, trail.attempts().size());
    for (const Trail::Attempt& each : trail.attempts()) {
      first = has_steps ? std::min(first, each.first) : each.first;
      last = has_steps ? std::max(last, each.last) : each.last;
      has_steps = true;
    }
  }
  const bool ended =
      !last_run_line_.empty() && std::all_of(last_run_line_.begin(), last_run_line_.end(),
                                             [](const auto& each) { return each.second.state == "ended"; });
  facts.push_back({"state", ended ? "ended" : "no end in the record: it goes on, or its agent was stopped",
                   ended ? Mark::kQuiet : Mark::kNotable});
  if (has_steps)
    facts.push_back({"steps", grouped(first) + " to " + grouped(last) + in_brackets(step_source_)});
  if (first_time_ > 0)
    facts.push_back({"time", time_text(first_time_) + " to " + time_text(last_time_) + " (" +
                                 duration_text(last_time_ - first_time_) + ")"});
  const size_t ranks = run_.trails.size();
  facts.push_back(
      {"ranks", std::to_string(ranks) +
                    (world_size_ > static_cast<int64_t>(ranks) ? " of " + std::to_string(world_size_) : "")});
  if (attempts > 1)
    facts.push_back({"went back", std::to_string(attempts - 1) + (attempts == 2 ? " time" : " times") +
                                      " to an earlier step"});
  if (!executable_.empty() || !framework_.empty())
    facts.push_back({"program", executable_ + (framework_.empty() ? "" : " (" + framework_ + ")")});
  if (!loss_source_.empty()) facts.push_back({"loss", "as seen by " + loss_source_});
  return facts;
}

std::vector<ReportFact> ReportBuilder::coverage() const {
  uint64_t steps = 0, missed = 0;
  size_t layers = 0;
  for (const auto& [rank, trail] : run_.trails) {
    steps += trail.steps();
    missed += trail.missed();
  }
  for (const auto& [rank, signals] : run_.signals) layers = std::max(layers, signals.layers().size());
  std::vector<ReportFact> facts;
  facts.push_back(
      {"steps", grouped(steps) + " seen" + (missed > 0 ? ", " + grouped(missed) + " not" : ", none missed"),
       missed > 0 ? Mark::kNotable : Mark::kQuiet});
  facts.push_back({"loss",
                   losses_ == 0 ? "not known at any step"
                   : losses_ <= kLossWindow
                       ? "known at " + grouped(losses_) + " steps, too few to detect a spike, which needs " +
                             grouped(kLossWindow) + " before it"
                       : "known at " + grouped(losses_) + " steps",
                   losses_ <= kLossWindow ? Mark::kUnknown : Mark::kQuiet});
  const uint64_t slices = run_.slices[0] + run_.slices[1];
  facts.push_back({"attention",
                   run_.attention_calls == 0 && slices == 0
                       ? "no call was seen"
                       : grouped(run_.attention_calls) + " calls counted; " + grouped(run_.slices[0]) +
                             " slices forward and " + grouped(run_.slices[1]) +
                             " backward recomputed in fp64",
                   slices == 0 ? Mark::kUnknown : Mark::kQuiet});
  facts.push_back({"layers", layers == 0 ? "none is known by name" : grouped(layers) + " were watched",
                   layers == 0 ? Mark::kUnknown : Mark::kQuiet});
  facts.push_back({"weights",
                   run_.tensors == 0 ? "not followed"
                                     : grouped(run_.tensors) + " snapshots of tensors; " +
                                           (run_.replicas_compared > 0 ? grouped(run_.replicas_compared) +
                                                                             " compared between replicas"
                                                                       : "no replicas to compare"),
                   run_.tensors == 0 ? Mark::kUnknown : Mark::kQuiet});
  return facts;
}

std::vector<ReportDetector> ReportBuilder::detectors() const {
  std::vector<ReportDetector> all;
  for (size_t n = 0; n < kDetectors; ++n) {
    ReportDetector detector = totals_[n];
    detector.detector = static_cast<DetectorId>(n);
    for (const auto& [rank, signals] : run_.signals)
      detector.layers = std::max(detector.layers, signals.layers(detector.detector).size());
    all.push_back(detector);
  }
  return all;
}

// Compares the warnings that the agent wrote with those that the detectors give now. They may differ, since
// another version of foreshock may have written the record.
std::string ReportBuilder::events_note() const {
  if (!events_.has_any()) return "No detector spoke.";
  if (!has_recorded_)
    return "The agent wrote no events of its detectors into this record; they were run over it now.";
  uint64_t now = 0;
  for (const ReportDetector& each : totals_) now += each.warnings;
  const std::string begin = "The events are those that the agent wrote while the run went on";
  if (now == events_.warnings())
    return begin + "; run over the record now, the detectors warn as often (" + grouped(now) + ").";
  return begin + ", with " + grouped(events_.warnings()) +
         " warnings. Run over the record now, the detectors of this version warn " + grouped(now) +
         (now == 1 ? " time." : " times.");
}

}  // namespace foreshock::cli
