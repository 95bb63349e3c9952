#include "cli/storyteller.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "cli/report_words.h"
#include "cli/summary_words.h"

namespace foreshock::cli {
namespace {

constexpr size_t kMostNotables = 4096;
constexpr size_t kMostRanks = 4096;
constexpr size_t kTimelinePoints = 1024;
constexpr History::Column kTimeline[] = {{"loss", History::Keep::kMean}, {"loss_max", History::Keep::kMax}};

// "" for lines of tensors and the like, whose layer the readings belong to.
template <class Line>
std::string layer_of(const Line& line) {
  if constexpr (requires { line.layer; }) return line.layer;
  return "";
}

std::optional<double> time_of(const RecordLine& line) {
  return std::visit([](const auto& each) { return each.time; }, line);
}

std::string time_text(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  std::tm parts = {};
  char text[64] = "";
  if (!(std::abs(seconds) < 1e11) || gmtime_r(&whole, &parts) == nullptr) return "not known";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e10) return "not known";
  if (seconds < 120) return formatted("%.0f s", seconds);
  return seconds < 7200 ? formatted("%.0f min", seconds / 60) : formatted("%.1f h", seconds / 3600);
}

std::vector<std::string> limits() {
  return {
      "What moved before an event is told, not what caused it: a sign and an event can have a common cause, "
      "or "
      "none.",
      "Attention is sampled: what is shorter than the steps between two samples can be missed, and so can "
      "what "
      "befalls a single head or row.",
      "The figures of the benchmark are from small trainings with planted faults, most of their events from "
      "one "
      "small net; how often a detector is right in a training like this one is not known.",
      "Layers are named where the place of an attention call is known; a detector of gradients or of the "
      "loss "
      "names none.",
  };
}

}  // namespace

Storyteller::Storyteller() : timeline_(kTimeline, kTimelinePoints) { begin_record(); }

void Storyteller::begin_record() {
  if (watches_ != nullptr) end_record();
  run_.records = ++records_;
  watches_ = std::make_unique<Watches>();
  watches_->collect(&readings_);
}

void Storyteller::end_record() {
  for (const auto& [key, watch] : watches_->all()) {
    close_events(key.second, true);
    const auto states = watch.states();
    for (size_t n = 0; n < kDetectors; ++n) {
      totals_[n].values += states[n].values;
      totals_[n].watches += states[n].watches;
      totals_[n].warnings += states[n].warnings;
      totals_[n].last_warn_step = std::max(totals_[n].last_warn_step, states[n].last_warn_step);
    }
  }
  watches_.reset();
}

