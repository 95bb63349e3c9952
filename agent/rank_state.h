// The state of one rank (one trainer process) in the agent, and the functions that update it from a checked
// slice, an ended step, an event or a tensor snapshot. A slice is a copied part of one attention call: a few
// query rows with all keys, or a few key positions with all query rows. The agent checks (judges) it by
// computing the same part in fp64 (the reference). SliceDeviation is the result for one tensor of the slice.
// Plain data: class Pipeline writes the state, the publishing code only reads it.
#ifndef FORESHOCK_AGENT_RANK_STATE_H_
#define FORESHOCK_AGENT_RANK_STATE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limits.h"
#include "agent/weights.h"
#include "detect/detector.h"
#include "detect/watch.h"
#include "detect/window.h"
#include "exporters/record.h"
#include "segment/layout.h"
#include "segment/reader.h"
#include "shadow/bias.h"
#include "shadow/judgement.h"
#include "shadow/row_errors.h"

namespace foreshock {

class RunConditions;  // detect/conditions.h
struct HistoryTable;  // exporters/http_routes.h

// Values by step over a whole run, in bounded memory. A point covers a range of steps whose length is a power
// of two and whose first step is a multiple of that length. If there are too many points, neighbours are
// merged and the length doubles. Thread-compatible.
class History {
 public:
  enum class Keep { kMean, kMax };  // how the values of one point are combined
  struct Column {
    std::string_view name;  // must have static lifetime
    Keep keep;
  };
  // Keeps at most `points` points; `points` must be at least 2. The array `columns` must outlive the history.
  History(std::span<const Column> columns, size_t points);
  // Ignores a step before the first point. Ignores NaN and Inf, which are reported as events instead.
  void add(int64_t step, size_t column, double value);
  // Sets the steps and columns of `table`. A point without a value in a column is NaN there.
  void copy_to(HistoryTable* table) const;

 private:
  struct Cell {
    float combined = 0;  // Keep::kMean: sum of the values; Keep::kMax: the largest value
    uint32_t count = 0;  // of the values
  };

  void extend_to(int64_t step);
  void merge_neighbours();
  Cell& cell(size_t point, size_t column) { return cells_[point * columns_.size() + column]; }

  std::span<const Column> columns_;
  size_t most_points_;
  int64_t first_point_ = -1;  // first point begins at step first_point_ << shift_; -1: none
  int shift_ = 0;             // a point covers 1 << shift_ steps
  std::vector<Cell> cells_;   // by point, then column
};

// Windows with the last 64 finite values of a series: at most one value per slice, or one per step.
using SampleWindow = Window<BiasPool::kSlices>;
using StepWindow = Window<64>;

// A window of the values of slices that also has their steps.
class SteppedWindow : public SampleWindow {
 public:
  // NaN and Inf are only counted, as in Window.
  void add(double value, int64_t step) {
    SampleWindow::add(value);
    if (std::isfinite(value)) steps_.add(static_cast<double>(step));
  }
  struct Onset {
    int64_t step = -1;    // of the first value in the window that exceeds the limit; -1: none does
    int64_t before = -1;  // of the value before it; -1: that is not in the window
  };
  Onset onset_above(double limit) const {
    for (size_t back = size(); back-- > 0;)
      if (latest(back) > limit) return {step_of(back), back + 1 < size() ? step_of(back + 1) : -1};
    return {};
  }

 private:
  int64_t step_of(size_t back) const { return static_cast<int64_t>(steps_.latest(back)); }

