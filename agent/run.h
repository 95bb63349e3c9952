// Follows one run (all processes with one run id) on this node: finds the segments of its trainers, reads
// them, writes the record (JSON lines), and detects the end of the run. A segment is the shared-memory file
// of one trainer process (a rank); a launcher is a `foreshock run` that starts such processes.
#ifndef FORESHOCK_AGENT_RUN_H_
#define FORESHOCK_AGENT_RUN_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/directory.h"
#include "agent/discovery.h"
#include "agent/findings.h"
#include "agent/flagged.h"
#include "agent/pipeline.h"
#include "agent/rank_state.h"
#include "agent/restart_state.h"
#include "agent/sampling.h"
#include "agent/summary.h"
#include "exporters/metrics.h"
#include "exporters/record.h"

namespace foreshock {

// One trainer process that the agent follows: its segment, and the statistics of its rank.
class FollowedProcess {
 public:
  using Clock = std::chrono::steady_clock;

  FollowedProcess(std::unique_ptr<segment::SegmentReader> segment, const std::string& run,
                  Pipeline* pipeline);
  // Processes new data of the segment. Returns false if there was none, or if the segment is finished.
  bool poll();
  // Reads the remaining steps if the process has ended.
  void read_last_steps();
  // Reads the counters, and whether the trainer still holds the lock on its segment: a dead one does not.
  void refresh(Clock::time_point now);
  // Whether the trainer has released its lock and no counter has changed for `quiet`.
  bool is_gone(Clock::time_point now, Clock::duration quiet) const;
  // Whether the process has called exit(0), so that it produces no more data even if its launcher still runs.
  bool has_exited_well() const { return !rank.alive && rank.exit_status == 0; }
  // Checks the remaining slices and closes the segment. `state` becomes the state of the rank.
  void finish(RunState state);
  bool is_finished() const { return segment_ == nullptr; }

  uint64_t launcher_id() const { return rank.identity.launcher_id; }
  segment::SegmentReader& segment() { return *segment_; }  // must not be called after finish()

  const std::string name;  // of the segment, without .seg
  RankStatistics rank;
  std::set<std::string> exported_layers;  // layers whose series have been exported

 private:
  std::unique_ptr<segment::SegmentReader> segment_;
  Pipeline* pipeline_;
  segment::Totals last_totals_;  // counters at the last refresh()
  Clock::time_point changed_;    // last time when the lock was held or a counter changed
};

// The end of a launcher's command. The launcher writes it to exit.<launcher id>.json in the run directory;
// the agent replies with summary.<launcher id>.json.
struct LauncherExit {
  uint64_t launcher_id = 0;
  RunState state = RunState::kFailed;
};

// Returns the exits of launchers to which the agent has not replied yet.
std::vector<LauncherExit> unanswered_exits(const Directory& directory);

// Returns how the command of this launcher ended, or nothing if its exit file cannot be read (yet).
std::optional<RunState> exit_of(const Directory& directory, uint64_t launcher_id);

std::string summary_name(uint64_t launcher_id);
// Whether a launcher of this run is alive. Every live launcher holds a shared lock on run.lock.
bool has_launcher(const Directory& directory);

struct RunOptions {
  std::string run_id;
  std::string label;        // <run id>, or <user>/<run id>: label of the run's series; unique in this agent
  std::string record;       // JSONL file; empty: no record is written
  double max_slowdown = 0;  // limit of the slowdown, as a ratio; 0: the limit in the trainers' environment
  // Steps from one sampled step to the next. 0: the agent chooses, unless the trainers' environment fixes it.
  uint64_t every = 0;
  int cores = 1;                   // cores of the node
  uint64_t histogram_bytes = 0;    // limit of the bytes of weight histograms in the record
  AlertCommand* alerts = nullptr;  // must outlive the run; null: no command is run
  std::string save_flagged;        // directory for flagged (unusual) slices; empty: none is kept
  uint64_t flagged_quota = 0;      // bytes
  uint64_t record_size = 0;        // bytes of the record that are kept; 0: all
};

// One run on this node: its segments, their ranks' state, launchers that wait for a summary. Not thread-safe.
class Run {
 public:
  using Clock = FollowedProcess::Clock;

