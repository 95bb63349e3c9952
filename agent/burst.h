// A while of denser sampling, when a detector begins to stir: what it waits for comes sooner.
#ifndef FORESHOCK_AGENT_BURST_H_
#define FORESHOCK_AGENT_BURST_H_

#include <cstdint>
#include <optional>

#include "agent/cadence.h"

namespace foreshock {

struct Burst {
  uint64_t interval;  // N in the steps [from, until)
  int64_t from_step, until_step;
};

// So many sampled steps: an eighth of what the detectors' baselines remember (thresholds.h: 256 samples), so
// that they do not take for usual what the burst is about.
inline constexpr int64_t kBurstSamples = 32;
// Then, for so many times as long, there is none: in the long run all bursts cost less than a quarter of
// --max-slowdown, (kBurstSlowdown - 1) / (1 + 8).
inline constexpr int64_t kBurstPause = 8;

// A burst from `from_step` on: the smallest power of two of steps that costs no more than kBurstSlowdown
// times the budget. Absent: not half as many as `in_force`, or `last` was too short a while ago.
std::optional<Burst> plan_burst(const SamplingCost& cost, double max_slowdown, uint64_t in_force,
                                int64_t from_step, const std::optional<Burst>& last);

// Whether a rank at this step may have one before it or be in the middle of it.
bool is_ahead_or_on(const Burst& burst, int64_t step);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_BURST_H_
