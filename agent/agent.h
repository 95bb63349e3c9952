// The agent: follows the segments of one run on this node, or of all runs below a tree, judges their slices,
// and shows what it found.
#ifndef FORESHOCK_AGENT_AGENT_H_
#define FORESHOCK_AGENT_AGENT_H_

#include <cstdint>
#include <string>

namespace foreshock {

struct AgentOptions {
  std::string directory;  // <base>/<run id>; empty: serve `tree`
  std::string run_id;
  std::string tree;  // of an administrator, agent/tree.h; then the agent stays until it is told to stop
  std::string bind = "127.0.0.1";
  int port = 9847;
  std::string token_file;          // exporters/http_routes.h; empty: none
  std::string file_sd;             // file for Prometheus' file_sd, kept current; empty: none
  std::string grafana;             // address of a Grafana that has our dashboards; empty: none
  std::string record;              // JSONL file; empty: none. Of a single run only.
  uint64_t record_histograms = 0;  // bytes for histograms of weights in it
  std::string save_flagged;        // agent/flagged.h; empty: no slice is kept. Of a single run only.
  uint64_t flagged_quota = 0;      // bytes
  double max_slowdown = 0.01;
  uint64_t every = 0;                   // 0: the agent chooses the interval
  std::string on_alert;                 // agent/alert_command.h; empty: none
  bool keep_alive = false;              // stay when the last trainer and launcher have gone
  uint64_t forget_after_seconds = 600;  // a run of the tree that has ended keeps its series so long
};

// Runs until nobody needs it any more. Returns the exit status: 0 done (also when another agent holds the
// directory), 1 with one line on stderr when it cannot work.
int run_agent(const AgentOptions& options);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_AGENT_H_
