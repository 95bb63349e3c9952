// One run of this node: its directory, its ranks, its record, and when it is over.
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
#include "agent/flagged.h"
#include "agent/pipeline.h"
#include "agent/rank_state.h"
#include "agent/restart_state.h"
#include "agent/sampling.h"
#include "agent/summary.h"
#include "exporters/record.h"
#include "exporters/registry.h"

namespace foreshock {

class Followed {
 public:
  using Clock = std::chrono::steady_clock;

  Followed(std::unique_ptr<segment::SegmentReader> segment, const std::string& run, Pipeline* pipeline);

  // Takes what is new. False when there was nothing, or nothing can come any more.
  bool poll() { return !is_finished() && pipeline_->poll(*segment_, &rank); }

  // Reads the counters, and whether the trainer still holds its lock.
  void look(Clock::time_point now);

  // The trainer has let go of its lock, and nothing has moved since for `quiet`.
  bool is_gone(Clock::time_point now, Clock::duration quiet) const;

  // Its process has called exit(0): nothing more is to come, whatever its launcher still does.
  bool has_exited_well() const { return !rank.alive && rank.exit_status == 0; }

  // Judges what is left and lets the segment go.
  void finish(RunState state);
  bool is_finished() const { return segment_ == nullptr; }

  uint64_t launcher_id() const { return rank.identity.launcher_id; }
  // Not after finish().
  segment::SegmentReader& segment() { return *segment_; }

  const std::string name;  // of its segment
  RankStatistics rank;
  bool announced = false;              // in the record
  std::set<std::string> shown_layers;  // that have had series

 private:
  std::unique_ptr<segment::SegmentReader> segment_;
  Pipeline* pipeline_;
  segment::Totals seen_;
  Clock::time_point changed_;
};

// What a `foreshock run` and the agent tell each other through the run directory: `exit.<launcher>.json` (the
// command of this launcher has ended, and how) is answered with `summary.<launcher>.json`.

struct LauncherExit {
  uint64_t launcher_id = 0;
  RunState state = RunState::kFailed;
};

// Exits that have no summary yet.
std::vector<LauncherExit> unanswered_exits(const Directory& directory);

// How the command of this launcher ended; nothing when that has not been told, or cannot be read just now.
std::optional<RunState> exit_of(const Directory& directory, uint64_t launcher_id);

std::string summary_name(uint64_t launcher_id);

// Whether a launcher of this run lives: it holds a shared lock on run.lock.
bool has_launcher(const Directory& directory);

// One run on this node as the agent follows it: the segments of its directory, what they have taught, and the
// launchers that wait for a summary. One thread.

struct RunOptions {
  std::string run_id;
  std::string label;               // of its series: unique in this agent
  std::string record;              // JSONL file; empty: none
  double max_slowdown = 0;         // 0: what the trainers were told
  uint64_t every = 0;              // 0: the agent chooses the interval, unless the trainers were told one
  int cores = 1;                   // of the node
  uint64_t histogram_bytes = 0;    // of weights, in the record
  AlertCommand* alerts = nullptr;  // outlives the run; null: nobody is told
  std::string save_flagged;        // directory of flagged slices; empty: none is kept
  uint64_t flagged_quota = 0;      // bytes
  uint64_t record_size = 0;        // bytes that are kept of the record; 0: all
};

class Run {
 public:
  using Clock = Followed::Clock;

  // `directory`: <base>/<run id>. Null: *error is one line, or empty when another agent holds the directory;
  // errno says why there is no lock.
  // The lock on it lives as long as the run.
  static std::unique_ptr<Run> open(const RunOptions& options, std::unique_ptr<Directory> directory,
                                   std::string* error);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Takes what is new in the segments that are known. Returns whether there was anything.
  bool poll();

  // Finds new segments. Whether there were any.
  bool discover(Registry* registry);

  // Ends the segments whose trainers have gone without a word.
  void look_for_life(Clock::time_point now);

  // Launchers whose command has ended and whose ranks have been drained, or waited for long enough.
  std::vector<LauncherExit> ended_launchers(Clock::time_point now, Registry* registry);
  // Hands such a launcher its summary: the last thing it waits for, so publish what it may look at before.
  void answer(const LauncherExit& exit);

