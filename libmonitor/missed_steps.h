// Steps in which a thread found another one in its way, for whoever comes next.
#ifndef FORESHOCK_LIBMONITOR_MISSED_STEPS_H_
#define FORESHOCK_LIBMONITOR_MISSED_STEPS_H_

#include <atomic>
#include <cstdint>

namespace foreshock {

// Any thread. A step counts once; more than eight at a time are forgotten.
class MissedSteps {
 public:
  void add(int64_t step) {
    for (auto& place : places_) {
      int64_t found = kNone;
      if (place.compare_exchange_strong(found, step + kFirst) || found == step + kFirst) return;
    }
  }
  // Calls take(step) with each, once.
  void take(const auto& take) {
    for (auto& place : places_)
      if (const int64_t found = place.exchange(kNone); found != kNone) take(found - kFirst);
  }

 private:
  static constexpr int64_t kNone = 0, kFirst = 2;  // a step may be -1: not known
  std::atomic<int64_t> places_[8] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_MISSED_STEPS_H_
