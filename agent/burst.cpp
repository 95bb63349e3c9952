#include "agent/burst.h"

#include <algorithm>
#include <bit>

#include "segment/layout.h"

namespace foreshock {
namespace {

// Steps between the decision and its taking effect: a rank further behind has been rolled back.
constexpr int64_t kFurthestAhead = 64;

}  // namespace

std::optional<Burst> plan_burst(const SamplingCost& cost, double max_slowdown, uint64_t in_force,
                                int64_t from_step, const std::optional<Burst>& last) {
  if (cost.step_seconds <= 0 || from_step < 0 || from_step > INT64_MAX - segment::kMostBurstSteps)
    return std::nullopt;
  if (last) {
    const int64_t pause = kBurstPause * (last->until_step - last->from_step);
    if (from_step >= last->from_step && from_step - last->until_step < pause) return std::nullopt;
  }
  uint64_t interval =
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(cost.stride, 1, kMostInterval)));
  while (interval < in_force && predicted_slowdown(cost, interval) > segment::kBurstSlowdown * max_slowdown)
    interval *= 2;
  if (interval > in_force / 2) return std::nullopt;
  const int64_t steps = kBurstSamples * static_cast<int64_t>(interval);
  return Burst{interval, from_step, from_step + std::min(steps, segment::kMostBurstSteps)};
}

bool is_ahead_or_on(const Burst& burst, int64_t step) {
  return step < burst.until_step && step > burst.from_step - kFurthestAhead;
}

}  // namespace foreshock
