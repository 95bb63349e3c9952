// Detects unusual values in one series (of one layer or tensor). A detector computes a statistic of the
// series, a score from the statistic and the detector's row in the table below, and a level from the scores.
// The results depend only on the values and their order. No clock, no input or output, no heap. The member
// fields() of each class reads or writes its members, so that a restarted agent continues where it stopped
// (state.h). A row (DetectorInfo `info`) has: learning, the number of values before the first score; memory,
// the number of values that count in a baseline or line; warn and least, the limits of the statistic (how
// certain a change is) and of the effect (how large the change is), from which on the detector warns; look,
// the kind of statistic; recent, see Drift and Shift.
//
//   Window    the last values of a series, and their summary (window.h)
//   Baseline  mean and spread of a series, learned and then slowly updated
//   Drift     a small signed error that persists (two-sided CUSUM)
//   Shift     a recent mean above or below the baseline
//   Limit     two values above a fixed limit
//   Growth    a straight line through the last values and its forecast
#ifndef FORESHOCK_DETECT_DETECTOR_H_
#define FORESHOCK_DETECT_DETECTOR_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <variant>

#include "detect/state.h"
#include "detect/window.h"

namespace foreshock {

// -- all alarm thresholds, and the table of detectors --

// Errors and biases are those of a trainer's attention kernel against an fp64 reference, measured on slices,
// which are pieces of sampled calls. Two correct algorithms in the trainer's precision have errors too:
// "fused" and "plain" (unfused) attention.

// Limits of the kernel's error divided by the error of fused attention. The tests of flash-attention allow
// the same factors of plain attention: two for the forward pass, three for the backward pass.
inline constexpr double kDeviationRatioForward = 2;
inline constexpr double kDeviationRatioBackward = 3;

// Factor of all limits of error ratios in fp32 and fp64. There a sound kernel's error is not one rounding but
// the order of its sums and its approximation of exp, which differ from those of fused attention. Largest
// ratios of PyTorch's CPU kernel in small trainings (head sizes 8 to 64, random targets, a rate far too high,
// gradients scaled by 1e-6): in fp32 2.8 over 14,500 slices of out and 3.6 over 11,900 of dQ; in bf16 and
// fp16 1.24 over 4,200 and 1.35 over 3,300.
// Errors that matter are thousands of roundings of fp32.
inline constexpr double kWiderInFp32 = 2;

// Limit of the kernel's error of dK and dV, divided by the error of fused attention. PyTorch's CPU kernel
// sums dK and dV in bf16, one block of queries at a time. Its error is 1.3 to 1.8 times that of fused
// attention at 256 queries, 1.4 to 2.6 times at 1024, and 3 times (4 times with a causal mask) at 4096. A
// planted error of 5 % gives more than 10 times. The roundings of the blocks are independent, so the kernel's
// error grows with the square root of the number of queries. From kRowsOfLimit queries on, the limit grows in
// the same way.
inline constexpr double kDeviationRatioKeys = 6;
inline constexpr double kRowsOfLimit = 4096;

// The limit of dK and dV is that of dQ in a slice whose errors mostly have one sign: whose mean signed error
// lies further than this, in ulp of bf16, outside of those of its controls
// (SliceDeviation::unexplained_bias). The roundings of the CPU kernel's sums do not agree in sign: that
// distance is at most 0.3 in 33,000 slices of sound trainings in bf16 and fp32, of as few as 16 x 16
// elements. A result 5 % too large has 6 to 13 ulp, 1 % has 1 to 3. Where the softmax has saturated it may be
// any number, but then the ratio is small: among 5,000 slices of sound written-out attention in bf16 with
// query and key weights 1, 8 and 30 times as large, one of dV had both, 5.3 ulp and 2.2 times the error.
inline constexpr double kOneSidedUlp = 2;

// Limit of a ratio: the error of the sum of dK, or of dV, over all keys, divided by the error that rounding
// explains. shadow/conservation.h gives the exact sums and this error. Correct calls of PyTorch's CPU kernel
// have at most 0.7 (bench/verdicts.py). If one key of 256 is left out, the ratio is 7 for dK and 2.5 for dV.
inline constexpr double kConservationRatio = 3;

// The sums of dK and dV are not judged if a call of the layer saw only a part of the keys (as with context
// parallelism), and not before this many backward slices of the layer, none of them from such a call.
inline constexpr uint64_t kWholeCalls = 4;

// An alarm needs this many of a layer's last 64 slices above the limit of the ratio. A single slice may
// exceed it by chance, if plain attention has a small error. A faulty head of 32 has two of the 64 slices.
inline constexpr int kSlicesBeyond = 2;
// The same number for dK and dV. It is larger, since slices with few nonzero gradients count as well: in a
// training that has memorized its data, one slice of dK in 800 exceeds the limit.
inline constexpr int kSlicesBeyondKeys = 3;

// Limits of the bias of a pass, which is the mean signed error over its slices: kBiasUlp limits the bias in
// ulp of bf16, kBiasZ the bias divided by its standard error. A bias alarm has three conditions: the bias
// exceeds both limits; the bias minus that of fused attention on the same slices exceeds both, with the same
// sign; the bias of the exact result, rounded to the trainer's precision, is not above kRoundedBiasUlp.
//
// A bias of b ulp changes an output by b 2^-8 of itself in the mean, in bf16. It adds up over n calls, while
// the random rounding error, 0.3 ulp, grows with the root of n. In trainings in bf16 with a bias along the
// gradient of the output, the worst direction, an eighth of an ulp did no harm in 500 steps and a quarter
// spoiled them. The change counts, not the ulp: the same change is 2^3 times as many ulp of fp16 and 2^16
// times as many of fp32, where a bias that matters exceeds the limits of the error ratios long before.
inline constexpr double kBiasUlp = 0.125;
inline constexpr double kBiasZ = 6;
inline constexpr double kRoundedBiasUlp = 0.05;  // in ulp of the format
// Limit of the bias of dK and dV, in ulp of bf16. PyTorch's CPU kernel, which sums them in bf16, exceeds the
// bias of fused attention by up to 0.05 ulp, at 3 standard errors, at 256 to 8192 positions
// (bench/verdicts.py).
inline constexpr double kBiasUlpKeys = 0.25;

// The detectors, in the order of the table below.
enum class DetectorId : int {
  kBias,
  kOutputErrorDrift,
  kDeviationForward,
  kDeviationBackward,
  kMaxLogit,
  kLogitGrowth,
  kEntropyDrop,
  kGradientNorm,
  kGradientGrowth,
  kWeightShift,
  kCount
};
inline constexpr size_t kDetectors = static_cast<size_t>(DetectorId::kCount);

// The statistic of a detector (the classes below compute it). It measures how certain a change is. The
// effect, in parentheses, measures how large the change is. z and t are in standard errors.
enum class Look : int {
  kDrift,     // cumulative sum (two-sided CUSUM) of value / learned spread (effect: mean of the values)
  kRise,      // z of the recent mean logarithm above the learned baseline (effect: their difference)
  kDrop,      // z of the recent mean logarithm below the learned baseline (effect: their difference)
  kLimit,     // the second largest of the last values (no effect)
  kForecast,  // t of the slope of a line through the last values (effect: how soon it reaches `least`)
  kGrowth,    // as kForecast for the logarithms, while value^2 is below its running mean (effect: rise)
};

// A row of the table of detectors. A detector warns if its statistic reaches `warn` and its effect `least`:
// the score is the smaller of statistic / warn and effect / least. All counts are values of one series.
struct DetectorInfo {
  DetectorId id;
  const char* name;
  const char* help;
  Look look;
  uint64_t learning;  // number of values before the first score; kLimit: number of the last values looked at
  double memory;      // values that the baseline or the line remembers
  double recent;      // kRise, kDrop: number of values in the recent mean; kDrift: the slack of its CUSUM
  double warn;        // threshold of the statistic
  // Threshold of the effect, in the unit of the series (kDrift, kForecast) or in natural logarithms; 0: none.
  double least;
  double watch;  // lowest score of the level watch
};

// The thresholds come from the literature or the design. Those of the detectors
// entropy_drop and gradient_norm were raised by a third, since healthy trainings came close to them (with
// seeds that bench/precursors does not score). If the spread is known, a two-sided CUSUM with slack 0.5 and
// threshold 18 gives one false alarm in 2e8 values (cusum_run_length()), which is rare enough for a thousand
// series.
//
// The numbers of a row are learning, memory, recent, warn, least and watch. Some values of `least` are
// natural logarithms: 0.405 is ln 1.5, 0.916 is ln 2.5, 0.7 is about ln 2.
inline constexpr DetectorInfo kDetectorTable[kDetectors] = {
    {DetectorId::kBias, "bias",
     "signed error of attention's output, in ulp of bf16, that lasts and that fused attention and the "
     "rounded "
     "reference lack",
     Look::kDrift, 32, 256, 0.5, 18, kBiasUlp, 0.67},
    {DetectorId::kOutputErrorDrift, "output_error_drift",
     "sum of the output's gradient times the output's error (backward) that keeps its sign", Look::kDrift, 32,
     256, 0.5, 18, 0, 0.67},
    {DetectorId::kDeviationForward, "deviation_forward",
     "the error of two of the last forward slices exceeds what their precision explains", Look::kLimit, 64, 0,
     0, kDeviationRatioForward, 0, 0.75},
    {DetectorId::kDeviationBackward, "deviation_backward",
     "the error of two of the last backward slices exceeds what their precision explains", Look::kLimit, 64,
     0, 0, kDeviationRatioBackward, 0, 0.75},
    {DetectorId::kMaxLogit, "max_logit", "largest scaled score of a slice is at 100, where softmax saturates",
     Look::kLimit, 8, 0, 0, 100, 0, 0.5},
    {DetectorId::kLogitGrowth, "logit_growth", "largest scaled score grows and will soon be at 100",
     Look::kForecast, 16, 32, 0, 6, 100, 0.5},
    {DetectorId::kEntropyDrop, "entropy_drop", "mean entropy of the attention weights falls suddenly",
     Look::kDrop, 32, 256, 8, 8, 0.405, 0.75},
    {DetectorId::kGradientNorm, "gradient_norm", "gradient norm before clipping is far above its usual range",
     Look::kRise, 64, 128, 2, 8, 0.916, 0.75},
    {DetectorId::kGradientGrowth, "gradient_growth",
     "gradient norm grows steadily from below its own running mean: steps are too long for the curvature",
     Look::kGrowth, 64, 8, 0, 5, 0.5, 0.5},
    {DetectorId::kWeightShift, "weight_shift",
     "a tensor's distribution moves faster between snapshots than it used to", Look::kRise, 8, 32, 2, 5, 0.7,
     0.75},
};

constexpr const DetectorInfo& info_of(DetectorId id) { return kDetectorTable[static_cast<size_t>(id)]; }

// -- the detectors --

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

// The result of a detector for one value. The detector warns from score 1 on; the score is 0 while it learns.
struct Reading {
  Level level = Level::kQuiet;
  double score = 0;
};

// Turns scores into a level. The level rises at the first score that reaches the threshold of a higher level.
// It falls only after kCalm scores in a row below kLeaveAt times the threshold of the present level, and then
// to the level that the last score reaches. So a score that oscillates around a threshold makes one event.
class LevelRule {
 public:
  static constexpr double kLeaveAt = 0.7;
  static constexpr int kCalm = 8;

