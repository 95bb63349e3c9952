// The state of one rank in the agent, and the functions that update it from a checked slice, an ended step,
// an event or a tensor snapshot. Plain data: the pipeline writes it, the publishing code only reads it.
#ifndef FORESHOCK_AGENT_RANK_STATE_H_
#define FORESHOCK_AGENT_RANK_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/weights.h"
#include "detect/detector.h"
#include "detect/watch.h"
#include "exporters/http_routes.h"
#include "exporters/record_line.h"
#include "segment/layout.h"
#include "segment/reader.h"
#include "shadow/judgement.h"
#include "shadow/spectrum.h"

namespace foreshock {

// Values by step over a whole run, in bounded memory. A point covers a range of steps whose length is a power
// of two and whose begin is a multiple of it. If there are too many points, neighbours are merged and the
// length doubles. Thread-compatible.
class History {
 public:
  enum class Keep { kMean, kMax };  // how the values of one point are combined
  struct Column {
    std::string_view name;  // must have static lifetime
    Keep keep;
  };

  // Keeps at most `points` points; `points` must be at least 2.
  History(std::span<const Column> columns, size_t points);

  // Ignores a step before the first one added. Ignores values that are not finite, which events report.
  void add(int64_t step, size_t column, double value);

  // Fills in the steps and columns.
  void copy_to(HistoryTable* table) const;

 private:
  struct Cell {
    float sum = 0;  // with Keep::kMax the largest value
    uint32_t count = 0;
  };

  void make_room(int64_t step);
  void halve();
  Cell& cell(size_t point, size_t column) { return cells_[point * columns_.size() + column]; }

