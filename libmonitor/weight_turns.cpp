#include "libmonitor/weight_turns.h"

#include <utility>

namespace foreshock {
namespace {

uint32_t reversed(uint32_t bits) {
  uint32_t result = 0;
  for (int n = 0; n < 32; ++n) result |= (bits >> n & 1) << (31 - n);
  return result;
}

}  // namespace

bool WeightTurns::reserve(uint32_t count) {
  count_ = 0;
  step_ = -1;
  open_ = 0;
  return turns_.reserve(count * sizeof(uint32_t)) && states_.reserve(count * sizeof(State));
}

void WeightTurns::add(double begins_at, bool is_here) {
  turns()[count_] = reversed(static_cast<uint32_t>(0x1p32 * begins_at));
  states()[count_] = {0, 0, is_here};
  ++count_;
}

void WeightTurns::find(int64_t step, int64_t steps, uint64_t interval, const auto& take) {
  const auto some = static_cast<uint32_t>(interval);
  const auto now = static_cast<uint32_t>(static_cast<uint64_t>(step) % some);
  const bool is_power = (some & (some - 1)) == 0;
  for (uint32_t n = 0; n < count_; ++n) {
    const uint32_t own = is_power ? turns()[n] & (some - 1) : turns()[n] % some;
    const uint32_t ahead = own >= now ? own - now : own + (some - now);
    if (ahead < static_cast<uint64_t>(steps) && states()[n].is_here) take(n, &states()[n]);
  }
}

size_t WeightTurns::due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room,
                        Count* count) {
  *count = {};
  if (step != step_) {
    count->lost = give_up();
    step_ = step;
    ++round_;
  }
  size_t found = 0;
  find(step, steps, interval, [&](uint32_t number, State* state) {
    if (state->ended == round_) return;
    if (state->asked != round_) ++open_, ++count->due;
    state->asked = round_;
    if (found < room) numbers[found++] = number;
  });
  return found;
}

WeightTurns::Count WeightTurns::unasked(int64_t step, int64_t steps, uint64_t interval) {
  Count count;
  if (step == step_) return count;  // it was asked about before or after
  find(step, steps, interval, [&](uint32_t, State*) { ++count.due; });
  count.lost = count.due;
  return count;
}

uint64_t WeightTurns::end(uint32_t number, int64_t step) {
  if (step != step_) return 1;
  State& state = states()[number];
  const bool is_open = state.asked == round_ && state.ended != round_;
  open_ -= is_open;
  state.ended = round_;
  return !is_open;
}

uint64_t WeightTurns::give_up() { return std::exchange(open_, 0); }

}  // namespace foreshock
