// Finds what is wrong in a run: one list of findings. Every view of the run (summary, status, page, record,
// report, --on-alert) takes its text and its verdict from it.
#ifndef FORESHOCK_AGENT_FINDINGS_H_
#define FORESHOCK_AGENT_FINDINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/inventory.h"
#include "agent/totals.h"
#include "agent/weights.h"
#include "detect/conditions.h"

namespace foreshock {

// If neither pass (forward, backward) has this many checked calls, a run without findings gets no verdict. An
// error of 5 % in one layer is found within 8 sampled calls of the layer (docs/research.md).
inline constexpr uint64_t kLeastJudged = 8;

// The order is that of the table below, which begins with the kinds of alarms (AlarmKind).
enum class FindingKind : int {
  kNonfiniteAttention,
  kAttentionBias,
  kAttentionError,
  kConservation,
  kLogSumExp,
  kReplicas,
  kNonfiniteLoss,
  kLossDiverged,
  kLossSpike,
  kLossRise,
  kNoStepTaken,  // this and the next two: faults of detect/conditions.h
  kNothingTrained,
  kWeightsNonfinite,
  kCount
};

struct FindingInfo {
  FindingKind kind;
  const char* name;      // in JSON and in the record; docs/runbook.md has a section with this name
  const char* headline;  // the verdict of a run whose most severe finding this is
  const char* action;    // what to do first; the section in docs/runbook.md begins with it
};
inline constexpr FindingInfo kFindingTable[] = {
    {FindingKind::kNonfiniteAttention, "attention_nonfinite", "ATTENTION FAULT",
     "go back to a checkpoint before this step and use another attention kernel"},
    {FindingKind::kAttentionBias, "attention_bias", "ATTENTION FAULT",
     "test the kernel with foreshock judge --function MODULE:NAME"},
    {FindingKind::kAttentionError, "attention_error", "ATTENTION FAULT",
     "use another attention kernel or version; if it is right on another device, test this one"},
    {FindingKind::kConservation, "attention_conservation", "ATTENTION FAULT",
     "use another attention kernel or version; if it is right on another device, test this one"},
    {FindingKind::kLogSumExp, "attention_log_sum_exp", "ATTENTION FAULT",
     "use another attention kernel or version; if it is right on another device, test this one"},
    {FindingKind::kReplicas, "replicas_differ", "REPLICAS DIFFER",
     "go back to a checkpoint before the first mismatch, without this rank's device"},
    {FindingKind::kNonfiniteLoss, "loss_nonfinite", "LOSS NOT FINITE",
     "go back to a checkpoint before this step"},
    {FindingKind::kLossDiverged, "divergence", "LOSS DIVERGED",
     "go back to a checkpoint before this step, and undo what changed just before it"},
    {FindingKind::kLossSpike, "loss_spike", "LOSS SPIKE",
     "keep a checkpoint from before its cause; go back to it if the loss stays high"},
    {FindingKind::kLossRise, "loss_rise", "LOSS RISES",
     "evaluate checkpoints from before and after this step on the same data"},
    {FindingKind::kNoStepTaken, "no_step_taken", "NO STEP IS TAKEN",
     "find the layer whose gradient is not finite and lower its scale, or train in bf16"},
    {FindingKind::kNothingTrained, "nothing_trained", "NOTHING IS TRAINED",
     "look at the learning rate and at what was passed to the optimizer"},
    {FindingKind::kWeightsNonfinite, "weights_nonfinite", "WEIGHTS NOT FINITE",
     "look at the optimizer: its epsilon, its state and its rate for this tensor"},
};
constexpr const FindingInfo& info_of(FindingKind kind) { return kFindingTable[static_cast<size_t>(kind)]; }

// Whether a finding has the name, headline and action of the condition that it reports.
constexpr bool is_row_of(FindingKind kind, ConditionId id) {
  const FindingInfo& finding = info_of(kind);
  const ConditionInfo& condition = info_of(id);
  return std::string_view(finding.name) == condition.name &&
         std::string_view(finding.headline) == condition.headline &&
         std::string_view(finding.action) == condition.action;
}
static_assert(is_row_of(FindingKind::kNoStepTaken, ConditionId::kNoStepTaken));
static_assert(is_row_of(FindingKind::kNothingTrained, ConditionId::kNothingTrained));
static_assert(is_row_of(FindingKind::kWeightsNonfinite, ConditionId::kWeightsNonfinite));

// From the most severe on. kAlarm, kPastAlarm: an active or ended alarm of a layer. kWholePass: a limit that
// all layers together exceed in one pass.
enum class Severity : int {
  kNonfinite,
  kReplicas,
  kCondition,
  kAlarm,
  kLossNonfinite,
  kDiverged,
  kWholePass,
  kPastAlarm,
  kSpike,
  kRise,
  kConsequence  // NaN or Inf in attention that follows from large scores after a loss event
};

struct Finding {
  FindingKind kind;
  Severity severity;
  std::string text = {};   // what, where, since when and how large, without a period at the end
  std::string layer = {};  // label; "": no layer, or calls whose layer is unknown
  int tensor = -1;         // JudgedTensor; -1: the finding is not about attention
  int64_t rank = -1;       // -1: all ranks
  int64_t since_step = -1, last_step = -1;  // first and last step that showed it; -1: unknown
  // Size in the last slices, and the largest since since_step; absent if the kind has no size. `unit` of
  // both: "times" (multiples of what rounding explains) or "ulp".
  std::optional<double> now = {}, largest = {};
  const char* unit = "";
  std::optional<double> relative_error = {};  // largest mean relative error of a slice that showed it
};

// By rank: how often its weights differed from those of its replicas.
using Mismatches = std::map<int64_t, uint64_t>;

// Returns the findings from the most severe on; among equals the one that began first comes first. `passes`:
// totals_of() both passes. `weights` may be null.
std::vector<Finding> findings_of(const Ranks& ranks, const Mismatches& mismatches,
                                 const PassTotals (&passes)[2]);
std::vector<Finding> findings_of(const Ranks& ranks, const Weights* weights, const PassTotals (&passes)[2]);

// Returns "<text>. Do: <action>."
std::string sentence_of(const Finding& finding);
// Equal for two findings that are the same one at different times.
std::string key_of(const Finding& finding);

// The headline of a run without findings in which not all attention was checked.
inline constexpr const char* kPartlyChecked = "PARTLY CHECKED";

struct Verdict {
  std::string headline;     // that of the first finding, "healthy", or why there is no verdict
  bool is_fault = false;    // there is a finding
  bool is_healthy = false;  // there is no finding, and enough was checked
};

// Attention that was not checked is not reported as healthy: a run is healthy only if `layers` has no gap.
Verdict verdict_of(const std::vector<Finding>& findings, const AttentionInventory& layers,
                   const PassTotals (&passes)[2]);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_FINDINGS_H_
