#include "cli/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kBaseLockTimeoutMs = 10000;  // a leaving run holds it while its agent ends
constexpr int kAgentEndTimeoutMs = 5000;
constexpr int kAgentDeathTimeoutMs = 1000;
constexpr int kProbeTimeoutMs = 100;  // the agent looks at run.lock by taking it for a moment

// The trainer locks its segment through one descriptor that it never reopens; we never map or lock it.
bool is_live(const fs::path& segment) {
  const int descriptor = open(segment.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  const bool live = fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(descriptor);
  return live;
}

// Where there is no lock file there never was an agent, and no inode to make one, perhaps. Nobody starts an
// agent meanwhile: runs do, and there is none.
bool agent_is_gone(const std::string& directory, int timeout_ms) {
  FileLock agent;
  return access((directory + "/agent.lock").c_str(), F_OK) != 0 ||
         agent.lock_within(directory + "/agent.lock", LOCK_EX, timeout_ms);
}

}  // namespace

bool is_shared_with_group(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & S_ISGID) != 0;
}

bool has_live_segment(const std::string& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".seg" && is_live(entry.path())) return true;
  }
  return false;
}

bool remove_if_stale(const std::string& directory) {
  // Only what a run has made: the base may be a directory that somebody else also uses.
  if (access((directory + "/run.lock").c_str(), F_OK) != 0) return false;
  FileLock runs;
  if (!runs.try_lock(directory + "/run.lock", LOCK_EX) || !agent_is_gone(directory, 0) ||
      has_live_segment(directory)) {
    return false;
  }
  std::error_code error;
  fs::remove_all(directory, error);
  return !error;
}

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
    std::error_code unknown;
    if (entry.is_directory(unknown) && !entry.is_symlink(unknown)) remove_if_stale(entry.path());
  }
  if (error) return base + " cannot be read: " + error.message();
  if (make_directory() != 0 && errno != EEXIST) return path_ + ": " + std::strerror(errno);
  if (!use_.lock_within(path_ + "/run.lock", LOCK_SH, kProbeTimeoutMs))
    return path_ + "/run.lock cannot be taken";
  if (is_shared_with_group(path_)) chmod((path_ + "/run.lock").c_str(), 0660);
  return "";
}

// Below a set-group-id directory the group is a service's, which follows the run without being root. The new
// one inherits bit and group; a chmod by one who is not of that group would take the bit away.
int RunDirectory::make_directory() const {
  const mode_t before = umask(is_shared_with_group(base_) ? 07 : 077);
  const int result = mkdir(path_.c_str(), 0770);
  const int error = errno;
  umask(before);
  errno = error;
  return result;
}

bool RunDirectory::leave(const std::function<void()>& stuck) {
  FileLock base_lock;
  if (!base_lock.lock_within(base_ + "/lock", LOCK_EX, kBaseLockTimeoutMs)) return false;
  use_.release();
  FileLock alone;  // nobody new can come while we hold the base
  if (!alone.lock_within(path_ + "/run.lock", LOCK_EX, kProbeTimeoutMs) || has_live_segment(path_))
    return false;
  alone.release();  // the agent ends when no run holds this lock
  if (!has_service_ && !agent_is_gone(path_, kAgentEndTimeoutMs)) {
    if (stuck == nullptr) return false;
    stuck();
    if (!agent_is_gone(path_, kAgentDeathTimeoutMs)) return false;
  }
  std::error_code error;
  fs::remove_all(path_, error);
  return !error;
}

}  // namespace foreshock::cli
