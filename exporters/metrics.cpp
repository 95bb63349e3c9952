// The metrics in two parts: the table of metrics, from its label lists to its Markdown; and the registry,
// which keeps the values of a limited number of series (a series is a metric with one combination of labels).
#include "exporters/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <list>
#include <map>
#include <sstream>
#include <unordered_set>

#include "detect/condition_rules.h"
#include "detect/detector.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

using Value = std::string_view;
using enum Metric;
using enum MetricType;

template <size_t kCount>
constexpr std::array<Value, kCount> values_of(const char* const (&names)[kCount]) {
  std::array<Value, kCount> values;
  for (size_t n = 0; n < kCount; ++n) values[n] = names[n];
  return values;
}

// Returns the member `name` of each row.
template <class Row, size_t kCount>
constexpr std::array<Value, kCount> names_of(const Row (&table)[kCount]) {
  std::array<Value, kCount> values;
  for (size_t n = 0; n < kCount; ++n) values[n] = table[n].name;
  return values;
}

// Closed sets of label values. kTable explains most of them, foreshock/hook.h the reasons of kSkipReasons.
constexpr auto kPasses = values_of(segment::kPassNames);
constexpr Value kMeanMax[] = {"mean", "max"};
constexpr Value kMinMean[] = {"min", "mean"};
constexpr Value kMinMeanMax[] = {"min", "mean", "max"};
constexpr Value kBiasOf[] = {"kernel", "rounded_reference"};
constexpr Value kAlarms[] = {"error", "bias", "nonfinite"};
constexpr Value kRunStates[] = {"running", "finished", "failed", "preempted", "interrupted"};
constexpr Value kSkippedSteps[] = {"overflow"};
constexpr auto kSkipReasons = values_of(segment::kSkipReasonNames);
constexpr auto kLostReasons = values_of(segment::kLostReasonNames);
constexpr Value kCoverageSources[] = {"none", "graphs", "kernels"};
constexpr auto kKernelCountStates = values_of(segment::kKernelCountStates);
constexpr Value kGraphKnowledge[] = {"known", "unknown"};
constexpr Value kEvidence[] = {"used", "imported", "unknown"};
constexpr Value kReferences[] = {"previous", "initial"};
constexpr Value kScopes[] = {"node"};
constexpr Value kPooledMax[] = {"pooled", "max"};
constexpr Value kWeightSkips[] = {"budget",  "ring_full", "too_large",     "device",      "format", "layout",
                                  "unknown", "capture",   "device_memory", "device_full", "set_up"};
constexpr Value kSites[] = {"loss", "gradient", "attention_output", "attention_gradient"};
constexpr Value kCostPlaces[] = {"attention", "step", "agent"};
constexpr Value kComponents[] = {"trainer", "slices", "tensors"};
constexpr Value kErrorComponents[] = {"segment", "record"};
constexpr Value kStepSources[] = {"reported", "optimizer_state", "counted", "unknown"};
constexpr Value kLayerSources[] = {"annotation", "parameter", "ordinal", "unknown"};
constexpr Value kLossSources[] = {"reported", "nll", "backward_root", "logged", "unknown"};
// Copies of kFlagReasonNames and kFlaggedDropNames of agent/flagged.h, which exporters may not include.
constexpr Value kFlagReasons[] = {"nonfinite",          "deviation_ratio", "bias",
                                  "output_error_drift", "logit",           "control"};
constexpr Value kFlaggedDrops[] = {"alike", "busy", "quota", "error"};
constexpr auto kDetectorNames = names_of(kDetectorTable);
constexpr auto kConditionNames = names_of(kConditionTable);
constexpr Value kConditionKinds[] = {name_of(ConditionKind::kFault), name_of(ConditionKind::kLook)};

// Label lists, in the order in which Registry::set takes the values. `run` and `rank` come first: the
// registry keys a series by its label values and clears those of a run or rank by the prefix of this key.
constexpr std::span<const LabelInfo> kNoLabels = {};
constexpr LabelInfo kRun[] = {{"run"}};
constexpr LabelInfo kRank[] = {{"run"}, {"rank"}};
constexpr LabelInfo kRankInfoLabels[] = {{"run"}, {"rank"}, {"node"}, {"local_rank"}, {"attempt"},  {"dp"},
                                         {"tp"},  {"pp"},   {"ep"},   {"owner"},      {"framework"}};
constexpr LabelInfo kRunInfoLabels[] = {{"run"}, {"user"}};
constexpr LabelInfo kRunStateLabels[] = {{"run"}, {"state", kRunStates}};
constexpr LabelInfo kSourceLabels[] = {
    {"run"}, {"rank"}, {"step", kStepSources}, {"layer", kLayerSources}, {"loss", kLossSources}};
