// Detectors: statistics of one series of values, the score that a row of the table makes of them, and the
// level that the scores give. Pure functions of the values in their order: no clock, no input or output, no
// heap.
//
//   Baseline  mean and spread of a series, learned and slowly followed
//   Drift     a small signed error that persists (two-sided CUSUM)
//   Shift     a recent mean above or below the baseline
//   Limit     a value over a fixed limit, seen twice
//   Growth    a straight line through the last values and its forecast
#ifndef FORESHOCK_DETECT_DETECTOR_H_
#define FORESHOCK_DETECT_DETECTOR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <variant>

#include "detect/state.h"
#include "detect/thresholds.h"
#include "detect/window.h"

namespace foreshock {

enum class Level : int { kQuiet = 0, kWatch = 1, kWarn = 2 };
inline constexpr int kLevels = 3;

constexpr const char* name_of(Level level) {
  constexpr const char* kNames[kLevels] = {"quiet", "watch", "warn"};
  return kNames[static_cast<int>(level)];
}

constexpr const char* name_of(Look look) {
  constexpr const char* kNames[] = {"drift", "rise", "drop", "limit", "forecast", "growth"};
  return kNames[static_cast<int>(look)];
}

// What a detector says of the value it was just given. `score`: 1 is where it warns; 0 while it learns.
struct Reading {
  Level level = Level::kQuiet;
  double score = 0;
};

// A level rises at once and falls only when the score has been well below where it rose, for some values in a
// row: a score that swings around a threshold makes one event, not many.
class LevelRule {
 public:
  static constexpr double kLeaveAt = 0.7;  // of where the level begins
  static constexpr int kCalm = 8;          // values in a row

  // `watch_at`: the score from which on the level is watch, at most 1.
  Level observe(double score, double watch_at) {
    const double begins_at[kLevels] = {-INFINITY, watch_at, 1};
    const Level reached = score >= 1 ? Level::kWarn : score >= watch_at ? Level::kWatch : Level::kQuiet;
    const bool is_calm = score < kLeaveAt * begins_at[static_cast<int>(level_)];
    calm_ = is_calm ? calm_ + 1 : 0;
    if (reached > level_ || calm_ >= kCalm) {
      level_ = reached;
      calm_ = 0;
    }
    return level_;
  }

  Level level() const { return level_; }

  template <class State>
  void fields(State& state) {
    int level = static_cast<int>(level_);
    state(level);
    state(calm_);
    state.require(level >= 0 && level < kLevels && calm_ >= 0 && calm_ <= kCalm);
    level_ = level >= 0 && level < kLevels ? static_cast<Level>(level) : Level::kQuiet;
  }

 private:
  Level level_ = Level::kQuiet;
  int calm_ = 0;
};

// What is usual for a series: its mean and spread, learned and slowly followed.

// Mean and variance with exponential forgetting: of the first values the plain ones, later as if of the last
// `memory` ones. Once `learning` values are known, one that lies beyond kClip standard deviations counts as
// if it lay there: a spike does not become usual by itself, and a level that has moved for good does in the
// end, since the spread grows with every clipped value (by 15/(2 memory) each), so that no alarm is locked
// in.
class Baseline {
 public:
  static constexpr double kClip = 4;

  // `x` finite; memory >= 2.
  void add(double x, double memory, uint64_t learning);

  double mean() const { return mean_; }
  double std() const;
  uint64_t count() const { return count_; }

  template <class State>
  void fields(State& state) {
    state(mean_);
    state(variance_);
    state(count_);
  }

 private:
  double mean_ = 0;
  double variance_ = 0;
  uint64_t count_ = 0;
};

// Page's cumulative sum: the standard test for a small shift that lasts.

// One side: S = max(0, S + z - slack), for z of unit spread and mean 0 when all is well. The sum is held at
// `most`, so that it comes down in reasonable time when the shift is over.
class Cusum {
 public:
  void add(double z, double slack, double most, double value) {
    sum_ = std::min(sum_ + z - slack, most);
    ++count_;
    total_ += value;
    if (sum_ > 0) return;
    sum_ = total_ = 0;
    count_ = 0;
  }

  double sum() const { return sum_; }
  // Mean of the values since the sum was 0 for the last time: an estimate of the shift.
  double mean() const { return count_ > 0 ? total_ / static_cast<double>(count_) : 0; }

  template <class State>
  void fields(State& state) {
    state(sum_);
    state(total_);
    state(count_);
  }

