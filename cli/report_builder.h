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
#include "cli/report_events.h"
#include "cli/report_facts.h"
#include "cli/report_model.h"
#include "detect/watch.h"
#include "exporters/record_reader.h"

namespace foreshock::cli {

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
