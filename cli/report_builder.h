// Builds the data of `foreshock report` (Report, report_model.h) from the records of a run: the JSON lines
// that its agents have written, one record per node. A detector's level is quiet, watch or warn; an episode
// is a period above quiet. A loss event is a spike, a divergence or a slow rise of the loss; its signs are
// the episodes before it. An attempt is a series of steps that ends when the run goes back to a checkpoint.
#ifndef FORESHOCK_CLI_REPORT_BUILDER_H_
#define FORESHOCK_CLI_REPORT_BUILDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/detection.h"
#include "agent/rank_state.h"
#include "agent/replay.h"
#include "cli/report_model.h"
#include "cli/report_text.h"
#include "detect/watch.h"
#include "exporters/record_reader.h"

namespace foreshock::cli {

// An event of the record that names a fault, unlike loss events and changes of a detector's level: nonfinite,
// nonfinite_gradient, nonfinite_gradient_norm or weight_mismatch.
struct FaultEvent {
  std::string name, layer;     // one of these names; layer "": unknown
  int64_t rank = 0, step = 0;  // rank -1: weights that differ between nodes, which have no single rank
  size_t attempt = 0;          // index in Trail::attempts() of the rank; of the lowest rank, if `rank` is -1
};

// The data of a run from which the circumstances of its loss events are derived.
struct RunSeen {
  std::map<int64_t, Trail> trails;     // the newest steps, and the attempts so far, by rank
  std::map<int64_t, Signals> signals;  // the input values of the detectors, by rank
  std::vector<FaultEvent> fault_events;
  size_t records = 1;
  uint64_t tensors = 0;                              // snapshots of weight tensors
  uint64_t replicas_compared = 0;                    // those whose tensor has replicas on other ranks
  uint64_t attention_calls = 0, slices[2] = {0, 0};  // slices: forward, backward
};

// Returns the circumstances of a loss event: one fact per topic, always the same topics in the same order.
// Appends to `*clues` the circumstances for which explain() has a text. `events`: all loss events of the run.
std::vector<ReportFact> facts_of(const ReportEvent& event, const std::vector<ReportEvent>& events,
                                 const RunSeen& run, std::vector<Clue>* clues);

// Fills in `consistent_with`, `not_excluded` and `to_try` of the event, with texts for its clues, its signs
// and its kind. No sentence is repeated.
void explain(const std::vector<Clue>& clues, ReportEvent* event);

// Collects the events of a run, either those that the agent wrote into the record, or those of the detectors
// that the report runs over the record. Keeps loss events, signs and episodes. Thread-compatible.
class EventCollector {
 public:
  static constexpr size_t kMostEvents = 1000;    // further loss events are only counted
  static constexpr size_t kMostDetailed = 40;    // only the first loss events get their steps and curves
  static constexpr size_t kMostEpisodes = 2000;  // further episodes are ignored
  static constexpr int64_t kSameEvent = 8;  // loss events at most this many steps apart (onsets) are joined

  // Adds a loss event, a change of a detector's level, or a rank's return to an earlier step. Ignores other
  // events. `attempt`: index of the rank's present attempt. `declared`: the last step of the rank so far, at
  // which the event was recognized. event.step, its onset, may be earlier.
  void take(const EventLine& event, size_t attempt, int64_t declared);

  // Fills in the steps and curves of the loss events whose first rank is `rank`, once the rank has made
  // ReportEvent::kAfter steps since the onset, or at once if `no_more_steps` (the rank's attempt is over).
  void close(int64_t rank, const Trail& trail, const std::map<int64_t, Signals>& signals, bool no_more_steps);

  // Must be called when the detectors have lost their state, e.g. in a restarted agent. Earlier episodes then
  // no longer count as signs of later loss events.
  void reset_detectors() { first_ = episodes_.size(); }

  static bool takes(const EventLine& event);       // whether take() does not ignore it
  bool has_any() const { return taken_ > 0; }      // whether take() has added an event
  uint64_t warnings() const { return warnings_; }  // how often a detector has risen to level warn
  uint64_t left_out() const { return left_out_; }  // number of loss events beyond kMostEvents
  std::vector<ReportEvent>& events() { return events_; }
  const std::vector<RankEpisode>& episodes() const { return episodes_; }

