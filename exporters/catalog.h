// The table of all metrics that the agent exports to Prometheus: name, type, unit, help, labels.
// docs/metrics.md is generated from it. Tests check that dashboards and rules use only these metrics.
#ifndef FORESHOCK_EXPORTERS_CATALOG_H_
#define FORESHOCK_EXPORTERS_CATALOG_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace foreshock {

// Identifies a metric. The help texts in catalog.cpp define what each metric means.
enum class Metric : uint16_t {
  // the run, its ranks and their steps
  kRankInfo,
  kRankUp,
  kRunInfo,
  kRunState,
  kWorldSize,
  kStep,
  kStepsTotal,
  kStepsLostTotal,
  kSourceInfo,
  kSkippedStepsTotal,
  kLastStepTimestampSeconds,
  // counts of attention calls
  kAttentionCallsTotal,
  kAttentionUnsampledTotal,
  kAttentionSamplesTotal,
  kAttentionJudgedTotal,
  kAttentionLostTotal,
  kAttentionInFlight,
  kAttentionSkippedTotal,
  kNoAttentionSeen,
  kAttentionCoverageRatio,
  kAttentionUnseen,
  kAttentionRecordedTotal,
  kAttentionGraphCallsTotal,
  kGraphLaunchesTotal,
  kAttentionKernelsTotal,
  kKernelCountState,
  // results of comparing sampled attention calls with the fp64 reference
  kAttentionRelativeError,
  kAttentionDeviationRatio,
  kAttentionBiasUlp,
  kAttentionBiasZscore,
  kAttentionLseErrorAbsMax,
  kAttentionLogitAbsMax,
  kAttentionEntropyNats,
  kAttentionNearTieRatio,
  kAttentionAlarmLayers,
  kLayerAttentionDeviationRatio,
  kLayerAttentionBiasUlp,
  kLayerAttentionLogitAbsMax,
  // loss and gradient
  kNonfiniteValuesTotal,
  kLoss,
  kLossWindow,
  kLossZscore,
  kLossSpikesTotal,
  kGradientNorm,
  kGradientNormWindowMax,
  kGradientNormZscore,
  kLayerGradientNorm,
  kLearningRate,
  kOptimizerRmsStaleness,
  kOptimizerSurpriseRatio,
  kOptimizerUpdateRatio,
  kOptimizerEpsilonDominatedRatio,
  kAttentionUpdateNorm,
  kAttentionUpdateStableRank,
  kAttentionUpdateEffectiveRank,
  kLayerAttentionUpdateEffectiveRank,
  kLoggedValue,
  // the detectors, which warn before a loss event
  kPrecursorLevel,
  kPrecursorEventsTotal,
  kPrecursorLastEventStep,
  kPrecursorLayerInfo,
  kPrecursorSeriesDropped,
  // the weights
  kWeightWassersteinDistance,
  kLayerWeightWassersteinDistance,
  kWeightUpdateMeanAbs,
  kWeightUpdateCoverageRatio,
  kWeightRms,
  kWeightSnapshotStep,
  kWeightSnapshotIntervalSteps,
  kWeightSkippedTotal,
  kWeightSnapshotsDroppedTotal,
  kWeightChecksum,
  kWeightChecksumStep,
  kWeightChecksumMismatchTotal,
  // the monitor itself
  kSlowdownRatio,
  kSlowdownLimitRatio,
  kOverheadSecondsTotal,
  kSampleIntervalSteps,
  kMonitorEnabled,
  kMonitorErrorsTotal,
  kFlaggedSlicesTotal,
  kFlaggedSlicesDroppedTotal,
  kSeriesDroppedTotal,
  kBuildInfo,
  kCount
};

inline constexpr size_t kMetricCount = static_cast<size_t>(Metric::kCount);

enum class MetricType { kCounter, kGauge };

// A label of a metric. `values` is the closed set of allowed values. If the set is empty, the label is open:
// any text is allowed, and the registry replaces its invalid characters.
struct LabelInfo {
  std::string_view key;
  std::span<const std::string_view> values = {};
};

struct MetricInfo {
  Metric metric;
  std::string_view name;  // full, e.g. "foreshock_loss"
  MetricType type;
  std::string_view unit;              // only for documentation, e.g. "ratio", "steps", "nats"
  std::span<const LabelInfo> labels;  // in the order in which Registry::set takes their values
  std::string_view help;              // without backslash and newline, which /metrics would have to escape
};

const MetricInfo& metric_info(Metric metric);
std::span<const MetricInfo> all_metrics();

std::string metrics_markdown();  // the table as Markdown, for docs/metrics.md

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_CATALOG_H_
