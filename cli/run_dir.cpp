// Creates, locks and removes run directories <base>/<run id>/ (run_dir.h): `foreshock run` (the launcher)
// locks run.lock, the agent agent.lock, a trainer its *.seg. <base>/lock is held while runs are entered, left
// or removed. A service is an agent, perhaps of another user, that follows the runs of a whole node. Also has
// the texts on processes that are not monitored.
#include "cli/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "agent/directory.h"
#include "agent/node.h"
#include "libmonitor/options.h"

namespace foreshock::cli {
namespace {

bool is_on_tmpfs(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

// Whether the directory belongs to this user and others have no access. The group may have access only if the
// set-group-id bit marks the directory as shared with a service.
bool is_private(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return false;
  return (info.st_mode & 077) == 0 || ((info.st_mode & S_ISGID) != 0 && (info.st_mode & 07) == 0);
}

std::string named_for_user(const std::string& parent) {
  return parent + "/foreshock-" + std::to_string(geteuid());
}

namespace fs = std::filesystem;

constexpr int kBaseLockTimeoutMs = 10000;   // for <base>/lock, which leave() holds until the agent ends
constexpr int kLeaveTimeoutMs = 3000;       // the same in leave(), which need not remove the directory
constexpr int kAgentEndTimeoutMs = 5000;    // for an agent whose last launcher has ended
constexpr int kAgentDeathTimeoutMs = 1000;  // for an agent that was killed
constexpr int kProbeTimeoutMs = 100;        // not 0: the agent takes run.lock for a moment to test it

// Whether a trainer holds the fcntl lock on the segment. Only queries the lock and does not take it.
bool is_live(const fs::path& segment) {
  const int descriptor = open(segment.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  const bool live = fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(descriptor);
  return live;
}

// Waits until no agent holds agent.lock; returns false after `timeout_ms`. Must be called only while no
// launcher can start an agent. A missing agent.lock (no agent) is not created: the tmpfs may be full.
bool wait_for_agent_end(const std::string& directory, int timeout_ms) {
  FileLock agent;
  return access((directory + "/agent.lock").c_str(), F_OK) != 0 ||
         agent.lock_within(directory + "/agent.lock", LOCK_EX, timeout_ms);
}

// A trainer that cannot be monitored leaves a file off.<pid>.<reason>. An Advice is what to do about the
// reason. The text follows "monitoring was off in 1 process (<reason>): "; "it" in the text is that process.
struct Advice {
  const char* reason;
  const char* text;
};

constexpr Advice kAdvice[] = {
    {"adapter_missing",
     "no adapter was built for its torch; run `foreshock doctor -- COMMAND` with the same command"},
    {"adapter_not_loadable",
     "the adapter does not load; remove it from the cache and run `foreshock doctor`"},
    {"adapter_untrusted",
     "other users could replace its adapter or a folder above; start it with `foreshock run`, which says "
     "which one"},
    {"library_not_loadable",
     "libforeshock.so does not load in it (a sandbox, a file system without exec, another CPU); run "
     "`foreshock doctor -- COMMAND` there"},
    {"library_untrusted",
     "other users could replace libforeshock.so or a folder above it; start it with `foreshock run`, which "
     "says "
     "which one"},
    {"adapter_failed", "the adapter refused this torch; run `foreshock doctor -- COMMAND`"},
    {"torch_version_unknown", "its torch has no version.py beside it, so no adapter can be chosen"},
    {"no_space", "the tmpfs of the run directory is full; free some of /dev/shm or set FORESHOCK_DIR"},
    {"memory_limit",
     "the memory limit of its cgroup or container leaves no room for a segment; raise it by a few MiB"},
    {"no_directory", "its run directory is gone or not writable; start it with `foreshock run`"},
    {"no_mapping", "the kernel refused it memory; look at its limits (ulimit -v, cgroup, seccomp)"},
    {"no_descriptor", "it has no file descriptor left; raise `ulimit -n`"},
    {"file_limit", "its files are limited to less than a segment; raise `ulimit -f` to 4 MiB or more"},
    {"not_permitted",
     "a sandbox refused a call that the monitor needs (seccomp or a security module); run `foreshock doctor "
     "-- COMMAND` inside it"},
    {"rank_taken",
     "another live process of this run trains as the same rank, and only the first one is followed: if it is "
     "another training, give it a --run-id of its own; if it was forked by the first, start it by itself"},
    {"no_tmpfs", "the run directory is not on tmpfs; set FORESHOCK_DIR"},
};

// Returns "no_space" for "off.1234.no_space"; "" for a name of another form.
std::string reason_of(const std::string& file) {
  if (file.rfind("off.", 0) != 0) return "";
  const size_t dot = file.find('.', 4);
  return dot == std::string::npos ? "" : file.substr(dot + 1);
}

// An off file contains the launcher_id() of its launcher. With 0 or no number, the launcher is unknown.
bool may_belong_to(const std::string& directory, const std::string& name, uint64_t launcher_id) {
  constexpr size_t kMost = 64;  // digits of a number
  uint64_t owner = 0;
  std::istringstream text(content_of(directory, name, kMost).value_or(""));
  return !(text >> owner) || owner == 0 || owner == launcher_id;
}

}  // namespace

std::vector<std::string> base_directory_candidates() {
  std::string given = option_value(OptionId::kBaseDirectory);
  while (given.size() > 1 && given.back() == '/') given.pop_back();
  if (!given.empty()) {
    struct stat info;
    const bool is_missing = stat(given.c_str(), &info) != 0;
    // Other users can use a directory that is not private, so a folder for this user in it is used.
    return {is_private(given) || is_missing ? given : named_for_user(given)};
  }
  std::vector<std::string> candidates = {named_for_user("/dev/shm")};
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/')
    candidates.push_back(std::string(runtime) + "/foreshock");
  return candidates;
}

std::string prepare_base_directory(const std::string& path) {
  if (path.empty() || path[0] != '/') return "'" + path + "' is not an absolute path";
  // Checked before mkdir(), so that nothing is created elsewhere. `path` itself may be a mounted tmpfs.
  if (!is_on_tmpfs(parent_of(path)) && !is_on_tmpfs(path)) return path + " is not on tmpfs";
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return path + ": " + std::strerror(errno);
  if (!is_private(path))
    return path + " is not a directory of this user with mode 0700 (or 2770, shared with a service)";
  if (access(path.c_str(), W_OK | X_OK) != 0) return path + ": " + std::strerror(errno);
  if (!is_on_tmpfs(path)) return path + " is not on tmpfs";
  if (free_bytes(path) < kLeastFreeBytes) return "no space left on the tmpfs of " + path;
  return "";
}

BaseDirectory choose_base_directory() {
  BaseDirectory chosen;
  for (const std::string& candidate : base_directory_candidates()) {
    const std::string reason = prepare_base_directory(candidate);
    if (reason.empty()) return {candidate, ""};
    chosen.problem += (chosen.problem.empty() ? "" : "; ") + reason;
  }
  chosen.problem += "; set FORESHOCK_DIR to a directory on a tmpfs with room";
  return chosen;
}

uint64_t free_bytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return 0;
  // A tmpfs mounted without a size limit reports no blocks at all.
  if (info.f_blocks == 0) return UINT64_MAX;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

bool is_shared_with_group(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & S_ISGID) != 0;
}

std::optional<std::string> content_of(const std::string& directory, const std::string& name, size_t most) {
  std::string why;
  const std::unique_ptr<Directory> opened = Directory::open(directory, &why);
  return opened != nullptr ? opened->read(name, most) : std::nullopt;
}

bool has_live_segment(const std::string& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    if (entry.path().extension() == ".seg" && is_live(entry.path())) return true;
  return false;
}

bool remove_if_stale(const std::string& directory) {
  // Only run directories have a run.lock. The base may contain other directories too, e.g. of adapters.
  if (access((directory + "/run.lock").c_str(), F_OK) != 0) return false;
  FileLock launchers;  // each launcher of the run holds run.lock shared, so this lock excludes them
  if (!launchers.try_lock(directory + "/run.lock", LOCK_EX) || !wait_for_agent_end(directory, 0) ||
      has_live_segment(directory))
    return false;
  std::error_code error;
  fs::remove_all(directory, error);
  return !error;
}

// Called by an agent that ends, since its launcher may have been killed and cannot remove the directory then.
void remove_after_agent(const std::string& directory) {
  if (access((directory + "/run.lock").c_str(), F_OK) != 0) return;
  FileLock base_lock;
  if (base_lock.lock_within(fs::path(directory).parent_path() / "lock", LOCK_EX, kBaseLockTimeoutMs))
    remove_if_stale(directory);
}

std::string RunDirectory::enter(const std::string& base, const std::string& run_id, bool has_service) {
  has_service_ = has_service;
  base_ = base;
  path_ = base + "/" + run_id;
  FileLock base_lock;
  if (!base_lock.lock_within(base + "/lock", LOCK_EX, kBaseLockTimeoutMs))
    return base + "/lock cannot be taken";
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(base, error)) {
    std::error_code ignored;  // an entry that cannot be examined does not count as a directory
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) remove_if_stale(entry.path());
  }
  if (error) return base + " cannot be read: " + error.message();
  if (make_directory() != 0 && errno != EEXIST) return path_ + ": " + std::strerror(errno);
  if (!run_lock_.lock_within(path_ + "/run.lock", LOCK_SH, kProbeTimeoutMs))
    return path_ + "/run.lock cannot be taken";
  if (is_shared_with_group(path_)) run_lock_.share_with_group();  // a service's agent tests it
  return "";
}

