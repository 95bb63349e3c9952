// Which steps, calls, heads and rows are looked at. Pure: the same seed and place give the same answer on
// every rank and in every rerun.
#ifndef FORESHOCK_LIBMONITOR_SAMPLING_H_
#define FORESHOCK_LIBMONITOR_SAMPLING_H_

#include <algorithm>
#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

inline constexpr int kRowsPerSample = 16;

// A well mixed word from four (splitmix64's finaliser applied in turn).
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

// A step is sampled when its absolute number is a multiple of the interval; an unknown step (negative) never
// is. Where the trainer tells one step of several, all up to the next one told go together: `steps` of them
// from `step` on are sampled when one of their numbers is such a multiple.
constexpr bool is_sampled_step(int64_t step, uint64_t interval, int64_t steps = 1) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t beyond = static_cast<uint64_t>(step) % interval;
  return (beyond == 0 ? 0 : interval - beyond) < static_cast<uint64_t>(steps);
}

// Within a sampled step, whether call number `call` gives a slice, so that exactly `slices` of the first
// `expected_calls` do (all, if there are fewer), evenly spread. Where they begin changes from step to step:
// every call has the same chance, and layers take turns.
bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls);

struct CallShape {
  int64_t batch, heads, kv_heads, queries, keys;
};

// The rows of one slice: heads x positions of one batch and kv-head, head-major.
struct Slice {
  int64_t batch = 0, kv_head = 0;
  int heads = 0, positions = 0;  // heads * positions <= 16
  int64_t first_head = 0;        // query heads first_head .. first_head + heads - 1
  int64_t position[kRowsPerSample] = {};
  // How these were chosen, for who must choose in a sequence of another length (kernels/gather.h).
  int parts = 0;
  uint32_t fraction[kRowsPerSample] = {};
  int rows() const { return heads * positions; }
};

// min(G, 16) query heads of one kv-head, and as many positions as still fit into 16 rows, one from each of so
// many equal parts of the sequence. All numbers of the shape are positive, and kv_heads divides heads.
Slice choose_slice(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank);

// Key positions of one kv-head and all query heads that share it: one from each of up to 16 equal parts of
// the keys.
Slice choose_columns(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank);

// Whether a backward call is sampled by key positions (dK and dV) and not by rows (dQ): every other call, and
// less often where the key positions take so many more bytes that they would cost more than the rows. The
// same on all ranks.
bool takes_columns(const CallShape& shape, int64_t head_dim, int64_t value_dim, uint64_t seed, int64_t step,
                   uint64_t call);

// Which sequence of a packed batch: the one that holds this place in all of them, a fraction of 2^32.
uint32_t choose_place(uint64_t seed, int64_t step, uint64_t call, int rank);

// The layer of a call that nothing else names: its place in the run of calls since the last turn of
// direction.

// Fed with every call of the sampled steps, in order. Forward calls count up from the last backward call,
// backward calls count down through the forward run before them. The length of a forward run is the period;
// only once two steps in a row have shown the same one is an ordinal given, and never again after it changed.
// Nor where a shorter run follows within a step: so does recomputation look that nobody has marked.
class OrdinalFollower {
 public:
  // At the start of a sampled step.
  void begin_step();

  // The next call, -1 where the place is not known. `in_backward`: a recomputation, which turns no direction.
  int next(bool backward, bool in_backward);

 private:
  static constexpr uint32_t kRunsToTrust = 2;
  void end_run();
  bool is_trusted() const { return !unstable_ && agreed_ >= kRunsToTrust; }

  uint32_t runs_ = 0;      // forward runs that have ended in this step
  uint32_t run_ = 0;       // forward calls since the last turn
  uint32_t backward_ = 0;  // backward calls since the last turn
  uint32_t last_run_ = 0;  // length of the forward run before this backward
  uint32_t period_ = 0;
  uint32_t agreed_ = 0;  // runs in a row of this period
  bool unstable_ = false;
};

// What the monitor costs the training, and whether it may sample again. Plain arithmetic on measured times.

// Enforced in the trainer, agent or no agent. Every step earns max_slowdown times its length and pays what
// was ours in it, sampled or not; a sampled step is allowed while nothing is owed, and may take as many
// slices as the balance is expected to pay for. What is saved up is at most one interval's
// earnings and what the least sample needs, so that a quiet hour does not pay for a dear minute. What is owed
// is at most 64 intervals' earnings, so that one stall (a page fault storm, a stopped process) does not
// silence the monitor for good.
class Budget {
 public:
  // `times` as much in a burst; but a limit stays one.
  void set_limit(double max_slowdown, double times = 1) {
    max_slowdown_ = std::max(max_slowdown, std::min(times * max_slowdown, kMostLimited));
  }

  // A step has ended: its length, what of it was ours, the sampling interval in force, and what a step with
  // one slice is expected to cost.
  void end_step(double step_seconds, double cost_seconds, uint64_t interval, double least_seconds = 0);

  // Whether the sampled step that begins now is allowed. A limit of 100 % allows everything, one of 0
  // nothing.
  bool allows() const { return is_unlimited() || (max_slowdown_ > 0 && balance_seconds_ >= 0); }
  bool is_unlimited() const { return max_slowdown_ >= 1; }

