// The one table of alarm thresholds.
#ifndef FORESHOCK_DETECT_THRESHOLDS_H_
#define FORESHOCK_DETECT_THRESHOLDS_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// Error of the kernel over the error of plain attention in the same precision. Two and three times are what
// flash-attention's own tests allow its forward and backward.
inline constexpr double kDeviationRatioForward = 2;
inline constexpr double kDeviationRatioBackward = 3;

// The same of dK and dV, over the error of fused attention. PyTorch's CPU kernel adds them up in bf16, block
// by block of the queries: it has 1.3 to 1.8 times the error of fused attention at 256 queries, 1.4 to 2.6 at
// 1024 and 3 at 4096, 4 if causal. An error of 5 % is beyond 10. The roundings of the blocks are independent,
// so that error grows as the square root of the rows: the limit does too, from kRowsOfLimit rows on.
inline constexpr double kDeviationRatioKeys = 6;
inline constexpr double kRowsOfLimit = 4096;

// Of dK and dV over all keys: what is not conserved, over what roundings leave (shadow/conservation.h). Sound
// calls of PyTorch's CPU kernel have at most 0.7 (bench/verdicts.py's situations); a key of 256 that is left
// out gives 7 of dK and 2.5 of dV.
inline constexpr double kConservationRatio = 3;

// A layer's backward slices of rows that show that its calls see all keys, before conservation is judged.
inline constexpr uint64_t kWholeCalls = 4;

// So many of a layer's last 64 slices beyond the limit: one slice may be so by chance, where plain attention
// happens to err little; a single bad head among 32 gives two.
inline constexpr int kSlicesBeyond = 2;
// Of dK and dV, whose slices count however few of their positions have a gradient: where a training knows its
// data by heart, one slice of dK in 800 is beyond the limit.
inline constexpr int kSlicesBeyondKeys = 3;

// Pooled signed bias of a pass, in ulp, and how sure it must be between slices. Both must be exceeded, and
// not by the rounded reference too.
inline constexpr double kBiasUlp = 0.05;
inline constexpr double kBiasZ = 6;
// Of dK and dV, which PyTorch's CPU kernel adds up in bf16: it exceeds the bias of fused attention by up to
// 0.05 ulp, at 3 standard errors, at 256 to 8192 positions (bench/verdicts.py's situations).
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

// How a detector looks at its series.
enum class Look : int {
  kDrift,     // two-sided CUSUM of value / learned spread; the statistic is its sum
  kRise,      // recent mean of the logarithm above a learned baseline; the statistic is its z
  kDrop,      // the same, below
  kLimit,     // the second largest of the last values; the statistic is it
  kForecast,  // straight line through the last values; the statistic is its slope's t, and how soon it meets
              // `least`
  kGrowth,    // the same through their logarithms, while the square stays below its own running mean
};

// `warn` is the value of the statistic that gives the score 1, `least` the effect that there must be besides:
// the score is the smaller one of statistic / warn and effect / least. Counts are of the values of one
// series.
struct DetectorInfo {
  DetectorId id;
  const char* name;
  const char* help;
  Look look;
  uint64_t learning;  // values before it says anything; of kLimit: how many last values it looks at
  double memory;      // values that its baseline or its line remembers
  double recent;      // of kRise, kDrop: values of the recent mean; of kDrift: the slack
  double warn;
  double least;  // of kDrift in the series' unit, of kRise, kDrop, kGrowth in natural logarithms; 0: none
  double watch;  // the score from which on it watches
};

// The values are those of the literature or of the design; entropy_drop and gradient_norm came too near to
// theirs in healthy trainings (of seeds that bench/precursors does not score) and were set higher by a third.
// CUSUM: slack 0.5 and 18 give one false alarm in 2e8 values
// on two sides where the spread is known (cusum_run_length), so that a thousand series do not cry wolf.
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