// Creates the run directory. A base with the set-group-id bit is shared with the group of a service, so that
// the service can follow the run without being root. The new directory inherits the bit and the group.
// umask() sets the mode, because chmod() by a user outside that group would clear the bit.
int RunDirectory::make_directory() const {
  const mode_t before = umask(is_shared_with_group(base_) ? 07 : 077);
  const int result = mkdir(path_.c_str(), 0770);
  const int error = errno;
  umask(before);
  errno = error;
  return result;
}

bool RunDirectory::leave(const std::function<void()>& kill_agent, bool is_agent_stuck) {
  FileLock base_lock;
  if (!base_lock.lock_within(base_ + "/lock", LOCK_EX, is_agent_stuck ? 0 : kLeaveTimeoutMs)) {
    if (is_agent_stuck && kill_agent != nullptr) kill_agent();
    return false;
  }
  run_lock_.release();
  // With this exclusive lock, no other launcher uses the directory; base_lock keeps others from entering it.
  FileLock launchers;
  if (!launchers.lock_within(path_ + "/run.lock", LOCK_EX, kProbeTimeoutMs) || has_live_segment(path_))
    return false;
  launchers.release();  // the launchers' own agent ends when none of them holds this lock
  if (!has_service_ && !wait_for_agent_end(path_, is_agent_stuck ? 0 : kAgentEndTimeoutMs)) {
    if (kill_agent == nullptr) return false;
    kill_agent();
    if (!wait_for_agent_end(path_, kAgentDeathTimeoutMs)) return false;
  }
  std::error_code error;
  fs::remove_all(path_, error);
  return !error;
}

