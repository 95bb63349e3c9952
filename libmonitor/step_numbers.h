// Selects the loss of a step among the observed values, stores the observations of steps whose numbers
// (losses, gradient norms, results of a gradient scaler) are still on a device, and stores numbers that the
// training logs. One writer at a time.
#ifndef FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_
#define FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_

#include <cstdint>
#include <optional>

#include "foreshock/hook.h"
#include "libmonitor/base.h"
#include "segment/layout.h"

namespace foreshock {

// Selects the loss of a step. The sources, best first, are: a value reported by the trainer, the output of a
// cross-entropy operation, the root (the tensor on which backward() is called), a value that the training
// logs. The source is chosen once for the life of the process; only a reported value can replace it:
//   - A reported value decides at once.
//   - Without one, the first backward pass with a finite root decides. Its cross-entropy is the loss if the
//     root equals the cross-entropy divided by a whole number (accumulation) or times a power of two
//     (gradient scaler). If not, for example with label smoothing or auxiliary losses, the root is the loss.
//   - A root that is not finite decides only if no scaler has multiplied it and the cross-entropy is finite.
//   - A step without a root chooses its cross-entropies, if it has any.
//   - Until a source is chosen, a logged value is the loss of a step that has no usable cross-entropies, for
//     example while other values are on a device.
// The loss of a step is the mean of the values of the chosen source. If these are cross-entropies that the
// training sums over targets (observe_sum()), it is the mean over all targets. A root may be only a share of
// the loss:
//   - Some trainers (the Hugging Face Trainer) sum the cross-entropy over the targets of a micro-batch, and
//     divide it by the targets of the whole step. Such roots must be added. The first step with several of
//     them decides: the sum or the mean of its roots, whichever is nearer to the mean over all targets.
//   - Roots that the trainer divides by a whole number (loss / 4) are shares if a step has exactly that
//     number of roots. From then on each root with this divisor counts undivided, even in a shorter last step
//     of an epoch. A divisor that never equals the number of roots (a batch size) is part of the loss.
class LossTracker {
 public:
  void observe(double value, uint32_t source);  // FORESHOCK_LOSS_...
  void observe_sum(double sum, double weight);  // a cross-entropy summed over targets with this total weight
  // The next observed root was divided by this number; 1: no gradient scaler has multiplied it.
  void observe_divisor(double divisor);

  // The gradient that an optimizer used was the sum of so many contributions of backward passes.
  void observe_summed(uint32_t contributions) { summed_contributions_ = contributions; }

  // Drops the values observed since the last take(), because they do not belong to a step.
  void forget_step();

  // Gets the loss since the last call and its source. Returns false if no value was observed.
  [[gnu::hot]] bool take(double* loss, uint32_t* source);

  // The sum of the roots of a step, divided by its mean cross-entropy, if this has been the same number other
  // than 1 in kFactorSteps steps in a row. Unknown with a gradient scaler, with several losses per root, and
  // with several roots that are not known to add to one gradient: those of autograd.grad() (adversarial
  // training) do not, and others are dropped (sharpness-aware minimisation).
  std::optional<double> factor() const;

 private:
  // A factor counts if it differs from 1 by more than kLeastFactor and stays the same within kSameFactor.
  // Losses that are divided by the number of micro-batches give 1. Losses in fp32 give the factor to 2^-23
  // for each root. An auxiliary loss has another share of the loss in each step.
  static constexpr uint64_t kFactorSteps = 64;
  // The trainer of Hugging Face counts the first label of each of its sequences, which is not a target. So it
  // has the factor (length - 1) / length, which is nearer to 1 than kLeastFactor from 4 tokens on.
  static constexpr double kLeastFactor = 0.25, kSameFactor = 1e-4;
  // The source of summed cross-entropies, published as FORESHOCK_LOSS_NLL.
  static constexpr uint32_t kSummed = FORESHOCK_LOSS_LOGGED + 1;
  struct Mean {
    void add(double value, double added_weight) { sum += value, weight += added_weight; }
    double sum = 0, weight = 0;
  };
  enum class RootMeaning { kUnknown, kWhole, kShares };  // each root is a whole loss, or a share of it
  struct DividedRoots {
    double divisor = 0;  // NaN if the roots have different divisors
    double count = 0;    // number of divided roots
  };
  void choose_source(double root);
  void choose_root_meaning();
  void follow_factor();

