// The agent of a run as the launcher sees it: starts it, keeps it alive, finds live runs, asks for their
// state, and exchanges the end of a run for its summary.
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
  uint64_t pid_namespace = 0;  // in which that is its pid
  std::string address;
  int port = 0;
  int port_taken = 0;                          // the one that it would have had; 0 if it was free
  std::string record;                          // the file it writes; "" for none
  std::string save_flagged;                    // the directory of flagged slices; "" for none
  std::string run;                             // as the agent calls it; "" when it does not say
  bool is_service = false;                     // which follows other runs too
  std::string problem;                         // what it could not do of what it was asked for; one line
  bool is_elsewhere() const;                   // its pid is another process's here, if any
  std::string url() const;                     // of the page, at this run
  bool writes(const std::string& path) const;  // this record
  bool saves_flagged(const std::string& path) const;  // in this directory
};

// From <directory>/agent.json, when the process it names lives: where it cannot be asked, when it holds its
// lock.
std::optional<AgentAddress> read_agent_address(const std::string& directory);

class AgentKeeper {
 public:
  // `command` starts the agent. Its output goes to <directory>/agent.log. An empty one: a service follows the
  // run, and none is ever started.
  AgentKeeper(std::string directory, std::vector<std::string> command)
      : directory_(std::move(directory)), command_(std::move(command)) {}

  // Starts an agent if there is none. Cheap; call it every 200 ms or so.
  void tick();

  // Ticks until the agent has told its address, or `timeout_ms` have passed, or it failed again and again.
  std::optional<AgentAddress> wait_for_address(int timeout_ms);

  // Where the agent is, when that has changed since the last question.
  std::optional<AgentAddress> news();

  // Lets an agent go on that somebody has stopped (SIGSTOP): without it there is no end.
  void wake() const;

  // How long our own agent could have run and did not, since others ran. 0 without one, and where the kernel
  // does not tell (CONFIG_SCHED_INFO).
  double seconds_without_processor() const;

  // Ends our own agent, if we have one, without asking.
  void kill_own() const;

  bool is_service() const { return command_.empty(); }

  // Three agents in a row ended within their first second, and no other one runs yet.
  bool has_failed() const { return failures_ >= 3 && pid_ < 0; }

  // Why no agent could be started, else the last line of agent.log.
  std::string last_words() const;

 private:
  void reap();
  void start();
  void wait_after(int failures);

  std::string directory_;
  std::vector<std::string> command_;
  FileLock starter_;                        // held from before the start until the agent has told its address
  pid_t pid_ = -1;                          // of our own agent, -1 when somebody else's serves
  std::pair<uint64_t, pid_t> told_{0, -1};  // whose address was told last
  int failures_ = 0;
  int start_error_ = 0;  // errno
  std::chrono::steady_clock::time_point started_{}, next_start_{};
};

// What the agent of a run tells of it: /api/v1/state.

// Asks for the state of the run that `agent` was told of, showing the token in `token_file` ("" for none).
// False: *error is one line.
bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error);

// The runs of this user on this node, for status, pause and resume.

struct LiveRun {
  std::string run_id, directory;
};

// Run directories in use (a `run`, an agent or a trainer), sorted by id; `run_id` "" means all.
std::vector<LiveRun> live_runs(const std::string& run_id);

// What a launcher and its agent tell each other when the command has ended: exit.<launcher>.json one way,
// summary.<launcher>.json the other (segment/SEGMENT.md, "Who is alive").

class ExitExchange {
 public:
  // Removes what an earlier launcher of our number has left, and takes the space and inodes of both files
  // now: a training may end because, or while, the memory is full. "" or a reason.
  std::string reserve(const std::string& directory);

  // Reports to the agent how the command ended. `asked_by`: the signal that asked the launcher to stop; 0:
  // none.
  void tell(const ExitStatus& status, int asked_by) const;

  struct Answer {
    std::string summary;  // of our ranks, JSON text
    std::string problem;  // why there is none
  };
  // Waits until the agent has answered, cannot, or a signal asks to stop; half a minute at most.
  Answer wait(SignalPasser* signals, AgentKeeper* keeper) const;

 private:
  std::string directory_, exit_, spare_, summary_;
};

// Prints the summary that the agent wrote (agent/summary.h) and reads the few facts of it that decide what is
// said beside.

struct Summary {
  bool is_valid = false;  // it is a JSON object
  std::string text;       // in lines; "" in the summary of an agent that wrote none
  std::string line;       // of a live run only
  bool has_ranks = false, has_other_ranks = false;
  bool has_refused = false;         // processes that the agent could not follow
  bool lacks_record_lines = false;  // lines of the record could not be written
};

// Reads the JSON of docs/summary.md. Control characters but newlines are replaced: names come from a trainer.
Summary read_summary(const std::string& json);

// `text` with its first line in bold and the verdict in it coloured.
std::string in_colour(const std::string& text);

// Whether `descriptor` is a terminal and NO_COLOR is not set.
bool wants_colour(int descriptor);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_AGENT_CLIENT_H_