  // `watch_at`: lowest score of the level watch; at most 1.
  Level observe(double score, double watch_at) {
    const double begins_at[kLevels] = {-INFINITY, watch_at, 1};  // so no score is calm at level quiet
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
    // require() only marks the state as invalid, so level_ must be limited here too.
    level_ = level >= 0 && level < kLevels ? static_cast<Level>(level) : Level::kQuiet;
  }

 private:
  Level level_ = Level::kQuiet;
  int calm_ = 0;
};

// The usual mean and spread (standard deviation) of a series. The first `memory` values have equal weights,
// later ones exponential weights with that memory. After `learning` values, each value is clipped to kClip
// standard deviations from the mean, so that a spike hardly changes the baseline. Every clipped value
// enlarges the spread by a share of about (kClip^2 - 1) / (2 memory), so the baseline follows a lasting
// change.
class Baseline {
 public:
  static constexpr double kClip = 4;

  // `x` must be finite and `memory` at least 2.
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

// One side of Page's cumulative sum (CUSUM), the standard test for a small lasting shift: S = max(0, S + z -
// slack), where z has unit spread, and mean 0 without a shift. `most` limits S, so that S falls soon after
// the shift has ended.
class Cusum {
 public:
  // `value` is what z was computed from, in the unit of the series; mean() averages it.
  void add(double z, double slack, double most, double value) {
    sum_ = std::min(sum_ + z - slack, most);
    ++count_;
    total_ += value;
    if (sum_ > 0) return;
    sum_ = total_ = 0;
    count_ = 0;
  }

