// The agent: follows the segments of one run on this node, or of all runs below a tree, judges their slices,
// and shows what it found.
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
  std::string directory;  // <base>/<run id>; empty: serve `tree`
  std::string run_id;
  std::string tree;  // of an administrator, agent/discovery.h; then the agent stays until it is told to stop
  std::string bind = "127.0.0.1";
  int port = 9847;
  int last_port = 0;               // the first free port from `port` to this; 0: `port` or an error
  std::string token_file;          // exporters/http_routes.h; empty: none
  std::string file_sd;             // file for Prometheus' file_sd, kept current; empty: none
  std::string grafana;             // address of a Grafana that has our dashboards; empty: none
  std::string record;              // JSONL file; empty: none. Of a single run only.
  uint64_t record_histograms = 0;  // bytes for histograms of weights in it
  uint64_t record_size = 0;        // bytes that are kept of it; 0: all
  std::string save_flagged;        // agent/flagged.h; empty: no slice is kept. Of a single run only.
  uint64_t flagged_quota = 0;      // bytes
  double max_slowdown = 0.01;
  uint64_t every = 0;                   // 0: the agent chooses the interval
  std::string on_alert;                 // agent/alerts.h; empty: none
  bool keep_alive = false;              // stay when the last trainer and launcher have gone
  uint64_t forget_after_seconds = 600;  // a run of the tree that has ended keeps its series so long
};

// Runs until nobody needs it any more. Returns the exit status: 0 done (also when another agent holds the
// directory), 1 with one line on stderr when it cannot work.
int run_agent(const AgentOptions& options);

// A run with what the agent keeps of it for others: who owns it, when it was last needed, its page.
struct ServedRun {
  ServedRun(std::unique_ptr<Run> followed, Run::Clock::time_point now);

  double new_rank_seconds() const { return std::max(0.0, run->rank_seconds() - rank_seconds); }

  std::unique_ptr<Run> run;
  std::string owner;  // user name, else the number
  Run::Clock::time_point last_needed;
  double cpu_seconds = 0;                       // of the agent, charged to this run
  double rank_seconds = 0;                      // when that was last charged
  std::shared_ptr<const std::string> document;  // body of /api/v1/state; null: not made yet
  Run::Clock::time_point next_document = {};
};

// Makes the documents that are due, those of `agent` merged in. One that takes long is made less often, and
// no more is begun once 20 ms have gone: a run of a thousand layers delays no other one's samples.
void refresh_documents(const nlohmann::json& agent, std::vector<ServedRun>* runs);

// Where Prometheus finds agents: the JSON of file_sd and http_sd, and the file.
struct Target {
  std::string address;  // numeric, or unix:PATH, which Prometheus cannot ask
  int port = 0;
  std::string run;  // label of the one run it serves; empty: several
};

// One line. An address that stands for all of the host is told as the host's name. The run is told as
// __meta_foreshock_run, for relabelling: the series have it already.
std::string targets_json(const std::vector<Target>& targets);

// The file of file_sd: `path`, or, where that is a directory, a file in it for this run on this node. Several
// agents may be told the same path: the first one keeps the file, until it ends. One thread.
class TargetFile {
 public:
  TargetFile(const std::string& path, const std::string& run);
  ~TargetFile();
  TargetFile(const TargetFile&) = delete;
  TargetFile& operator=(const TargetFile&) = delete;

  // Replaces the file when it does not hold this text. "" when it does now, else why not.
  std::string write(const std::string& text);
  // Unless another agent keeps it.
  void remove();
  // In a directory, the files of agents of this host that were killed: nobody holds their lock any more. What
  // is not of an agent's making stays.
  void remove_abandoned() const;

 private:
  bool is_ours();

  std::string path_;
  bool is_in_directory_ = false;
  int lock_ = -1;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_AGENT_H_
