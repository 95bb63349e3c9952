// The one table of alarm thresholds.
#ifndef FORESHOCK_DETECT_THRESHOLDS_H_
#define FORESHOCK_DETECT_THRESHOLDS_H_

namespace foreshock {

// Error of the kernel over the error of plain attention in the same precision. Two and three times are what
// flash-attention's own tests allow its forward and backward.
inline constexpr double kDeviationRatioForward = 2;
inline constexpr double kDeviationRatioBackward = 3;

// So many of a layer's last 64 slices beyond the limit: one slice may be so by chance, where plain attention
// happens to err little; a single bad head among 32 gives two.
inline constexpr int kSlicesBeyond = 2;

// Pooled signed bias of a pass, in ulp, and how sure it must be between slices. Both must be exceeded, and
// not by the rounded reference too.
inline constexpr double kBiasUlp = 0.05;
inline constexpr double kBiasZ = 6;

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_THRESHOLDS_H_
