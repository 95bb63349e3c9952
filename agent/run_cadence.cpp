// The part of Run that says how often its ranks sample: one interval for all of the node, by what sampling
// costs the slowest of them.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/cadence.h"
#include "agent/run.h"

namespace foreshock {
namespace {

// Steps between the decision on an interval and its taking effect: every rank of the node must still be
// before it.
constexpr int64_t kStepsAhead = 4;
constexpr double kDefaultSlowdown = 0.01;

// What the trainers were told, where the agent was not: the strictest of them. Nonsense counts as the
// default.
double budget_of(double most, double told) {
  const double sound = told > 0 && told <= 1 ? told : kDefaultSlowdown;
  return most > 0 ? std::min(most, sound) : sound;
}

}  // namespace

void Run::choose_cadence(double agent_cpu_seconds) {
  if (options_.every != 0) return;
  SamplingCost cost;
  uint64_t sampled_steps = 0, in_force = 0;
  int64_t newest_step = 0;
  // Spawned ranks do not know how many of them are on this node; here they are.
  const auto here = static_cast<uint32_t>(ranks());
  double budget = options_.max_slowdown;
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (followed->is_finished() || rank.last_step.sequence == 0) continue;
    if (rank.identity.world_size > static_cast<int>(std::max(rank.identity.local_ranks, here)))
      return;  // other nodes do not hear this
    if (rank.identity.fixed_interval != 0) return;
    if (options_.max_slowdown <= 0) budget = budget_of(budget, rank.identity.max_slowdown);
    cost.step_seconds = std::max(cost.step_seconds, mean_of(rank.step_seconds).value_or(0));
    cost.sampled_step_seconds =
        std::max(cost.sampled_step_seconds, mean_of(rank.sampled_step_cost).value_or(0));
    cost.other_step_seconds = std::max(cost.other_step_seconds, mean_of(rank.other_step_cost).value_or(0));
    sampled_steps = std::max(sampled_steps, rank.sampled_steps);
    newest_step = std::max(newest_step, rank.last_step.step);
    in_force = std::max(in_force, rank.last_step.interval);
  }
  const uint64_t new_samples = sampled_steps - std::min(sampled_steps, sampled_at_cadence_);
  if (new_samples < 2) return;
  cost.agent_seconds =
      (agent_cpu_seconds - cpu_at_cadence_) / static_cast<double>(new_samples) / options_.cores;
  cpu_at_cadence_ = agent_cpu_seconds;
  sampled_at_cadence_ = sampled_steps;
  const uint64_t interval = choose_interval(cost, budget, in_force);
  if (interval == in_force) return;
  interval_ = interval;
  // A trainer may call its step anything; the sum must not overflow.
  const int64_t from_step = std::min(newest_step, INT64_MAX - kStepsAhead) + kStepsAhead;
  spdlog::info("sampling every {} steps (was {}): predicted cost {:.2f} %", interval, in_force,
               100 * predicted_slowdown(cost, interval));
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_interval(interval, from_step);
}

}  // namespace foreshock
