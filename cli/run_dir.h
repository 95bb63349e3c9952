// Manages the base directory of a user's runs and the run directories in it, by which `foreshock run` (the
// launcher), the agent and the trainers of a run communicate. In a run directory, each trainer has a segment,
// a file of shared memory, or leaves a file off.<pid>.<reason> if it cannot be monitored. A launcher starts
// an agent, unless the agent is a service of the node.
#ifndef FORESHOCK_CLI_RUN_DIR_H_
#define FORESHOCK_CLI_RUN_DIR_H_

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/files.h"

namespace foreshock::cli {

struct BaseDirectory {
  std::string path;     // absolute; "" if no directory is usable
  std::string problem;  // why none is usable, and what to do
};

// Chooses $FORESHOCK_DIR if set (its folder foreshock-<uid> if other users can use $FORESHOCK_DIR), else
// /dev/shm/foreshock-<uid>, else $XDG_RUNTIME_DIR/foreshock. Creates it if missing, mode 0700.
BaseDirectory choose_base_directory();

// Returns the candidates of choose_base_directory(), for commands that only read. Creates nothing.
std::vector<std::string> base_directory_candidates();

// Creates `path` if needed. Returns "", or why it is not a private directory on tmpfs with enough space.
std::string prepare_base_directory(const std::string& path);

// Returns how many bytes a user may still write to the file system of `path`; 0 if unknown.
uint64_t free_bytes(const std::string& path);

// Minimum of free space for monitoring. A segment without slots takes about 1 MiB.
inline constexpr uint64_t kLeastFreeBytes = 4u << 20;

// The run directory <base>/<run id>/ and its locks, which show which processes are alive. Every `foreshock
// run` holds a shared lock on run.lock, the agent an exclusive lock on agent.lock, and each trainer an fcntl
// lock on its segment. Run directories are created and removed only while <base>/lock is held.
class RunDirectory {
 public:
  // Removes unused run directories in `base`, creates the one of this run if needed, and locks its run.lock.
  // Returns "" or why it failed. `has_service`: the agent is a service, so leave() does not wait for its end.
  std::string enter(const std::string& base, const std::string& run_id, bool has_service = false);

  // Releases run.lock. If no other `foreshock run` and no live trainer uses the directory, waits up to 5 s
  // for the agent's end, and removes the directory. If the agent does not end in time, calls `kill_agent` and
  // waits for it one more second. With `is_agent_stuck`, calls it at once. Returns whether the directory has
  // been removed; if not, the agent removes it when it ends, or a later enter().
  bool leave(const std::function<void()>& kill_agent = nullptr, bool is_agent_stuck = false);

  const std::string& path() const { return path_; }

 private:
  int make_directory() const;  // returns the result of mkdir(2); errno is set

  std::string base_, path_;
  bool has_service_ = false;
  FileLock run_lock_;  // shared lock on run.lock, from enter() to leave()
};

// Whether the directory has the set-group-id bit, which marks a directory that is shared with a service.
bool is_shared_with_group(const std::string& path);

// Returns the content of a file of a run directory; nullopt if it is missing, longer than `most` bytes, or
// refused by Directory::open_file(). Does not wait.
std::optional<std::string> content_of(const std::string& directory, const std::string& name, size_t most);

// Whether a segment in `directory` belongs to a live trainer.
bool has_live_segment(const std::string& directory);

// Removes `directory` if it is a run directory and no process uses it. The caller must hold <base>/lock.
bool remove_if_stale(const std::string& directory);

// Takes <base>/lock, then calls remove_if_stale(). For an agent that ends: its launcher may have been killed.
void remove_after_agent(const std::string& directory);

// Returns the number that identifies this `foreshock run` in file names of a run directory. It is unique
// among the live processes of the node, including those in containers. It is not 0. It is below 2^53, so that
// JSON readers do not round it.
uint64_t launcher_id();

// Returns the launcher_id() of the process `pid`. `pid_namespace`: inode of its pid namespace; 0: unknown.
uint64_t launcher_id(pid_t pid, uint64_t pid_namespace);

// Name and modification time of each off.* file. Times are only compared for equality: the clock may jump.
using OffFiles = std::map<std::string, std::filesystem::file_time_type>;
OffFiles off_files(const std::string& directory);

// Returns one line per reason of the off files that are new since `earlier`: the number of processes, the
// reason, and what to do. Files of processes that other launchers started are left to those launchers.
std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id);

// Returns what the user can do about the reason of an off file; for an unknown reason, a general hint.
std::string advice_for(const std::string& reason);

// Returns the line that is printed if all trainers of the run were started by other `foreshock run` commands.
std::string other_ranks_line();

// Returns the line that is printed if the command left no trace of a trainer in the run directory.
std::string no_segment_line(const std::string& directory);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RUN_DIR_H_