constexpr LabelInfo kRankSkippedSteps[] = {{"run"}, {"rank"}, {"reason", kSkippedSteps}};
constexpr LabelInfo kRunCondition[] = {{"run"}, {"condition", kConditionNames}, {"kind", kConditionKinds}};
constexpr LabelInfo kRankPassOp[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"op"}};
constexpr LabelInfo kRankPass[] = {{"run"}, {"rank"}, {"pass", kPasses}};
constexpr LabelInfo kRankPassLost[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"reason", kLostReasons}};
constexpr LabelInfo kRankPassSkip[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"reason", kSkipReasons}};
constexpr LabelInfo kRankPassMeanMax[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"stat", kMeanMax}};
constexpr LabelInfo kRankPassOf[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"of", kBiasOf}};
constexpr LabelInfo kRankPassAlarm[] = {{"run"}, {"rank"}, {"pass", kPasses}, {"of", kAlarms}};
constexpr LabelInfo kRankDetector[] = {{"run"}, {"rank"}, {"detector", kDetectorNames}};
constexpr LabelInfo kRankDetectorLayer[] = {{"run"}, {"rank"}, {"detector", kDetectorNames}, {"layer"}};
constexpr LabelInfo kRankName[] = {{"run"}, {"rank"}, {"name"}};
constexpr LabelInfo kRankMinMean[] = {{"run"}, {"rank"}, {"stat", kMinMean}};
constexpr LabelInfo kRankMinMeanMax[] = {{"run"}, {"rank"}, {"stat", kMinMeanMax}};
constexpr LabelInfo kRankLayerPass[] = {{"run"}, {"rank"}, {"layer"}, {"pass", kPasses}};
constexpr LabelInfo kRankLayer[] = {{"run"}, {"rank"}, {"layer"}};
constexpr LabelInfo kRankCoverage[] = {{"run"}, {"rank"}, {"source", kCoverageSources}};
constexpr LabelInfo kRankKernelCount[] = {
    {"run"}, {"rank"}, {"state", std::span(kKernelCountStates).subspan(1)}};
constexpr LabelInfo kRankGraph[] = {{"run"}, {"rank"}, {"attention", kGraphKnowledge}};
constexpr LabelInfo kRankUnseen[] = {{"run"}, {"rank"}, {"op"}, {"evidence", kEvidence}};
constexpr LabelInfo kRankSite[] = {{"run"}, {"rank"}, {"site", kSites}};
constexpr LabelInfo kRankWhere[] = {{"run"}, {"rank"}, {"where", kCostPlaces}};
constexpr LabelInfo kRankComponent[] = {{"run"}, {"rank"}, {"component", kComponents}};
constexpr LabelInfo kRunErrors[] = {{"run"}, {"component", kErrorComponents}};
constexpr LabelInfo kRunFlagReason[] = {{"run"}, {"reason", kFlagReasons}};
constexpr LabelInfo kRunFlaggedDrop[] = {{"run"}, {"reason", kFlaggedDrops}};
constexpr LabelInfo kWeightDistance[] = {
    {"run"}, {"ref", kReferences}, {"scope", kScopes}, {"stat", kPooledMax}, {"interval"}};
constexpr LabelInfo kLayerWeightDistance[] = {{"run"}, {"layer"}, {"ref", kReferences}, {"interval"}};
constexpr LabelInfo kRunMeanMax[] = {{"run"}, {"stat", kMeanMax}};
constexpr LabelInfo kRankWeightSkips[] = {{"run"}, {"rank"}, {"reason", kWeightSkips}};
constexpr LabelInfo kRankGroup[] = {{"run"}, {"rank"}, {"group"}};
constexpr LabelInfo kVersion[] = {{"version"}};

