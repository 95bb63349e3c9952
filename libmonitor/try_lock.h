// A lock that nobody waits for: what cannot have it at once goes without.
#ifndef FORESHOCK_LIBMONITOR_TRY_LOCK_H_
#define FORESHOCK_LIBMONITOR_TRY_LOCK_H_

#include <atomic>

namespace foreshock {

class TryLock {
 public:
  explicit TryLock(std::atomic_flag& flag)
      : flag_(flag), owned_(!flag.test_and_set(std::memory_order_acquire)) {}
  ~TryLock() {
    if (owned_) flag_.clear(std::memory_order_release);
  }
  TryLock(const TryLock&) = delete;
  TryLock& operator=(const TryLock&) = delete;
  explicit operator bool() const { return owned_; }

 private:
  std::atomic_flag& flag_;
  bool owned_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_TRY_LOCK_H_