  std::span<const Column> columns_;
  size_t most_points_;
  int64_t first_point_ = -1;  // first point begins at step first_point_ << shift_; -1: none
  int shift_ = 0;
  std::vector<Cell> cells_;  // by point, then column
};

using SampleWindow = Window<BiasPool::kSlices>;  // as many samples as the bias is pooled over
using StepWindow = Window<64>;

template <size_t n>
std::optional<double> mean_of(const Window<n>& window) {
  const auto summary = window.summary();
  return summary ? std::optional<double>(summary->mean) : std::nullopt;
}
// The window must not be empty.
template <size_t n>
double median_of(const Window<n>& window) {
  std::vector<double> values(window.data(), window.data() + window.size());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
template <size_t n>
std::optional<double> min_of(const Window<n>& window) {
  const auto summary = window.summary();
  return summary ? std::optional<double>(summary->min) : std::nullopt;
}
template <size_t n>
std::optional<double> max_of(const Window<n>& window) {
  const auto summary = window.summary();
  return summary ? std::optional<double>(summary->max) : std::nullopt;
}

// An alarm that is active or was active before.
struct PastAlarm {
  int64_t first_step, last_step;
  std::optional<double> most;  // largest LayerAlarm::value; the bias furthest from 0
};

// Statistics of one pass, or of dK or dV, of a rank or a layer. The windows and pools cover the last slices;
// `past` and the counts cover all slices.
struct PassStatistics {
  uint64_t judged = 0, nonfinite = 0;     // checked slices, and those of them with NaN or Inf
  SampleWindow nonfinite_slices;          // 1 for a slice with NaN or Inf, else 0
  std::map<std::string, PastAlarm> past;  // by LayerAlarm::kind
  // fused_ratio: error relative to that of fused attention (judgement.h).
  SampleWindow relative_error_mean, relative_error_max, deviation_ratio, fused_ratio, lse_error_ratio;
  BiasPool bias;          // of the kernel
  BiasPool excess_bias;   // the kernel's bias minus that of a correct algorithm on the same slices
  BiasPool rounded_bias;  // of the rounded reference
  // dK and dV only: number of query rows that the last slice summed over, of all heads of the group.
  uint64_t query_rows = 0;
  // dK and dV only: how far their sums over all keys are from the values that every correct kernel gives,
  // relative to the tolerance (conservation.h).
  SampleWindow conservation_ratio;
  // A row is partial if its log_sum_exp covers more keys than the call has (context parallelism).
  uint64_t with_partial_rows = 0;  // slices with at least one partial row
  uint64_t partial = 0;            // slices in which nearly all rows are partial
  int64_t last_step = -1;          // step of the last checked slice
};

// Statistics of grad_key and grad_value; empty until the first slice of key positions.
using KeyStatistics = std::vector<PassStatistics>;

// Whether the kernel itself is biased: its bias is large, significant, and exceeds that of a correct
// algorithm on the same slices and that of the rounded reference. `tensor` is a JudgedTensor.
bool is_biased(const PassStatistics& pass, uint32_t tensor);

struct ScoreStatistics {
  SampleWindow lse_error, logit, entropy_min, entropy_mean, near_tie_ratio;
};

// Columns of the histories of a rank and of a layer, which the page plots by step.
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
  kColumnEffectiveRank,
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
    {"elapsed_seconds", History::Keep::kMax},  // from the start of the process to the end of the step
    {"weight_wasserstein", History::Keep::kMean},
    {"weight_update", History::Keep::kMean},
    {"rms_staleness", History::Keep::kMean},
    {"rms_staleness_max", History::Keep::kMax},
    {"update_ratio", History::Keep::kMean},
    {"update_ratio_max", History::Keep::kMax},
    {"update_effective_rank", History::Keep::kMean},
};
enum LayerColumn : size_t {
  kLayerRatioForward,
  kLayerRatioBackward,
  kLayerBias,
  kLayerGradientNorm,
  kLayerWasserstein,
  kLayerEffectiveRank,
};
inline constexpr History::Column kLayerColumns[] = {
    {"deviation_ratio_forward", History::Keep::kMax},
    {"deviation_ratio_backward", History::Keep::kMax},
    {"bias_ulp", History::Keep::kMean},
    {"gradient_norm", History::Keep::kMean},
    {"weight_wasserstein", History::Keep::kMax},
    {"update_effective_rank", History::Keep::kMean},
};
inline constexpr size_t kRankPoints = 512, kLayerPoints = 64;

struct LayerStatistics {
  std::string label, name, source;
  // Set for a layer known only by its ordinal once its calls have different shapes or belong to different
  // trainings. A mean over such calls is meaningless, so there is no bias alarm.
  bool is_mixed = false;
  uint64_t kind[segment::kPasses] = {};  // hash of the properties that all calls share; 0: no call yet
  PassStatistics pass[segment::kPasses];
  KeyStatistics keys;
  ScoreStatistics scores;
  std::optional<double> gradient_norm;
  uint64_t nonfinite_steps = 0;
  int64_t last_nonfinite_step = -1;
  uint64_t gradient_step = 0;  // step of gradient_norm
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

// Limit of the layers that are kept. A trainer has at most kMaxLayers names at a time, but may invent new
// ones without end.
inline constexpr size_t kMostLayers = 2 * segment::kMaxLayers;

// Whether `tensor`, a JudgedTensor, is grad_key or grad_value, which are the tensors that slices of key
// positions check. The number of any other tensor equals its pass.
constexpr bool is_key_gradient(uint32_t tensor) { return tensor >= segment::kPasses; }

// Returns the statistics of a layer or a rank for `tensor`. Null for grad_key and grad_value if no slice of
// key positions was checked.
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

// A fault in the attention of one layer, or of the calls whose layer is unknown (label "").
struct LayerAlarm {
  const LayerStatistics* layer;
  uint32_t pass;
  const char* kind;             // nonfinite, bias, deviation_ratio, fused_ratio, conservation or log_sum_exp
  std::optional<double> value;  // the largest ratio, or the bias in ulp; absent for nonfinite
  // Step of the last slice that supports the alarm. An alarm holds until 64 later slices have replaced that
  // slice in the windows. After a divergence this may never happen, because slices without a comparable row
  // do not enter the windows.
  int64_t last_step = -1;
  uint32_t tensor = 0;  // JudgedTensor
};

// Returns the alarms of one layer for one tensor, at most one of each kind, in the order that
// LayerAlarm::kind lists.
std::vector<LayerAlarm> alarms_of(const LayerStatistics& layer, uint32_t tensor);

// Returns the alarm limit of PassStatistics::fused_ratio for dK and dV, which are sums over `query_rows`
// rows.
double ratio_limit_of_keys(uint64_t query_rows);
// Stores in PassStatistics::past the alarms that the slice of `step` supports. The slice must already have
// been added to `layer`.
void note_alarms(const SliceDeviation& deviation, int64_t step, uint32_t tensor, LayerStatistics* layer);

// Whether the trainer's result has NaN or Inf where the reference has none.
bool is_nonfinite(const SliceDeviation& deviation);

enum class RunState { kRunning, kFinished, kFailed, kPreempted, kInterrupted };
const char* name_of(RunState state);

struct RankStatistics {
  std::string run;
  segment::Identity identity = {};
  bool identified = false;         // `identity` has been read
  std::optional<int> exit_status;  // argument of exit(), once the process has called it
  std::vector<segment::Op> ops;
  std::vector<segment::UnseenName> unseen;  // attention that no hook sees
  segment::Coverage coverage = {};          // calls that the hooks do not see, counted by other means
  segment::Totals totals;
  uint64_t judged[segment::kPasses] = {};
  uint64_t lost[segment::kPasses][segment::kLostReasons] = {};
  bool alive = true;
  bool current = true;  // false: a later process has taken over this rank's number
  bool switched_on = true;
  RunState state = RunState::kRunning;