 private:
  void take_level(const EventLine& event, size_t attempt);
  // As Precursors::before(), of the episodes of a rank in an attempt.
  std::vector<Episode> before(int64_t rank, size_t attempt, int64_t onset) const;
  void take_loss_event(WatchEventKind kind, const EventLine& event, size_t attempt, int64_t declared);

  std::vector<ReportEvent> events_;
  std::vector<size_t> open_;  // indexes of the events whose steps close() has yet to fill in
  std::vector<RankEpisode> episodes_;
  size_t first_ = 0;     // index of the first episode since reset_detectors()
  size_t detailed_ = 0;  // number of events that get their steps, at most kMostDetailed
  uint64_t taken_ = 0, warnings_ = 0, left_out_ = 0;
};

// Builds the data of a report from the lines of the records alone. Runs the detectors over the lines again,
// but uses their events only if the agents have written no events. Bounded memory. Thread-compatible.
class ReportBuilder {
 public:
  ReportBuilder();

  void begin_record();  // must be called before the lines of every record but the first

  // Adds a line, in the order of the record. Returns "" or one line that says why the record cannot be added.
  std::string take(const RecordLine& line);

  // Returns the report. Must be called once, after all lines.
  Report finish();

 private:
  // Ends one record: closes its events, keeps its conditions, adds its detectors' counts to totals_, and
  // deletes the detectors.
  void end_record();
  void observe(const RunLine& line);
  void observe(const StepLine& line);
  void observe(const SampleLine& line);
  void observe(const TensorLine& line);
  void observe(const EventLine& line);
  void observe(const FindingLine& line);
  void observe(const VerdictLine& line);
  template <class Line>
  void observe(const Line&) {}

  // Passes a line to the detectors in watches_ and collects their events.
  template <class Line>
  void detect(const Line& line);
  void take_event(const EventLine& event, bool is_recorded);
  void close_events(int64_t rank, bool no_more_steps);
  void add_to_timeline(const StepLine& line);
  std::vector<ReportFact> facts() const;
  std::vector<ReportFact> coverage() const;
  std::vector<ReportDetector> detectors() const;
  std::string events_note() const;

  RunSeen run_;
  std::map<std::string, FindingLine> findings_;  // by what identifies a finding over time
  std::vector<std::string> finding_order_;       // their keys, in the order of the record
  std::vector<Condition> conditions_;            // of the records that have ended
  std::set<std::string> verdicts_;
  bool is_healthy_ = true;     // all verdicts_ are "healthy"
  EventCollector events_;      // those that the agent wrote if it wrote any, else those that watches_ found
  bool has_recorded_ = false;  // the agent wrote some
  std::unique_ptr<Watches> watches_;         // the detectors that are run over the present record
  std::unique_ptr<ReplayedRanks> replayed_;  // the state of the ranks of the present record
  std::vector<FindingLine> derived_;         // the findings in it, and in the records that have ended
  std::vector<WatchReading> readings_;       // the results of these detectors for the present line
  std::map<int64_t, size_t> record_of_;      // by rank: number of the record that has the rank's lines
  size_t records_ = 0;                       // number of the present record, from 1
  AttentionErrors attention_;
  History timeline_;                   // the loss of timeline_rank_, by step
  int64_t timeline_rank_ = -1;         // the first rank in the records; -1: none yet
  ReportDetector totals_[kDetectors];  // counts over the records that have ended, by DetectorId
  std::string run_id_, version_, framework_, executable_, loss_source_, step_source_;
  std::map<int64_t, RunLine> last_run_line_;  // by rank: its last run line, "started" or "ended"
  int64_t world_size_ = 0;
  double first_time_ = 0;                 // time of the first line, in seconds since 1970; 0: unknown
  double last_time_ = 0;                  // latest time of any line; 0: unknown
  uint64_t losses_ = 0, other_runs_ = 0;  // steps with a known loss; lines of other runs, which are skipped
  std::vector<std::string> not_watched_;  // notes on layers, tensors and ranks for which there was no room
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_BUILDER_H_