 private:
  double sum_ = 0, total_ = 0;
  uint64_t count_ = 0;
};

// Values until a one-sided CUSUM of independent normal values reaches `threshold` although nothing has
// shifted, on average: Siegmund's approximation (Sequential Analysis, 1985, 2.6), good to a few percent. Two
// sides: half of it.
inline double cusum_run_length(double slack, double threshold) {
  const double b = 2 * slack * (threshold + 1.166);
  return (std::exp(b) - b - 1) / (2 * slack * slack);
}

// A small signed error that lasts, whatever its size beside the noise of single values.

// The mean is 0 when all is well, by the meaning of the series; only the spread is learned, about the mean of
// the values themselves, so that a bias which is there from the start is still one. Noise that swells is no
// drift: the spread is the larger one of what was learned and of the last kRecent values. No single value
// counts for more than kMost standard deviations.
class Drift {
 public:
  static constexpr double kMost = 4;
  static constexpr double kRecent = 8;

  // The score. `control`: the same quantity of the rounded reference (0 where there is none): what the
  // control sums up to is taken off.
  double observe(const DetectorInfo& info, double value, double control);

  template <class State>
  void fields(State& state) {
    spread_.fields(state);
    recent_.fields(state);
    for (Cusum* one : {&up_, &down_, &control_up_, &control_down_}) one->fields(state);
  }

 private:
  Baseline spread_, recent_;
  Cusum up_, down_, control_up_, control_down_;
};

// A positive quantity that is suddenly far from where it used to be.

// Logarithms, so that a factor counts the same at every size. The recent mean (exponential, of `recent`
// values) against the baseline of the values before it, in standard errors.
class Shift {
 public:
  // The score; 0 for the wrong direction. A value of 0 or below counts as the smallest there is.
  double observe(const DetectorInfo& info, double value);

  template <class State>
  void fields(State& state) {
    usual_.fields(state);
    state(recent_);
  }

 private:
  Baseline usual_;
  double recent_ = 0;
};

// A quantity beyond a fixed limit, seen twice.

// One value may be beyond by chance; two of the last info.learning (64 at most) are not.
class Limit {
 public:
  // The second largest of the last values over the limit, negative values as 0.
  double observe(const DetectorInfo& info, double value);

  template <class State>
  void fields(State& state) {
    last_.fields(state);
  }

 private:
  Window<64> last_;
};

// A straight line through the last values of a series, and what it says of the next ones.

// Least squares with exponential forgetting, in sums about the running means (West's update), so that large
// step numbers cost no digits.
class Line {
 public:
  // Forgets with 1 - 1 / memory; memory > 2.
  void add(double x, double y, double memory);
  double slope() const { return xx_ > 0 ? xy_ / xx_ : 0; }
  double at(double x) const { return mean_y_ + slope() * (x - mean_x_); }
  // Slope over its standard error, residuals being independent; 0 below four values.
  double t() const;
  // Steps that the remembered values span, if they lie evenly.
  double span() const;
  uint64_t count() const { return count_; }

  template <class State>
  void fields(State& state) {
    for (double* each : {&weight_, &mean_x_, &mean_y_, &xx_, &xy_, &yy_}) state(*each);
    state(count_);
  }

 private:
  double weight_ = 0, mean_x_ = 0, mean_y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;
  uint64_t count_ = 0;
};

// kForecast: the line meets info.least within the span once more. kGrowth: the line through the logarithms
// rises by info.least over its span, while the square is below the mean square of the last kLongMemory
// values: what scales the steps still shrinks (Adam's second moment), though the gradient grows.
class Growth {
 public:
  static constexpr double kLongMemory = 1000;

  double observe(const DetectorInfo& info, int64_t step, double value);

  template <class State>
  void fields(State& state) {
    line_.fields(state);
    state(mean_square_);
  }

 private:
  double forecast(const DetectorInfo& info, double step) const;
  double growth(const DetectorInfo& info) const;

  Line line_;
  double mean_square_ = 0;
};

// One detector on one series: what the table says, with the state that it needs.

// Pure: the readings follow from the values in the order in which they come. No clock, no input, no heap.
class Detector {
 public:
  explicit Detector(DetectorId id);

  // A value that is not finite, or whose control is not, changes nothing and reads as before with the score
  // 0: others count and report those. `step` is only a coordinate; it may go back.
  Reading observe(int64_t step, double value, double control = 0);

  Level level() const { return rule_.level(); }
  DetectorId id() const { return id_; }

  // Everything but the id.
  template <class State>
  void fields(State& state) {
    std::visit([&](auto& statistic) { statistic.fields(state); }, statistic_);
    rule_.fields(state);
  }

 private:
  DetectorId id_;
  std::variant<Drift, Shift, Limit, Growth> statistic_;
  LevelRule rule_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_DETECTOR_H_
