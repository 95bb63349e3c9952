// Predicts the cost of sampling, chooses how many steps lie between two sampled steps (the interval), and
// plans bursts of denser sampling. The second half applies the choice to the ranks of a run. `budget` and
// `max_slowdown`: the share of the trainer's time that foreshock may take.
#include "agent/sampling.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>

#include "agent/run.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// The share of the budget that samples may always use. Unsampled steps cost the same at any interval. If
// unsampled steps alone exceed the budget, a longer interval saves little.
constexpr double kLeastShare = 0.125;

// The number of reported steps between two sampled steps. A trainer may report only every stride-th step.
double reported_steps_in(const SamplingCost& cost, uint64_t interval) {
  return std::max(static_cast<double>(interval) / static_cast<double>(cost.stride), 1.0);
}

// Returns the part of predicted_slowdown() by which sampled steps cost more than unsampled ("other") steps.
double share_of_samples(const SamplingCost& cost, uint64_t interval) {
  const double per_sample =
      cost.sampled_step_seconds + cost.agent.sampled_step_seconds - cost.other_step_seconds;
  return std::max(per_sample, 0.0) / (reported_steps_in(cost, interval) * cost.step_seconds);
}

}  // namespace

// Returns the agent's mean seconds between `before` and `now`, divided by `cores`: for judging, per sampled
// step; for all other work, per step. If a count has fallen, the ranks have restarted and count from 0 again.
std::optional<AgentCost> agent_cost(const AgentWork& before, const AgentWork& now, int cores) {
  const bool has_restarted = now.steps < before.steps || now.sampled_steps < before.sampled_steps;
  const uint64_t sampled = now.sampled_steps - (has_restarted ? 0 : before.sampled_steps);
  // At least `sampled`: the two counts may be those of different ranks.
  const uint64_t steps = std::max(now.steps - (has_restarted ? 0 : before.steps), sampled);
  if (sampled < 2) return std::nullopt;  // too few for a mean
  const double spent = std::max(now.cpu_seconds - before.cpu_seconds, 0.0);
  // Clamped, since judging_seconds is a sum over the known ranks and falls when a rank is dropped.
  const double judging =
      std::clamp(now.judging_seconds - (has_restarted ? 0 : before.judging_seconds), 0.0, spent);
  const double rest = spent - judging;
  return AgentCost{judging / static_cast<double>(sampled) / cores, rest / static_cast<double>(steps) / cores};
}

double predicted_slowdown(const SamplingCost& cost, uint64_t interval) {
  const double n = reported_steps_in(cost, interval);  // one of these n steps is sampled
  const double per_interval = cost.sampled_step_seconds + cost.agent.sampled_step_seconds +
                              (n - 1) * cost.other_step_seconds + n * cost.agent.step_seconds;
  return cost.step_seconds > 0 ? per_interval / (n * cost.step_seconds) : 0;
}

uint64_t choose_interval(const SamplingCost& cost, double max_slowdown, uint64_t current_interval) {
  if (cost.step_seconds <= 0) return current_interval;  // no step was measured yet
  uint64_t interval = current_interval < kLeastInterval ? kLeastInterval : current_interval;
  while (interval < kMostInterval && predicted_slowdown(cost, interval) > max_slowdown &&
         share_of_samples(cost, interval) > kLeastShare * max_slowdown)
    interval *= 2;
  if (interval != current_interval) return interval;
  // A fifth of the budget must stay unused after halving, so that the interval does not oscillate.
  while (interval > kLeastInterval && predicted_slowdown(cost, interval / 2) <= 0.8 * max_slowdown)
    interval /= 2;
  return interval;
}

// Plans a burst from from_step on, with the smallest interval whose predicted cost is at most kBurstSlowdown
// times the limit. A pause must separate it from the last burst.
std::optional<Burst> plan_burst(const SamplingCost& cost, double max_slowdown, uint64_t current_interval,
                                int64_t from_step, const std::optional<Burst>& last) {
  if (cost.step_seconds <= 0 || from_step < 0 || from_step > INT64_MAX - segment::kMostBurstSteps)
    return std::nullopt;
  if (last) {
    // After a return to an older checkpoint, from_step may lie before the last burst: no pause applies then.
    const int64_t pause = kBurstPause * (last->until_step - last->from_step);
    if (from_step >= last->from_step && from_step - last->until_step < pause) return std::nullopt;
  }
  // A trainer that reports every stride-th step gets no more samples from an interval below its stride.
  uint64_t interval =
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(cost.stride, 1, kMostInterval)));
  while (interval < current_interval &&
         predicted_slowdown(cost, interval) > segment::kBurstSlowdown * max_slowdown)
    interval *= 2;
  if (interval > current_interval / 2) return std::nullopt;  // it would not sample twice as often as now
  const int64_t steps = kBurstSamples * static_cast<int64_t>(interval);
  const int64_t until_step = from_step + std::min(steps, segment::kMostBurstSteps);
  return Burst{interval, from_step, until_step, /*planned_step=*/from_step};  // Run sets another planned_step
}

bool is_pending_or_running(const Burst& burst, int64_t step) {
  // A rank whose step is before the step at which the burst was planned has loaded an older checkpoint.
  return step < burst.until_step && step >= burst.planned_step;
}

// The part of Run (one run on this node) that sets the sampling interval. All ranks of the node have the same
// interval, chosen from the highest costs of any rank. The interval is smaller during a burst.

