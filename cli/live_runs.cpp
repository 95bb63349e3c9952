#include "cli/live_runs.h"

#include <algorithm>
#include <filesystem>

#include "cli/agent_keeper.h"
#include "cli/base_directory.h"
#include "cli/run_directory.h"

namespace foreshock::cli {

std::vector<LiveRun> live_runs(const std::string& run_id) {
  std::vector<LiveRun> runs;
  for (const std::string& base : base_directory_candidates()) {
    std::error_code error;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(base, error)) {
      if (!entry.is_directory(error)) continue;
      const LiveRun run = {entry.path().filename(), entry.path()};
      if (!run_id.empty() && run.run_id != run_id) continue;
      if (read_agent_address(run.directory) || has_live_segment(run.directory)) runs.push_back(run);
    }
  }
  std::sort(runs.begin(), runs.end(), [](const LiveRun& a, const LiveRun& b) { return a.run_id < b.run_id; });
  return runs;
}

}  // namespace foreshock::cli