  uint32_t chosen_source_ = 0;       // FORESHOCK_LOSS_... or kSummed; 0: not chosen yet
  double accumulation_divisor_ = 0;  // the divisor that has equalled the number of roots; 0: none
  DividedRoots divided_roots_;       // of this step
  RootMeaning root_meaning_ = RootMeaning::kUnknown;  // decided by the cross-entropies summed over targets
  Mean mean_by_source_[kSummed + 1];                  // of this step
  double last_nll_ = 0;                               // the last cross-entropy (nll: negative log likelihood)
  uint64_t nlls_since_root_ = 0;                      // cross-entropies since the last root
  bool root_is_unscaled_ = false;                     // the next root, see observe_divisor()
  double factor_ = 1;                                 // of the last step, see factor()
  uint64_t factor_steps_ = 0;                         // steps in a row with this factor
  uint32_t summed_contributions_ = 0;                 // observe_summed(); 0: unknown
};

// A loss, norm, scale or divisor. While `value` is still on a device, it has no meaning here.
struct PendingNumber {
  double value;
  uint64_t number;  // from foreshock_fetch, to find the value later; 0: `value` is valid
};

// An observation that is applied when all numbers of its step have arrived.
struct PendingEvent {
  // kSkip: the step was skipped if `value` is not 0. kSum: a summed cross-entropy. kDivisor: the divisor of
  // the next root. kOtherOptimizer: the earlier losses belong to another optimizer. The values differ from
  // those of FORESHOCK_LOSS_...
  static constexpr uint32_t kSkip = 0, kSum = ~0u, kDivisor = ~1u, kOtherOptimizer = ~2u;
  uint32_t source;  // one of the constants above, or FORESHOCK_LOSS_...: a loss
  PendingNumber value;
  PendingNumber scale;  // the loss is value times scale; kSum: total weight of the targets
  // Whether `scale` comes from a gradient scaler. If the optimizer itself divides by the scale, the scaler
  // then reports 1. So with a scale of 1 the true scale is unknown, and so is the loss.
  bool is_scaled;
};

struct PendingGradient {
  int32_t layer;    // index in LayerTable; -1: unknown
  bool is_squared;  // `norm` is a sum of squares, not its root
  PendingNumber norm;

  double square() const { return is_squared ? norm.value : norm.value * norm.value; }
};

// The observations, in order, of a step some of whose numbers are still on a device.
struct PendingStep {
  static constexpr uint32_t kMostEvents = 512, kMostGradients = 4096;  // as GradientReadback::kMostTensors

  uint64_t record;             // number of the step's record in the segment; 0: step has not ended
  segment::StepRecord so_far;  // the record as it was written, without the missing numbers
  uint32_t event_count, gradient_count;
  bool has_all_events, has_all_gradients;  // false: the array had no room for some of them
  PendingEvent* event;                     // array of kMostEvents, or null
  PendingGradient* gradient;               // array of kMostGradients, or null

  void clear();
  void begin_gradients() { gradient_count = 0, has_all_gradients = true; }
  void add(const PendingEvent& added);
  void add(const PendingGradient& added);

  // Stores the missing values that find(number, &value) finds. Returns true if no value is missing
  // afterwards.
  bool store_arrived(const auto& find) {
    bool all_found = true;
    const auto store_one = [&](PendingNumber* pending) {
      if (pending->number == 0) return;
      if (find(pending->number, &pending->value))
        pending->number = 0;
      else
        all_found = false;
    };
    for (uint32_t n = 0; n < event_count; ++n) store_one(&event[n].value), store_one(&event[n].scale);
    for (uint32_t n = 0; n < gradient_count; ++n) store_one(&gradient[n].norm);
    return all_found;
  }

