// Which slices are worth keeping (--save-flagged), and why.
#ifndef FORESHOCK_AGENT_FLAGGED_REASON_H_
#define FORESHOCK_AGENT_FLAGGED_REASON_H_

#include <optional>
#include <string>

#include "agent/rank.h"
#include "shadow/deviation.h"

namespace foreshock {

// In the order in which they are looked for: a slice has one reason.
enum class FlagReason : int { kNonfinite, kDeviationRatio, kBias, kOutputErrorDrift, kLogit, kControl };
inline constexpr size_t kFlagReasons = 6;
inline constexpr const char* kFlagReasonNames[kFlagReasons] = {
    "nonfinite", "deviation_ratio", "bias", "output_error_drift", "logit", "control"};

// A slice that was judged, after the statistics of its layer and the detectors have taken it in.
struct JudgedSlice {
  const AttentionSlice& slice;
  const SliceDeviation& deviation;
  const Reference& reference;
  const std::string& layer;  // label; empty: unknown
};

// What is out of the ordinary about it:
//  nonfinite           NaN or Inf where the reference is finite;
//  deviation_ratio     its ratio is beyond the limit and so are others of its layer's last 64 (one may be so
//                      by chance), or it is far beyond at once;
//  bias                its layer's bias is an alarm, or the detector warns, and this slice errs that way;
//  output_error_drift  the detector warns (backward), and the output is not the exact result merely rounded;
//  logit               a detector of the largest logit warns (forward): the kernel need not be at fault.
// The rounded reference is never flagged for the first four. Nothing: an ordinary slice.
std::optional<FlagReason> flag_reason(const JudgedSlice& judged, const RankStatistics& rank);

// Whether a slice that is not flagged can stand beside one as it should have been.
bool is_fit_as_control(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FLAGGED_REASON_H_
