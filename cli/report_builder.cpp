// Builds the data of `foreshock report` (report_builder.h) from a record, the JSON lines that the agent has
// written.
#include "cli/report_builder.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "agent/condition_list.h"
#include "agent/record_lines.h"
#include "agent/text.h"
#include "cli/report_text.h"
#include "cli/terminal.h"

namespace foreshock::cli {
namespace {

using Mark = ReportFact::Mark;  // kQuiet: nothing unusual; kUnknown: the record lacks the data

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

constexpr std::string_view kHealthy = "healthy";  // a verdict of agents
constexpr size_t kMostFaultEvents = 4096;         // further ones are ignored
constexpr size_t kMostFindings = 1000;            // further ones are ignored
constexpr size_t kLongestFindingText = 400;       // bytes; an agent writes less
constexpr size_t kMostRanks = 4096;               // records with more ranks are an error
constexpr size_t kTimelinePoints = 1024;          // of the loss curve; History merges neighbours beyond this
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
  if (!is_fault_event(line.event) || !line.step || run_.fault_events.size() >= kMostFaultEvents) return;
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
