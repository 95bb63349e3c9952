// The base directory of a user's runs, the run directories in it, and the off.* files that unmonitored
// trainers leave there.
#ifndef FORESHOCK_CLI_RUN_DIR_H_
#define FORESHOCK_CLI_RUN_DIR_H_

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/files.h"

namespace foreshock::cli {

struct BaseDirectory {
  std::string path;     // absolute; "" if no directory is usable
  std::string problem;  // why none is usable, and what to do
};

// Chooses FORESHOCK_DIR if set (the directory itself if it is private to us, else foreshock-<uid> in it),
// else /dev/shm/foreshock-<uid>, else $XDG_RUNTIME_DIR/foreshock. Creates it with mode 0700 if it is missing.
BaseDirectory choose_base_directory();

// The candidates of choose_base_directory(), for commands that only read. Creates nothing.
std::vector<std::string> base_directory_candidates();

// Creates `path` if needed. Returns "" if it is a private directory on tmpfs with enough space, else the
// reason.
std::string prepare_base_directory(const std::string& path);

// Bytes that a user may still write on the file system of `path`; 0 if unknown.
uint64_t free_bytes(const std::string& path);

// With less free space nothing is monitored. A segment without slots takes about a quarter of it.
inline constexpr uint64_t kLeastFreeBytes = 4u << 20;

// The run directory <base>/<run id>/ and its locks (segment/SEGMENT.md, "Who is alive"). Every `foreshock
// run` holds a shared lock on run.lock, the agent an exclusive one on agent.lock, each trainer an fcntl lock
// on its segment. Run directories are created and removed only while <base>/lock is held.

class RunDirectory {
 public:
  // Removes stale directories of the base, creates ours if needed, and locks its run.lock. Returns "" or a
  // reason. `has_service`: the agent is a service, which continues when the run ends, so leave() does not
  // wait for its end.
  std::string enter(const std::string& base, const std::string& run_id, bool has_service = false);

  // Releases run.lock. If no other `foreshock run` and no live trainer uses the directory, waits up to 5 s
  // for the agent's end, removes the directory and returns true. `stuck` is called if the agent does not end
  // in time.
  bool leave(const std::function<void()>& stuck = nullptr);

  const std::string& path() const { return path_; }

 private:
  int make_directory() const;  // returns and sets errno as mkdir(2)

  std::string base_, path_;
  bool has_service_ = false;
  FileLock use_;  // on run.lock
};

// Whether the directory has the set-group-id bit, which marks one that is shared with a service.
bool is_shared_with_group(const std::string& path);

// Whether a segment in `directory` belongs to a live trainer.
bool has_live_segment(const std::string& directory);

// Removes `directory` if it is a run directory and no process uses it. Call while holding <base>/lock.
bool remove_if_stale(const std::string& directory);

// For an agent that ends: removes its run directory if no other process uses it, as when its launchers were
// killed.
void remove_after_agent(const std::string& directory);

// The number that identifies this `foreshock run` in file names of a run directory. No other live process on
// the node has it, not even in another container. Below 2^53, never 0.
uint64_t launcher_id();

// The number of another process. `pid_namespace`: the inode of its pid namespace; 0: unknown.
uint64_t launcher_id(pid_t pid, uint64_t pid_namespace);

// The files off.<pid>.<reason> that trainers leave when they cannot be monitored.

// Name and modification time of each. Times are only compared for equality, since the clock may jump.
using OffFiles = std::map<std::string, std::filesystem::file_time_type>;
OffFiles off_files(const std::string& directory);

// One line for each reason of the off files in `directory` that are new since `earlier`: the number of
// processes, the reason, what to do. Files of processes that another launcher started are ignored; that
// launcher reports them.
std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id);

// What to do about `reason`; a general hint for an unknown one.
std::string advice_for(const std::string& reason);

// The line that is printed if only another launcher of the run had trainers.
std::string other_ranks_line();

// The line that is printed if the command ended without any trace of a trainer in the run directory.
std::string no_segment_line(const std::string& directory);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RUN_DIR_H_
