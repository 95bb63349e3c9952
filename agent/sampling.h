// Chooses the sampling interval of a node (steps from one sampled step to the next) from the measured cost in
// trainers and agent, and plans bursts of denser sampling after a detector's warning.
#ifndef FORESHOCK_AGENT_SAMPLING_H_
#define FORESHOCK_AGENT_SAMPLING_H_

#include <cstdint>
#include <optional>

namespace foreshock {

// CPU seconds of the agent per step, divided by the cores that it may use.
struct AgentCost {
  double sampled_step_seconds = 0;  // checking the samples of one sampled step
  double step_seconds = 0;          // everything else, for each step, sampled or not
};

// Each cost of the trainers is the largest over all ranks, since the slowest rank determines the speed of a
// synchronous job. `agent` is the agent's work for all ranks together. All costs are per reported step. If a
// trainer reports only every `stride`-th step, a reported step includes all steps since the last report.
// Sampling intervals count step numbers, not reports.
struct SamplingCost {
  double step_seconds = 0;          // duration of a step without the monitor
  double sampled_step_seconds = 0;  // the monitor's time in a sampled step of the trainer
  double other_step_seconds = 0;    // the monitor's time in any other step
  AgentCost agent;
  int64_t stride = 1;  // step numbers from one reported step to the next
};

inline constexpr uint64_t kLeastInterval = 8, kMostInterval = 1u << 16;  // limits of choose_interval()

// CPU time of the agent for a run, and the steps that the run's ranks have reported, both since the start.
struct AgentWork {
  double cpu_seconds = 0;
  double judging_seconds = 0;  // the part of cpu_seconds spent on checking samples
  uint64_t steps = 0;
  uint64_t sampled_steps = 0;  // the part of `steps` that was sampled
};

// Returns the agent's cost per step between `before` and `now`, or nothing if fewer than two steps were
// sampled in between. If a step counter is smaller now, ranks were restarted and count from zero; then the
// steps and the judging time of `now` are used without those of `before`. cpu_seconds is always a difference,
// since the agent was not restarted.
std::optional<AgentCost> agent_cost(const AgentWork& before, const AgentWork& now, int cores);

// Returns the share of the training's time that the monitor takes if one step in `interval` is sampled.
double predicted_slowdown(const SamplingCost& cost, uint64_t interval);

// Returns the interval to use from now on instead of `current_interval`. The interval doubles until the
// predicted slowdown is within the budget `max_slowdown`, or until samples cost at most an eighth of the
// budget: the rest is the cost that every step has, and no interval reduces it. The interval is halved
// only if a fifth of the budget would still be unused, so that it does not oscillate.
uint64_t choose_interval(const SamplingCost& cost, double max_slowdown, uint64_t current_interval);

// Denser sampling for some steps after a detector's level has become watch or warn: the detector gets more
// samples sooner.
struct Burst {
  uint64_t interval;              // sampling interval in the steps [from_step, until_step)
  int64_t from_step, until_step;  // step numbers of the trainer
  int64_t planned_step = 0;       // last step of the slowest rank when the burst was planned
};

// Sampled steps of a burst: an eighth of the 256 values that the baselines of attention's detectors remember
// (detect/detector.h), so that the cause of the burst does not become the baseline.
inline constexpr int64_t kBurstSamples = 32;
// After a burst, none begins for this many times its length. A burst may cost up to kBurstSlowdown = 3 times
// --max-slowdown. On average over burst and pause, the cost above --max-slowdown is thus at most
// (3 - 1) / (1 + 8) times --max-slowdown, less than a quarter of it.
inline constexpr int64_t kBurstPause = 8;

// Plans a burst that begins at `from_step`. Its interval is the smallest power of two that is at least the
// stride and whose predicted slowdown stays within kBurstSlowdown times the budget. Returns nothing if this
// interval is more than half of `current_interval`, or if the pause after the burst `last` is not over.
std::optional<Burst> plan_burst(const SamplingCost& cost, double max_slowdown, uint64_t current_interval,
                                int64_t from_step, const std::optional<Burst>& last);

// Whether a rank whose last step is `step` is in the burst or has yet to reach it. False if `step` is before
// planned_step: the rank has then loaded an older checkpoint since the burst was planned.
bool is_pending_or_running(const Burst& burst, int64_t step);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_SAMPLING_H_