  // More is owed than 256 steps earn, or was and has not been paid yet: what nobody can refuse takes most of
  // the limit, and whoever has a share of his own waits. A stall is paid for by 512 steps at most, whatever
  // the interval.
  bool is_overdrawn() const { return !is_unlimited() && is_overdrawn_; }

  // What has been saved up; negative: owed.
  double balance_seconds() const { return balance_seconds_; }

 private:
  static constexpr double kMostLimited = 0.99;
  static constexpr double kWeight = 0.1;   // of a new step in the running mean of the step time
  static constexpr double kMostOwed = 64;  // earnings of an interval
  // Of those who wait: as much again, but of intervals of so many steps at most; half of it may be owed for a
  // while.
  static constexpr uint64_t kPatientInterval = 8;
  static constexpr int kFirstSteps =
      2;  // set-up falls into them: shown in the cost, not held against sampling

  double max_slowdown_ = 0.01;
  double step_seconds_ = 0;  // running mean, our part taken off
  double balance_seconds_ = 0;
  double patient_balance_ = 0;  // the same, of those who wait
  bool is_overdrawn_ = false;
  int steps_ = 0;
};

// Samples the first steps of a process whatever the interval, so that a short run is judged too. A fixed
// grant of seconds pays for everything the monitor does in them, set-up included, instead of the budget.
// Closes after kSteps sampled steps, or earlier once they hold kSlices slices and two of each call; after
// kMostSteps steps if nothing can be sampled in them; or when the grant is spent. What is left of the grant
// is forfeited. The steps are counted first, so that all ranks of a job sample the same ones.
class FirstLook {
 public:
  static constexpr int kSteps = 8, kMostSteps = 32;
  static constexpr uint64_t kSlices = 64;  // bounds what the agent judges; a verdict takes 8 of each pass

  // `is_wanted`: false if the user chose the sampled steps, or allows no cost.
  FirstLook() = default;
  explicit FirstLook(bool is_wanted) : steps_(is_wanted ? kSteps : 0) {}
  bool is_open() const { return steps_ > 0 && seconds_ > 0; }
  // What is left of the grant; 0 when closed.
  double seconds() const { return is_open() ? seconds_ : 0; }

  // Ends a step with `calls` attention calls, of which `slices` were copied. Returns the seconds of its cost
  // that the grant pays.
  double end_step(bool was_sampled, uint64_t calls, uint64_t slices, double cost_seconds) {
    if (!is_open()) return 0;
    const double paid = std::min(std::max(cost_seconds, 0.0), seconds_);
    seconds_ -= paid;
    slices_ += slices;
    if (was_sampled) --steps_;
    if (slices_ >= std::max(kSlices, 2 * calls) || ++ended_ == kMostSteps) steps_ = 0;
    return paid;
  }

 private:
  int steps_ = 0, ended_ = 0;
  uint64_t slices_ = 0;
  double seconds_ = segment::kFirstLookSeconds;
};

// What a sampled step will cost, from what earlier ones have cost. Plain arithmetic, fixed state, fitted as
// the training goes; until something was measured, from figures of a slow machine.

// One caller at a time. Seconds and bytes.
class CostModel {
 public:
  // Slices to come are of this size, until one was observed.
  void expect(uint64_t bytes) { bytes_ = static_cast<double>(bytes); }

  // A slice was taken. `cold`: into a slot that was never written before, whose pages the kernel had to map.
  void observe_slice(uint64_t bytes, bool cold, double seconds);

  // What slices have cost a device beside the host, each of so many the same.
  void observe_device(uint32_t slices, double seconds);

  // A step has ended: what was ours in it but for its slices.
  void observe_step(bool sampled, double seconds);

  // What the next slice will cost, and a sampled step beyond any other even with no slice in it.
  double slice_seconds(bool cold) const;
  double step_seconds() const;

  // How many slices a step may take that is to cost no more than `seconds`.
  uint32_t slices_within(double seconds, bool cold) const;

 private:
  double warm_seconds(double bytes) const;

  // Least squares of seconds over bytes, old observations fading; it begins with two that nobody made.
  static constexpr double kFading = 0.95;
  static constexpr double kFirstCall = 10e-6, kFirstPerByte = 0.3e-9, kFirstBytes = 1 << 20;
  double weight_ = 2, bytes_sum_ = kFirstBytes, bytes_squares_ = kFirstBytes * kFirstBytes;
  double seconds_sum_ = 2 * kFirstCall + kFirstPerByte * kFirstBytes;
  double products_sum_ = kFirstBytes * (kFirstCall + kFirstPerByte * kFirstBytes);
  double cold_per_byte_ = 0.5e-9;  // on top of the others
  double device_seconds_ = 0;      // of a slice, on top of what the host spends
  double bytes_ = 0;               // of the last slice

  // Medians: one stall must not keep the monitor from sampling for hours.
  static constexpr uint32_t kExtras = 5;
  double extra_[kExtras] = {};  // of the last sampled steps
  uint32_t extras_ = 0;
  double other_ = 0;  // running mean of steps that were not sampled
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SAMPLING_H_
