// Runs the agent process: reads the shared-memory segments of the trainers of one run on this node, or of all
// runs below a directory (a service), checks the slices (copied parts of attention calls) in them, and
// publishes the results.
#ifndef FORESHOCK_AGENT_AGENT_H_
#define FORESHOCK_AGENT_AGENT_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/run.h"

namespace foreshock {

struct AgentOptions {
  std::string directory;  // directory of the single run to serve: <base>/<run id>; empty: serve `tree`
  std::string run_id;     // of the single run
  std::string tree;       // service: root of the directories of many runs
  std::string bind = "127.0.0.1";  // address of the HTTP server: numeric, or unix:PATH
  int port = 9847;
  int last_port = 0;               // uses the first free port from `port` to this; 0: only `port`
  std::string token_file;          // file with the token that HTTP clients must send; empty: none
  std::string file_sd;             // file or directory for Prometheus' file_sd, kept current; empty: none
  std::string grafana;             // address of a Grafana that has our dashboards; empty: none
  std::string record;              // JSONL file; empty: none. For a single run only.
  uint64_t record_histograms = 0;  // most bytes that histograms of weights may take in the record
  uint64_t record_size = 0;        // bytes of the record that are kept; 0: all
  std::string save_flagged;    // directory for unusual slices; empty: none is kept. For a single run only.
  uint64_t flagged_quota = 0;  // most bytes in save_flagged
  double max_slowdown = 0.01;  // limit of foreshock's share of the training time
  uint64_t every = 0;          // every n-th step is sampled; 0: the agent chooses the interval
  std::string on_alert;        // shell command that is run on alerts; empty: none
  bool keep_alive = false;     // a single run is served until the agent is stopped
  uint64_t forget_after_seconds = 600;  // service: how long a run keeps its metrics after its end
};

// Runs the agent until a signal stops it or, for a single run without keep_alive, until all trainers and
// launchers (`foreshock run` processes) of the run have ended. Returns the exit status: 0, also if another
// agent serves the run; 1, with one line on stderr, after an error.
int run_agent(const AgentOptions& options);

// A run that this agent serves.
struct ServedRun {
  ServedRun(std::unique_ptr<Run> followed, Run::Clock::time_point now);
  // CPU seconds that the agent has spent on the run's ranks since cpu_seconds was last increased. The CPU
  // time of the whole agent process is divided over the runs in proportion to these seconds.
  double new_rank_seconds() const { return std::max(0.0, run->rank_seconds() - rank_seconds); }

  std::unique_ptr<Run> run;
  std::string owner;                            // name of the user, or the number if there is no name
  Run::Clock::time_point last_needed;           // when a launcher or a segment last needed the agent
  double cpu_seconds = 0;                       // this run's share of the CPU time of the whole agent process
  double rank_seconds = 0;                      // Run::rank_seconds() when cpu_seconds was last increased
  std::shared_ptr<const std::string> document;  // body of /api/v1/state; null: not made yet
  Run::Clock::time_point next_document = {};    // when the document is due again
};

// Makes the documents that are due. A document has the state of one run and the fields of `agent`, the state
// of the agent process. A document that takes long is made less often, and 20 ms after the call began no
// further document is started. So a run of a thousand layers does not delay the samples of other runs.
void refresh_documents(const nlohmann::json& agent, std::vector<ServedRun>* runs);

// An address at which Prometheus can scrape an agent.
struct Target {
  std::string address;  // numeric IP address, or unix:PATH
  int port = 0;         // 0: Prometheus cannot scrape the address
  std::string run;      // label of the run that the agent serves; empty: the agent serves several runs
};

// Returns the targets as one line of JSON, as Prometheus' file_sd and http_sd read it. Targets with port 0
// are left out. The addresses 0.0.0.0 and :: are replaced by the host's name. The run becomes the label
// __meta_foreshock_run, since the scraped metrics already have a label run.
std::string targets_json(const std::vector<Target>& targets);

// The file of targets for file_sd: `path` itself, or, if `path` is a directory, a file in it for this run and
// node. Of several agents with one file, only the first writes it, until that agent ends. Not thread-safe.
class TargetFile {
 public:
  TargetFile(const std::string& path, const std::string& run);
  ~TargetFile();
  TargetFile(const TargetFile&) = delete;
  TargetFile& operator=(const TargetFile&) = delete;
  // Replaces the file unless it already has this text. Returns "" on success, else the reason.
  std::string write(const std::string& text);
  void remove();  // removes the file unless another agent has locked it
  // If `path` is a directory, removes the files that killed agents of this host have left in it.
  void remove_abandoned() const;

 private:
  bool claim();  // locks the file if it is free; false: another agent has locked it

  std::string path_;              // of the file of targets
  bool is_in_directory_ = false;  // the constructor's `path` is a directory
  int lock_ = -1;                 // descriptor of the lock file; -1: not locked by this agent
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_AGENT_H_
