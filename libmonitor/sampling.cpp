// Implements the choice of steps, calls and weight tensors.
#include "libmonitor/sampling.h"

#include <bit>
#include <utility>

namespace foreshock {
namespace {

constexpr uint64_t scramble(uint64_t x) {  // the finalizer of splitmix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint32_t reversed(uint32_t bits) {  // the 32 bits in reverse order
  uint32_t result = 0;
  for (int n = 0; n < 32; ++n) result |= (bits >> n & 1) << (31 - n);
  return result;
}

}  // namespace

// 0x9e3779b97f4a7c15 (2^64 divided by the golden ratio) is the increment of splitmix64.
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = scramble(seed + 0x9e3779b97f4a7c15u);
  for (uint64_t word : {a, b, c}) x = scramble(x + word + 0x9e3779b97f4a7c15u);
  return x;
}

int64_t below(uint64_t hash, int64_t bound) {
  return static_cast<int64_t>(((hash >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

uint64_t sampled_step_of(uint64_t seed, uint64_t block, uint64_t interval) {
  constexpr uint64_t kStepInInterval = 1;  // distinguishes these hashes from others of the same seed
  if (!std::has_single_bit(interval)) {
    const uint64_t hash = mix(seed, block, interval, kStepInInterval);
    return block * interval + static_cast<uint64_t>(below(hash, static_cast<int64_t>(interval)));
  }
  // A block is halved until one step is left. The chosen half is a block of half the interval.
  for (uint64_t length = interval; length > 1; length /= 2)
    block = 2 * block + (mix(seed, block, length, kStepInInterval) >> 63);
  return block;
}

bool is_sampled_step(uint64_t seed, int64_t step, uint64_t interval, int64_t steps) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t first = static_cast<uint64_t>(step), end = first + static_cast<uint64_t>(steps);
  // So many steps contain a whole block.
  if (end - first >= 2 * interval) return true;
  for (uint64_t block = first / interval; block * interval < end; ++block) {
    const uint64_t chosen = sampled_step_of(seed, block, interval);
    if (chosen >= first && chosen < end) return true;
  }
  return false;
}

bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls) {
  if (expected_calls <= slices) return slices > 0;
  // Each call moves `slices` ahead on a circle of length `expected_calls`, from a random start. A call is
  // sampled if its move reaches or passes the origin.
  const uint64_t begin = static_cast<uint64_t>(
      below(mix(seed, static_cast<uint64_t>(step), 0, 0), static_cast<int64_t>(expected_calls)));
  return (begin + call * slices) % expected_calls + slices >= expected_calls;
}

void OrdinalFollower::begin_step() { ended_runs_ = run_length_ = backward_calls_ = last_run_length_ = 0; }

// Ends the forward run, and updates the period, the usual length of a forward run.
void OrdinalFollower::end_run() {
  last_run_length_ = run_length_;
  run_length_ = 0;
  const bool is_first = ended_runs_++ == 0;
  if (period_ == 0) period_ = last_run_length_;
  // A run of several periods agrees too: an evaluation between two steps lengthens the run.
  if (last_run_length_ % period_ == 0) {
    ++agreeing_runs_;
  } else if (agreeing_runs_ >= kRunsToTrust || (!is_first && last_run_length_ < period_)) {
    // A trusted period has changed, or a later run of the step is shorter than the period (perhaps a
    // recomputation). No ordinals from now on, since the earlier or the later ones would be wrong.
    unstable_ = true;
  } else {
    period_ = last_run_length_;
    agreeing_runs_ = 1;
  }
}

int OrdinalFollower::next(bool is_backward_call, bool during_backward_pass) {
  if (!is_backward_call && during_backward_pass) return -1;  // checkpointing repeats the forward pass
  if (!is_backward_call) {
    backward_calls_ = 0;
    const uint32_t index = run_length_++;
    return is_trusted() ? static_cast<int>(index % period_) : -1;
  }
  if (run_length_ > 0) end_run();  // the first backward call after forward calls
  const uint32_t index = backward_calls_++;
  if (!is_trusted() || index >= last_run_length_) return -1;
  return static_cast<int>((last_run_length_ - 1 - index) % period_);
}

bool WeightSchedule::reserve(uint32_t count) {
  count_ = 0;
  step_ = -1;
  due_not_shown_ = 0;
  next_due_ = 0;
  return turns_.reserve(count * sizeof(uint32_t)) && states_.reserve(count * sizeof(State));
}

// Bit reversal spreads the tensors of any part of the model evenly over an interval that is a power of two.
// If the interval doubles, a tensor keeps every second one of its steps.
void WeightSchedule::add(double begins_at, bool is_here) {
  turns()[count_] = reversed(static_cast<uint32_t>(0x1p32 * begins_at));
  states()[count_++] = {0, 0, is_here};
}

// Calls use(number, &state) for every tensor that is due in one of the `steps` steps from `step` on. Returns
// the number of steps until one of the other tensors is due, at most `interval`.
uint64_t WeightSchedule::for_each_due(int64_t step, int64_t steps, uint64_t interval, const auto& use) {
  uint64_t next = interval;
  const auto length = static_cast<uint32_t>(interval);
  const auto now = static_cast<uint32_t>(static_cast<uint64_t>(step) % length);
  const bool is_power_of_two = (length & (length - 1)) == 0;
  for (uint32_t n = 0; n < count_; ++n) {
    const uint32_t turn = is_power_of_two ? turns()[n] & (length - 1) : turns()[n] % length;
    const uint32_t steps_until_due = turn >= now ? turn - now : turn + (length - now);
    const bool is_due = steps_until_due < static_cast<uint64_t>(steps);
    const bool is_next = steps_until_due < next;  // the nearest of those seen so far that are not due
    if (!is_due && !is_next) continue;
    if (!states()[n].is_here) continue;  // checked last, so that few states are read
    if (is_due)
      use(n, &states()[n]);
    else
      next = steps_until_due;
  }
  return next;
}

size_t WeightSchedule::find_due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers,
                                size_t room, DueCount* count) {
  *count = {};
  if (step != step_) {
    count->lost = forget_due();
    step_ = step;
    ++round_;
  }
  size_t found = 0;
  const uint64_t next = for_each_due(step, steps, interval, [&](uint32_t number, State* state) {
    if (state->end_round == round_) return;  // mark_done() was called in this step
    if (state->due_round != round_) {        // not yet counted in this step
      ++due_not_shown_;
      ++count->due;
    }
    state->due_round = round_;
    if (found < room) numbers[found++] = number;
  });
  // If reports have several steps, the next report may include a due step that is after its own number.
  next_due_ = step + (steps == 1 ? static_cast<int64_t>(next) : 1);
  return found;
}

WeightSchedule::DueCount WeightSchedule::count_missed(int64_t step, int64_t steps, uint64_t interval) {
  DueCount count;
  if (step == step_) return count;  // find_due() has counted the step
  for_each_due(step, steps, interval, [&](uint32_t, State*) { ++count.due; });
  count.lost = count.due;
  return count;
}

uint64_t WeightSchedule::mark_done(uint32_t number, int64_t step) {
  if (step != step_) return 1;  // find_due() was not called in this step
  State& state = states()[number];
  const bool is_counted = state.due_round == round_ && state.end_round != round_;  // as due and not shown
  due_not_shown_ -= is_counted;
  state.end_round = round_;
  return is_counted ? 0 : 1;
}

uint64_t WeightSchedule::forget_due() { return std::exchange(due_not_shown_, 0); }

}  // namespace foreshock