// The low bits are the pid. The bits above identify its pid namespace: 0 outside of containers.
uint64_t launcher_id(pid_t pid, uint64_t pid_namespace) {
  constexpr uint64_t kNamespaceOfNode = 0xEFFFFFFC;  // the kernel's PROC_PID_INIT_INO; others are larger
  constexpr int kBitsOfPid = 22;                     // the kernel's PID_MAX_LIMIT is 2^22
  const uint64_t container = pid_namespace > kNamespaceOfNode ? pid_namespace - kNamespaceOfNode : 0;
  return container << kBitsOfPid | static_cast<uint64_t>(pid);
}

uint64_t launcher_id() { return launcher_id(getpid(), pid_namespace()); }

std::string advice_for(const std::string& reason) {
  for (const Advice& row : kAdvice)
    if (reason == row.reason) return row.text;
  return "run `foreshock doctor -- COMMAND` to see more";
}

OffFiles off_files(const std::string& directory) {
  OffFiles files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!reason_of(entry.path().filename()).empty())
      files[entry.path().filename()] = entry.last_write_time(error);
  }
  return files;
}

// `earlier`: the off files when the command started. Those that have not changed since then are left out.
std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id) {
  std::map<std::string, int> processes;  // number of processes, by reason
  for (const auto& [name, time] : off_files(directory)) {
    const auto before = earlier.find(name);
    if (before != earlier.end() && before->second == time) continue;
    if (may_belong_to(directory, name, launcher_id)) ++processes[reason_of(name)];
  }
  std::vector<std::string> lines;
  for (const auto& [reason, count] : processes) {
    lines.push_back("monitoring was off in " + std::to_string(count) +
                    (count == 1 ? " process (" : " processes (") + reason + "): " + advice_for(reason));
  }
  return lines;
}

std::string other_ranks_line() {
  return "nothing to report here: the training was started by another `foreshock run` of this run id, inside "
         "the command or beside it, which reports it";
}

std::string no_segment_line(const std::string& directory) {
  struct statvfs info = {};
  if (statvfs(directory.c_str(), &info) == 0 && info.f_files > 0 && info.f_favail == 0)
    return "nothing to report: the tmpfs of " + directory + " has no inode left, so no segment could be made";
  return "nothing to report: the command made no optimizer step and no attention call that needs gradients "
         "(inference is not followed); `foreshock doctor -- COMMAND` reports what will be seen";
}

}  // namespace foreshock::cli
