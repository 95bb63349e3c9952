// What counts as a loss event. One fixed rule, against which every detector is scored; it looks at nothing
// but the losses of the steps as they come, so a record replays to the same events.
//
//   high:       loss > mean + 6 std of the 128 usable losses before it, or not finite. A high loss is not
//   usable: it
//               does not enter the window, else a spike would hide its own rest. Nothing is high before 128
//               losses.
//   spike:      3 high losses in a row. Its onset is the first of them. It is over after 3 in a row that are
//   not high. divergence: 3 losses in a row that are not finite, whether or not the window is full; or 128
//   high losses in a row.
//               After the latter the window starts anew at the level reached.
#ifndef FORESHOCK_DETECT_LOSS_EVENT_H_
#define FORESHOCK_DETECT_LOSS_EVENT_H_

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "detect/window.h"

namespace foreshock {

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

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LOSS_EVENT_H_
