// Chooses one step in how many is sampled, from what it costs the trainers and the agent, and denser sampling
// for a while after a warning.
#ifndef FORESHOCK_AGENT_SAMPLING_H_
#define FORESHOCK_AGENT_SAMPLING_H_

#include <cstdint>
#include <optional>

namespace foreshock {

// CPU time of the agent, in seconds over the cores it may use.
struct AgentCost {
  double sampled_step_seconds = 0;  // of judging what a sampled step has brought
  double step_seconds = 0;          // of the rest, for each step whether sampled or not
};

// Measured costs, of the slowest rank: what a synchronous job pays. Each is of a step as it is told: several
// that are told as one are sampled together, and an interval counts their numbers.
struct SamplingCost {
  double step_seconds = 0;          // of a step, our part taken off
  double sampled_step_seconds = 0;  // ours in a sampled step, in the trainer
  double other_step_seconds = 0;    // ours in every other step
  AgentCost agent;
  int64_t stride = 1;  // numbers from one step that is told to the next
};

inline constexpr uint64_t kLeastInterval = 8;
inline constexpr uint64_t kMostInterval = 1u << 16;

// What the agent has spent on a run so far, and the steps that its ranks have told.
struct AgentWork {
  double cpu_seconds = 0;
  double judging_seconds = 0;  // of these
  uint64_t steps = 0;
  uint64_t sampled_steps = 0;  // of these
};

// By what has come since `before`; absent until that is two samples. Ranks started anew count from zero.
std::optional<AgentCost> agent_cost(const AgentWork& before, const AgentWork& now, int cores);

// The share of the training's time that sampling every `interval` steps takes.
double predicted_slowdown(const SamplingCost& cost, uint64_t interval);

// The interval to use from now on, given the one in force. It grows as soon as the budget is broken and
// shrinks only when the smaller one would leave a fifth of the budget unused, so that it does not swing.
// Where other steps alone break it, samples get an eighth of it.
uint64_t choose_interval(const SamplingCost& cost, double max_slowdown, uint64_t in_force);

// A while of denser sampling, when a detector begins to stir: what it waits for comes sooner.

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

#endif  // FORESHOCK_AGENT_SAMPLING_H_
