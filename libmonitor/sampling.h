// Chooses the steps, attention calls and weight tensors to sample. The choosing functions are pure: equal
// arguments give equal results on every rank and in every rerun.
//
// How often attention is sampled:
// - The first sampled steps of a run are the first look. A fixed grant pays for them (FirstLook).
// - Then one step of each interval is due: with --every the multiple of the interval, otherwise a step that a
//   hash chooses (is_sampled_step). The interval is that of --every, else the one that the agent chooses from
//   measured costs (agent/sampling.h), else kFirstInterval or kSeveralNodesInterval. After a warning the
//   agent may set a smaller interval for a range of steps, a burst.
// - A due step is left out while the ledger (ledger.h) does not pay for it, from --max-slowdown. Else the
//   ledger and the free slots limit the slices that it takes, and is_sampled_call chooses the calls.
#ifndef FORESHOCK_LIBMONITOR_SAMPLING_H_
#define FORESHOCK_LIBMONITOR_SAMPLING_H_

#include <cstddef>
#include <cstdint>

#include "libmonitor/base.h"

namespace foreshock {

// Sampling intervals until the agent sets one. With several nodes the agents set none: they could not agree.
inline constexpr uint64_t kFirstInterval = 8, kSeveralNodesInterval = 64;

// A hash of four words (splitmix64's finalizer, applied to each word in turn).
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

// A number from 0 to bound - 1, by the upper half of a hash. The bias of at most bound / 2^32 does not matter
// here.
int64_t below(uint64_t hash, int64_t bound);

// Returns the step that is sampled of the `interval` steps from block * interval on. A hash of the seed
// chooses it, so that a fault in every second step (or in every step of another period) is sampled too. If
// the interval is a power of two, the step is also one of the steps that half the interval samples.
uint64_t sampled_step_of(uint64_t seed, uint64_t block, uint64_t interval);

// Whether a step is sampled. A negative number means an unknown step, which is never sampled. If the trainer
// reports only every `steps`-th step, the `steps` steps from `step` on are sampled together if one of them is
// to be sampled.
bool is_sampled_step(uint64_t seed, int64_t step, uint64_t interval, int64_t steps = 1);

// The same with --every: the number of the step must be a multiple of the interval.
constexpr bool is_multiple_of_every(int64_t step, uint64_t interval, int64_t steps = 1) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t since_multiple = static_cast<uint64_t>(step) % interval;
  const uint64_t until_multiple = since_multiple == 0 ? 0 : interval - since_multiple;
  return until_multiple < static_cast<uint64_t>(steps);
}

// Whether call number `call` of a sampled step is sampled: all calls if `expected_calls` <= `slices`, else
// exactly `slices` of the first `expected_calls` calls, evenly spread. The choice moves from step to step, so
// that every call has the same chance and layers take turns.
bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls);

// Infers the ordinal (a layer's number) of calls without a layer name from their order: a model calls its
// layers in turn, and backward in reverse. A run is a sequence of calls in one direction. The period is the
// number of layers: the length of a forward run through the model once. A run of several periods is possible
// too, with an evaluation between two steps. Call n (from 0) of a forward run gets the ordinal n modulo the
// period; the backward calls after the run get its ordinals in reverse. Ordinals are known once two forward
// runs in a row agree: the length of each is a multiple of the period. They become unknown for the rest of
// the process if a later run does not agree, or, at any time, if a run that is not the first of its step is
// shorter than the period (perhaps a recomputation that is not marked). next() must be called for every call
// of the sampled steps, in order.
class OrdinalFollower {
 public:
  // Called at the start of a sampled step.
  void begin_step();

  // Returns the ordinal of the next call; -1: unknown. A forward call during a backward pass repeats the
  // forward pass (checkpointing), so it has no ordinal and does not change the direction.
  int next(bool is_backward_call, bool during_backward_pass);

 private:
  static constexpr uint32_t kRunsToTrust = 2;
  void end_run();
  bool is_trusted() const { return !unstable_ && agreeing_runs_ >= kRunsToTrust; }

  uint32_t ended_runs_ = 0;       // number of forward runs that have ended in this step
  uint32_t run_length_ = 0;       // forward calls since the direction last changed
  uint32_t backward_calls_ = 0;   // backward calls since the direction last changed
  uint32_t last_run_length_ = 0;  // length of the forward run before the present backward calls
  uint32_t period_ = 0;           // 0: not known yet
  uint32_t agreeing_runs_ = 0;    // consecutive runs with this period
  bool unstable_ = false;         // no ordinals for the rest of the process
};

// Decides which weight tensors are due, i.e. to be measured, in a step. A tensor is due once per interval, in
// a step that depends only on the tensor's position in the model. So this step is the same on every rank and
// in every rerun. A tensor is shown when the trainer passes its values. Every due tensor is counted; a due
// tensor that is not shown before the next step is counted as lost. One caller at a time.
class WeightSchedule {
 public:
  // Numbers of tensors that were not counted before.
  struct DueCount {
    uint64_t due = 0;
    uint64_t lost = 0;  // due, but never shown
  };

  // Set-up. Allocates room for `count` tensors and forgets the present ones. Returns false without memory.
  bool reserve(uint32_t count);
  // Adds the next tensor. `begins_at`, in [0, 1), is the share of the model's elements before it. `is_here`
  // false: this rank has no part of the tensor, so the tensor is never due.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // Writes to `numbers` the numbers of the tensors that are due in `step` and were not shown in it yet: at
  // most `room`, in ascending order. Returns how many. A second call in the same step does not count them
  // again. If the `steps` steps from `step` on are reported as one, the tensors of all these steps are due.
  size_t find_due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room,
                  DueCount* count);
  // Returns the next step in which a tensor may be due, if the interval and `steps` stay as in the last call
  // of find_due(). Must be called right after find_due().
  int64_t next_due() const { return next_due_; }
  // Returns the count of `step`, in which find_due() could not be called: all tensors due in it are lost.
  DueCount count_missed(int64_t step, int64_t steps, uint64_t interval);
  // Records that tensor `number` was shown in `step`, or skipped for a reason that is counted elsewhere. The
  // trainer may show any tensor, but each showing must belong to one due tensor in the counts. So this
  // returns how many due tensors the caller must add to them: 0 if find_due() counted this tensor in this
  // step and it was neither shown nor skipped since, else 1.
  uint64_t mark_done(uint32_t number, int64_t step);
  // Forgets the due tensors that were not shown. Returns their number.
  uint64_t forget_due();

 private:
  struct State {
    uint64_t due_round, end_round;  // round_ when the tensor was last due, and when last shown or skipped
    bool is_here;
  };
  uint64_t for_each_due(int64_t step, int64_t steps, uint64_t interval, const auto& use);
  // turn % interval is the step, within the interval, in which a tensor is due. Separate from State, because
  // find_due() reads all turns.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  MmapBuffer turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // incremented at each new step in find_due(), as step numbers may go back or repeat
  int64_t step_ = -1;
  int64_t next_due_ = 0;
  uint64_t due_not_shown_ = 0;  // number of due tensors of this round that were neither shown nor skipped
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SAMPLING_H_