// {metric, name, type, unit, labels, help}, in the order of the enum: metric_info() indexes it.
constexpr MetricInfo kTable[] = {
    {kRankInfo, "foreshock_rank_info", kGauge, "1", kRankInfoLabels,
     "Always 1; the labels describe the rank. Unknown coordinates are -1."},
    {kRankUp, "foreshock_rank_up", kGauge, "bool", kRank, "1 while the rank's process is alive."},
    {kRunInfo, "foreshock_run_info", kGauge, "1", kRunInfoLabels,
     "Always 1; the label user is the owner of the run's directory. Tickets go to this user."},
    {kRunState, "foreshock_run_state", kGauge, "bool", kRunStateLabels,
     "1 for the state the run is in, from its exit status and signal; 0 for the others."},
    {kWorldSize, "foreshock_world_size", kGauge, "ranks", kRank,
     "Ranks of the whole job, as reported by this rank."},
    {kStep, "foreshock_step", kGauge, "steps", kRank,
     "The last optimizer step that ended, counted from the start of the run."},
    {kStepsTotal, "foreshock_steps_total", kCounter, "steps", kRank, "Optimizer steps seen."},
    {kStepsLostTotal, "foreshock_steps_lost_total", kCounter, "steps", kRank,
     "Step records overwritten before the agent read them."},
    {kSourceInfo, "foreshock_source_info", kGauge, "1", kSourceLabels,
     "Always 1; the labels name the sources of step numbers, layer names and the loss."},
    {kSkippedStepsTotal, "foreshock_skipped_steps_total", kCounter, "steps", kRankSkippedSteps,
     "Optimizer steps skipped by the trainer; absent if a gradient scaler's result on a device could not be "
     "read."},
    {kLastStepTimestampSeconds, "foreshock_last_step_timestamp_seconds", kGauge, "seconds", kRank,
     "When the last optimizer step ended, in seconds since 1970."},

    {kAttentionCallsTotal, "foreshock_attention_calls_total", kCounter, "calls", kRankPassOp,
     "Attention calls seen: unsampled, skipped and sampled."},
    {kAttentionUnsampledTotal, "foreshock_attention_unsampled_total", kCounter, "calls", kRankPass,
     "Attention calls in steps that are not sampled, or not chosen."},
    {kAttentionSamplesTotal, "foreshock_attention_samples_total", kCounter, "calls", kRankPass,
     "Attention calls of which a slice was copied: judged, lost or in flight."},
    {kAttentionJudgedTotal, "foreshock_attention_judged_total", kCounter, "calls", kRankPass,
     "Calls whose slice of rows was compared with the fp64 reference."},
    {kAttentionLostTotal, "foreshock_attention_lost_total", kCounter, "calls", kRankPassLost,
     "Slices that could not be judged, by reason."},
    {kAttentionInFlight, "foreshock_attention_in_flight", kGauge, "calls", kRankPass,
     "Slices copied and not yet judged or lost."},
    {kAttentionSkippedTotal, "foreshock_attention_skipped_total", kCounter, "calls", kRankPassSkip,
     "Attention calls that should have been sampled and were not, by reason."},
    {kNoAttentionSeen, "foreshock_no_attention_seen", kGauge, "bool", kRank,
     "1 after 10 steps without a visible attention call, for example if a compiled graph uses the unfused "
     "path."},
    {kAttentionCoverageRatio, "foreshock_attention_coverage_ratio", kGauge, "ratio", kRankCoverage,
     "Attention calls that the hooks saw, divided by the calls that ran, which the source counted "
     "independently. NaN with the source none: not counted."},
    {kAttentionUnseen, "foreshock_attention_unseen", kGauge, "1", kRankUnseen,
     "Always 1; the label op names attention that no hook sees. evidence: it was used, or its module "
     "was imported."},
    {kAttentionRecordedTotal, "foreshock_attention_recorded_total", kCounter, "calls", kRankPass,
     "Attention calls counted while a CUDA graph was recorded; recording does not run them."},
    {kAttentionGraphCallsTotal, "foreshock_attention_graph_calls_total", kCounter, "calls", kRankPass,
     "Attention calls that ran inside launched CUDA graphs, where no hook is called and nothing is sampled: "
     "those of each graph times its launches."},
    {kGraphLaunchesTotal, "foreshock_graph_launches_total", kCounter, "launches", kRankGraph,
     "Launches of CUDA graphs, by whether the attention in them is known. It is unknown if two graphs were "
     "recorded at once, a graph was not recorded from a stream, or attention depends on a condition."},
    {kAttentionKernelsTotal, "foreshock_attention_kernels_total", kCounter, "kernels", kRankPass,
     "Attention kernels launched during the steps of --count-kernels."},
    {kKernelCountState, "foreshock_kernel_count_state", kGauge, "1", kRankKernelCount,
     "Always 1 with --count-kernels; the label state is the progress or the obstacle: CUPTI is not loaded "
     "(no_library), another tool uses it (taken), torch.profiler runs (profiler), or CUPTI failed "
     "(refused)."},

    {kAttentionRelativeError, "foreshock_attention_relative_error", kGauge, "ratio", kRankPassMeanMax,
     "L2 norm of (kernel - fp64 reference) divided by the L2 norm of the reference, per row of the output "
     "(forward) or of dQ (backward): mean and largest of the last 64 samples."},
    {kAttentionDeviationRatio, "foreshock_attention_fused_ratio", kGauge, "ratio", kRankPassMeanMax,
     "Error of the kernel divided by the error of sound attention in the same precision on the same inputs "
     "(fused; of attention that is written out in PyTorch operations: plain): mean and largest of the last "
     "64 "
     "samples. Usual is near 1."},
    {kAttentionBiasUlp, "foreshock_attention_bias_ulp", kGauge, "ulp", kRankPassOf,
     "Mean signed error of the output (forward) or of dQ (backward), positive away from zero, over the last "
     "64 samples. The rounded reference is the control."},
    {kAttentionBiasZscore, "foreshock_attention_bias_zscore", kGauge, "standard errors", kRankPassOf,
     "foreshock_attention_bias_ulp divided by its standard error between samples."},
    {kAttentionLseErrorAbsMax, "foreshock_attention_lse_error_abs_max", kGauge, "nats", kRank,
     "Largest difference of a row's log-sum-exp from that of the fp64 reference, over the last 64 samples."},
    {kAttentionLogitAbsMax, "foreshock_attention_logit_abs_max", kGauge, "nats", kRank,
     "Largest magnitude of a logit (scaled score before softmax) over the last 64 samples."},
    {kAttentionEntropyNats, "foreshock_attention_entropy_nats", kGauge, "nats", kRankMinMean,
     "Entropy of the attention weights of a row: mean and smallest of the last 64 samples."},
    {kAttentionNearTieRatio, "foreshock_attention_near_tie_ratio", kGauge, "ratio", kRank,
     "Share of the rows of the last 64 samples whose two largest scores differ by at most 1/512 (in nats)."},
    {kAttentionAlarmLayers, "foreshock_attention_alarm_layers", kGauge, "layers", kRankPassAlarm,
     "Layers whose last samples exceed a limit: a bias that fused attention does not have, an error, or "
     "values that are not finite. 1 if no layer does alone, but all layers of the rank together do."},
    {kLayerAttentionDeviationRatio, "foreshock_layer_attention_fused_ratio", kGauge, "ratio", kRankLayerPass,
     "Mean of foreshock_attention_fused_ratio of one layer over its last samples."},
    {kLayerAttentionBiasUlp, "foreshock_layer_attention_bias_ulp", kGauge, "ulp", kRankLayerPass,
     "Pooled bias of one layer over its last samples."},
    {kLayerAttentionLogitAbsMax, "foreshock_layer_attention_logit_abs_max", kGauge, "nats", kRankLayer,
     "Largest magnitude of a scaled score of one layer over its last samples."},

    {kNonfiniteValuesTotal, "foreshock_nonfinite_values_total", kCounter, "values", kRankSite,
     "NaN and infinite values, by place. For the sites loss and gradient: steps that had any."},
    {kLoss, "foreshock_loss", kGauge, "nats", kRank,
     "Loss of the last step, mean over its micro-batches; in nats for a cross-entropy."},
    {kLossWindow, "foreshock_loss_window", kGauge, "nats", kRankMinMeanMax, "Loss over the last 64 steps."},
    {kLossZscore, "foreshock_loss_zscore", kGauge, "standard deviations", kRank,
     "(loss - mean) / standard deviation, both of the last 128 losses that were not high."},
    {kLossSpikesTotal, "foreshock_loss_spikes_total", kCounter, "events", kRank,
     "Loss spikes by the fixed rule: more than 6 standard deviations above the mean of the last 128 "
     "losses that were not high, for 3 steps."},
    {kGradientNorm, "foreshock_gradient_norm", kGauge, "1", kRank,
     "L2 norm of the gradient before clipping (exceptions: frameworks.md, clipping)."},
    {kGradientNormWindowMax, "foreshock_gradient_norm_window_max", kGauge, "1", kRank,
     "Largest gradient norm of the last 64 steps."},
    {kGradientNormZscore, "foreshock_gradient_norm_zscore", kGauge, "standard deviations", kRank,
     "Distance of the gradient norm from the mean of the last 128 steps, in their standard deviations."},
    {kLayerGradientNorm, "foreshock_layer_gradient_norm", kGauge, "1", kRankLayer,
     "L2 norm of the gradient of one layer before clipping (exceptions: frameworks.md, clipping)."},
    {kLearningRate, "foreshock_learning_rate", kGauge, "1", kRank, "Learning rate of the last step."},
    {kOptimizerRmsStaleness, "foreshock_optimizer_rms_staleness", kGauge, "1", kRunMeanMax,
     "sqrt(mean(g^2 / max(v, eps^2))) with the gradient g after clipping and Adam's bias-corrected second "
     "moment v after the step: over all tensors of the node (mean), and largest of one tensor (max). Above "
     "2.3, steps are larger than intended."},
    {kOptimizerSurpriseRatio, "foreshock_optimizer_surprise_ratio", kGauge, "ratio", kRun,
     "Share of values whose squared gradient is above 50 times the second moment before the step."},
    {kOptimizerUpdateRatio, "foreshock_optimizer_update_ratio", kGauge, "ratio", kRunMeanMax,
     "Norm of the change in one step divided by the norm of the weights: of all tensors, and of the matrix "
     "with the largest ratio."},
    {kOptimizerEpsilonDominatedRatio, "foreshock_optimizer_epsilon_dominated_ratio", kGauge, "ratio", kRun,
     "Share of values whose root of the second moment is below eps."},

    {kLoggedValue, "foreshock_logged_value", kGauge, "1", kRankName,
     "Last value that the training itself logged, for up to 16 names. If two names give the same label, the "
     "later gets a number."},

    {kCondition, "foreshock_condition", kGauge, "bool", kRunCondition,
     "A condition of the training's loop (docs/detectors.md, Conditions) on any rank of the node: 1 while it "
     "holds, 0 once it is over. Absent before it begins and after the end of the run. Kind fault: certainly "
     "wrong; look: it may be intended."},

    {kPrecursorLevel, "foreshock_precursor_level", kGauge, "1", kRankDetector,
     "Level of a detector, the highest of its layers: 0 quiet, 1 watch, 2 warn."},
    {kPrecursorEventsTotal, "foreshock_precursor_events_total", kCounter, "events", kRankDetector,
     "How often a detector started to warn, over all layers."},
    {kPrecursorLastEventStep, "foreshock_precursor_last_event_step", kGauge, "steps", kRankDetector,
     "Step of the detector's last warning; absent before the first."},
    {kPrecursorLayerInfo, "foreshock_precursor_layer_info", kGauge, "1", kRankDetectorLayer,
     "Always 1; the label layer names a layer in which the detector warns. Absent while it does not."},
    {kPrecursorSeriesDropped, "foreshock_precursor_series_dropped", kGauge, "series", kRankDetector,
     "Tensors that a detector does not follow since its room is full, or layers that it has given up for "
     "newer ones. Absent where there are none."},
    {kWeightWassersteinDistance, "foreshock_weight_wasserstein_distance", kGauge, "1", kWeightDistance,
     "Wasserstein distance W1 of the weights to their previous and to their first snapshot: pooled over all "
     "values of the node, and of the tensor that moved most (max). A new interval starts a new series."},
    {kLayerWeightWassersteinDistance, "foreshock_layer_weight_wasserstein_distance", kGauge, "1",
     kLayerWeightDistance, "Wasserstein distance W1 of the layer's tensor that moved most."},
    {kWeightUpdateMeanAbs, "foreshock_weight_update_mean_abs", kGauge, "1", kRunMeanMax,
     "Mean magnitude of the change by one optimizer step: over all values, and of the tensor that changes "
     "most."},
    {kWeightUpdateCoverageRatio, "foreshock_weight_update_coverage_ratio", kGauge, "ratio", kRun,
     "Share of all values whose change is known. Below 1, the mean change covers only a part of the model."},
    {kWeightRms, "foreshock_weight_rms", kGauge, "1", kRun,
     "Root of the mean square of all weights of the node."},
    {kWeightSnapshotStep, "foreshock_weight_snapshot_step", kGauge, "steps", kRun,
     "First step of the last interval in which all weights of the node were measured. Distances, update and "
     "root mean square belong to it; they disappear when the run is more than three intervals further."},
    {kWeightSnapshotIntervalSteps, "foreshock_weight_snapshot_interval_steps", kGauge, "steps", kRank,
     "Steps between two snapshots of a weight tensor; tensors are spread over the interval."},
    {kWeightSkippedTotal, "foreshock_weight_skipped_total", kCounter, "tensors", kRankWeightSkips,
     "Due snapshots of weight tensors that were skipped, by reason."},
    {kWeightSnapshotsDroppedTotal, "foreshock_weight_snapshots_dropped_total", kCounter, "tensors", kRun,
     "Snapshots of weight tensors that the agent had no memory for; they are missing from all distances."},
    {kWeightChecksum, "foreshock_weight_checksum", kGauge, "1", kRankGroup,
     "52 bits of a checksum of the weights of the rank, over the last complete interval. Ranks of one group "
     "hold the same tensors: for the same step their checksums must be equal, otherwise a rank has wrong "
     "weights."},
    {kWeightChecksumStep, "foreshock_weight_checksum_step", kGauge, "steps", kRankGroup,
     "First step of the interval of foreshock_weight_checksum."},
    {kWeightChecksumMismatchTotal, "foreshock_weight_checksum_mismatch_total", kCounter, "tensors", kRank,
     "Snapshots of a tensor in which this rank's bits differed from its data-parallel replicas on the node: "
     "from the majority, or from any if there is no majority."},

    {kSlowdownRatio, "foreshock_slowdown_ratio", kGauge, "ratio", kRank,
     "Time of foreshock on the training threads, plus the agent's CPU time / the rank's cores, divided by "
     "the training time without foreshock and pauses; exponentially weighted, time constant five minutes."},
    {kSlowdownLimitRatio, "foreshock_slowdown_limit_ratio", kGauge, "ratio", kRank,
     "Limit of foreshock_slowdown_ratio, from --max-slowdown."},
    {kOverheadSecondsTotal, "foreshock_overhead_seconds_total", kCounter, "seconds", kRankWhere,
     "Time foreshock took, by place: at attention calls (threads and device streams of the trainer), at "
     "steps (threads), and CPU time of the agent for this rank."},
    {kSampleIntervalSteps, "foreshock_sample_interval_steps", kGauge, "steps", kRank,
     "Steps from one sampled step to the next."},
    {kMonitorEnabled, "foreshock_monitor_enabled", kGauge, "bool", kRankComponent,
     "1 while this part of foreshock works. tensors (names, gradient norms and weights from the helper in "
     "the trainer) appears as 0 when it was switched off: it took several times --max-slowdown, or tensors "
     "could not be named."},
    {kMonitorErrorsTotal, "foreshock_monitor_errors_total", kCounter, "errors", kRunErrors,
     "Failures of foreshock itself; the training is not affected."},
    {kFlaggedSlicesTotal, "foreshock_flagged_slices_total", kCounter, "slices", kRunFlagReason,
     "Slices saved by --save-flagged, by reason."},
    {kFlaggedSlicesDroppedTotal, "foreshock_flagged_slices_dropped_total", kCounter, "slices",
     kRunFlaggedDrop,
     "Slices that --save-flagged did not save: similar to saved ones (alike), disk too slow (busy), quota, "
     "or an error."},
    {kSeriesDroppedTotal, "foreshock_series_dropped_total", kCounter, "series", kNoLabels,
     "Series left out because of the limit of 4096."},
    {kBuildInfo, "foreshock_build_info", kGauge, "1", kVersion,
     "Always 1; the label is the version of foreshock."},
};

