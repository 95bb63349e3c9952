#include "agent/cadence.h"

#include <algorithm>

namespace foreshock {

std::optional<AgentCost> agent_cost(const AgentWork& before, const AgentWork& now, int cores) {
  const bool is_anew = now.steps < before.steps || now.sampled_steps < before.sampled_steps;
  const uint64_t steps = now.steps - (is_anew ? 0 : before.steps);
  const uint64_t sampled = now.sampled_steps - (is_anew ? 0 : before.sampled_steps);
  if (sampled < 2) return std::nullopt;
  // Ranks that are forgotten take their share of the judging with them.
  const double judging = std::max(now.judging_seconds - before.judging_seconds, 0.0);
  const double rest = std::max(now.cpu_seconds - before.cpu_seconds - judging, 0.0);
  return AgentCost{judging / static_cast<double>(sampled) / cores, rest / static_cast<double>(steps) / cores};
}

double predicted_slowdown(const SamplingCost& cost, uint64_t interval) {
  const double n = std::max(static_cast<double>(interval) / static_cast<double>(cost.stride), 1.0);
  const double per_interval = cost.sampled_step_seconds + cost.agent.sampled_step_seconds +
                              (n - 1) * cost.other_step_seconds + n * cost.agent.step_seconds;
  return cost.step_seconds > 0 ? per_interval / (n * cost.step_seconds) : 0;
}

uint64_t choose_interval(const SamplingCost& cost, double max_slowdown, uint64_t in_force) {
  if (cost.step_seconds <= 0) return in_force;
  uint64_t interval = in_force < kLeastInterval ? kLeastInterval : in_force;
  while (interval < kMostInterval && predicted_slowdown(cost, interval) > max_slowdown) interval *= 2;
  if (interval != in_force) return interval;
  while (interval > kLeastInterval && predicted_slowdown(cost, interval / 2) <= 0.8 * max_slowdown)
    interval /= 2;
  return interval;
}

}  // namespace foreshock
