// Turns of tensors that were given to devices and have not come back yet, in the order in which they were
// sent: it is that of their steps, in which an agent expects their records.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_ERRANDS_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_ERRANDS_H_

#include <cstdint>
#include <utility>

#include "libmonitor/weight_staging.h"

namespace foreshock {

// What the host knew of a tensor when its turn came.
struct WeightErrand {
  WeightWork work;
  SentWork sent;
  int place;                 // of its device among those that are sampled
  uint32_t number;           // of the tensor
  foreshock_tensor values;   // their data may be gone
  OptimizerState optimizer;  // as well
  int64_t step;
  uint64_t time_ns, interval;
  uint64_t launch_ns;     // of the host
  uint64_t round;         // of ended steps, when it was sent
  uint64_t host_records;  // written without a device until then
  bool is_forgotten;      // its tensor has another number by now, and its turn is counted
};

// Thread-compatible.
class WeightErrands {
 public:
  static constexpr uint32_t kMost = DeviceRing::kMostSlices;  // as a device holds; more devices share them

  uint32_t count() const { return count_; }
  // Where the next one is to be described; null: there are too many. Nothing is taken before push().
  WeightErrand* next() { return count_ == kMost ? nullptr : &at(count_); }
  void push() { ++count_; }

  WeightErrand* oldest() { return count_ == 0 ? nullptr : &at(0); }
  void pop() {
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  // Marks all of them. Returns how many were not.
  uint32_t forget() {
    uint32_t forgotten = 0;
    for (uint32_t n = 0; n < count_; ++n) forgotten += !std::exchange(at(n).is_forgotten, true);
    return forgotten;
  }
  void clear() { first_ = count_ = 0; }

 private:
  WeightErrand& at(uint32_t n) { return errands_[(first_ + n) % kMost]; }

  uint32_t first_ = 0, count_ = 0;
  WeightErrand errands_[kMost] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_ERRANDS_H_
