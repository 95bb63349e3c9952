// Where the run directories of a user lie, what is in one, and what a trainer that switched itself off has
// left there.
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
  std::string path;     // absolute; "" when there is none
  std::string problem;  // why there is none, and what to do
};

// FORESHOCK_DIR if set (itself when it is private to us, else foreshock-<uid> under it), else
// /dev/shm/foreshock-<uid>, else $XDG_RUNTIME_DIR/foreshock. Created with mode 0700 when missing.
BaseDirectory choose_base_directory();

// The candidates of choose_base_directory, for commands that only look. Nothing is created.
std::vector<std::string> base_directory_candidates();

// "" when `path` is (after creating it if need be) a directory of ours alone on tmpfs, else the reason.
std::string prepare_base_directory(const std::string& path);

// Bytes a user may still write on the file system of `path`; 0 when unknown.
uint64_t free_bytes(const std::string& path);

// Below this nothing is monitored: a segment without any slot takes about a quarter of it.
inline constexpr uint64_t kLeastFreeBytes = 4u << 20;

// <base>/<run id>/ and who uses it (segment/SEGMENT.md, "Who is alive"). Every `run` holds a shared lock on
// run.lock, the agent an exclusive one on agent.lock, each trainer an fcntl lock on its segment; directories
// come and go under <base>/lock only.

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

// The number by which a run directory knows a `foreshock run`.

// The number of this process, which no other living process on this node has, in whichever container it is.
// Below 2^53, never 0.
uint64_t launcher_id();

// The number of another process. `pid_namespace`: its inode; 0: unknown.
uint64_t launcher_id(pid_t pid, uint64_t pid_namespace);

// The files off.<pid>.<reason> that trainers leave when they cannot be monitored.

// Name and time of each. Times are only compared for equality: the clock may jump.
using OffFiles = std::map<std::string, std::filesystem::file_time_type>;
OffFiles off_files(const std::string& directory);

// One line per reason found in `directory` that is not in `earlier`: what is off, in how many processes, what
// to do. Processes that belong to another launcher than `launcher_id` are left to it.
std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id);

// What to do about `reason`; a general hint for an unknown one.
std::string advice_for(const std::string& reason);

// Said when only another launcher of the run had trainers.
std::string other_ranks_line();

// Said when a command ended without any sign of a trainer in the run's directory.
std::string no_segment_line(const std::string& directory);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RUN_DIR_H_
