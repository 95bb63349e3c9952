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

std::string RunDirectory::enter(const std::string& base, const std::string& run_id) {
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
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return path_ + ": " + std::strerror(errno);
  if (!use_.lock_within(path_ + "/run.lock", LOCK_SH, kProbeTimeoutMs))
    return path_ + "/run.lock cannot be taken";
  return "";
}

bool RunDirectory::leave(const std::function<void()>& stuck) {
  FileLock base_lock;
  if (!base_lock.lock_within(base_ + "/lock", LOCK_EX, kBaseLockTimeoutMs)) return false;
  use_.release();
  FileLock alone;  // nobody new can come while we hold the base
  if (!alone.lock_within(path_ + "/run.lock", LOCK_EX, kProbeTimeoutMs) || has_live_segment(path_))
    return false;
  alone.release();  // the agent ends when no run holds this lock
  if (!agent_is_gone(path_, kAgentEndTimeoutMs)) {
    if (stuck == nullptr) return false;
    stuck();
    if (!agent_is_gone(path_, kAgentDeathTimeoutMs)) return false;
  }
  std::error_code error;
  fs::remove_all(path_, error);
  return !error;
}

}  // namespace foreshock::cli
