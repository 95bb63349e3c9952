// Finds loss events: LossEventRule finds spikes and divergences, LossRiseRule finds slow rises. Both rules
// depend only on the losses in their order, so replaying a record gives the same events. fields(state) passes
// the members to `state`, which saves or restores them; require() refuses impossible restored values.
#ifndef FORESHOCK_DETECT_LOSS_RULES_H_
#define FORESHOCK_DETECT_LOSS_RULES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "detect/detector.h"
#include "detect/window.h"

namespace foreshock {

inline constexpr size_t kRobustZMaxValues = 256;

// Returns (x - median) / robust_spread(). Absent with fewer than 16 values, if x is not finite, or if more
// than half of the values are equal. `values` must be finite; only the first kRobustZMaxValues are used.
std::optional<double> robust_z(const double* values, size_t count, double x);

// Returns 1.4826 median |value - median|, which equals the standard deviation for normal values. 0 if more
// than half of the values are equal, or if count is 0. `values` and `count` as in robust_z().
double robust_spread(const double* values, size_t count);

// The definition of a loss event. It must not change, since every detector is scored against it.
//
// A loss is high if it is not finite, or above mean + 6 std of the window. The window has the last 128 losses
// that were not high. (High losses in the window would enlarge its std, so a spike would hide its own later
// part.) Until the window is full, no finite loss is high.
//
// A spike is 3 high losses in a row; the first is its onset. It ends when 3 losses in a row are not high.
//
// A divergence is 3 losses in a row that are not finite, even if the window is not full, or 128 high losses
// in a row, the last one finite. After these 128 the window is emptied, so it is filled at the new level.
//
// If optimizers take turns, each on a loss of its own (a GAN, an actor and its critic), a loss has no level
// that it should keep: the step of one optimizer changes the loss of the other, and the losses of a game rise
// and fall while all is well. Then only losses that are not finite are high.

inline constexpr size_t kLossWindow = 128;
inline constexpr double kLossSigmas = 6;
inline constexpr int kLossPersistence = 3;
// The smallest std that is assumed, as a share of the mean: about ten times the relative distance of
// neighbouring fp32 numbers. A constant loss has a std of rounding errors only.
inline constexpr double kLossLeastSpread = 1e-6;

// A single loss stands out if it exceeds the median of the last kLoneWindow losses by kLoneFactor times as
// much as the largest of them does. For losses with an exponential tail (heavier than in most trainings), the
// n = kLoneWindow / 2 losses above the median give a largest excess M with E[exp(-k M)] = n! k! / (n + k)!,
// which is 2.3e-6 for n = 32 and k = 5: one false report in 400,000 steps. For normal losses it is below
// 1e-12. Losses of a regression may have a power law as their tail. Their logarithms have an exponential one,
// so the logarithm of a positive loss must also exceed that of the median by kLoneLogFactor times as much as
// that of the largest does: k = 3 gives 1.5e-4. Both limits hold for a tail that is lighter than either.
inline constexpr size_t kLoneWindow = 64;
inline constexpr double kLoneFactor = 5;
inline constexpr double kLoneLogFactor = 3;

// Returns the median of the window if `loss` stands out from its losses; absent if not, or if the window is
// not full.
std::optional<double> usual_beside(double loss, const Window<kLoneWindow>& window);

enum class LossEventKind { kSpike, kDivergence };

struct LossEvent {
  LossEventKind kind;
  int64_t onset_step;     // first high step
  int64_t declared_step;  // the step at which the rule was fulfilled
};

struct LossVerdict {
  bool high = false;
  bool in_event = false;  // a spike or divergence has been declared and has not ended
  // (loss - mean) / std of the window before this loss, the std being at least kLossLeastSpread * |mean|.
  // Absent until the window is full, for NaN and Inf, and if the std is 0.
  std::optional<double> z;
  std::optional<double> robust_z;  // robust_z() of the loss and the same window
  std::optional<LossEvent> event;  // the event that this loss completes
};

// Finds spikes and divergences. Trivially copyable; not shared between threads.
class LossEventRule {
 public:
  // Takes the next loss. `step` is only a label; losses count in the order of the calls. `takes_turns`: the
  // optimizer of this loss is one of several, each with a loss of its own.
  LossVerdict observe(int64_t step, double loss, bool takes_turns = false);

  // The last losses that were not high.
  const Window<kLossWindow>& window() const { return window_; }
  uint64_t spikes() const { return spikes_; }
  uint64_t divergences() const { return divergences_; }

  // Resets everything but the counts of events. Must be called when the training goes back to an earlier
  // step.
  void restart();