  SampleWindow steps_;
};

// These functions return nothing for an empty window.
std::optional<double> figure_of(const auto& window, double WindowSummary::*figure) {
  const auto summary = window.summary();
  return summary ? std::optional<double>((*summary).*figure) : std::nullopt;
}
std::optional<double> mean_of(const auto& window) { return figure_of(window, &WindowSummary::mean); }
std::optional<double> min_of(const auto& window) { return figure_of(window, &WindowSummary::min); }
std::optional<double> max_of(const auto& window) { return figure_of(window, &WindowSummary::max); }
// The window must not be empty. With an even number of values, returns the larger of the middle two.
double median_of(const auto& window) {
  std::vector<double> values(window.data(), window.data() + window.size());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What can be wrong with a tensor of a layer. The most specific kind comes first: a bias, for example, also
// raises the ratios.
enum class AlarmKind : int { kNonfinite, kBias, kFusedRatio, kConservation, kLogSumExp };
inline constexpr int kAlarmKinds = 5;
inline constexpr const char* kAlarmKindNames[kAlarmKinds] = {"nonfinite", "bias", "fused_ratio",
                                                             "conservation", "log_sum_exp"};
constexpr const char* name_of(AlarmKind kind) { return kAlarmKindNames[static_cast<int>(kind)]; }

// The steps and the largest value of one kind of alarm of a layer, which may still be active.
struct PastAlarm {
  // first_step: of the first slice that showed it, which may come before the slice that gave the alarm.
  int64_t first_step, last_step;
  std::optional<double> most;  // the LayerAlarm::value furthest from 0; absent for nonfinite
  // The largest relative_error_mean of the slices that showed it; absent if none had one.
  std::optional<double> relative_error = {};
  uint64_t slices = 1;      // that contributed to it
  int64_t sound_step = -1;  // of the slice before the first one, which did not show it; -1: unknown
};

// Statistics of one checked tensor of a rank or a layer: the output in the forward pass; dQ, dK or dV in the
// backward pass. Windows and pools (of signed errors) have the last 64 values; the rest covers all slices.
struct PassStatistics {
  uint64_t judged = 0;         // checked slices
  uint64_t decided = 0;        // those that say whether the result is right (is_decided())
  uint64_t written_out = 0;    // those of attention that is written out (shadow/written_out.h)
  DType dtype = DType::kNone;  // format of the last slice; kNone: none yet
  // Slices with NaN or Inf; for a layer's dQ, also slices of key positions whose call has NaN or Inf in dQ.
  uint64_t nonfinite = 0;
  SteppedWindow nonfinite_slices;  // 1 for a slice with NaN or Inf, else 0
  std::map<AlarmKind, PastAlarm> past;
  // Errors of the trainer's result: relative to the norm of the reference (relative_error_...), divided by
  // the error of unfused attention (deviation_ratio), and divided by the error of fused attention
  // (fused_ratio). lse_error_ratio is the error of the log-sum-exp divided by its tolerance.
  SampleWindow relative_error_mean, relative_error_max, deviation_ratio, fused_ratio;
  SteppedWindow lse_error_ratio;
  SteppedWindow ratio_of_limit;  // fused_ratio divided by the limit of its slice
  BiasPool bias;                 // mean signed error of the trainer's result
  BiasPool excess_bias;          // that bias minus the bias of fused attention on the same slices
  BiasPool rounded_bias;         // control: bias of the reference rounded once to the trainer's precision
  // dK and dV only: how far their sums over all keys are from the values that every correct kernel gives,
  // relative to the tolerance.
  SteppedWindow conservation_ratio;
  // A row is partial if its log_sum_exp covers more keys than the call has (context parallelism).
  uint64_t with_partial_rows = 0;  // slices with at least one partial row
  uint64_t partial = 0;            // slices in which nearly all rows are partial
  int64_t last_step = -1;          // step of the last checked slice

  // The slice is that of last_step.
  void add_fused_ratio(double ratio, double limit) {
    fused_ratio.add(ratio);
    ratio_of_limit.add(ratio / limit, last_step);
  }
};

// Statistics of grad_key (dK) and grad_value (dV). Empty until the first slice of key positions.
using KeyStatistics = std::vector<PassStatistics>;

// Judged backward slices of rows by segment::ColumnsSkip: why their calls gave no slice of key positions.
using ColumnsSkipped = uint64_t[segment::kColumnsSkips];

// Whether so many of the last slices have a fused_ratio above the limit that the kernel is at fault.
bool has_large_errors(const PassStatistics& pass, uint32_t tensor);

// Whether the kernel itself is biased: its bias and its excess bias are large, significant and of one sign,
// and the rounded reference is not biased.
bool is_biased(const PassStatistics& pass, uint32_t tensor);

// Figures of forward slices: largest error of the log-sum-exp, largest scaled score, entropy of the attention
// weights in nats, and SliceDeviation::near_tie_ratio.
struct ScoreStatistics {
  SampleWindow lse_error, logit, entropy_min, entropy_mean, near_tie_ratio;
};

// Columns of the histories of a rank and of a layer, which the status page plots by step. Each enum has the
// indices of the table after it. elapsed_seconds: from the start of the process to the end of the step.
enum RankColumn : size_t {
  kColumnLoss,
  kColumnLossMax,
  kColumnGradientNorm,
  kColumnRatioForward,
  kColumnRatioForwardMax,
  kColumnRatioBackward,
  kColumnBias,
  kColumnBiasZ,
  kColumnControlBias,
  kColumnSlowdown,
  kColumnStepSeconds,
  kColumnElapsed,
  kColumnWasserstein,
  kColumnUpdate,
  kColumnStaleness,
  kColumnStalenessMax,
  kColumnUpdateRatio,
  kColumnUpdateRatioMax,
};
inline constexpr History::Column kRankColumns[] = {
    {"loss", History::Keep::kMean},
    {"loss_max", History::Keep::kMax},
    {"gradient_norm", History::Keep::kMean},
    {"deviation_ratio_forward", History::Keep::kMean},
    {"deviation_ratio_forward_max", History::Keep::kMax},
    {"deviation_ratio_backward", History::Keep::kMean},
    {"bias_ulp", History::Keep::kMean},
    {"bias_z", History::Keep::kMean},
    {"rounded_reference_bias_ulp", History::Keep::kMean},
    {"slowdown_ratio", History::Keep::kMean},
    {"step_seconds", History::Keep::kMean},
    {"elapsed_seconds", History::Keep::kMax},
    {"weight_wasserstein", History::Keep::kMean},
    {"weight_update", History::Keep::kMean},
    {"rms_staleness", History::Keep::kMean},
    {"rms_staleness_max", History::Keep::kMax},
    {"update_ratio", History::Keep::kMean},
    {"update_ratio_max", History::Keep::kMax},
};
enum LayerColumn : size_t {
  kLayerRatioForward,
  kLayerRatioBackward,
  kLayerBias,
  kLayerGradientNorm,
  kLayerWasserstein,
};
inline constexpr History::Column kLayerColumns[] = {
    {"deviation_ratio_forward", History::Keep::kMax},
    {"deviation_ratio_backward", History::Keep::kMax},
    {"bias_ulp", History::Keep::kMean},
    {"gradient_norm", History::Keep::kMean},
    {"weight_wasserstein", History::Keep::kMax},
};
inline constexpr size_t kRankPoints = 512, kLayerPoints = 64;  // limits of the points of the histories

struct LayerStatistics {
  std::string label, name, source;  // as in LayerOfCall below
  // Set for a layer known only by its ordinal (the index of the call in its step) once its calls have
  // different shapes or belong to different trainings. A bias then gives no alarm, as a mean has no meaning.
  bool is_mixed = false;
  uint64_t shape_hash[segment::kPasses] = {};  // of format, head sizes, scale of the last call; 0: none
  PassStatistics pass[segment::kPasses];
  KeyStatistics keys;
  ColumnsSkipped columns_skipped = {};
  PooledRows few_rows;  // slices of dQ that too few rows decide, see pool_few_rows()
  ScoreStatistics scores;
  std::optional<double> gradient_norm;  // of the layer's parameters, before clipping
  uint64_t gradient_step = 0;           // step of gradient_norm
  uint64_t nonfinite_steps = 0;         // steps with NaN or Inf in the gradients of the layer's parameters
  int64_t last_nonfinite_step = -1;
  History history{kLayerColumns, kLayerPoints};
};

// An event of a rank. Repetitions with the same `what` and `layer` are counted in one event.
struct RankEvent {
  std::string what;   // as in the record: loss_spike, nonfinite, ...
  std::string layer;  // "": the event belongs to no layer
  int64_t first_step, last_step;
  uint64_t count;
  std::optional<double> value;  // of the last repetition
};
inline constexpr size_t kMostEvents = 64;  // beyond this, the oldest are dropped

// A scalar that the training itself logs.
struct LoggedScalar {
  double value;
  int64_t step;  // step logged with the value, else the optimizer's step
};

// Limit of the layers of a rank. A trainer has at most kMaxLayers names at a time, but may replace them.
inline constexpr size_t kMostLayers = 2 * segment::kMaxLayers;

// Returns the statistics of `tensor` in a layer or rank. Null: grad_key or grad_value before its first slice.
template <class Holder>
const PassStatistics* statistics_of(const Holder& holder, uint32_t tensor) {
  if (!is_key_gradient(tensor)) return &holder.pass[tensor];
  return holder.keys.empty() ? nullptr : &holder.keys[tensor - segment::kPasses];
}

// Does the same as statistics_of() above, but creates missing statistics.
template <class Holder>
PassStatistics& statistics_of(uint32_t tensor, Holder* holder) {
  if (!is_key_gradient(tensor)) return holder->pass[tensor];
  if (holder->keys.empty()) holder->keys.resize(kJudgedTensors - segment::kPasses);
  return holder->keys[tensor - segment::kPasses];
}

constexpr uint32_t pass_of(uint32_t tensor) { return tensor == 0 ? 0 : 1; }
// Returns the JudgedTensor of a line. A line of an unknown tensor counts as `out` or grad_query, by its pass.
uint32_t tensor_of(const SampleLine& slice);
// Returns the alarm limit of the fused_ratio of this slice.
double ratio_limit_of(const SampleLine& slice);

// A fault in the attention of one layer, or of the calls whose layer is unknown (label "").
struct LayerAlarm {
  const LayerStatistics* layer;
  uint32_t pass;
  AlarmKind kind;
  std::optional<double> value;  // the largest ratio, or the bias in ulp; absent for nonfinite
  // Step of the last slice that itself exceeds the limit (bias: of the last slice in the pool). An alarm of
  // kind nonfinite ends 64 slices later. An alarm of a ratio ends when fewer than kSlicesBeyond of its last
  // 64 values exceed the limit (fused_ratio of dK and dV: fewer than kSlicesBeyondKeys). After a divergence,
  // alarms of ratios and bias may stay, since slices whose inputs are all NaN add no values.
  int64_t last_step = -1;
  uint32_t tensor = 0;  // JudgedTensor
};

// Returns the alarms of a layer for a tensor: at most one of each kind, in the order of AlarmKind.
std::vector<LayerAlarm> alarms_of(const LayerStatistics& layer, uint32_t tensor);

// Stores in PassStatistics::past those active alarms to which the slice contributes. The slice must already
// have been added to `layer`.
void note_alarms(const SampleLine& slice, LayerStatistics* layer);

// The label ("003") of a layer and the name of its module, as the trainer has written them.
struct LayerName {
  std::string label, name;
  uint32_t attention = 0;                               // bits of segment::LayerAttention
  std::array<uint32_t, segment::kPasses> skipped = {};  // as segment::Layer::skipped
};

enum class RunState { kRunning, kFinished, kFailed, kPreempted, kInterrupted };
const char* name_of(RunState state);

struct RankStatistics {
  std::string run;
  segment::Identity identity = {};
  bool identified = false;         // `identity` has been read
  bool announced = false;          // the record has the "started" line of this process
  std::optional<int> exit_status;  // argument of exit(), once the process has called it
  std::vector<segment::Op> ops;
  std::vector<LayerName> layer_names;       // by segment::Slot::layer, except for ordinals
  std::vector<segment::UnseenName> unseen;  // attention that no hook sees
  segment::Coverage coverage = {};          // calls that the hooks do not see, counted by other means
  segment::Totals totals;                   // the trainer's counters of calls and samples
  // Samples that this agent and the agents before it have checked, and those that could not be checked.
  uint64_t judged[segment::kPasses] = {}, lost[segment::kPasses][segment::kLostReasons] = {};
  bool alive = true;        // the process still runs
  bool current = true;      // false: a later process has taken over this rank's number
  bool switched_on = true;  // false: sampling is paused
  RunState state = RunState::kRunning;

  PassStatistics pass[segment::kPasses];
  KeyStatistics keys;
  ColumnsSkipped columns_skipped = {};
  ScoreStatistics scores;
  std::map<std::string, LayerStatistics> layers;         // by label
  LayerStatistics unnamed;                               // calls whose layer is not known
  std::string layer_source = "unknown";                  // best LayerOfCall::source so far
  std::map<std::string, uint64_t> slices_without_layer;  // slices of query rows, by LayerOfCall::source
  uint64_t layers_judged[segment::kPasses] = {};         // named layers with a checked slice

  uint64_t steps = 0, steps_lost = 0;  // steps read, and steps overwritten before they were read, or damaged
  uint64_t steps_damaged = 0;          // of steps_lost: damaged ones that this agent has met
  // Another process has truncated the segment or written into its header, or the trainer could not write into
  // it.
  bool is_damaged = false;
  // Number of new trainings and loaded checkpoints: how often the step number fell or the optimizer changed.
  uint64_t step_restarts = 0;
  segment::StepRecord last_step = {};  // its `sequence` is 0 before the first step
  // The step at which the trainer stopped reporting tensors, or -1 if it has not. The reason is the cost, or
  // a failure if tensors_given_up_failed.
  int64_t tensors_given_up_step = -1;
  bool tensors_given_up_failed = false;
  std::optional<double> first_loss, last_loss;
  uint32_t loss_source = 0;  // FORESHOCK_LOSS_... of the last step that had a loss
  std::optional<double> gradient_norm, learning_rate;
  // The detectors of this rank, over all attempts. Null until the first line of the record was given to
  // them, and once a later process has replaced this one, so that their events are published only once.
  const RankWatch* watch = nullptr;
  const RunConditions* conditions = nullptr;  // of all ranks of the run; null in the same cases
  uint64_t skips_recorded = 0;                // optimizer steps skipped in a row, as last recorded
  // Backward calls of attention, as counted when the last step was first seen and when the counts were read
  // last; those since the last step, as last recorded.
  struct BackwardSinceStep {
    uint64_t step_sequence = 0, first = 0, last = 0, recorded = 0;
  };
  BackwardSinceStep backward_since_step;
  // The last step that an earlier agent has processed, if this agent has replaced it; else -1.
  int64_t taken_up_step = -1;
  bool loss_events_known = true;  // the loss events of steps up to taken_up_step are known too
  // Counts the loss events over all attempts; empty if an earlier agent may have seen some, or if !current.
  std::optional<LossCount> loss_event_count(WatchEventKind kind) const;
  StepWindow loss_window, gradient_window;
  Window<kLossWindow> gradient_before;    // norms of the last 128 steps, for gradient_zscore
  std::optional<double> loss_zscore;      // of the last step, against the last 128 losses that were not high
  std::optional<double> gradient_zscore;  // of the last step, against the norms of the 128 steps before it
  // train_seconds: duration of the steps without pauses. own_seconds: the part of it that the monitor takes.
  // agent_seconds: CPU time of the agent for the rank. The last two exclude the first look (FirstLookCost).
  struct Cost {
    double train_seconds = 0, own_seconds = 0, agent_seconds = 0;
  };
  Cost cost;         // over all steps seen
  Cost recent_cost;  // over the last minutes: older steps count exponentially less
  // Cost of the first look: the first samples of a process, which are paid from a fixed grant. It counts
  // neither for the slowdown nor for the choice of the sampling interval.
  struct FirstLookCost {
    double own_seconds = 0, agent_seconds = 0;  // in the trainer, and in the agent for checking slices
    int64_t last_step = -1;                     // last ended step of the first look
  };
  FirstLookCost first_look;
  // Whether a slice of `step` belongs to the first look. A slice may be checked before its step has ended. It
  // then belongs to the first look if the last ended step does.
  bool is_in_first_look(int64_t step) const {
    return segment::is_first_look(last_step) || step <= first_look.last_step;
  }
  StepStride stride;  // the usual distance of consecutive step numbers: 10 if every tenth step is reported
  // The next three are in seconds, with a value for each step record. A record may stand for several steps
  // (`stride`), which its value then covers together.
  StepWindow step_seconds;       // without the monitor's part
  StepWindow other_step_cost;    // the monitor's part in steps that were not sampled
  Window<16> sampled_step_cost;  // the monitor's part in sampled steps
  uint64_t sampled_steps = 0;
  double agent_seconds = 0;         // CPU time that the agent spent on this rank, in the first look too
  double judging_seconds = 0;       // the part of agent_seconds spent on checking slices after the first look
  double tensor_seconds = 0;        // the part of agent_seconds spent on tensors
  uint64_t row_slices_handled = 0;  // slices of query rows that the agent checked or refused
  uint64_t nonfinite_loss = 0, nonfinite_gradient = 0;  // steps with a loss or norm of NaN or Inf
  int64_t nonfinite_loss_since =
      -1;  // first of the last steps, all with such a loss; -1: the last one is finite
  uint64_t nonfinite_output = 0, nonfinite_attention_gradient = 0;  // values of NaN or Inf in slices
  // NaN and Inf in attention gradients of a step that has not ended. nonfinite_attention_gradient counts them
  // when StepRecord::skipped_steps of this step is read, so that an alert can ignore those of skipped steps.
  struct PendingGradient {
    uint64_t values = 0;
    double since = 0;  // time of the first of them, in seconds since 1970
    int64_t step = 0;
    int ends = 0;  // ends of steps since `since`
  };
  PendingGradient pending_gradient;
  uint64_t refused_slots = 0, refused_tensors = 0;  // slices and tensor records with invalid contents
  int64_t model_step_in_history = -1;               // step of the last snapshot of the model in `history`
  segment::TensorRing tensors = {};  // the trainer's counts of weight tensors and of their snapshots
  History history{kRankColumns, kRankPoints};
  std::deque<RankEvent> events;
  std::vector<std::string> scalar_names;       // names of segment::StepRecord::scalars
  std::map<std::string, LoggedScalar> logged;  // by name; at most kMaxScalars

  // Returns the layer with this label, created if missing, or null if there are too many layers.
  LayerStatistics* layer_of(const std::string& label);
  // Adds an event to the list. Returns how often the list has it now.
  uint64_t note_event(const char* what, int64_t step, const std::string& layer, std::optional<double> value);
  std::string operation_of(const segment::Slot& slot) const;  // its name; "": not registered
  uint64_t calls(uint32_t wanted_pass) const;
  uint64_t in_flight(uint32_t wanted_pass) const;  // samples that wait for their check
  // Whether enough steps have passed to conclude that the hooks do not see this model's attention.
  bool no_attention_seen() const { return steps >= 10 && calls(0) + calls(1) == 0; }
  // Returns the monitor's time in the trainer, plus the agent's CPU time divided by the cores of the rank, as
  // a ratio to the training time without the monitor: over all steps seen, and over the last minutes.
  std::optional<double> slowdown(int cores_per_rank) const;
  std::optional<double> recent_slowdown(int cores_per_rank) const;
  // Drops the histories, the layers that the summary does not mention, and layer_names. Frees about 20 KiB
  // per layer.
  void shrink_to_summary();
  // Returns the layer nearest to, or furthest beyond, an alarm, or null if no layer has a checked slice.
  const LayerStatistics* worst_layer() const;
  // Returns the alarms of all layers by label. Those of calls without a layer come first.
  std::vector<LayerAlarm> alarms() const;
  // Calls visit(layer, tensor, statistics) for every JudgedTensor with statistics, in the order of alarms().
  template <class Visit>
  void each_tensor(const Visit& visit) const {
    const auto visit_layer = [&visit](const LayerStatistics& layer) {
      for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor)
        if (const PassStatistics* statistics = statistics_of(layer, tensor))
          visit(layer, tensor, *statistics);
    };
    visit_layer(unnamed);
    for (const auto& [label, layer] : layers) visit_layer(layer);
  }
};

// The layer under which a call is counted. `label`: short, as in series ("003"); empty: unknown. `name`: the
// module. `source`: a name of segment::LayerSource. It is how the label was found ("parameter"), or, if the
// label is empty, why it was not ("unknown").
struct LayerOfCall {
  std::string label, name, source;
};

// Adds a slice of dQ that too few rows decide to those of its layer before it. Gives it the ratios of them
// all once they suffice. To be called before allow_for_operation().
// `label`: of the layer.
void pool_few_rows(const std::string& label, SliceDeviation* deviation, RankStatistics* rank);

// Adds a checked tensor of a slice. The line must have its step. It may be one that was read from a record,
// if figures that are not finite are infinite in it (agent/replay.h).
void observe(const SampleLine& slice, RankStatistics* rank);

// Returns the number of checked slices of key positions. For each, both dK and dV are checked.
inline uint64_t key_slices_of(const RankStatistics& rank) {
  const PassStatistics* grad_key = statistics_of(rank, static_cast<uint32_t>(JudgedTensor::kGradKey));
  return grad_key != nullptr ? grad_key->judged : 0;
}

// Returns the optimizer steps that a gradient scaler has skipped, those since the last step included. Absent
// if a result of a scaler on a device could not be read.
std::optional<uint64_t> skipped_steps_of(const RankStatistics& rank);

// Continues a rank after `last`, the last step of an earlier agent. `watch`: the restored detectors, or null.
void resume_from(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank);
// Adds an ended step.
void observe_step(const segment::StepRecord& step, RankStatistics* rank);
// Adds an event of the detectors to the rank's list.
void observe_event(const EventLine& line, RankStatistics* rank);

// Adds how far a weight tensor has moved since its previous snapshot to the history of its layer. `rank`: the
// rank whose record completed the snapshot.
void add_to_history(const TensorSnapshot& snapshot, RankStatistics* rank);

// Adds the latest snapshot of the whole model to the rank's history, unless it was already added.
void add_to_history(const Weights& weights, RankStatistics* rank);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RANK_STATE_H_
