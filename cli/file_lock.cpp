#include "cli/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

namespace foreshock::cli {

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    release();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

bool FileLock::try_lock(const std::string& path, int operation) {
  release();
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return false;
  if (flock(descriptor, operation | LOCK_NB) != 0) {
    close(descriptor);
    return false;
  }
  descriptor_ = descriptor;
  return true;
}

bool FileLock::lock_within(const std::string& path, int operation, int timeout_ms) {
  constexpr int kPauseMs = 10;
  for (int waited = 0;; waited += kPauseMs) {
    if (try_lock(path, operation)) return true;
    if (waited >= timeout_ms) return false;
    const timespec pause = {0, kPauseMs * 1000000};
    nanosleep(&pause, nullptr);
  }
}

void FileLock::release() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

bool is_locked(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) return false;
  FileLock probe;
  return !probe.try_lock(path, LOCK_SH);
}

}  // namespace foreshock::cli