  template <class State>
  void fields(State& state) {
    window_.fields(state);
    for (int* number : {&high_in_row_, &quiet_in_row_, &nonfinite_in_row_}) {
      state(*number);
      state.require(*number >= 0 && *number <= kMostInRow);
    }
    state(onset_step_);
    state(in_spike_);
    state(diverged_);
    state(spikes_);
    state(divergences_);
  }

 private:
  static constexpr int kMostInRow = 1 << 20;  // losses in a row are not counted beyond this

  // Returns the event that the high loss at `step` completes, and counts it in raise().
  std::optional<LossEvent> declare(int64_t step);
  std::optional<LossEvent> raise(LossEventKind kind, int64_t step);

  Window<kLossWindow> window_;
  int high_in_row_ = 0, quiet_in_row_ = 0, nonfinite_in_row_ = 0;  // quiet: not high
  int64_t onset_step_ = 0;
  bool in_spike_ = false;  // this and diverged_ become false after 3 losses in a row that are not high
  bool diverged_ = false;
  uint64_t spikes_ = 0, divergences_ = 0;
};

// Finds slow rises of the loss, by comparing the loss with its lowest level in the run. LossEventRule cannot
// find slow rises: losses just below 6 std enlarge the std of its window, and a slowly rising loss raises the
// window's mean. LossEventRule keeps the definition of the literature, so that results can be compared.
//
// Losses are averaged in blocks of kBlock. A rise is three blocks in a row whose mean exceeds the level both
// by 6 times the noise of a block's mean and by 5 % of the level. The level is the lowest average of kLevel
// blocks in a row. In a long run, the lowest mean of a single block is far below the usual one by chance.
//
// The noise of a block's mean is the larger of two estimates:
//   - Between blocks: robust_spread() of the differences of neighbouring means, divided by sqrt(2). The
//     distances are from the median difference, so a steady fall of the loss does not count. A steep first
//     descent has no effect after kMemory / 2 further blocks. With few blocks this estimate is inaccurate.
//   - Within blocks: from the differences of neighbouring losses. This estimate misses slow oscillations.
// A block above the level changes neither level nor noise: it may be part of a rise. High losses are skipped.
class LossRiseRule {
 public:
  static constexpr uint64_t kBlock = 32;
  static constexpr size_t kMemory = 16;   // blocks from which the noise is estimated
  static constexpr size_t kLearning = 8;  // differences of blocks before a rise can be found
  static constexpr size_t kLevel = 4;     // blocks whose average can become the level
  static constexpr double kSigmas = 6;
  static constexpr double kLeastShare = 0.05;
  static constexpr int kPersistence = 3;

  // Takes the next loss. Returns the first step of a rise if this loss completes it. `is_high` and `in_event`
  // are the verdict of LossEventRule on the same loss. A high loss is ignored. During an event no rise is
  // found, since the event is already reported. After the event a new level is learned.
  std::optional<int64_t> observe(int64_t step, double loss, bool is_high, bool in_event);

  void restart() { *this = LossRiseRule(); }

  template <class State>
  void fields(State& state) {
    for (double* each : {&sum_, &squares_, &last_, &previous_, &best_}) state(*each);
    state(in_block_);
    state.require(in_block_ < kBlock);
    state(has_previous_);
    state(has_best_);
    state(high_in_row_);
    state.require(high_in_row_ >= 0 && high_in_row_ < kPersistence);
    state(block_step_);
    state(onset_step_);
    level_.fields(state);
    differences_.fields(state);
    within_.fields(state);
  }

 private:
  // Ends a block with the noise `within` it. Returns the first step of the rise that the block completes.
  std::optional<int64_t> end_block(double mean, double within);
  // Starts to learn a new level; keeps the estimates of the noise.
  void begin_anew();
  // The noise of a block's mean. Absent until there are kLearning differences of blocks.
  std::optional<double> noise() const;
  bool is_above(double mean) const;
  // Uses a block that is not above the level for the level and the noise.
  void learn(double mean, double within);

  // Of the present block: sum of losses / kBlock, sum of squared differences of neighbours, last loss.
  double sum_ = 0, squares_ = 0, last_ = 0;
  double previous_ = 0, best_ = 0;  // previous_: last mean that was not above the level; best_: the level
  uint64_t in_block_ = 0;
  bool has_previous_ = false, has_best_ = false;
  int high_in_row_ = 0;
  int64_t block_step_ = 0, onset_step_ = 0;  // first step of the present block, and of the possible rise
  // Of the last blocks not above the level: their means, from which best_ is made; differences of
  // neighbouring means; the noise within each block.
  Window<kLevel> level_;
  Window<kMemory> differences_, within_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LOSS_RULES_H_
