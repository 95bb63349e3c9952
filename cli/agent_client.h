// Starts and queries the agent, the process that follows a run. `foreshock run` (the launcher) starts and
// restarts the agent, reports to it the end of the user's command, and waits for its summary. `foreshock
// status` finds live runs and reads their state. Both use files in the run directory (segment/SEGMENT.md) and
// HTTP.
#ifndef FORESHOCK_CLI_AGENT_CLIENT_H_
#define FORESHOCK_CLI_AGENT_CLIENT_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/files.h"
#include "cli/process.h"

namespace foreshock::cli {

// What an agent publishes about itself in <run directory>/agent.json.
struct AgentAddress {
  pid_t pid = -1;
  uint64_t pid_namespace = 0;  // inode of the pid namespace that `pid` belongs to; 0: unknown
  std::string address;         // of its HTTP server: an IP address, or "unix:" and a path
  int port = 0;
  int port_taken = 0;         // the wanted port, if it was in use and `port` replaces it; else 0
  std::string record;         // the file of --record; "": none
  std::string save_flagged;   // the directory of --save-flagged; "": none
  std::string run;            // run id; "" if the agent does not report it
  bool is_service = false;    // `foreshock agent --tree`, which follows other runs too
  std::string problem;        // an option that the agent could not honour, in one line; "": none
  bool is_elsewhere() const;  // the agent's pid belongs to another pid namespace than ours
  std::string url() const;    // URL of the page, with this run selected
  bool writes(const std::string& path) const;         // whether `record` is this path
  bool saves_flagged(const std::string& path) const;  // whether `save_flagged` is this path
};

// Reads <directory>/agent.json. Returns nullopt without this file or if the agent has ended: its process does
// not exist or, in another pid namespace, the agent no longer holds the lock agent.lock.
std::optional<AgentAddress> read_agent_address(const std::string& directory);

// Returns the lines about files of the run that the agent has written so far, for example that the disk of
// the record is full.
std::vector<std::string> notices(const std::string& directory);

// Starts the agent of a run, and a new agent whenever it has died. Several launchers may share a run and its
// agent; then any of them starts the next agent. Not thread-safe.
class AgentKeeper {
 public:
  // `command` starts the agent, which logs to <directory>/agent.log. Empty: a service is to follow the run.
  AgentKeeper(std::string directory, std::vector<std::string> command)
      : directory_(std::move(directory)), command_(std::move(command)) {}

  // Starts an agent if none runs, after a growing pause if agents die early. Call it about every 200 ms.
  void tick();

  // Calls tick() until the agent has published its address. nullopt: `timeout_ms` passed or has_failed().
  std::optional<AgentAddress> wait_for_address(int timeout_ms);

  // Returns the address of an agent that differs from the one returned last. nullopt: no agent, or the same.
  std::optional<AgentAddress> new_address();

  // Sends SIGCONT to the agent, because an agent stopped by SIGSTOP would never write a summary.
  void continue_if_stopped() const;

  // Seconds for which the agent that we have started was runnable but waited for a CPU. 0 if it does not run,
  // or if the kernel lacks these statistics (CONFIG_SCHED_INFO).
  double cpu_wait_seconds() const;

  // Returns the seconds for which the main thread of the run's agent has run or waited for a CPU. They grow
  // unless the thread hangs. NaN: they cannot be read, or it waits for a CPU now. nullopt: no agent is there.
  std::optional<double> agent_seconds() const;

  // Whether an agent of ours has ended, and tick() will start the next one after a pause.
  bool is_restarting() const;

  void kill_own_agent() const;  // sends SIGKILL to the agent that we have started, if it runs

  bool is_service() const { return command_.empty(); }

  // Whether at least three agents in a row failed to start or ended within one second, and none of ours runs.
  bool has_failed() const { return failures_ >= 3 && pid_ < 0; }

  // Returns the reason why the last start failed, or that another process holds agent.lock, or the last line
  // of agent.log.
  std::string failure_text() const;

 private:
  void reap();  // if our own agent has ended, collects its exit status and schedules the next start
  void start();
  // Sets the time of the next start after `failures` failures in a row. Our own agent must have ended.
  void schedule_start(int failures);

  std::string directory_;
  std::vector<std::string> command_;
  FileLock start_lock_;  // lock on agent.start, held until agent.json names our agent, at most 5 s
  pid_t pid_ = -1;       // the agent that we have started; -1: none, or another launcher's agent runs
  // Pid namespace and pid of the agent that new_address() last returned.
  std::pair<uint64_t, pid_t> reported_{0, -1};
  int failures_ = 0;     // consecutive agents that could not be started or ended within their first second
  int start_error_ = 0;  // errno of the last start; 0: no error
  std::chrono::steady_clock::time_point started_{}, next_start_{};  // last start; earliest next start
};

// Reads /api/v1/state of the run that `agent` follows, with the token in `token_file` ("": no token). Returns
// false and one line in *error on failure.
bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error);

// A run of this user on this node, for status, pause and resume.
struct LiveRun {
  std::string run_id, directory;
};

// Returns the runs with a live agent or trainer, sorted by id: all, or only `run_id` if that is not "".
std::vector<LiveRun> live_runs(const std::string& run_id);

// Exchanges files with the agent when the command has ended: the launcher writes exit.<launcher>.json, and
// the agent answers with summary.<launcher>.json. <launcher> is a number (launcher_id() of run_dir.h).
class ExitExchange {
 public:
  // Removes files of an earlier launcher with our number. Allocates space and inodes for the exit file and
  // for the summary now, because the tmpfs may be full when the training ends. Returns "" or why this failed.
  std::string reserve(const std::string& directory);

  // Writes the exit status of the command, and whether it finished, failed, or was stopped. `stop_signal`:
  // the signal by which the launcher was stopped, or 0. Errors are ignored; wait() then finds no exit file.
  void write_exit_status(const ExitStatus& status, int stop_signal) const;

  struct Answer {
    std::string summary;          // summary of the ranks of our command, JSON text
    std::string problem;          // why there is no summary; "": there is one
    bool is_agent_stuck = false;  // no agent is there, or it hangs: do not wait for its end
  };
  // Waits until the agent has answered, cannot answer any more, or `signals` has received a stop signal.
  // Waits at most 5 s if no agent is there or if it hangs, else at most 30 s, or 180 s while the agent has
  // spent at least half of the time waiting for a CPU.
  Answer wait(SignalPasser* signals, AgentKeeper* keeper) const;

 private:
  // The run directory; paths in it: exit file, file that reserves the summary's space; name of the summary.
  std::string directory_, exit_file_, spare_file_, summary_name_;
};

// What this program reads from a summary (docs/summary.md) or from the state of a live run.
struct Summary {
  bool is_valid = false;            // the summary is a JSON object
  std::string text;                 // several lines; "" if the agent wrote none
  std::string line;                 // the run in one line; only in the state of a live run
  bool has_ranks = false;           // the summary has ranks of this launcher's command
  bool has_other_ranks = false;     // the run has ranks of other launchers
  bool has_refused = false;         // there were processes that the agent could not follow
  bool lacks_record_lines = false;  // the agent could not write all lines of the record
};

// Reads a summary or state. In its texts '?' replaces control characters except newlines, since they contain
// names from a trainer, which are not trusted.
Summary read_summary(const std::string& json);

// Returns the text of a summary with its first line in bold and the verdict at its end coloured.
std::string in_colour(const std::string& text);

bool wants_colour(int descriptor);  // whether `descriptor` is a terminal and NO_COLOR is not set

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_AGENT_CLIENT_H_
