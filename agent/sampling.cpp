#include "agent/sampling.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>

#include "agent/run.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// Of the budget. What other steps cost is spent whatever the interval: once samples take so little beside it,
// fewer of them would spare nothing, and none would come that could tell when the others cost less.
constexpr double kLeastShare = 0.125;

// From one sampled step to the next.
double steps_told(const SamplingCost& cost, uint64_t interval) {
  return std::max(static_cast<double>(interval) / static_cast<double>(cost.stride), 1.0);
}

double share_of_samples(const SamplingCost& cost, uint64_t interval) {
  const double per_sample =
      cost.sampled_step_seconds + cost.agent.sampled_step_seconds - cost.other_step_seconds;
  return std::max(per_sample, 0.0) / (steps_told(cost, interval) * cost.step_seconds);
}

}  // namespace

std::optional<AgentCost> agent_cost(const AgentWork& before, const AgentWork& now, int cores) {
  const bool is_anew = now.steps < before.steps || now.sampled_steps < before.sampled_steps;
  const uint64_t sampled = now.sampled_steps - (is_anew ? 0 : before.sampled_steps);
  const uint64_t steps = std::max(now.steps - (is_anew ? 0 : before.steps), sampled);
  if (sampled < 2) return std::nullopt;
  const double spent = std::max(now.cpu_seconds - before.cpu_seconds, 0.0);
  // Ranks that are forgotten take their share of the judging with them.
  const double judging = std::clamp(now.judging_seconds - (is_anew ? 0 : before.judging_seconds), 0.0, spent);
  const double rest = spent - judging;
  return AgentCost{judging / static_cast<double>(sampled) / cores, rest / static_cast<double>(steps) / cores};
}

double predicted_slowdown(const SamplingCost& cost, uint64_t interval) {
  const double n = steps_told(cost, interval);
  const double per_interval = cost.sampled_step_seconds + cost.agent.sampled_step_seconds +
                              (n - 1) * cost.other_step_seconds + n * cost.agent.step_seconds;
  return cost.step_seconds > 0 ? per_interval / (n * cost.step_seconds) : 0;
}

uint64_t choose_interval(const SamplingCost& cost, double max_slowdown, uint64_t in_force) {
  if (cost.step_seconds <= 0) return in_force;
  uint64_t interval = in_force < kLeastInterval ? kLeastInterval : in_force;
  while (interval < kMostInterval && predicted_slowdown(cost, interval) > max_slowdown &&
         share_of_samples(cost, interval) > kLeastShare * max_slowdown)
    interval *= 2;
  if (interval != in_force) return interval;
  while (interval > kLeastInterval && predicted_slowdown(cost, interval / 2) <= 0.8 * max_slowdown)
    interval /= 2;
  return interval;
}

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

// The part of Run that says how often its ranks sample: one interval for all of the node, by what sampling
// costs the slowest of them; and for a while a smaller one.

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
    all.first_look_seconds += rank.first_look.agent_seconds;
    all.in_force = std::max(all.in_force, rank.last_step.interval);
    all.is_in_burst |= burst_ && is_ahead_or_on(*burst_, rank.last_step.step);
  }
  return all;
}

void Run::choose_cadence(double agent_cpu_seconds) {
  std::optional<Measured> measured = measure();
  if (!measured) return;
  measured->work.cpu_seconds = agent_cpu_seconds - measured->first_look_seconds;
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
