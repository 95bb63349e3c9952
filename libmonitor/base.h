// Basic tools of libforeshock.so: clocks, a try-lock, memory from the kernel, and macros for forwarding
// unknown arguments. Clocks are read only at set-up, at steps and in sampled calls.
#ifndef FORESHOCK_LIBMONITOR_BASE_H_
#define FORESHOCK_LIBMONITOR_BASE_H_

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace foreshock {

inline uint64_t clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// For durations within this process.
inline uint64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// For timestamps that another process reads.
inline uint64_t realtime_ns() { return clock_ns(CLOCK_REALTIME); }

// Tries to take a lock and never waits. If another thread holds the lock, the caller must skip its work.
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

// Zeroed memory from the kernel, not from the trainer's allocator. Pages are allocated at first access. For
// set-up only. Not freed at the end, since threads may still run while the process ends. Thread-compatible.
class MmapBuffer {
 public:
  // Provides at least `bytes`. If the buffer must grow, earlier content is lost; otherwise it stays. Returns
  // false if there is no memory; the buffer is then empty.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_ && data_ != nullptr) return true;
    if (data_ != nullptr) munmap(data_, bytes_);
    void* map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = map == MAP_FAILED ? nullptr : static_cast<char*>(map);
    bytes_ = data_ == nullptr ? 0 : bytes;
    // Some users touch few pages of a buffer (sparse counters). Without huge pages, a page that is only read
    // maps the kernel's shared page of zeros.
    if (data_ != nullptr) madvise(data_, bytes_, MADV_NOHUGEPAGE);
    return data_ != nullptr;
  }
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Remembers steps in which a thread could not take a lock, for the next thread that can. A step is kept once.
// At most eight steps are kept; further ones are dropped. Any thread.
class DeferredSteps {
 public:
  void add(int64_t step) {
    for (auto& place : places_) {
      int64_t found = kNone;
      if (place.compare_exchange_strong(found, step + kOffset) || found == step + kOffset) return;
    }
  }
  // Removes every step and calls take(step) for it.
  void take(const auto& take) {
    for (auto& place : places_)
      if (const int64_t found = place.exchange(kNone); found != kNone) take(found - kOffset);
  }

 private:
  static constexpr int64_t kNone = 0,
                           kOffset = 2;  // a place holds step + kOffset: a step may be -1 (unknown)
  std::atomic<int64_t> places_[8] = {};
};

// Macros for a function that forwards its arguments without knowledge of their types. The function forwards
// every word that its caller may have set: integer registers, floating-point registers, and words of the
// stack. Stack words beyond the arguments belong to the caller's frame; copying them has no effect.

using Word = uint64_t;

#if defined(__x86_64__)
#define FORESHOCK_INTEGERS(X) X(w0), X(w1), X(w2), X(w3), X(w4), X(w5)
inline constexpr int kIntegerRegisters = 6;
#elif defined(__aarch64__)
#define FORESHOCK_INTEGERS(X) X(w0), X(w1), X(w2), X(w3), X(w4), X(w5), X(w6), X(w7)
inline constexpr int kIntegerRegisters = 8;
#else
#error "say here which integer arguments of a function this CPU keeps in registers"
#endif
#define FORESHOCK_DOUBLES(X) X(d0), X(d1), X(d2), X(d3), X(d4), X(d5), X(d6), X(d7)
#define FORESHOCK_WORD(name) foreshock::Word name
#define FORESHOCK_DOUBLE(name) double name
#define FORESHOCK_NAME(name) name
// Each file that uses these macros must define FORESHOCK_STACK(X), the list of stack words.
#define FORESHOCK_PARAMETERS \
  FORESHOCK_INTEGERS(FORESHOCK_WORD), FORESHOCK_DOUBLES(FORESHOCK_DOUBLE), FORESHOCK_STACK(FORESHOCK_WORD)
#define FORESHOCK_ARGUMENTS \
  FORESHOCK_INTEGERS(FORESHOCK_NAME), FORESHOCK_DOUBLES(FORESHOCK_NAME), FORESHOCK_STACK(FORESHOCK_NAME)

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BASE_H_