  // Opens the run in `directory`, <base>/<run id>, and holds agent.lock for the life of the Run. On failure
  // returns null. *error is then one line, or "" if another agent holds the lock. If the lock failed,
  // errno is its error.
  static std::unique_ptr<Run> open(const RunOptions& options, std::unique_ptr<Directory> directory,
                                   std::string* error);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  // Processes new data in the known segments. Returns whether there was any.
  bool poll();

  // Finds new segments. Returns whether there were any. If a new process replaces an earlier one of the same
  // rank, the rank's old series are removed from `registry`.
  bool discover(Registry* registry);

  // Reads counters and locks of all segments. Finishes the segment of a dead trainer if no launcher will
  // report its exit, or if a later process has replaced it.
  void finish_dead_ranks(Clock::time_point now);

  // Returns the launchers whose command has ended and whose ranks are read to the end, or take too long.
  std::vector<LauncherExit> ended_launchers(Clock::time_point now, Registry* registry);
  // Writes the summary for a launcher that ended_launchers() returned. The launcher ends after it has read
  // the summary, so the series must be published before.
  void write_summary(const LauncherExit& exit);
  void publish(Registry* registry);  // sets every series of the run

  // Returns the JSON (docs/summary.md) of a launcher's ranks, or of all (0). `for_page` adds the page's data.
  nlohmann::json document(uint64_t launcher_id, bool for_page) const;
  // Adds the history tables (values by step, for the page) of every rank.
  void add_history(std::vector<HistoryTable>* tables) const;

  // Sends the ranks a sampling interval (steps between two sampled ones) that keeps the overhead budget.
  // `agent_cpu_seconds` is the CPU time that the agent has spent on this run so far.
  void update_interval(double agent_cpu_seconds);

  // Whether the agent must not end: a launcher is alive, a segment is not finished, or a waiting segment may
  // get its file descriptor now.
  bool is_needed() const;

  const std::string& run_id() const { return options_.run_id; }
  const std::string& label() const { return options_.label; }
  const Directory& directory() const { return *directory_; }
  double rank_seconds() const;  // the CPU seconds that the agent has spent on the ranks so far
  size_t ranks() const;         // distinct ranks on this node, alive or ended

  // Returns the number of segments that are not followed: refused for good, or waiting for a descriptor.
  uint64_t refused_segments() const { return refused_segments_ + discovery_.waiting(); }
  // Returns the state of the run. kFinished: all trainers have called exit(0); the command may still run.
  RunState state() const;