constexpr bool table_is_in_order() {
  for (size_t i = 0; i < kMetricCount; ++i)
    if (kTable[i].metric != static_cast<Metric>(i)) return false;
  return std::size(kTable) == kMetricCount;
}
static_assert(table_is_in_order());

void append(std::string* text, std::initializer_list<std::string_view> pieces) {
  for (std::string_view piece : pieces) *text += piece;
}

void append_labels(std::string* text, std::span<const LabelInfo> labels) {
  for (size_t l = 0; l < labels.size(); ++l) {
    append(text, {l == 0 ? "" : ", ", "`", labels[l].key, "`"});
    for (size_t v = 0; v < labels[l].values.size(); ++v)
      append(text, {v == 0 ? " = " : " \\| ", labels[l].values[v]});
  }
}

}  // namespace

const MetricInfo& metric_info(Metric metric) { return kTable[static_cast<size_t>(metric)]; }

std::span<const MetricInfo> all_metrics() { return kTable; }

std::string metrics_markdown() {
  std::string text = "| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const MetricInfo& info : kTable) {
    append(&text,
           {"| `", info.name, "` | ", info.type == kCounter ? "counter" : "gauge", " | ", info.unit, " | "});
    append_labels(&text, info.labels);
    append(&text, {" | ", info.help, " |\n"});
  }
  return text;
}

