// Loss events: the fixed rule for spikes and divergences (LossEventRule) and the rule for slow rises
// (LossRiseRule). Both read nothing but the losses in their order, so a record replays to the same events.
#ifndef FORESHOCK_DETECT_LOSS_RULES_H_
#define FORESHOCK_DETECT_LOSS_RULES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "detect/window.h"

namespace foreshock {

inline constexpr size_t kRobustZMaxValues = 256;

// (x - median) / (1.4826 median |value - median|): for normal values what the usual z is. `values` are
// finite, at most kRobustZMaxValues of them (the first ones are taken). Absent below 16 values, for an x that
// is not finite, or when more than half of the values are equal.
std::optional<double> robust_z(const double* values, size_t count, double x);

// 1.4826 median |value - median|: for normal values their standard deviation. `values` are finite, at most
// kRobustZMaxValues of them (the first ones are taken); 0 for none, and when more than half are equal.
double robust_spread(const double* values, size_t count);

// What LossEventRule counts as a loss event. It is fixed: every detector is scored against it.
//
//   high:       loss > mean + 6 std of the 128 usable losses before it, or not finite. A high loss is not
//   usable: it
//               does not enter the window, else a spike would hide its own rest. Nothing is high before 128
//               losses.
//   spike:      3 high losses in a row. Its onset is the first of them. It is over after 3 in a row that are
//   not high. divergence: 3 losses in a row that are not finite, whether or not the window is full; or 128
//   high losses in a row.
//               After the latter the window starts anew at the level reached.

inline constexpr size_t kLossWindow = 128;
inline constexpr double kLossSigmas = 6;
inline constexpr int kLossPersistence = 3;
// A loss that hardly moves (a constant, say) has a spread of rounding errors only: this share of the mean is
// the least spread assumed, some ten spacings of an fp32 loss.
inline constexpr double kLossLeastSpread = 1e-6;

enum class LossEventKind { kSpike, kDivergence };

struct LossEvent {
  LossEventKind kind;
  int64_t onset_step;     // first high step
  int64_t declared_step;  // the step that made it an event
};

struct LossVerdict {
  bool high = false;
  bool in_event = false;
  std::optional<double> z;  // against the window before it; absent until the window is full, and for NaN, Inf
  std::optional<double> robust_z;  // likewise, by the median
  std::optional<LossEvent> event;  // declared by this very loss
};

// Trivially copyable; not shared between threads.
class LossEventRule {
 public:
  // `step` only labels; losses count in the order in which they are given.
  LossVerdict observe(int64_t step, double loss);

  // The usable losses so far.
  const Window<kLossWindow>& window() const { return window_; }
  uint64_t spikes() const { return spikes_; }
  uint64_t divergences() const { return divergences_; }

  // As after construction, but for the counts: the losses that come belong to another stretch of the
  // training.
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
  static constexpr int kMostInRow = 1 << 20;  // they are not counted further

  std::optional<LossEvent> declare(int64_t step);
  std::optional<LossEvent> raise(LossEventKind kind, int64_t step);

  Window<kLossWindow> window_;
  int high_in_row_ = 0, quiet_in_row_ = 0, nonfinite_in_row_ = 0;
  int64_t onset_step_ = 0;
  bool in_spike_ = false;
  bool diverged_ = false;
  uint64_t spikes_ = 0, divergences_ = 0;
};

// The slow failure. LossEventRule stays as the literature has it, so that figures can be compared,
// and cannot see it: losses just below 6 sigma enter its window and widen it, and a loss that goes up a
// little at a time takes the window along. Needs no twin of the run, only the run's own best.

// Means of kBlock losses one after the other. Three in a row above the level by 6 times their noise and by
// 5 % of it are a rise. The level is the lowest that kLevel blocks in a row have had on average: of single
// blocks the lowest would sink below what is usual the longer a run is.
//
// Noise of a mean, the larger of two:
//   - between blocks: median and MAD of the differences of neighbours, of which a mean has 1/sqrt(2). The
//     median takes a steady fall of the loss away, and half of kMemory blocks after a steep first descent
//     nothing is left of it;
//   - within them: from the differences of neighbouring losses. It alone would miss slow oscillations, the
//     first alone is a poor estimate while there are few blocks.
// A block that is suspect enters neither level nor noise, a single loss that is high not even its block.
class LossRiseRule {
 public:
  static constexpr uint64_t kBlock = 32;
  static constexpr size_t kMemory = 16;   // blocks
  static constexpr size_t kLearning = 8;  // differences of blocks before anything is said
  static constexpr size_t kLevel = 4;     // blocks
  static constexpr double kSigmas = 6;
  static constexpr double kLeastShare = 0.05;
  static constexpr int kPersistence = 3;

  // The first step of the rise, when this loss makes it one. What the other rule says of the same loss:
  // `is_high`, it is left out; `in_event`, what goes on has been told, and the level that it leaves is no
  // rise.
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
  std::optional<int64_t> end_block(double mean, double within);
  // Another level begins; what is known of the noise stays.
  void begin_anew();
  // Absent while it learns.
  std::optional<double> noise() const;
  bool is_above(double mean) const;
  void learn(double mean, double within);

  double sum_ = 0, squares_ = 0, last_ = 0;  // of the block that goes on; of differences of neighbours
  double previous_ = 0, best_ = 0;           // the last usable block; the level
  uint64_t in_block_ = 0;
  bool has_previous_ = false, has_best_ = false;
  int high_in_row_ = 0;
  int64_t block_step_ = 0, onset_step_ = 0;
  Window<kLevel> level_;
  Window<kMemory> differences_, within_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LOSS_RULES_H_
