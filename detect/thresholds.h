// All alarm thresholds, and the table of detectors. Errors and biases are those of a trainer's attention
// kernel against an fp64 reference, measured on slices, which are pieces of sampled calls. Two correct
// algorithms in the trainer's precision have errors too: "fused" and "plain" (unfused) attention.
#ifndef FORESHOCK_DETECT_THRESHOLDS_H_
#define FORESHOCK_DETECT_THRESHOLDS_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// Limits of the kernel's error divided by the error of plain attention. The tests of flash-attention allow
// the same factors: two for the forward pass, three for the backward pass.
inline constexpr double kDeviationRatioForward = 2;
inline constexpr double kDeviationRatioBackward = 3;

// Limit of the error of dK and dV, divided by that of fused attention. PyTorch's CPU kernel sums them in
// bf16, one block of queries at a time. Its error is 1.3 to 1.8 times that of fused attention at 256
// queries, 1.4 to 2.6 times at 1024, and 3 times (4 times with a causal mask) at 4096. A planted error of 5 %
// gives more than 10 times. The roundings of the blocks are independent, so the kernel's error grows with the
// square root of the number of queries. From kRowsOfLimit queries on, the limit grows in the same way.
inline constexpr double kDeviationRatioKeys = 6;
inline constexpr double kRowsOfLimit = 4096;

// Limit of the error of the sums of dK and of dV over all keys, divided by the error that rounding explains.
// shadow/conservation.h gives the exact sums and this error. Correct calls of PyTorch's CPU kernel have at
// most 0.7 (bench/verdicts.py). If one key of 256 is left out, the ratio is 7 for dK and 2.5 for dV.
inline constexpr double kConservationRatio = 3;

// These sums are judged after this many backward slices of a layer have shown that its calls see all keys.
inline constexpr uint64_t kWholeCalls = 4;

// An alarm needs this many of a layer's last 64 slices above the limit of the ratio. A single slice may
// exceed it by chance, if plain attention has a small error; a single faulty head among 32 gives two slices.
inline constexpr int kSlicesBeyond = 2;
// The same number for dK and dV. It is larger, since slices with few nonzero gradients count as well: in a
// training that has memorized its data, one slice of dK in 800 exceeds the limit.
inline constexpr int kSlicesBeyondKeys = 3;

// Limits of the bias of a pass, which is the mean signed error over its slices: kBiasUlp limits the bias in
// ulp, kBiasZ the bias divided by its standard error. A bias alarm has three conditions: the bias exceeds
// both limits; the bias minus that of a correct algorithm on the same slices exceeds both, with the same
// sign; the bias of the exact result, rounded to the trainer's precision, does not exceed both.
inline constexpr double kBiasUlp = 0.05;
inline constexpr double kBiasZ = 6;
// Limit of the bias of dK and dV, in ulp. PyTorch's CPU kernel, which sums them in bf16, exceeds the bias of
// fused attention by up to 0.05 ulp, at 3 standard errors, at 256 to 8192 positions (bench/verdicts.py).
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
  kRmsStaleness,
  kUpdateSpectrum,
  kWeightShift,
  kCount
};
inline constexpr size_t kDetectors = static_cast<size_t>(DetectorId::kCount);

// The statistic of a detector (detector.h has the classes that compute it). It measures how certain a change
// is. The effect, in parentheses, measures how large the change is. z and t are in standard errors.
enum class Look : int {
  kDrift,     // cumulative sum (two-sided CUSUM) of value / learned spread (effect: mean of the values)
  kRise,      // z of the recent mean logarithm above the learned baseline (effect: their difference)
  kDrop,      // z of the recent mean logarithm below the learned baseline (effect: their difference)
  kLimit,     // the second largest of the last values (no effect)
  kForecast,  // t of the slope of a line through the last values (effect: how soon it reaches `least`)
  kGrowth,    // t of the slope of their logarithms, if value^2 is below its running mean (effect: rise)
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
  double recent;      // kRise, kDrop: values of the recent mean; kDrift: the slack of its CUSUM
  double warn;
  // Threshold of the effect, in the unit of the series (kDrift, kForecast) or in natural logarithms; 0: none.
  double least;
  double watch;  // lowest score of the level watch
};

// The thresholds come from the literature or the design. Those of entropy_drop and gradient_norm were raised
// by a third, since healthy trainings came close to them (with seeds that bench/precursors does not score).
// If the spread is known, a two-sided CUSUM with slack 0.5 and threshold 18 gives one false alarm in 2e8
// values (cusum_run_length() of detector.h), which is rare enough for a thousand series.
inline constexpr DetectorInfo kDetectorTable[kDetectors] = {
    {DetectorId::kBias, "bias",
     "signed error of attention's output in ulp that lasts and that the rounded reference has not",
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
     "gradient norm grows steadily from below its own running mean: the cheap sign of preconditioned "
     "curvature beyond "
     "its bound",
     Look::kGrowth, 64, 8, 0, 5, 0.5, 0.5},
    {DetectorId::kRmsStaleness, "rms_staleness",
     "second moment of Adam too small for the gradients that now come", Look::kLimit, 8, 0, 0, 2.3, 0, 0.75},
    {DetectorId::kUpdateSpectrum, "update_spectrum",
     "effective rank of a head's increment of W_Q W_K^T falls", Look::kDrop, 16, 64, 2, 5, 0.357, 0.75},
    {DetectorId::kWeightShift, "weight_shift",
     "a tensor's distribution moves faster between snapshots than it used to", Look::kRise, 8, 32, 2, 5, 0.7,
     0.75},
};

constexpr const DetectorInfo& info_of(DetectorId id) { return kDetectorTable[static_cast<size_t>(id)]; }

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_THRESHOLDS_H_