  PassStatistics pass[segment::kPasses];
  KeyStatistics keys;
  ScoreStatistics scores;
  std::map<std::string, LayerStatistics> layers;  // by label
  LayerStatistics unnamed;                        // calls whose layer is not known
  std::string layer_source = "unknown";
  // Slices of query rows without a layer, by LayerOfCall::source.
  std::map<std::string, uint64_t> slices_without_layer;
  uint64_t layers_judged[segment::kPasses] = {};  // named layers with a checked slice

  uint64_t steps = 0, steps_lost = 0;
  // How often the step number fell or the optimizer was replaced, because another training began or a
  // checkpoint was loaded.
  uint64_t step_restarts = 0;
  segment::StepRecord last_step = {};
  // The step at which the trainer stopped reporting tensors, or -1 if it has not. The reason is the cost, or
  // a failure if tensors_given_up_failed.
  int64_t tensors_given_up_step = -1;
  bool tensors_given_up_failed = false;
  std::optional<double> first_loss, last_loss;
  uint32_t loss_source = 0;  // FORESHOCK_LOSS_... of the last step that had a loss
  std::optional<double> gradient_norm, learning_rate;
  // The detectors of this rank, over all attempts. Null until they have received a line. Also null once a
  // later process has replaced this one, so that their events are published only once.
  const RankWatch* watch = nullptr;
  // An earlier agent has processed the steps up to this one. -1: no earlier agent.
  int64_t taken_up_step = -1;
  bool loss_events_known = true;  // the loss events of steps up to taken_up_step are known too
  // Returns the loss events over all attempts. Empty if an earlier agent may have seen some, or if a later
  // process has replaced this one.
  std::optional<LossCount> losses(WatchEventKind kind) const;
  StepWindow loss_window, gradient_window;
  Window<kLossWindow> gradient_before;                 // norms of the last 128 steps, for gradient_zscore
  std::optional<double> loss_zscore, gradient_zscore;  // of the last step against the 128 before it
  // Time of training, of the monitor in the trainer, and of the agent. The last two are without the time that
  // the grant of the first look pays (FirstLookCost).
  struct Cost {
    double train_seconds = 0, own_seconds = 0, agent_seconds = 0;
  };
  Cost cost;         // over all steps seen
  Cost recent_cost;  // over the last minutes: older steps count exponentially less
  // Time paid by the grant of the first look (the first samples of a process), in the trainer and in the
  // agent for these slices. It is excluded from the slowdown and from the choice of the sampling interval.
  struct FirstLookCost {
    double own_seconds = 0, agent_seconds = 0;
    int64_t last_step = -1;
  };
  FirstLookCost first_look;
  bool is_in_first_look(int64_t step) const {
    return segment::is_first_look(last_step) || step <= first_look.last_step;
  }
  // Seconds per step record; a record covers `stride` steps.
  StepWindow step_seconds;       // without the monitor's part
  StepWindow other_step_cost;    // the monitor's part in steps that were not sampled
  Window<16> sampled_step_cost;  // the monitor's part in sampled steps
  uint64_t sampled_steps = 0;
  StepStride stride;
  double agent_seconds = 0;         // CPU time that the agent spent on this rank
  double judging_seconds = 0;       // the part of agent_seconds spent on checking slices after the first look
  double tensor_seconds = 0;        // the part of agent_seconds spent on tensors
  uint64_t row_slices_handled = 0;  // slices of query rows that the agent checked or refused
  uint64_t nonfinite_loss = 0, nonfinite_gradient = 0, nonfinite_output = 0, nonfinite_attention_gradient = 0;
  // Non-finite attention gradients of a step that has not ended. They are added to
  // nonfinite_attention_gradient when the step ends, since only then it is known whether a gradient scaler
  // skips the step.
  struct PendingGradient {
    uint64_t values = 0, since_ns = 0;
    int64_t step = 0;
    int ends = 0;  // ends of steps since `since_ns`
  };
  PendingGradient pending_gradient;
  uint64_t refused_slots = 0, refused_tensors = 0;
  int64_t model_step_in_history = -1;  // step of the last snapshot of the model in `history`
  // The head of the tensor ring: counts of named tensors and of snapshots taken, due and skipped.
  segment::TensorRing tensors = {};
  History history{kRankColumns, kRankPoints};
  std::deque<RankEvent> events;
  std::vector<std::string> scalar_names;       // names of segment::StepRecord::scalars
  std::map<std::string, LoggedScalar> logged;  // by name; at most kMaxScalars