  double sum() const { return sum_; }
  // Mean of the values since the sum was last 0: an estimate of the shift.
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

// Mean number of values until a one-sided CUSUM of independent normal values without a shift reaches
// `threshold`, that is between two false alarms: Siegmund's approximation (Sequential Analysis, 1985, 2.6),
// accurate to a few percent. For a two-sided CUSUM the number is half.
inline double cusum_run_length(double slack, double threshold) {
  const double b = 2 * slack * (threshold + 1.166);
  return (std::exp(b) - b - 1) / (2 * slack * slack);
}

// Detects a small lasting signed error, however small compared with the noise of single values.
//
// Without a fault the series must have mean 0. The mean is therefore not learned, so that a bias present from
// the start is found. The spread is learned, around the mean of the values. If the spread of the last kRecent
// values is larger, it is used instead, so that growing noise is not taken for a drift. In the CUSUM a value
// is limited to kMost times the spread.
class Drift {
 public:
  static constexpr double kMost = 4;
  static constexpr double kRecent = 8;

  // Returns the score. `control`: the same quantity for the exact result, rounded to the trainer's format, or
  // 0. Its CUSUM is subtracted, since rounding alone is not a fault. info.recent is the slack of the CUSUMs.
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

// Detects that a positive quantity is suddenly above (kRise) or below (kDrop) its baseline. It compares the
// exponential mean of info.recent values with the mean of earlier values, in standard errors. It uses
// logarithms, so that a factor counts the same at every magnitude.
class Shift {
 public:
  // Returns the score; 0 for a shift in the other direction. A value below 1e-30 counts as 1e-30.
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

// Detects values above the fixed limit info.warn. Two of the last info.learning values (at most 64) must
// exceed the limit, since a single value may do so by chance.
class Limit {
 public:
  // Returns the score: the second largest of these values (negative ones count as 0), divided by the limit.
  double observe(const DetectorInfo& info, double value);

