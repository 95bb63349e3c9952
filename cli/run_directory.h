// <base>/<run id>/ and who uses it (segment/SEGMENT.md, "Who is alive"). Every `run` holds a shared lock on
// run.lock, the agent an exclusive one on agent.lock, each trainer an fcntl lock on its segment; directories
// come and go under <base>/lock only.
#ifndef FORESHOCK_CLI_RUN_DIRECTORY_H_
#define FORESHOCK_CLI_RUN_DIRECTORY_H_

#include <functional>
#include <string>

#include "cli/file_lock.h"

namespace foreshock::cli {

class RunDirectory {
 public:
  // Removes stale directories of the base, creates ours if need be, and takes part in it. "" or a reason.
  // `has_service`: the agent is a service, which stays when the run ends; leave() does not wait for its end.
  std::string enter(const std::string& base, const std::string& run_id, bool has_service = false);

  // Leaves. When no other `run` and no living trainer uses it, waits for the agent's end (seconds at most)
  // and removes the directory; true then. `stuck` is called for an agent that does not end in time.
  bool leave(const std::function<void()>& stuck = nullptr);

  const std::string& path() const { return path_; }

 private:
  int make_directory() const;  // as mkdir(2)

  std::string base_, path_;
  bool has_service_ = false;
  FileLock use_;
};

// Whether the set-group-id bit says that a directory is shared with a service.
bool is_shared_with_group(const std::string& path);

// Whether a trainer lives that stores into a segment in `directory`.
bool has_live_segment(const std::string& directory);

// Removes `directory` if it is a run's and nobody uses it. Call under the lock of the base.
bool remove_if_stale(const std::string& directory);

// For an agent that has ended: removes the directory it has served if nobody uses it, as when its launchers
// were killed.
void remove_after_agent(const std::string& directory);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RUN_DIRECTORY_H_
