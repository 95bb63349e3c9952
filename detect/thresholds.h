// All alarm thresholds, and the table of detectors.
#ifndef FORESHOCK_DETECT_THRESHOLDS_H_
#define FORESHOCK_DETECT_THRESHOLDS_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// Limits of the kernel's error relative to that of plain attention in the same precision. flash-attention's
// own tests allow two and three times for its forward and backward.
inline constexpr double kDeviationRatioForward = 2;
inline constexpr double kDeviationRatioBackward = 3;

// Limit of the error of dK and dV relative to that of fused attention. PyTorch's CPU kernel sums them in
// bf16, one block of queries at a time: its error is 1.3 to 1.8 times that of fused attention at 256
// queries, 1.4 to 2.6 at 1024, and at 4096 3 times, or 4 times with a causal mask. A planted error of 5 %
// gives more than 10. The roundings of the blocks are independent, so the kernel's error grows with the
// square root of the rows. From kRowsOfLimit rows on, the limit grows likewise.
inline constexpr double kDeviationRatioKeys = 6;
inline constexpr double kRowsOfLimit = 4096;

// Limit of the violation of the conservation of dK and dV, relative to its tolerance (shadow/conservation.h).
// Correct calls of PyTorch's CPU kernel have at most 0.7 (bench/verdicts.py's situations). If one key of 256
// is left out, the ratio is 7 for dK and 2.5 for dV.
inline constexpr double kConservationRatio = 3;

// Number of a layer's backward slices of query rows that must show that its calls see all keys, before the
// conservation of dK and dV is judged.
inline constexpr uint64_t kWholeCalls = 4;

// Number of a layer's last 64 slices that must exceed the limit. A single slice may exceed it by chance, if
// plain attention happens to have a small error; a single faulty head among 32 gives two slices.
inline constexpr int kSlicesBeyond = 2;
// The same number for dK and dV. It is larger, since slices with few nonzero gradients count as well: in a
// training that has memorized its data, one slice of dK in 800 exceeds the limit.
inline constexpr int kSlicesBeyondKeys = 3;

// Limits of the pooled signed bias of a pass, in ulp, and of its standard score between slices. A bias alarm
// needs both to be exceeded. There is no alarm if the rounded reference exceeds them as well.
inline constexpr double kBiasUlp = 0.05;
inline constexpr double kBiasZ = 6;
// Limit of the bias of dK and dV. PyTorch's CPU kernel, which sums them in bf16, exceeds the bias of fused
// attention by up to 0.05 ulp, at 3 standard errors, at 256 to 8192 positions (bench/verdicts.py's
// situations).
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

// The statistic of a detector.
enum class Look : int {
  kDrift,     // sum of a two-sided CUSUM of value / learned spread
  kRise,      // z of the recent mean of the logarithm above a learned baseline
  kDrop,      // z of the recent mean of the logarithm below a learned baseline
  kLimit,     // the second largest of the last values
  kForecast,  // t of the slope of a line through the last values; effect: how soon the line reaches `least`
  kGrowth,    // t of the slope through their logarithms, while the square is below its own running mean
};

// A row of the table of detectors. `warn` is the value of the statistic and `least` the size of the effect at
// which the detector warns: the score is the smaller of statistic / warn and effect / least. All counts are
// numbers of values of one series.
struct DetectorInfo {
  DetectorId id;
  const char* name;
  const char* help;
  Look look;
  uint64_t learning;  // values before the first score; kLimit: number of last values
  double memory;      // values that the baseline or the line remembers
  double recent;      // kRise, kDrop: values of the recent mean; kDrift: the slack
  double warn;
  double least;  // kDrift: in the series' unit; kRise, kDrop, kGrowth: in natural logarithms; 0: no minimum
  double watch;  // lowest score of the level watch
};

// The thresholds come from the literature or the design. In healthy trainings (with seeds that
// bench/precursors does not score), entropy_drop and gradient_norm came close to their thresholds, which were
// then raised by a third. If the spread is known, a two-sided CUSUM with slack 0.5 and threshold 18 gives one
// false alarm in 2e8 values (cusum_run_length), which is rare enough for a thousand series.
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