  // Returns how many missing values satisfy is_counted(number). Consecutive equal numbers count once: a
  // cross-entropy that is also the root of its backward pass is observed twice, and a scale once per use.
  uint32_t count_missing(const auto& is_counted) const {
    uint32_t count = 0;
    uint64_t last_value = 0, last_scale = 0, last_norm = 0;
    const auto count_one = [&](const PendingNumber& pending, uint64_t* last) {
      count += pending.number != 0 && pending.number != *last && is_counted(pending.number);
      *last = pending.number;
    };
    for (uint32_t n = 0; n < event_count; ++n)
      count_one(event[n].value, &last_value), count_one(event[n].scale, &last_scale);
    for (uint32_t n = 0; n < gradient_count; ++n) count_one(gradient[n].norm, &last_norm);
    return count;
  }

  // Whether all numbers of one kind were stored and have arrived.
  bool knows_losses() const;     // losses, with known scales
  bool knows_gradients() const;  // gradient norms
  bool knows_skips() const;      // results of a gradient scaler
};

// The open step, which has not ended, and earlier steps that wait for numbers from a device. The memory is
// fixed, and mapped at the first such number, so a training without a device needs none. Thread-compatible.
class PendingSteps {
 public:
  static constexpr uint32_t kMost = segment::kMostPendingSteps;

  PendingStep& open() { return at(count_); }
  // Returns the open step, with arrays for its observations if they could be mapped.
  PendingStep& open_with_room() {
    reserve();
    return open();
  }
  bool has_waiting() const { return count_ > 0; }  // whether an ended step waits
  bool is_full() const { return count_ == kMost; }
  PendingStep& oldest() { return at(0); }

  // Ends the open step, whose record is `number`, and begins the next one. Must not be called if is_full().
  void end_step(uint64_t number, const segment::StepRecord& so_far);
  void drop_oldest();
  void forget();  // drops all steps, the open one included

 private:
  void reserve();
  PendingStep& at(uint32_t n) { return steps_[(first_ + n) % (kMost + 1)]; }

  uint32_t first_ = 0, count_ = 0;     // index of the oldest step that waits; number of those that wait
  PendingStep steps_[kMost + 1] = {};  // a ring: the steps that wait, then the open step
  MmapBuffer memory_;
};

// The last kMost values that the training has read from the device, by their numbers. Thread-compatible.
class TrainerReadbacks {
 public:
  void add(uint64_t number, double value) { found_[next_++ % kMost] = {value, number}; }
  bool find(uint64_t number, double* value) const;

 private:
  static constexpr uint32_t kMost = 64;
  PendingNumber found_[kMost] = {};
  uint32_t next_ = 0;
};

// Stores the named numbers that the training logs. A value stays until the next step record takes it, a name
// for the life of the segment. One caller at a time.
class Scalars {
 public:
  // Drops all names and values. New names are stored in `names`, an array of kMaxScalars.
  void attach(segment::ScalarName* names);

  // Stores the value for the step that ends next. `step`: the step number that the training logs with it; -1:
  // none. Returns false if the name is empty or the table of names is full. A name too long for the segment
  // is cut. If the cut name is already used, a number is appended.
  bool observe(const char* name, double value, int64_t step);

  // Moves the values observed since the last call into the record.
  void take(segment::StepRecord* record);

 private:
  int index_of(const char* name);        // adds an unknown name; -1: the table is full
  bool is_taken(const char* cut) const;  // whether the cut name is already used

  segment::ScalarName* names_ = nullptr;                                    // in the image of the segment
  char cut_[segment::kMaxScalars][sizeof(segment::ScalarName::name)] = {};  // the same names
  uint64_t hash_[segment::kMaxScalars] = {};                                // hashes of the uncut names
  uint32_t known_ = 0;                                                      // number of names
  uint32_t given_bits_ = 0;  // bit n: value_[n] was observed since the last take()
  double value_[segment::kMaxScalars] = {};
  int64_t step_[segment::kMaxScalars] = {};
};

enum class Logged { kOther, kLoss, kGradientNorm };

// Classifies a logged number by its name. Recognizes the names that widely used trainers give to their
// training loss and to the gradient norm before clipping: "loss", "train/loss", "lm loss", "train/grad_norm",
// ... Returns kOther for validation values, unknown names and null, since a wrong loss is worse than no loss.
Logged logged_as(const char* name);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_STEP_NUMBERS_H_
