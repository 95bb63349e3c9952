// Finds what changed shortly before a loss event: the learning rate, one loss that stood out alone, the
// gradient norm, steps that a gradient scaler skipped, a return to an earlier step. Uses only the numbers of
// the steps, so that the agent and a replay of the record find the same.
#ifndef FORESHOCK_DETECT_CIRCUMSTANCES_H_
#define FORESHOCK_DETECT_CIRCUMSTANCES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "detect/loss_rules.h"

namespace foreshock {

// Numbers of one optimizer step; unknown ones are absent.
struct StepNumbers {
  std::optional<double> gradient_norm, learning_rate;
  std::optional<uint64_t> skipped_steps;  // optimizer steps that the gradient scaler has skipped so far
  std::optional<double> loss = {};
};

enum class CircumstanceKind : int { kLearningRate, kGradientNorm, kSkippedSteps, kWentBack, kLoneLoss };
inline constexpr int kCircumstanceKinds = 5;

// A change from `from` to `to` at `step`. kGradientNorm, kLoneLoss: `from` is the median of the values
// before. kSkippedSteps: `to` is the number of steps that were skipped since `step`. kWentBack: `from` is the
// step from which the training went back to `step`.
struct Circumstance {
  CircumstanceKind kind = CircumstanceKind::kLearningRate;
  int64_t step = 0;
  double from = 0, to = 0;
};

// Returns what changed, as the end of a sentence about an event that began at step `onset`: "one step after
// the learning rate went from 0.003 to 0.3".
std::string text_of(const Circumstance& circumstance, int64_t onset);

// The last steps of one rank. Thread-compatible.
class StepTrail {
 public:
  static constexpr size_t kRecent = 64;      // steps before an onset in which a change counts
  static constexpr double kRateFactor = 2;   // from one step to the next; a warm-up changes less
  static constexpr double kNormFactor = 10;  // over the median of kNorms earlier norms
  static constexpr size_t kNorms = 16;

  void add(int64_t step, const StepNumbers& numbers);
  // Must be called when the training goes back to `to` from `from`.
  void go_back(int64_t from, int64_t to);

  // Returns the circumstances of an event that began at `onset`, the earliest first. A rate is set before the
  // step that uses it, so a change at the onset counts. A norm at the onset may be a consequence of the
  // event. A loss counts if it stands out (usual_beside()) and the next one does not: else it is the event.
  std::vector<Circumstance> before(int64_t onset) const;

 private:
  // The onset of a divergence is declared up to 128 steps later (loss_rules.h). kLoneWindow losses come
  // before.
  static constexpr size_t kMostSteps = kRecent + 128 + kLoneWindow;
  struct Step {
    int64_t step;
    StepNumbers numbers;
  };
  std::deque<Step> steps_;
  std::optional<Circumstance> went_back_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_CIRCUMSTANCES_H_