  template <class State>
  void fields(State& state) {
    last_.fields(state);
  }

 private:
  Window<64> last_;
};

// A straight line through the last values of a series, by least squares with exponential forgetting. The sums
// are about the running means (West's update), so that large step numbers cost no precision.
class Line {
 public:
  // Multiplies the weight of earlier values by 1 - 1 / memory; `memory` must be above 2.
  void add(double x, double y, double memory);
  double slope() const { return xx_ > 0 ? xy_ / xx_ : 0; }
  double at(double x) const { return mean_y_ + slope() * (x - mean_x_); }
  // Slope divided by its standard error, for independent residuals; 0 with fewer than four values.
  double t() const;
  // Steps that the remembered values span, if they are evenly spaced.
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

// Fits a straight line to the last values of a series, for two statistics (info.look).
//   kForecast: detects that the line will reach info.least within another span (Line::span()) of the line.
//   kGrowth: detects that the line through the logarithms rises by info.least over its span. The rise counts
//     only while the value's square is below the mean square of the last kLongMemory values. For a gradient
//     norm, Adam's second moment, which scales the steps, then still falls although the gradient grows.
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

// One detector of the table on one series.
class Detector {
 public:
  explicit Detector(DetectorId id);

  // Adds a value. `step`, the x coordinate of the lines of Growth, may go back. Only Drift uses `control`. If
  // the value or its control is not finite, the reading is the present level and score 0; the state stays.
  Reading observe(int64_t step, double value, double control = 0);

  Level level() const { return rule_.level(); }
  DetectorId id() const { return id_; }

  // Reads or writes the state, without the id.
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
