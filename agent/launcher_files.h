// What a `foreshock run` and the agent tell each other through the run directory: `exit.<launcher>.json` (the
// command of this launcher has ended, and how) is answered with `summary.<launcher>.json`.
#ifndef FORESHOCK_AGENT_LAUNCHER_FILES_H_
#define FORESHOCK_AGENT_LAUNCHER_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/directory.h"
#include "agent/rank.h"

namespace foreshock {

struct LauncherExit {
  uint64_t launcher_id = 0;
  RunState state = RunState::kFailed;
};

// Exits that have no summary yet.
std::vector<LauncherExit> unanswered_exits(const Directory& directory);

// How the command of this launcher ended; nothing when that has not been told, or cannot be read just now.
std::optional<RunState> exit_of(const Directory& directory, uint64_t launcher_id);

std::string summary_name(uint64_t launcher_id);

// Whether a launcher of this run lives: it holds a shared lock on run.lock.
bool has_launcher(const Directory& directory);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_LAUNCHER_FILES_H_
