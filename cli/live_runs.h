// The runs of this user on this node, for status, pause and resume.
#ifndef FORESHOCK_CLI_LIVE_RUNS_H_
#define FORESHOCK_CLI_LIVE_RUNS_H_

#include <string>
#include <vector>

namespace foreshock::cli {

struct LiveRun {
  std::string run_id, directory;
};

// Run directories in use (a `run`, an agent or a trainer), sorted by id; `run_id` "" means all.
std::vector<LiveRun> live_runs(const std::string& run_id);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_LIVE_RUNS_H_
