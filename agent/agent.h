// The agent: follows the segments of one run on this node, judges their slices, and shows what it found.
#ifndef FORESHOCK_AGENT_AGENT_H_
#define FORESHOCK_AGENT_AGENT_H_

#include <cstdint>
#include <string>

namespace foreshock {

struct AgentOptions {
  std::string directory;  // <base>/<run id>
  std::string run_id;
  std::string bind = "127.0.0.1";
  int port = 9847;
  std::string record;  // JSONL file; empty: none
  double max_slowdown = 0.01;
  uint64_t every = 0;       // 0: the agent chooses the interval
  bool keep_alive = false;  // stay when the last trainer and launcher have gone
};

// Runs until nobody needs it any more. Returns the exit status: 0 done (also when another agent holds the
// directory), 1 with one line on stderr when it cannot work.
int run_agent(const AgentOptions& options);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_AGENT_H_