namespace {

constexpr size_t kMaxLabelBytes = 96;  // enough for a user's name, a slash and a run id
constexpr size_t kMaxDroppedNames = 1 << 16;
// Ends each label value in a key. No value contains it, since label_text() replaces control characters.
constexpr char kSeparator = '\x1f';

// Tiers. kNodeTier: series without a rank label. kLivenessTier: series that alerts need for every rank.
// kRankTier: the other series of a rank. kLayerTier: series of a layer. The budget is the largest number of
// series. When it is used up, a new series replaces one of a later tier.
enum Tier { kNodeTier, kLivenessTier, kRankTier, kLayerTier, kTiers };

// A label is open if the table allows any value of it.
bool has_open_label(const MetricInfo& info, std::string_view key) {
  return std::any_of(info.labels.begin(), info.labels.end(),
                     [&](const LabelInfo& label) { return label.key == key && label.values.empty(); });
}

// Metrics that alerts expect for every rank. Without them an alert would report the rank as dead, or would
// miss a NaN loss. Each rank has about 30 series of them.
bool is_rank_liveness(Metric metric) {
  return metric == kRankInfo || metric == kRankUp || metric == kWorldSize || metric == kStep ||
         metric == kStepsTotal || metric == kSkippedStepsTotal || metric == kLastStepTimestampSeconds ||
         metric == kAttentionAlarmLayers || metric == kNonfiniteValuesTotal || metric == kLoss ||
         metric == kLossWindow || metric == kWeightChecksum || metric == kWeightChecksumStep ||
         metric == kWeightChecksumMismatchTotal || metric == kMonitorEnabled;
}

// Whether the metric is a counter that begins at 0 in each process of a rank. The detectors and the weights
// of a rank count over all of its processes.
bool counts_one_process(const MetricInfo& info) {
  constexpr Metric kOfAllProcesses[] = {Metric::kLossSpikesTotal, Metric::kPrecursorEventsTotal,
                                        Metric::kWeightChecksumMismatchTotal};
  return info.type == MetricType::kCounter && has_open_label(info, "rank") &&
         !has_open_label(info, "layer") &&
         std::find(std::begin(kOfAllProcesses), std::end(kOfAllProcesses), info.metric) ==
             std::end(kOfAllProcesses);
}

// The closed `layer` label of foreshock_source_info is the source of layer names, so it does not count here.
// kPrecursorLayerInfo names the layer in which a detector warns, but counts as a rank series: the agent adds
// it again every second, so as a layer series it would always be the youngest and be dropped first.
Tier tier_of(const MetricInfo& info) {
  if (has_open_label(info, "layer") && info.metric != Metric::kPrecursorLayerInfo) return kLayerTier;
  if (is_rank_liveness(info.metric)) return kLivenessTier;
  return has_open_label(info, "rank") ? kRankTier : kNodeTier;
}

bool is_label_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == ':' || c == '/' || c == '-';
}

