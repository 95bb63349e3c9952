// What belongs to a step and is still on a device when the step ends: losses, norms of gradients, whether a
// gradient scaler leaves a step out. Kept in the order in which it was told, until every number has come or
// is given up; then it counts as it would have at once. The room is fixed, and taken from the kernel when the
// first number is awaited: a training without a device needs none of it.
#ifndef FORESHOCK_LIBMONITOR_LATE_STEPS_H_
#define FORESHOCK_LIBMONITOR_LATE_STEPS_H_

#include <cstdint>

#include "libmonitor/private_memory.h"
#include "segment/layout.h"

namespace foreshock {

// A number that is there, or the number that it is found by.
struct LateNumber {
  double value;
  uint64_t number;  // 0: it is there
};

// A loss, a summed cross-entropy (kSum), or that a step was left out (kSkip; then `value` is not 0).
struct LateEvent {
  static constexpr uint32_t kSkip = 0, kSum = ~0u;
  uint32_t source;  // FORESHOCK_LOSS_..., kSkip, kSum
  LateNumber value;
  LateNumber scale;  // the loss is value times this; of a sum the weight of its targets
  // By a number of its own. 1 then tells nothing: a gradient scaler gives it out for what an optimizer shall
  // divide by the scale itself.
  bool is_scaled;
};

struct LateGradient {
  int32_t layer;
  bool is_squared;  // a sum of squares, not the root of it
  LateNumber norm;

  double square() const { return is_squared ? norm.value : norm.value * norm.value; }
};

struct LateStep {
  static constexpr uint32_t kMostEvents = 512, kMostGradients = 4096;

  uint64_t record;                 // its number in the ring of steps; 0: the step has not ended
  segment::StepRecord so_far;      // what it was appended with
  uint32_t events, gradients;      // how many there are
  bool has_events, has_gradients;  // all of them: there was room
  bool is_late;                    // a number was to come when it was told
  LateEvent* event;                // room for kMostEvents, or null
  LateGradient* gradient;          // for kMostGradients, or null

  void clear();
  void begin_gradients() { gradients = 0, has_gradients = true; }
  void add(const LateEvent& added);
  void add(const LateGradient& added);

  // Looks for what has not come: find(number, &value). True when nothing is missing any more.
  bool look(const auto& find) {
    bool all = true;
    const auto look_for = [&](LateNumber* one) {
      if (one->number == 0) return;
      if (find(one->number, &one->value))
        one->number = 0;
      else
        all = false;
    };
    for (uint32_t n = 0; n < events; ++n) look_for(&event[n].value), look_for(&event[n].scale);
    for (uint32_t n = 0; n < gradients; ++n) look_for(&gradient[n].norm);
    return all;
  }

  // How many numbers are missing for which is(number) holds. A cross-entropy that is also the root of its
  // backward pass is told twice, one after the other, and a scale as often as it is used.
  uint32_t missing(const auto& is) const {
    uint32_t count = 0;
    uint64_t last_value = 0, last_scale = 0, last_norm = 0;
    const auto see = [&](const LateNumber& one, uint64_t* last) {
      count += one.number != 0 && one.number != *last && is(one.number);
      *last = one.number;
    };
    for (uint32_t n = 0; n < events; ++n) see(event[n].value, &last_value), see(event[n].scale, &last_scale);
    for (uint32_t n = 0; n < gradients; ++n) see(gradient[n].norm, &last_norm);
    return count;
  }

  // Whether every loss, every norm, every answer of a scaler is there.
  bool knows_losses() const;
  bool knows_gradients() const;
  bool knows_skips() const;
};

// The step that has not ended, and those before it that wait for a number. Thread-compatible.
class LateSteps {
 public:
  static constexpr uint32_t kMost = segment::kMostPendingSteps;

  LateStep& open() { return at(count_); }
  // The same with room in it, if there is any to be had.
  LateStep& open_with_room() {
    reserve();
    return open();
  }
  bool has_ended() const { return count_ > 0; }
  bool is_full() const { return count_ == kMost; }
  LateStep& oldest() { return at(0); }

  // The open step has ended as record `number`, and another one begins. Not when it is full.
  void end_step(uint64_t number, const segment::StepRecord& so_far);
  void drop_oldest();
  void forget();

 private:
  void reserve();
  LateStep& at(uint32_t n) { return steps_[(first_ + n) % (kMost + 1)]; }

  uint32_t first_ = 0, count_ = 0;
  LateStep steps_[kMost + 1] = {};
  PrivateMemory room_;
};

// Numbers that the training itself has waited for, by what they would be found by. Thread-compatible.
class FetchedByTraining {
 public:
  void add(uint64_t number, double value) { found_[next_++ % kMost] = {value, number}; }
  bool find(uint64_t number, double* value) const;

 private:
  static constexpr uint32_t kMost = 64;
  LateNumber found_[kMost] = {};
  uint32_t next_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LATE_STEPS_H_
