// Basic tools of libforeshock.so, the library in the trainer: clocks, a try-lock, memory from the kernel, and
// a set of deferred steps.
#ifndef FORESHOCK_LIBMONITOR_BASE_H_
#define FORESHOCK_LIBMONITOR_BASE_H_

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace foreshock {

constexpr double seconds(uint64_t ns) { return 1e-9 * static_cast<double>(ns); }

inline uint64_t clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// For durations within this process.
inline uint64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// For timestamps that another process reads.
inline uint64_t realtime_ns() { return clock_ns(CLOCK_REALTIME); }

// Tries to take a lock and never waits, since the library must not delay the trainer. If another thread holds
// the lock, the object is false and the caller must skip its work.
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

// Zeroed memory from the kernel, not from the trainer's allocator. Pages are allocated at first access. No
// destructor frees it, since threads may run while the process ends. Not thread-safe.
class MmapBuffer {
 public:
  // Provides at least `bytes`. If the buffer must grow, earlier content is lost. Returns false and leaves the
  // buffer empty if the kernel gives no memory. Makes system calls, so it is for set-up only.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_ && data_ != nullptr) return true;
    if (data_ != nullptr) munmap(data_, bytes_);
    void* map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = map == MAP_FAILED ? nullptr : static_cast<char*>(map);
    bytes_ = data_ == nullptr ? 0 : bytes;
    // Some buffers hold counters, most of which stay 0. Without huge pages, reading an untouched page
    // allocates no memory: the kernel maps its shared page of zeros.
    if (data_ != nullptr) madvise(data_, bytes_, MADV_NOHUGEPAGE);
    return data_ != nullptr;
  }
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// A set of step numbers: the steps in which a thread could not take a lock (TryLock). The next thread that
// takes the lock handles them. Holds at most eight steps; further ones are dropped. Thread-safe.
class DeferredSteps {
 public:
  void add(int64_t step) {
    for (auto& entry : entries_) {
      int64_t present = kNone;  // becomes the value of the entry if the entry is in use
      if (entry.compare_exchange_strong(present, step + kOffset) || present == step + kOffset) return;
    }
  }
  // Removes every step, and calls handle(step) for each.
  void take(const auto& handle) {
    for (auto& entry : entries_)
      if (const int64_t found = entry.exchange(kNone); found != kNone) handle(found - kOffset);
  }

 private:
  // An entry is step + kOffset, so that step -1 (unknown) and step 0 differ from an empty entry.
  static constexpr int64_t kNone = 0, kOffset = 2;
  std::atomic<int64_t> entries_[8] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BASE_H_