bool is_allowed(const LabelInfo& label, std::string_view value) {
  return label.values.empty() ||
         std::find(label.values.begin(), label.values.end(), value) != label.values.end();
}

}  // namespace

std::string label_text(std::string_view text) {
  if (text.empty()) return "unknown";
  std::string result(text.substr(0, kMaxLabelBytes));
  for (char& c : result)
    if (!is_label_character(c)) c = '_';
  return result;
}

std::string exposition(const Snapshot& snapshot) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, snapshot.families);
  std::string text = std::move(out).str();
  // prometheus-cpp 1.0 writes "Nan", which Prometheus reads but the format does not define. No line of a help
  // text ends with " Nan", and labels do not end a line.
  for (size_t match = text.find(" Nan\n"); match != std::string::npos; match = text.find(" Nan\n", match))
    text[match + 3] = 'N';
  return text;
}

struct Registry::Store {
  struct Series {
    prometheus::ClientMetric client;                          // labels set once, value changed in place
    double earlier = 0;                                       // of a counter: total of the earlier processes
    std::list<std::pair<Metric, std::string>>::iterator age;  // its entry in by_age
  };

  explicit Store(size_t budget) : series_budget(budget) {}

  size_t series_budget;
  size_t count = 0;
  uint64_t dropped = 0;
  // Per metric, the series by key: the label values, each followed by kSeparator. Ordered, so that the series
  // of every scrape are in the same order.
  std::array<std::map<std::string, Series, std::less<>>, kMetricCount> families;
  std::array<std::list<std::pair<Metric, std::string>>, kTiers> by_age;  // metric and key, oldest first
  std::unordered_set<std::string> dropped_names;  // series that are now left out, each counted in `dropped`
  std::string key;  // set by make_key(), read by find_or_admit(); a member, so that its memory is reused

