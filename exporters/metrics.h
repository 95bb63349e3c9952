// The metrics that the agent exports to Prometheus: the table of their names, types, units, help and labels,
// and the registry of their values. A metric with one combination of label values is a series.
// docs/metrics.md is generated from the table. Tests check that dashboards and rules use only these metrics.
#ifndef FORESHOCK_EXPORTERS_METRICS_H_
#define FORESHOCK_EXPORTERS_METRICS_H_

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock {

// Identifies a metric. The help texts in metrics.cpp define what each metric means.
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
  kLoggedValue,
  // conditions: faults of the training's loop
  kCondition,
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

// The values of all series at one time. Immutable. A family has the series of one metric, sorted by their
// labels. Families are in the order of the enum Metric.
struct Snapshot {
  std::vector<prometheus::MetricFamily> families;
};

// The snapshot in Prometheus' text format 0.0.4. Independent of the locale.
std::string exposition(const Snapshot& snapshot);

// Converts text from a trainer to a valid label value of at most 96 bytes: bytes outside [A-Za-z0-9_.:/-]
// become '_', and an empty text becomes "unknown".
std::string label_text(std::string_view text);

// The values of all series. Only one thread may use it; its snapshots may be passed to other threads.
//
// Series are admitted until there are `series_budget` of them. From then on, a new series of a group replaces
// the youngest series of the first nonempty group above its own in this list. If these groups are empty, the
// new series is refused.
//  1. series of a layer, except those of foreshock_precursor_layer_info;
//  2. other series with a `rank` label;
//  3. series that alerts need for every rank: whether it is alive, its step, loss, NaN and alarms.
// Other series are always admitted: they replace a series of a group, or exceed the budget.
// foreshock_series_dropped_total counts the dropped and refused series.
class Registry {
 public:
  static constexpr size_t kDefaultSeriesBudget = 4096;

  explicit Registry(size_t series_budget = kDefaultSeriesBudget);
  ~Registry();

  // Sets a gauge, or a counter to its total. Label values are in the order of MetricInfo::labels. If the set
  // of values of a label is closed, the value must be one of them; else label_text() converts the value. A
  // gauge may be NaN or infinite. Returns false, and changes no value, if the labels are not those of the
  // metric, a counter is negative, not finite or smaller than before, or a new series is refused.
  bool set(Metric metric, std::initializer_list<std::string_view> label_values, double value);

  // Removes one series if it exists. Called when its value is no longer known.
  void unset(Metric metric, std::initializer_list<std::string_view> label_values);

  // Remove all series of a run, all series of a rank, or a rank's series that have an open `layer` label.
  // clear_rank() is called when another process has become the rank. It keeps what counts one process: set()
  // then adds the new process's total to that of the earlier ones. All other counters restart from 0.
  void clear_run(std::string_view run);
  void clear_rank(std::string_view run, std::string_view rank);
  void clear_layers(std::string_view run, std::string_view rank);

  // Remove the series of one metric, for example before a metric like rank_info gets other label values.
  void clear_metric(Metric metric, std::string_view run, std::string_view rank);
  void clear_metric(Metric metric, std::string_view run);

  size_t series_count() const;
  uint64_t series_dropped() const;

  // A copy of all values as of now, foreshock_series_dropped_total included.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  struct Store;
  std::unique_ptr<Store> store_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_METRICS_H_