  // Returns the layer with this label, created if missing, or null if there are too many layers.
  LayerStatistics* layer_of(const std::string& label);
  void note_event(const char* what, int64_t step, const std::string& layer, std::optional<double> value);
  uint64_t calls(uint32_t pass) const;
  uint64_t in_flight(uint32_t pass) const;
  bool no_attention_seen() const { return steps >= 10 && calls(0) + calls(1) == 0; }
  // Returns the monitor's time on the training threads plus the agent's share of the node's cores, divided by
  // the training time without the monitor: over all steps seen, and over the last minutes.
  std::optional<double> slowdown(int cores_per_rank) const;
  std::optional<double> recent_slowdown(int cores_per_rank) const;
  // Drops the histories and the layers that the summary does not mention. Frees about 20 KiB per layer.
  void shrink_to_summary();
  // Returns the layer nearest to, or furthest beyond, an alarm, or null if no layer has a checked slice.
  const LayerStatistics* worst_layer() const;
  // Returns the alarms of all layers, in the order of their labels. Those of calls without a layer come
  // first.
  std::vector<LayerAlarm> alarms() const;
};

// The layer under which a call is counted. If the label is empty, the call is counted for the rank only.
struct LayerOfCall {
  std::string label, name, source;
};

void observe_slice(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                   RankStatistics* rank);

// Returns the number of checked slices of key positions. For each, both dK and dV are checked.
inline uint64_t key_slices_of(const RankStatistics& rank) {
  const PassStatistics* known = statistics_of(rank, static_cast<uint32_t>(JudgedTensor::kGradKey));
  return known != nullptr ? known->judged : 0;
}

// Continues a rank whose steps up to `last` an earlier agent has processed. `watch` has the detectors' state
// after `last`; null if unknown.
void take_up(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank);

void observe_step(const segment::StepRecord& step, RankStatistics* rank);

// Adds an event of the detectors to the rank's list.
void observe_event(const EventLine& line, RankStatistics* rank);

// Adds the distance of a tensor snapshot to the history of its layer. `rank`: the rank whose record completed
// the snapshot.
void add_to_history(const TensorSnapshot& snapshot, RankStatistics* rank);

// Adds the spectrum of a layer's heads to the histories of layer and rank. `rank`: the rank whose record
// completed the spectrum.
void add_to_history(const std::string& layer, const LayerSpectrum& spectrum, RankStatistics* rank);

// Adds the latest snapshot of the whole model to the rank's history, once per interval.
void add_to_history(const Weights& weights, RankStatistics* rank);

// Returns the share of rows whose second largest score nearly equals the largest.
std::optional<double> near_tie_ratio(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RANK_STATE_H_