  bool make_key(const MetricInfo& info, std::initializer_list<std::string_view> label_values);
  Series* find_or_admit(const MetricInfo& info);
  bool drop_one_for(Tier tier);
  void note_dropped(Metric metric, const std::string& series_key);
  void erase(Metric metric, std::map<std::string, Series, std::less<>>::iterator series);
  void clear(Metric metric, const std::string& prefix);
};

// Sets `key`. Returns false if the label values do not fit the labels of the metric.
bool Registry::Store::make_key(const MetricInfo& info, std::initializer_list<std::string_view> label_values) {
  if (label_values.size() != info.labels.size()) return false;
  key.clear();
  size_t i = 0;
  for (std::string_view value : label_values) {
    const LabelInfo& label = info.labels[i++];
    if (!is_allowed(label, value)) return false;
    key += label_text(value);
    key += kSeparator;
  }
  return true;
}

// Returns series `key`, which is added if new; null if the budget has no room.
Registry::Store::Series* Registry::Store::find_or_admit(const MetricInfo& info) {
  auto& family = families[static_cast<size_t>(info.metric)];
  if (auto found = family.find(key); found != family.end()) return &found->second;

  const Tier tier = tier_of(info);
  if (count >= series_budget && !drop_one_for(tier)) {
    note_dropped(info.metric, key);
    return nullptr;
  }
  dropped_names.erase(std::string(info.name) + kSeparator + key);  // if dropped again, it counts again
  Series& series = family[key];
  size_t begin = 0;
  for (const LabelInfo& label : info.labels) {
    const size_t end = key.find(kSeparator, begin);
    series.client.label.push_back({std::string(label.key), key.substr(begin, end - begin)});
    begin = end + 1;
  }
  by_age[tier].emplace_back(info.metric, key);
  series.age = std::prev(by_age[tier].end());
  ++count;
  return &series;
}

