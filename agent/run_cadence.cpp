// The part of Run that says how often its ranks sample: one interval for all of the node, by what sampling
// costs the slowest of them; and for a while a smaller one.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "agent/cadence.h"
#include "agent/run.h"

namespace foreshock {
namespace {

// Ends of steps between a decision and its taking effect: every rank of the node must still be before it.
constexpr int64_t kStepsAhead = 4;
constexpr double kDefaultSlowdown = 0.01;

// What the trainers were told, where the agent was not: the strictest of them. Nonsense counts as the
// default.
double budget_of(double most, double told) {
  const double sound = told > 0 && told <= 1 ? told : kDefaultSlowdown;
  return most > 0 ? std::min(most, sound) : sound;
}

}  // namespace

int64_t Run::effective_step() const {
  int64_t newest = 0, ahead = kStepsAhead;
  for (const auto& followed : followed_) {
    if (followed->is_finished()) continue;
    newest = std::max(newest, followed->rank.last_step.step);
    ahead = std::max(ahead, kStepsAhead * std::min<int64_t>(followed->rank.stride.steps(), kMostInterval));
  }
  // A trainer may call its step anything; the sum must not overflow.
  return std::min(newest, INT64_MAX - ahead) + ahead;
}

// Absent: the interval is not ours to choose.
std::optional<Run::Measured> Run::measure() const {
  if (options_.every != 0) return std::nullopt;
  Measured all;
  // Spawned ranks do not know how many of them are on this node; here they are.
  const auto here = static_cast<uint32_t>(ranks());
  all.budget = options_.max_slowdown;
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (followed->is_finished() || rank.last_step.sequence == 0) continue;
    if (rank.identity.world_size > static_cast<int>(std::max(rank.identity.local_ranks, here)))
      return std::nullopt;  // other nodes do not hear this
    if (rank.identity.fixed_interval != 0) return std::nullopt;
    if (options_.max_slowdown <= 0) all.budget = budget_of(all.budget, rank.identity.max_slowdown);
    SamplingCost& cost = all.cost;
    cost.step_seconds = std::max(cost.step_seconds, mean_of(rank.step_seconds).value_or(0));
    cost.sampled_step_seconds =
        std::max(cost.sampled_step_seconds, mean_of(rank.sampled_step_cost).value_or(0));
    cost.other_step_seconds = std::max(cost.other_step_seconds, mean_of(rank.other_step_cost).value_or(0));
    cost.stride = std::max(cost.stride, rank.stride.steps());
    all.work.steps = std::max(all.work.steps, rank.steps);
    all.work.sampled_steps = std::max(all.work.sampled_steps, rank.sampled_steps);
    all.work.judging_seconds += rank.judging_seconds;
    all.in_force = std::max(all.in_force, rank.last_step.interval);
    all.is_in_burst |= burst_ && is_ahead_or_on(*burst_, rank.last_step.step);
  }
  return all;
}

void Run::choose_cadence(double agent_cpu_seconds) {
  std::optional<Measured> measured = measure();
  if (!measured) return;
  measured->work.cpu_seconds = agent_cpu_seconds;
  const auto cost = agent_cost(at_cadence_, measured->work, options_.cores);
  if (!cost) return;
  agent_cost_ = cost;
  at_cadence_ = measured->work;
  if (measured->is_in_burst) return;  // what is in force now does not last
  measured->cost.agent = *agent_cost_;
  const uint64_t interval = choose_interval(measured->cost, measured->budget, measured->in_force);
  if (interval == measured->in_force) return;
  interval_ = interval;
  spdlog::info("sampling every {} steps (was {}): predicted cost {:.2f} %", interval, measured->in_force,
               100 * predicted_slowdown(measured->cost, interval));
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_interval(interval, effective_step());
}

void Run::begin_burst() {
  std::optional<Measured> measured = measure();
  if (!measured || !agent_cost_) return;  // nothing is known yet of what it would cost
  measured->cost.agent = *agent_cost_;
  const auto burst =
      plan_burst(measured->cost, measured->budget, measured->in_force, effective_step(), burst_);
  if (!burst) return;
  burst_ = burst;
  spdlog::info("burst: sampling every {} steps from {} to {}", burst->interval, burst->from_step,
               burst->until_step);
  for (auto& followed : followed_) {
    if (followed->is_finished()) continue;
    followed->segment().set_burst(burst->interval, burst->from_step, burst->until_step);
    pipeline_->note_burst(&followed->rank, burst->from_step, burst->interval);
  }
}

}  // namespace foreshock
