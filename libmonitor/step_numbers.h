// Which of the values that look like a loss is the loss, and what it was in a step. One writer at a time.
#ifndef FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_
#define FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_

#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "segment/layout.h"

namespace foreshock {

// Sources, best first: reported by the trainer, the output of a cross-entropy op, the root of backward(),
// what the training logs. The source is settled by the first backward pass whose values are seen and kept for
// the life of the process; what is logged is the loss as long as none is settled, as where all others lie on
// a device that nobody waits for:
//   - a report settles it at once;
//   - a cross-entropy is the loss if the root of the same backward is that value over a whole number
//   (accumulation)
//     or times a power of two (gradient scaler); label smoothing, auxiliary losses and the like fail this
//     test, and then the root is the loss.
// Of cross-entropies that are summed over their targets the root is the loss. Who divides them by the targets
// of a whole step (the Hugging Face Trainer) makes each root a share of it, to be added; the first step of
// several micro-batches tells: what their roots add up to is nearer to the mean over all targets, or what
// they are in the mean. That mean is the loss where there are no roots.
// Roots that are divided by a whole number (loss / 4) are shares of their mean if a step has just as many of
// them. From then on each root with this divisor counts undivided, also in a shorter last step of an epoch. A
// constant divisor that is never the number of roots, such as a batch size, is part of the loss.
class LossTracker {
 public:
  void observe(double value, uint32_t source);  // FORESHOCK_LOSS_...
  void observe_sum(double sum, double weight);  // over targets that weigh so much
  // The root that is observed next is the loss of its micro-batch divided by this number.
  void observe_divisor(double divisor);

  // Whether the trainer tells it, so that no other is wanted.
  bool is_reported() const;

  // What was observed since the last take() belongs to no step.
  void forget_step();

  // The mean over the micro-batches (the sum of shares) since the last call of this, or false when the step
  // had none.
  bool take(double* loss, uint32_t* source);

 private:
  static constexpr uint32_t kSummed = FORESHOCK_LOSS_LOGGED + 1;  // told as FORESHOCK_LOSS_NLL
  struct Mean {
    void add(double value, double by) { sum += value, weight += by; }
    double sum = 0, weight = 0;
  };
  enum class Roots { kUnknown, kWhole, kShares };
  struct Divided {
    double by = 0;  // NaN if the roots have different divisors
    double count = 0;
  };
  void settle(double root);
  void settle_roots();

  uint32_t settled_ = 0;
  double accumulation_ = 0;  // the divisor that was seen to be the number of roots; 0: none
  Divided divided_;          // roots of this step
  Roots roots_ = Roots::kUnknown;
  Mean mean_[kSummed + 1];  // by source
  double last_nll_ = 0;
  uint64_t nll_since_root_ = 0;
};

// What belongs to a step and is still on a device when the step ends: losses, norms of gradients, whether a
// gradient scaler leaves a step out. Kept in the order in which it was told, until every number has come or
// is given up; then it counts as it would have at once. The room is fixed, and taken from the kernel when the
// first number is awaited: a training without a device needs none of it.

// A number that is there, or the number that it is found by.
struct PendingNumber {
  double value;
  uint64_t number;  // 0: it is there
};

// A loss, a summed cross-entropy (kSum), the divisor of the next root (kDivisor), that those before are of
// another optimizer (kOfAnother), or that a step was left out (kSkip; then `value` is not 0).
struct PendingEvent {
  static constexpr uint32_t kSkip = 0, kSum = ~0u, kDivisor = ~1u, kOfAnother = ~2u;
  uint32_t source;  // FORESHOCK_LOSS_..., or one of these
  PendingNumber value;
  PendingNumber scale;  // the loss is value times this; of a sum the weight of its targets
  // By a number of its own. 1 then tells nothing: a gradient scaler gives it out for what an optimizer shall
  // divide by the scale itself.
  bool is_scaled;
};

struct PendingGradient {
  int32_t layer;
  bool is_squared;  // a sum of squares, not the root of it
  PendingNumber norm;

  double square() const { return is_squared ? norm.value : norm.value * norm.value; }
};

struct PendingStep {
  static constexpr uint32_t kMostEvents = 512, kMostGradients = 4096;

  uint64_t record;                 // its number in the ring of steps; 0: the step has not ended
  segment::StepRecord so_far;      // what it was appended with
  uint32_t events, gradients;      // how many there are
  bool has_events, has_gradients;  // all of them: there was room
  bool is_late;                    // a number was to come when it was told
  PendingEvent* event;             // room for kMostEvents, or null
  PendingGradient* gradient;       // for kMostGradients, or null

  void clear();
  void begin_gradients() { gradients = 0, has_gradients = true; }
  void add(const PendingEvent& added);
  void add(const PendingGradient& added);

  // Looks for what has not come: find(number, &value). True when nothing is missing any more.
  bool look(const auto& find) {
    bool all = true;
    const auto look_for = [&](PendingNumber* one) {
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
    const auto see = [&](const PendingNumber& one, uint64_t* last) {
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
class PendingSteps {
 public:
  static constexpr uint32_t kMost = segment::kMostPendingSteps;

  PendingStep& open() { return at(count_); }
  // The same with room in it, if there is any to be had.
  PendingStep& open_with_room() {
    reserve();
    return open();
  }
  bool has_ended() const { return count_ > 0; }
  bool is_full() const { return count_ == kMost; }
  PendingStep& oldest() { return at(0); }

  // The open step has ended as record `number`, and another one begins. Not when it is full.
  void end_step(uint64_t number, const segment::StepRecord& so_far);
  void drop_oldest();
  void forget();

 private:
  void reserve();
  PendingStep& at(uint32_t n) { return steps_[(first_ + n) % (kMost + 1)]; }

  uint32_t first_ = 0, count_ = 0;
  PendingStep steps_[kMost + 1] = {};
  MmapBuffer room_;
};

// Numbers that the training itself has waited for, by what they would be found by. Thread-compatible.
class TrainerReadbacks {
 public:
  void add(uint64_t number, double value) { found_[next_++ % kMost] = {value, number}; }
  bool find(uint64_t number, double* value) const;

 private:
  static constexpr uint32_t kMost = 64;
  PendingNumber found_[kMost] = {};
  uint32_t next_ = 0;
};

// The named numbers that the training itself logs, until the record of a step takes them along.

// One caller at a time. Names stay for the life of the segment, values until take().
class Scalars {
 public:
  // Forgets everything and stores names into `names` (kMaxScalars of them) from now on.
  void attach(segment::ScalarName* names);

  // Keeps the value for the step that ends next. False: no name, or no room for another one. Of a name too
  // long for the segment the beginning is kept; where that is another's already, with a number at its end.
  bool observe(const char* name, double value, int64_t step);

  // Moves what was observed since the last call into the record.
  void take(segment::StepRecord* record);

 private:
  int index_of(const char* name);
  bool is_taken(const char* cut) const;

  segment::ScalarName* names_ = nullptr;
  uint64_t hash_[segment::kMaxScalars] = {};  // of the whole names
  uint32_t known_ = 0;
  uint32_t given_ = 0;
  double value_[segment::kMaxScalars] = {};
  int64_t step_[segment::kMaxScalars] = {};
};

// What a number is that the training logs, by the name it logs it under.

enum class Logged { kOther, kLoss, kGradientNorm };

// "loss", "train/loss", "lm loss", "train/grad_norm", ...: what trainers in wide use call their training loss
// and the norm of the gradient before clipping. What it says of a validation set is kOther; so is any name
// that is not known, for a wrong loss is worse than none. Null: kOther.
Logged logged_as(const char* name);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_