  // Sets every series of the run.
  void publish(Registry* registry);

  // The ranks of one launcher, or of all (0), as in docs/summary.md; with histories and layers for the page.
  nlohmann::json document(uint64_t launcher_id, bool for_page) const;

  // The histories of every rank.
  void add_history(std::vector<HistoryTable>* tables) const;

  // Tells the ranks an interval that keeps the budget. `agent_cpu_seconds`: CPU time that the agent has spent
  // on this run so far.
  void choose_cadence(double agent_cpu_seconds);

  // Whether a trainer or a launcher lives.
  bool is_needed() const;

  const std::string& run_id() const { return options_.run_id; }
  const std::string& label() const { return options_.label; }
  const Directory& directory() const { return *directory_; }
  // CPU time spent on its ranks so far, in seconds.
  double rank_seconds() const;
  size_t ranks() const;  // that live or have lived, each once

  // That cannot be followed, or not now.
  uint64_t refused_segments() const { return refused_segments_ + discovery_.waiting(); }
  // A command that goes on when all its trainings have ended well is finished as far as they are concerned.
  RunState state() const;

 private:
  Run(const RunOptions& options, std::unique_ptr<Directory> directory, int lock);
  void make_room();
  void follow(std::unique_ptr<segment::SegmentReader> segment, Registry* registry);
  bool drain(const LauncherExit& exit, Clock::time_point now);
  void announce(Followed& followed);
  void retire(Followed& followed);
  void finish(Followed& followed, RunState state);
  RunState end_of(const Followed& followed, RunState of_launcher) const;
  bool is_replaced(const Followed& followed) const;
  struct Measured {
    SamplingCost cost;              // but for the agent's own
    AgentWork work;                 // but for what it spends beside judging
    double first_look_seconds = 0;  // the agent's CPU time for first looks, in no other figure
    uint64_t in_force = 0;
    double budget = 0;
    bool is_in_burst = false;
  };
  std::optional<Measured> measure() const;
  int64_t effective_step() const;
  int64_t step_to_act_from() const;
  void advise();
  void begin_burst();
  void note_end(RunState state);
  void publish_ranks(Registry* registry);
  void record_run(const RankStatistics& rank, const char* state);
  void save_watches(bool is_last = false);
  void flush_record();
  // What the summary of the ranks of one launcher, or of all (0), is written from.
  SummaryInput summary_input(uint64_t launcher_id) const;
  std::vector<const Followed*> ranks_of(uint64_t launcher_id) const;
  int cores_per_rank() const;
  void charge_trainers();
  size_t ranks_that_live() const;

  const RunOptions options_;
  const std::unique_ptr<Directory> directory_;
  const std::string user_;  // whose run it is
  const int lock_;          // the descriptor that holds agent.lock
  Discovery discovery_;
  std::unique_ptr<RecordWriter> record_;
  std::unique_ptr<FlaggedSlices> flagged_;
  std::unique_ptr<Pipeline> pipeline_;
  WatchState watch_state_;
  RankFacts facts_;
  bool record_was_incomplete_ = false, is_told_incomplete_ = false;  // by an agent before; in the directory
  std::vector<std::unique_ptr<Followed>> followed_;
  RunState state_ = RunState::kRunning;
  RunState worst_ = RunState::kRunning;           // of the ends so far
  uint64_t refused_segments_ = 0, refusals_ = 0;  // for good; and those that had to wait
  std::string refusal_;                           // why the last of them was
  bool may_have_room_ = false;                    // segments were let go since the last look for new ones
  bool told_of_limit_ = false;
  Clock::time_point looked_at_ = {};                  // for life
  uint64_t processes_left_out_ = 0;                   // replaced ones that have made room
  uint64_t interval_ = 0;                             // what the ranks were told; 0: nothing yet
  AgentWork work_at_last_choice_;                     // when choose_cadence() last measured
  std::optional<AgentCost> agent_cost_;               // then
  std::optional<Burst> burst_;                        // the last one
  Signal told_;                                       // to all ranks
  segment::Advice advice_ = {};                       // the same
  std::map<uint64_t, Clock::time_point> exits_seen_;  // of launchers not answered yet
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RUN_H_
