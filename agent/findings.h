// Finds what is wrong in a run: one list of findings, from which every view of the run takes its text and its
// verdict.
#ifndef FORESHOCK_AGENT_FINDINGS_H_
#define FORESHOCK_AGENT_FINDINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/totals.h"
#include "agent/weights.h"

namespace foreshock {

// If neither pass (forward, backward) has this many checked calls, a run without findings gets no verdict. An
// error of 5 % in one layer is found within 8 sampled calls of the layer (docs/verdicts.md).
inline constexpr uint64_t kLeastJudged = 8;

enum class FindingKind : int {
  kNonfiniteAttention,  // NaN or Inf in attention where the fp64 reference has none
  kAttentionBias,       // the error of attention has a direction
  kAttentionError,      // the error is several times that of unfused or fused attention
  kConservation,        // the sum of dK or dV over all keys is wrong
  kLogSumExp,
  kReplicas,  // data-parallel replicas hold different weights
  kNonfiniteLoss,
  kLossDiverged,
  kLossSpike,
};
// From the most severe on. kAlarm, kPastAlarm: an active or ended alarm of a layer. kWholePass: a limit that
// all layers together exceed in one pass.
enum class Severity : int {
  kNonfinite,
  kReplicas,
  kAlarm,
  kLossNonfinite,
  kDiverged,
  kWholePass,
  kPastAlarm,
  kSpike
};

struct Finding {
  FindingKind kind;
  Severity severity;
  const char* headline;    // the verdict, in the first line, if this is the most severe finding
  std::string text;        // one sentence
  std::string layer = {};  // label; "": no layer, or calls whose layer is unknown
  int tensor = -1;         // JudgedTensor; -1: the finding is not about attention
  int64_t rank = -1;       // -1: all ranks
  int64_t since_step = -1, last_step = -1;  // first and last step that showed it; -1: unknown
  // Size in the last slices, and the largest of the run since since_step; absent if the kind has no size.
  std::optional<double> now = {}, most = {};
  const char* unit = "";  // of both: "ulp", "times"
};

// Returns the findings from the most severe on. `passes`: totals_of() both passes. `weights` may be null.
std::vector<Finding> findings_of(const Ranks& ranks, const Weights* weights, const PassTotals (&passes)[2]);

struct Verdict {
  std::string headline;     // that of the first finding, "healthy", or why there is no verdict
  bool is_fault = false;    // there is a finding
  bool is_healthy = false;  // there is no finding, and enough was checked
};

// Attention that was not checked is not reported as healthy.
Verdict verdict_of(const std::vector<Finding>& findings, const PassTotals (&passes)[2]);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FINDINGS_H_
