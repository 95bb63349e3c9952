// The two clocks of the trainer's side. Only read at set-up, at steps, and in sampled calls.
#ifndef FORESHOCK_LIBMONITOR_CLOCKS_H_
#define FORESHOCK_LIBMONITOR_CLOCKS_H_

#include <time.h>

#include <cstdint>

namespace foreshock {

inline uint64_t clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// For lengths of time.
inline uint64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// For points in time that another process reads.
inline uint64_t realtime_ns() { return clock_ns(CLOCK_REALTIME); }

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CLOCKS_H_