 private:
  Run(const RunOptions& options, std::unique_ptr<Directory> directory, int lock);
  void drop_replaced();  // drops ended processes that were replaced, if there are too many
  void follow(std::unique_ptr<segment::SegmentReader> segment, Registry* registry);
  // Reads the remaining data of a launcher's ranks. Returns whether all of it has been read.
  bool drain(const LauncherExit& exit, Clock::time_point now);
  // Finishes a process that a later one has replaced, and removes its segment.
  void retire(FollowedProcess& followed);
  // Finishes a process. `command_end`: how its launcher's command has ended.
  void finish(FollowedProcess& followed, RunState command_end);
  // Returns the final state of a process: failed if a later attempt has replaced it, else `command_end`.
  RunState final_state_of(const FollowedProcess& followed, RunState command_end) const;
  bool is_replaced(const FollowedProcess& followed) const;
  // The figures of all ranks from which the sampling interval is chosen.
  struct SamplingInput {
    SamplingCost cost;  // without `agent`, which measure() does not set
    AgentWork work;     // without `cpu_seconds`, which measure() does not set
    // The agent's CPU time for the first look (the first samples), which `cost` and `work` do not include.
    double first_look_seconds = 0;
    uint64_t current_interval = 0;     // in steps
    double budget = 0;                 // limit of the slowdown, as a ratio
    bool is_in_burst = false;          // a burst of denser sampling is pending or runs
    int64_t slowest_step = INT64_MAX;  // last step of the slowest rank
  };
  std::optional<SamplingInput> measure() const;
  // Returns a step that no rank has reached yet. A new sampling interval applies from it.
  int64_t effective_step() const;
  // Returns a step that no rank has reached yet, for new advice. With several ranks it is later than
  // effective_step(), so that every rank can read the advice before the step.
  int64_t step_to_act_from() const;
  // Sends the ranks the strongest signal of their detectors as advice, if it has changed.
  void advise();
  // Sends the ranks a shorter sampling interval for a limited number of steps, if the budget allows one.
  void begin_burst();
  void set_final_state(RunState state);
  void publish_ranks(Registry* registry);
  // Returns the findings of a launcher's ranks, or of all (0), and the verdict on them.
  struct Findings {
    std::vector<Finding> list;
    Verdict verdict;
  };
  Findings findings_of(uint64_t launcher_id) const;
  // Writes the findings that are new to the record, and passes them to --on-alert.
  void note_findings();
  // Writes the final findings and the verdict to the record.
  void record_verdict(uint64_t launcher_id, RunState state);
  std::vector<Condition> conditions() const;  // of the run, over all launchers and attempts
  int64_t last_step() const;                  // of any rank; -1: none has ended
  void save_watches(bool is_last = false);
  void flush_record();  // starts to write the record's buffered lines
  // Notes an error of the record and its end, and creates or removes the file kRecordIncomplete. The record
  // must exist.
  void note_record_state();
  void note_flagged_problem();
  // Logs a line "FILE: what has happened to it" unless it is the last one about this file, and passes it to
  // the launchers, which print it.
  void add_notice(const std::string& line);
  void write_notices();
  // Returns the input of the summary for the ranks of one launcher, or of all (0).
  SummaryInput summary_input(uint64_t launcher_id) const;
  // Returns the processes that a launcher started, or all (0), sorted by rank.
  std::vector<const FollowedProcess*> processes_of(uint64_t launcher_id) const;
  int cores_per_rank() const;
  // Writes the agent's cost into the segments. The trainers deduct it from their budgets.
  void charge_trainers();
  size_t expected_ranks() const;  // live ranks of this node, and those that have yet to start

  const RunOptions options_;
  const std::unique_ptr<Directory> directory_;
  const std::string user_;  // owner of the directory
  const int lock_;          // the descriptor that holds agent.lock
  Discovery discovery_;
  std::unique_ptr<RecordWriter> record_;
  std::unique_ptr<FlaggedSlices> flagged_;
  std::unique_ptr<Pipeline> pipeline_;
  WatchState watch_state_;              // saves the state of the detectors for the next agent
  RankFacts facts_;                     // past alarms and events by segment, saved for the next agent
  bool record_was_incomplete_ = false;  // an earlier agent could not write some lines of the record
  bool has_incomplete_file_ = false;    // the directory has the file kRecordIncomplete
  std::string record_problem_;          // why record_ fails or has failed; "": it is well
  std::vector<std::string> notices_;    // see add_notice(); also those of an earlier agent
  bool has_new_notices_ = false;        // the file kNotices lacks some
  std::vector<std::unique_ptr<FollowedProcess>> followed_;
  RunState state_ = RunState::kRunning;  // kRunning until all processes have ended, then worst_
  RunState worst_ = RunState::kRunning;  // the worst end of a process so far
  uint64_t refused_segments_ = 0;        // segments refused for good
  uint64_t refusals_ = 0;                // all refusals, also of segments that had to wait
  std::string refusal_;                  // reason of the last refusal
  bool may_have_descriptors_ = false;    // segments were closed since the last discover()
  bool has_warned_of_limit_ = false;
  std::set<std::string> known_findings_;  // key_of() those that were written to the record and passed on
  bool has_verdict_ = false;              // the record has the verdict on all processes so far
  Clock::time_point refreshed_at_ = {};   // time of the last finish_dead_ranks()
  uint64_t processes_left_out_ = 0;       // replaced processes that were dropped to make room
  uint64_t interval_ = 0;                 // interval sent to the ranks; 0: none yet
  AgentWork work_at_last_choice_;         // the work at the last update_interval() that had enough samples
  std::optional<AgentCost> agent_cost_;   // measured by that update_interval()
  std::optional<Burst> burst_;            // the last burst
  Signal advised_signal_;                 // the strongest detector signal when advice_ was written
  segment::Advice advice_ = {};           // advice sent to all ranks
  // When the exit file of a launcher without a summary was first seen, by launcher id.
  std::map<uint64_t, Clock::time_point> exits_seen_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RUN_H_