// Drops the youngest series of the last tier after `tier` that has any. Returns whether a series of `tier`
// may be added: another one was dropped, or `tier` is kNodeTier, whose series may exceed the budget.
bool Registry::Store::drop_one_for(Tier tier) {
  for (int victim = kLayerTier; victim > tier; --victim) {
    if (by_age[victim].empty()) continue;
    const auto [metric, series_key] = by_age[victim].back();
    note_dropped(metric, series_key);
    auto& family = families[static_cast<size_t>(metric)];
    erase(metric, family.find(series_key));
    return true;
  }
  return tier == kNodeTier;
}

void Registry::Store::note_dropped(Metric metric, const std::string& series_key) {
  // The set is limited, since a trainer that keeps using new names would fill the memory. After the set was
  // cleared, a series may be counted twice.
  if (dropped_names.size() >= kMaxDroppedNames) dropped_names.clear();
  if (dropped_names.insert(std::string(metric_info(metric).name) + kSeparator + series_key).second) ++dropped;
}

void Registry::Store::erase(Metric metric, std::map<std::string, Series, std::less<>>::iterator series) {
  by_age[tier_of(metric_info(metric))].erase(series->second.age);
  families[static_cast<size_t>(metric)].erase(series);
  --count;
}

void Registry::Store::clear(Metric metric, const std::string& prefix) {
  auto& family = families[static_cast<size_t>(metric)];
  for (auto series = family.lower_bound(prefix); series != family.end() && series->first.starts_with(prefix);)
    erase(metric, series++);
}

Registry::Registry(size_t series_budget) : store_(std::make_unique<Store>(series_budget)) {}
Registry::~Registry() = default;

bool Registry::set(Metric metric, std::initializer_list<std::string_view> label_values, double value) {
  const MetricInfo& info = metric_info(metric);
  const bool is_counter = info.type == MetricType::kCounter;
  if (is_counter && !(std::isfinite(value) && value >= 0)) return false;
  if (!store_->make_key(info, label_values)) return false;
  Store::Series* series = store_->find_or_admit(info);
  if (series == nullptr) return false;
  if (!is_counter) {
    series->client.gauge.value = value;
    return true;
  }
  const double total = series->earlier + value;
  if (total < series->client.counter.value) return false;
  series->client.counter.value = total;
  return true;
}

void Registry::unset(Metric metric, std::initializer_list<std::string_view> label_values) {
  if (!store_->make_key(metric_info(metric), label_values)) return;
  auto& family = store_->families[static_cast<size_t>(metric)];
  if (const auto found = family.find(store_->key); found != family.end()) store_->erase(metric, found);
}

void Registry::clear_rank(std::string_view run, std::string_view rank) {
  const std::string prefix = label_text(run) + kSeparator + label_text(rank) + kSeparator;
  for (const MetricInfo& info : all_metrics()) {
    if (!counts_one_process(info)) {
      clear_metric(info.metric, run, rank);
      continue;
    }
    auto& family = store_->families[static_cast<size_t>(info.metric)];
    for (auto series = family.lower_bound(prefix);
         series != family.end() && series->first.starts_with(prefix); ++series)
      series->second.earlier = series->second.client.counter.value;
  }
}

void Registry::clear_run(std::string_view run) {
  for (const MetricInfo& info : all_metrics())
    if (!info.labels.empty() && info.labels[0].key == "run")
      store_->clear(info.metric, label_text(run) + kSeparator);
}

void Registry::clear_layers(std::string_view run, std::string_view rank) {
  for (const MetricInfo& info : all_metrics())
    if (has_open_label(info, "layer")) clear_metric(info.metric, run, rank);
}

void Registry::clear_metric(Metric metric, std::string_view run, std::string_view rank) {
  const MetricInfo& info = metric_info(metric);
  if (!has_open_label(info, "rank")) return;
  store_->clear(metric, label_text(run) + kSeparator + label_text(rank) + kSeparator);
}

void Registry::clear_metric(Metric metric, std::string_view run) {
  if (has_open_label(metric_info(metric), "run")) store_->clear(metric, label_text(run) + kSeparator);
}

size_t Registry::series_count() const { return store_->count; }
uint64_t Registry::series_dropped() const { return store_->dropped; }

std::shared_ptr<const Snapshot> Registry::snapshot() const {
  auto result = std::make_shared<Snapshot>();
  for (const MetricInfo& info : all_metrics()) {
    prometheus::MetricFamily family;
    family.name = info.name;
    family.help = info.help;
    family.type =
        info.type == MetricType::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    if (info.metric == Metric::kSeriesDroppedTotal)  // the registry's own count; never set()
      family.metric.emplace_back().counter.value = static_cast<double>(store_->dropped);
    for (const auto& [key, series] : store_->families[static_cast<size_t>(info.metric)])
      family.metric.push_back(series.client);
    if (!family.metric.empty()) result->families.push_back(std::move(family));
  }
  return result;
}

}  // namespace foreshock