std::string Storyteller::take(const RecordLine& line) {
  const std::string& run = std::visit([](const auto& each) -> const std::string& { return each.run; }, line);
  if (run_id_.empty()) run_id_ = run;
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
    const auto [of, is_new] = record_of_.emplace(*rank, records_);
    if (!is_new && of->second != records_)
      return "rank " + std::to_string(*rank) + " is in an earlier record too: name each node's record once";
    if (record_of_.size() > kMostRanks) return "more than " + std::to_string(kMostRanks) + " ranks";
  }
  if (const std::optional<double> time = time_of(line); time && std::isfinite(*time)) {
    if (first_time_ == 0) first_time_ = *time;
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

void Storyteller::observe(const RunLine& line) {
  if (!line.foreshock_version.empty()) version_ = line.foreshock_version;
  if (!line.framework.empty()) framework_ = line.framework;
  if (!line.executable.empty()) executable_ = line.executable;
  world_size_ = std::max(world_size_, line.world_size.value_or(0));
  if (!line.rank) return;
  const auto [of, is_new] = lives_.emplace(*line.rank, line);
  if (is_new) return;
  // Told again of the same process when its agent has begun anew.
  const RunLine& before = of->second;
  if (line.state == "started" && (before.state == "ended" || before.pid != line.pid ||
                                  before.attempt != line.attempt || before.host != line.host))
    run_.trails[*line.rank].begin_process();
  of->second = line;
}

void Storyteller::observe(const StepLine& line) {
  if (!line.rank || !line.step) return;
  Trail& trail = run_.trails[*line.rank];
  if (trail.goes_back(line)) {
    close_events(*line.rank, true);
    run_.signals[*line.rank].forget_points();
  }
  trail.add(line);
  run_.attention_calls += line.attention_calls.value_or(0);
  if (!line.loss_source.empty()) loss_source_ = line.loss_source;
  if (!line.step_source.empty()) step_source_ = line.step_source;
  draw(line);
}

// One curve is enough to see the run: that of the rank that came first.
void Storyteller::draw(const StepLine& line) {
  losses_ += line.loss.has_value();
  if (timeline_rank_ < 0) timeline_rank_ = *line.rank;
  if (*line.rank != timeline_rank_ || !line.loss || *line.step < 0) return;
  timeline_.add(*line.step, 0, *line.loss);
  timeline_.add(*line.step, 1, *line.loss);
}

void Storyteller::observe(const SampleLine& line) { ++run_.slices[line.pass == "backward"]; }

void Storyteller::observe(const TensorLine& line) {
  ++run_.tensors;
  run_.replicas_compared += line.ranks.value_or(0) > line.parts.value_or(1);
}

void Storyteller::observe(const EventLine& line) {
  take_event(line, &recorded_);
  if (line.event == kDetectorsBeginAnew) {
    recorded_.begin_anew();
    found_.begin_anew();
  }
  const bool is_notable = line.event.starts_with("nonfinite") || line.event == "weight_mismatch";
  if (!is_notable || !line.step || run_.notables.size() >= kMostNotables) return;
  // What differs between nodes is of no rank; the first one tells which attempt it is.
  if (!line.rank && (line.event != "weight_mismatch" || run_.trails.empty())) return;
  const auto trail = line.rank ? run_.trails.find(*line.rank) : run_.trails.begin();
  const size_t attempts = trail != run_.trails.end() ? trail->second.attempts().size() : 0;
  run_.notables.push_back(
      {line.event, line.layer, line.rank.value_or(-1), *line.step, std::max<size_t>(attempts, 1) - 1});
}

template <class Line>
void Storyteller::detect(const Line& line) {
  readings_.clear();
  const std::vector<EventLine>& events = watches_->observe(line);
  if (!readings_.empty()) run_.signals[watches_->last_rank()].take(layer_of(line), readings_);
  for (const EventLine& event : events) take_event(event, &found_);
}

void Storyteller::take_event(const EventLine& event, Strand* strand) {
  if (!event.rank) return;
  const auto trail = run_.trails.find(*event.rank);
  if (trail == run_.trails.end() || trail->second.attempts().empty()) return strand->take(event, 0, 0);
  const auto& attempts = trail->second.attempts();
  strand->take(event, attempts.size() - 1, attempts.back().last);
}

void Storyteller::close_events(int64_t rank, bool last) {
  const auto trail = run_.trails.find(rank);
  if (trail == run_.trails.end()) return;
  recorded_.close(rank, trail->second, run_.signals, last);
  found_.close(rank, trail->second, run_.signals, last);
}

Story Storyteller::finish() {
  end_record();
  Story story;
  story.from_record = recorded_.has_any();
  Strand& told = story.from_record ? recorded_ : found_;
  story.run = run_id_;
  story.version = version_;
  story.events = std::move(told.events());
  story.episodes = told.episodes();
  std::stable_sort(story.events.begin(), story.events.end(), [](const StoryEvent& a, const StoryEvent& b) {
    return a.attempt != b.attempt ? a.attempt < b.attempt : a.onset_step < b.onset_step;
  });
  for (StoryEvent& event : story.events) {
    event.title = title_of(event);
    event.text = course_of(event);
  }
  for (StoryEvent& event : story.events) {
    if (event.steps.empty()) continue;
    std::vector<Clue> clues;
    event.facts = facts_of(event, story.events, run_, &clues);
    explain(clues, &event);
  }
  RunCounts counts = {0, losses_, told.warnings()};
  for (const auto& [rank, trail] : run_.trails) counts.steps = std::max(counts.steps, trail.steps());
  story.headline = "Run " + run_id_;
  story.verdict = verdict_of(story, counts);
  story.facts = facts();
  story.coverage = coverage();
  story.detectors = detectors();
  story.events_note = events_note(told);
  story.timeline.run = run_id_;
  story.timeline.rank = timeline_rank_;
  timeline_.copy_to(&story.timeline);
  if (const auto trail = run_.trails.find(timeline_rank_); trail != run_.trails.end())
    for (const Trail::Attempt& each : trail->second.attempts())
      story.timeline_last_step = std::max(story.timeline_last_step, each.last);
  if (told.left_out() > 0)
    story.notes.push_back(count(static_cast<double>(told.left_out())) + " more loss events are not listed.");
  if (other_runs_ > 0)
    story.notes.push_back(count(static_cast<double>(other_runs_)) +
                          " lines of other runs were left out: each run has a report of its own.");
  story.limits = limits();
  return story;
}

std::vector<StoryFact> Storyteller::facts() const {
  using Mark = StoryFact::Mark;
  std::vector<StoryFact> facts;
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
  const bool ended = !lives_.empty() && std::all_of(lives_.begin(), lives_.end(), [](const auto& each) {
    return each.second.state == "ended";
  });
  facts.push_back({"state", ended ? "ended" : "no end in the record: it goes on, or its agent was stopped",
                   ended ? Mark::kQuiet : Mark::kNotable});
  if (has_steps)
    facts.push_back({"steps", count(static_cast<double>(first)) + " to " + count(static_cast<double>(last)) +
                                  in_brackets(step_source_)});
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

std::vector<StoryFact> Storyteller::coverage() const {
  using Mark = StoryFact::Mark;
  uint64_t steps = 0, missed = 0;
  size_t layers = 0;
  for (const auto& [rank, trail] : run_.trails) {
    steps += trail.steps();
    missed += trail.missed();
  }
  for (const auto& [rank, signals] : run_.signals) layers = std::max(layers, signals.layers().size());
  const auto counted = [](uint64_t number) { return count(static_cast<double>(number)); };
  std::vector<StoryFact> facts;
  facts.push_back(
      {"steps", counted(steps) + " seen" + (missed > 0 ? ", " + counted(missed) + " not" : ", none missed"),
       missed > 0 ? Mark::kNotable : Mark::kQuiet});
  facts.push_back({"loss",
                   losses_ == 0 ? "not known at any step"
                   : losses_ <= kLossWindow
                       ? "known at " + counted(losses_) + " steps, too few to tell a spike: that takes " +
                             counted(kLossWindow) + " before it"
                       : "known at " + counted(losses_) + " steps",
                   losses_ <= kLossWindow ? Mark::kUnknown : Mark::kQuiet});
  const uint64_t slices = run_.slices[0] + run_.slices[1];
  facts.push_back({"attention",
                   run_.attention_calls == 0 && slices == 0
                       ? "no call was seen"
                       : counted(run_.attention_calls) + " calls counted; " + counted(run_.slices[0]) +
                             " slices forward and " + counted(run_.slices[1]) +
                             " backward recomputed in fp64",
                   slices == 0 ? Mark::kUnknown : Mark::kQuiet});
  facts.push_back({"layers", layers == 0 ? "none is known by name" : counted(layers) + " were watched",
                   layers == 0 ? Mark::kUnknown : Mark::kQuiet});
  facts.push_back({"weights",
                   run_.tensors == 0 ? "not followed"
                                     : counted(run_.tensors) + " snapshots of tensors; " +
                                           (run_.replicas_compared > 0 ? counted(run_.replicas_compared) +
                                                                             " compared between replicas"
                                                                       : "no replicas to compare"),
                   run_.tensors == 0 ? Mark::kUnknown : Mark::kQuiet});
  return facts;
}

std::vector<StoryDetector> Storyteller::detectors() const {
  std::vector<StoryDetector> all;
  for (size_t n = 0; n < kDetectors; ++n) {
    StoryDetector one = totals_[n];
    one.detector = static_cast<DetectorId>(n);
    for (const auto& [rank, signals] : run_.signals)
      one.layers = std::max(one.layers, signals.layers(one.detector).size());
    all.push_back(one);
  }
  return all;
}

// Another foreshock may find other events in the same lines than the agent did that wrote them.
std::string Storyteller::events_note(const Strand& told) const {
  if (!recorded_.has_any() && !found_.has_any()) return "No detector spoke, then or now.";
  if (&told == &found_)
    return "The agent wrote no events of its detectors into this record; they were run over it now.";
  if (recorded_.loss_events() == found_.loss_events() && recorded_.warnings() == found_.warnings())
    return "The events are those that the agent wrote while the run went on; run over the record now, the "
           "detectors give as many.";
  const auto counted = [](uint64_t number) { return count(static_cast<double>(number)); };
  return "The events are those that the agent wrote while the run went on: " +
         counted(recorded_.loss_events()) + " loss events and " + counted(recorded_.warnings()) +
         " warnings. Run over the record now, the detectors of "
         "this version give " +
         counted(found_.loss_events()) + " and " + counted(found_.warnings()) + ".";
}

}  // namespace foreshock::cli
