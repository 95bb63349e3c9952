// The launcher's side of an agent: starts it and keeps it alive, finds live runs, reads their state, and
// reports the end of the command in exchange for a summary.
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

struct AgentAddress {
  pid_t pid = -1;
  uint64_t pid_namespace = 0;  // inode of the pid namespace that `pid` belongs to; 0: unknown
  std::string address;
  int port = 0;
  int port_taken = 0;         // the first port tried, if it was in use; else 0
  std::string record;         // the file it writes; "" for none
  std::string save_flagged;   // the directory of flagged slices; "" for none
  std::string run;            // run id; "" if the agent does not report it
  bool is_service = false;    // it follows other runs too
  std::string problem;        // an option that the agent could not honour, in one line; "": none
  bool is_elsewhere() const;  // the agent's pid has no meaning in our pid namespace
  std::string url() const;    // URL of the page, with this run selected
  bool writes(const std::string& path) const;         // whether it writes this record
  bool saves_flagged(const std::string& path) const;  // whether it saves to this directory
};

// Reads <directory>/agent.json. nullopt if that agent does not live: its process does not exist or, in
// another pid namespace, does not hold agent.lock.
std::optional<AgentAddress> read_agent_address(const std::string& directory);

// Starts the agent of a run, and starts another one whenever it has died.
class AgentKeeper {
 public:
  // `command` starts the agent, whose output goes to <directory>/agent.log. If it is empty, a service follows
  // the run and no agent is ever started.
  AgentKeeper(std::string directory, std::vector<std::string> command)
      : directory_(std::move(directory)), command_(std::move(command)) {}

  // Starts an agent if none runs. Cheap; call it about every 200 ms.
  void tick();

  // Calls tick() until the agent has published its address, `timeout_ms` have passed, or has_failed().
  std::optional<AgentAddress> wait_for_address(int timeout_ms);

  // The address of the agent if it has changed since the last call, else nullopt.
  std::optional<AgentAddress> news();

  // Continues an agent that was stopped (SIGSTOP): a stopped agent would never write a summary.
  void wake() const;

  // Seconds that our own agent was runnable but waited for a CPU. 0 if we have no agent, or the kernel has no
  // such statistics (CONFIG_SCHED_INFO).
  double seconds_without_processor() const;

  // Sends SIGKILL to our own agent, if we have one.
  void kill_own() const;

  bool is_service() const { return command_.empty(); }

  // Three agents in a row ended within their first second, and no agent runs now.
  bool has_failed() const { return failures_ >= 3 && pid_ < 0; }

  // Why no agent could be started, else the last line of agent.log.
  std::string last_words() const;

 private:
  void reap();
  void start();
  void wait_after(int failures);

  std::string directory_;
  std::vector<std::string> command_;
  FileLock starter_;                            // held from before the start until the address is known
  pid_t pid_ = -1;                              // our own agent; -1: none, or another launcher's agent runs
  std::pair<uint64_t, pid_t> reported_{0, -1};  // pid namespace and pid of news()
  int failures_ = 0;
  int start_error_ = 0;  // errno
  std::chrono::steady_clock::time_point started_{}, next_start_{};
};

// Reads /api/v1/state of the run that `agent` follows, with the token in `token_file` ("": no token). Returns
// false and one line in *error on failure.
bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error);

// The runs of this user on this node, for status, pause and resume.

struct LiveRun {
  std::string run_id, directory;
};

// Run directories in use (a `run`, an agent or a trainer), sorted by id; `run_id` "" means all.
std::vector<LiveRun> live_runs(const std::string& run_id);

// The exchange of files when the command has ended: the launcher writes exit.<launcher>.json, the agent
// answers with summary.<launcher>.json (segment/SEGMENT.md, "Who is alive").

class ExitExchange {
 public:
  // Removes files of an earlier launcher with our number, and allocates the space and inodes of both files
  // now: when the training ends, the tmpfs may be full. Returns "" or a reason.
  std::string reserve(const std::string& directory);

  // Writes the exit file, which says how the command ended. `asked_by`: the signal that asked the launcher to
  // stop, or 0.
  void tell(const ExitStatus& status, int asked_by) const;

  struct Answer {
    std::string summary;  // summary of the ranks of our command, JSON text
    std::string problem;  // why there is none
  };
  // Waits until the agent has answered or cannot, or a signal asks to stop: at most 30 s, or 180 s while
  // other processes keep the agent from running.
  Answer wait(SignalPasser* signals, AgentKeeper* keeper) const;

 private:
  std::string directory_, exit_, spare_, summary_;
};

// What the launcher needs of the summary that the agent wrote (agent/summary.h).
struct Summary {
  bool is_valid = false;            // it is a JSON object
  std::string text;                 // several lines; "" if the agent wrote none
  std::string line;                 // the run in one line; only in the state of a live run
  bool has_ranks = false;           // ranks of this launcher's command
  bool has_other_ranks = false;     // ranks of other launchers of the run
  bool has_refused = false;         // processes that the agent could not follow
  bool lacks_record_lines = false;  // lines of the record could not be written
};

// Reads the JSON of docs/summary.md. Control characters except newlines are replaced: names come from a
// trainer.
Summary read_summary(const std::string& json);

// `text` with its first line in bold and the verdict in it coloured.
std::string in_colour(const std::string& text);

// Whether `descriptor` is a terminal and NO_COLOR is not set.
bool wants_colour(int descriptor);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_AGENT_CLIENT_H_
