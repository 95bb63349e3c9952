// An flock held by one descriptor, released with it.
#ifndef FORESHOCK_CLI_FILE_LOCK_H_
#define FORESHOCK_CLI_FILE_LOCK_H_

#include <string>
#include <utility>

namespace foreshock::cli {

class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { release(); }

  // Opens (creates, mode 0600) and tries the lock: LOCK_SH or LOCK_EX. False: somebody else holds it, or no
  // file.
  bool try_lock(const std::string& path, int operation);
  // The same, trying again for up to `timeout_ms`.
  bool lock_within(const std::string& path, int operation, int timeout_ms);
  void release();
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Whether another process holds an exclusive flock on `path`. Must not be asked where a momentary lock of
// ours could make that process give up.
bool is_locked(const std::string& path);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_FILE_LOCK_H_
