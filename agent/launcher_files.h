// What a `foreshock run` and the agent tell each other through the run directory: `exit.<pid>.json` (the
// command of this launcher has ended, and how) is answered with `summary.<pid>.json`.
#ifndef FORESHOCK_AGENT_LAUNCHER_FILES_H_
#define FORESHOCK_AGENT_LAUNCHER_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/rank.h"

namespace foreshock {

struct LauncherExit {
  uint64_t launcher_pid = 0;
  RunState state = RunState::kFailed;
};

// Exits that have no summary yet.
std::vector<LauncherExit> unanswered_exits(const std::string& directory);

// Replaces the file as a whole: nobody reads half of it. False when the directory is full.
bool write_file(const std::string& path, const std::string& text);

std::string summary_path(const std::string& directory, uint64_t launcher_pid);

// Whether a launcher of this run lives: it holds a shared lock on run.lock.
bool has_launcher(const std::string& directory);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_LAUNCHER_FILES_H_