namespace {

// A new interval takes effect this many reported steps after the newest, so that all ranks read it in time.
constexpr int64_t kStepsAhead = 4;
constexpr double kDefaultSlowdown = 0.01;  // of --max-slowdown, as a ratio

// Returns the smaller of the slowdown limit `limit` found so far (0: none) and the limit that a trainer
// reports. A reported limit outside (0, 1] is replaced by the default.
double smaller_limit(double limit, double reported) {
  const double valid = reported > 0 && reported <= 1 ? reported : kDefaultSlowdown;
  return limit > 0 ? std::min(limit, valid) : valid;
}

}  // namespace

// Returns a step that no rank has reached yet, from which a new interval applies.
int64_t Run::effective_step() const {
  int64_t newest = 0, ahead = kStepsAhead;
  for (const auto& followed : followed_) {
    if (followed->is_finished()) continue;
    newest = std::max(newest, followed->rank.last_step.step);
    ahead = std::max(ahead, kStepsAhead * std::min<int64_t>(followed->rank.stride.steps(), kMostInterval));
  }
  // The trainer chooses its step numbers, so the sum could overflow.
  return std::min(newest, INT64_MAX - ahead) + ahead;
}

// Measures the cost of the ranks on this node. Most figures are the largest of any rank. The agent's seconds
// are sums over the ranks; the limit of slowdown and slowest_step are the smallest of any rank. Returns
// nothing if the agent must not choose the interval: the user fixed it, or other nodes have ranks.
std::optional<Run::SamplingInput> Run::measure() const {
  if (options_.every != 0) return std::nullopt;
  SamplingInput all;
  // A rank that was started without a launcher may report too few local_ranks (ranks on this node).
  const auto ranks_here = static_cast<uint32_t>(ranks());
  all.budget = options_.max_slowdown;
  for (const auto& followed : followed_) {
    const RankStatistics& rank = followed->rank;
    if (followed->is_finished() || rank.last_step.sequence == 0) continue;
    if (rank.identity.world_size > static_cast<int>(std::max(rank.identity.local_ranks, ranks_here)))
      return std::nullopt;  // ranks on other nodes would not get the new interval
    if (rank.identity.fixed_interval != 0) return std::nullopt;  // fixed by the trainer's environment
    if (options_.max_slowdown <= 0) all.budget = smaller_limit(all.budget, rank.identity.max_slowdown);
    SamplingCost& cost = all.cost;
    cost.step_seconds = std::max(cost.step_seconds, mean_of(rank.step_seconds).value_or(0));
    cost.sampled_step_seconds =
        std::max(cost.sampled_step_seconds, mean_of(rank.sampled_step_cost).value_or(0));
    cost.other_step_seconds = std::max(cost.other_step_seconds, mean_of(rank.other_step_cost).value_or(0));
    cost.stride = std::max(cost.stride, rank.stride.steps());
    all.slowest_step = std::min(all.slowest_step, rank.last_step.step);
    all.work.steps = std::max(all.work.steps, rank.steps);
    all.work.sampled_steps = std::max(all.work.sampled_steps, rank.sampled_steps);
    all.work.judging_seconds += rank.judging_seconds;
    all.first_look_seconds += rank.first_look.agent_seconds;
    all.current_interval = std::max(all.current_interval, rank.last_step.interval);
    all.is_in_burst |= burst_ && is_pending_or_running(*burst_, rank.last_step.step);
  }
  return all;
}

// Chooses an interval and sends it to the ranks. The first look (the first sampled steps) has its own budget.
void Run::update_interval(double agent_cpu_seconds) {
  std::optional<SamplingInput> measured = measure();
  if (!measured) return;
  measured->work.cpu_seconds = agent_cpu_seconds - measured->first_look_seconds;
  const auto cost = agent_cost(work_at_last_choice_, measured->work, options_.cores);
  if (!cost) return;  // too few samples since the last choice
  agent_cost_ = cost;
  work_at_last_choice_ = measured->work;
  if (measured->is_in_burst) return;  // current_interval is the burst's interval
  measured->cost.agent = *agent_cost_;
  const uint64_t interval = choose_interval(measured->cost, measured->budget, measured->current_interval);
  if (interval == measured->current_interval) return;
  interval_ = interval;
  spdlog::info("sampling every {} steps (was {}): predicted cost {:.2f} %", interval,
               measured->current_interval, 100 * predicted_slowdown(measured->cost, interval));
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_interval(interval, effective_step());
}

void Run::begin_burst() {
  std::optional<SamplingInput> measured = measure();
  if (!measured || !agent_cost_) return;  // the cost of a burst cannot be predicted yet
  measured->cost.agent = *agent_cost_;
  const auto burst =
      plan_burst(measured->cost, measured->budget, measured->current_interval, effective_step(), burst_);
  if (!burst) return;
  burst_ = burst;
  burst_->planned_step = measured->slowest_step;
  spdlog::info("burst: sampling every {} steps from {} to {}", burst->interval, burst->from_step,
               burst->until_step);
  for (auto& followed : followed_) {
    if (followed->is_finished()) continue;
    followed->segment().set_burst(burst->interval, burst->from_step, burst->until_step);
    pipeline_->note_burst(&followed->rank, burst->from_step, burst->interval);
  }
}

}  // namespace foreshock
