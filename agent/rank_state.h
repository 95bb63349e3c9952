// What the agent knows of one rank, and what a judged slice, an ended step, an event or a snapshot of a
// tensor changes in it. Plain data: the pipeline fills it, publishing only reads it.
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
#include "detect/watch.h"
#include "detect/window.h"
#include "exporters/http_routes.h"
#include "exporters/record_line.h"
#include "segment/layout.h"
#include "segment/parser.h"
#include "segment/reader.h"
#include "shadow/judgement.h"
#include "shadow/slice.h"
#include "shadow/spectrum.h"

namespace foreshock {

// Values by step over a whole run, in bounded memory: points of one width in steps, a power of two, that
// begin at its multiples. When there are too many, two neighbours become one. Thread-compatible.
class History {
 public:
  enum class Keep { kMean, kMax };  // what becomes of several values of one point
  struct Column {
    std::string_view name;  // of static life
    Keep keep;
  };

  // At most `points` points, 2 at least.
  History(std::span<const Column> columns, size_t points);

  // Steps before the first one added, and values that are not finite, are left out: events tell of those.
  void add(int64_t step, size_t column, double value);

  // Fills in the steps and columns.
  void copy_to(HistoryTable* table) const;

 private:
  struct Cell {
    float sum = 0;  // or the largest
    uint32_t count = 0;
  };

  void make_room(int64_t step);
  void halve();
  Cell& cell(size_t point, size_t column) { return cells_[point * columns_.size() + column]; }

  std::span<const Column> columns_;
  size_t most_points_;
  int64_t first_point_ = -1;  // its steps begin at first_point_ << shift_; -1: nothing yet
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
// Of a window that is not empty.
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

// Something was beyond a limit at times, whether or not it still is.
struct PastAlarm {
  int64_t first_step, last_step;
  std::optional<double> most;  // as LayerAlarm::value; the bias furthest from 0
};

// What the last samples of one pass say, of a rank or of a layer; `past` and the counts are of all of them.
struct PassStatistics {
  uint64_t judged = 0, nonfinite = 0;     // slices, and those among them that gave NaN or Inf
  SampleWindow nonfinite_slices;          // 1 for such a slice, else 0
  std::map<std::string, PastAlarm> past;  // by LayerAlarm::of
  SampleWindow relative_error_mean, relative_error_max, deviation_ratio, fused_ratio, lse_error_ratio;
  // Of the kernel, what it exceeds that of a sound algorithm by on the same slices, and of the reference
  // rounded.
  BiasPool bias, excess_bias, rounded_bias;
  // Of dK and dV: query rows that the last slice summed over, of all heads of the group.
  uint64_t query_rows = 0;
  // Of dK and dV, what they do not conserve over all keys.
  SampleWindow conservation_ratio;
  // Slices with rows whose log_sum_exp covers more keys than the call has.
  uint64_t with_partial_rows = 0;
  uint64_t partial = 0;    // slices of calls that saw a part of the keys (context parallelism)
  int64_t last_step = -1;  // of the last slice judged
};

// Of the tensors that slices of key positions are judged by, once there is one: grad_key, grad_value.
using KeyStatistics = std::vector<PassStatistics>;

// Whether the kernel has a bias of its own: large and sure, beyond what a sound algorithm has on the same
// slices and beyond what the rounded reference has. `tensor` is a JudgedTensor.
bool is_biased(const PassStatistics& pass, uint32_t tensor);

struct ScoreStatistics {
  SampleWindow lse_error, logit, entropy_min, entropy_mean, near_tie_ratio;
};

// What the page draws by step, of a rank and of a layer.
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
  // Set for a layer known by its ordinal alone once it holds calls of unlike shape, operation or training:
  // its mean over them says nothing about any of them, so it has no alarm for bias.
  bool is_mixed = false;
  uint64_t kind[segment::kPasses] = {};  // hash of what its calls have in common; 0: no call yet
  PassStatistics pass[segment::kPasses];
  KeyStatistics keys;
  ScoreStatistics scores;
  std::optional<double> gradient_norm;
  uint64_t nonfinite_steps = 0;
  int64_t last_nonfinite_step = -1;
  uint64_t gradient_step = 0;  // of gradient_norm
  History history{kLayerColumns, kLayerPoints};
};

// Something happened, once or several times. The same of one layer is one event.
struct RankEvent {
  std::string what;   // as in the record: loss_spike, nonfinite, ...
  std::string layer;  // "": of the rank
  int64_t first_step, last_step;
  uint64_t count;
  std::optional<double> value;  // the last one
};
inline constexpr size_t kMostEvents = 64;  // the oldest go first

// What the training itself logs.
struct LoggedScalar {
  double value;
  int64_t step;  // the training's own, or the optimizer's when it gave none
};

// A trainer has at most kMaxLayers names; one that makes up new ones all the time is not followed further.
inline constexpr size_t kMostLayers = 2 * segment::kMaxLayers;

// What slices judged by this tensor say, of a layer or a rank; null: there was none of key positions.
template <class Holder>
const PassStatistics* statistics_of(const Holder& holder, uint32_t tensor) {
  if (tensor < segment::kPasses) return &holder.pass[tensor];
  return holder.keys.empty() ? nullptr : &holder.keys[tensor - segment::kPasses];
}

// The same, made if need be.
template <class Holder>
PassStatistics& statistics_of(uint32_t tensor, Holder* holder) {
  if (tensor < segment::kPasses) return holder->pass[tensor];
  if (holder->keys.empty()) holder->keys.resize(kJudgedTensors - segment::kPasses);
  return holder->keys[tensor - segment::kPasses];
}

constexpr uint32_t pass_of(uint32_t tensor) { return tensor == 0 ? 0 : 1; }

// What is wrong with the attention of one layer, or of the calls whose layer is not known (label "").
// `value`: the largest ratio or the bias in ulp; absent for NaN and Inf.
struct LayerAlarm {
  const LayerStatistics* layer;
  uint32_t pass;
  const char* of;  // nonfinite, bias, deviation_ratio, fused_ratio, conservation or log_sum_exp
  std::optional<double> value;
  // Of the last slice that supports it; an alarm holds until 64 later slices have replaced it, and after a
  // divergence there may be none.
  int64_t last_step = -1;
  uint32_t tensor = 0;  // JudgedTensor
};

// Of one layer by one judged tensor, in this order.
std::vector<LayerAlarm> alarms_of(const LayerStatistics& layer, uint32_t tensor);

// The limit of the fused ratio of dK and dV, which are sums over so many query rows.
double ratio_limit_of_keys(uint64_t query_rows);
// Keeps those that hold at `step`, once its slice is in `layer`.
void note_alarms(const SliceDeviation& deviation, int64_t step, uint32_t tensor, LayerStatistics* layer);

// NaN or Inf of the trainer's where the reference has none.
bool is_nonfinite(const SliceDeviation& deviation);

enum class RunState { kRunning, kFinished, kFailed, kPreempted, kInterrupted };
const char* name_of(RunState state);

struct RankStatistics {
  std::string run;
  segment::Identity identity = {};
  bool identified = false;         // `identity` has been read
  std::optional<int> exit_status;  // what its process gave exit(), once it has
  std::vector<segment::Op> ops;
  std::vector<segment::UnseenName> unseen;  // attention that no hook sees
  segment::Coverage coverage = {};          // what of it was counted by other means
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
  uint64_t layers_judged[segment::kPasses] = {};  // named ones with a judged slice

  uint64_t steps = 0, steps_lost = 0;
  // Times that the step number fell or the optimizer was replaced: another training, or a checkpoint was
  // loaded.
  uint64_t step_restarts = 0;
  segment::StepRecord last_step = {};
  // The first one since which nobody names tensors, or tells of them, since that has cost too much or, where
  // it failed, since they could not be named; -1: none.
  int64_t tensors_given_up_step = -1;
  bool tensors_given_up_failed = false;
  std::optional<double> first_loss, last_loss;
  uint32_t loss_source = 0;  // FORESHOCK_LOSS_... of the last step that had a loss
  std::optional<double> gradient_norm, learning_rate;
  // The detectors of its rank, over all attempts: null until a line has come to them, and in a process that a
  // later one has replaced, so that what they have seen is published once.
  const RankWatch* watch = nullptr;
  // An agent before this one has taken its steps up to this one; -1: none has.
  int64_t taken_up_step = -1;
  bool loss_events_known = true;  // those of the steps before too
  // Over all attempts; nothing: an earlier agent may have seen some, or a later process has them.
  std::optional<LossCount> losses(WatchEventKind kind) const;
  StepWindow loss_window, gradient_window;
  Window<kLossWindow> gradient_reference;
  std::optional<double> loss_zscore, gradient_zscore;  // of the last step against the 128 before it
  // Of the steps seen, and of the last minutes of them: older ones count exponentially less.
  struct Cost {
    double train_seconds = 0, own_seconds = 0, agent_seconds = 0;
  };
  Cost cost, recent_cost;
  // Spent from the grant of the first look, in the trainer and by the agent on its slices. Neither is part of
  // the slowdown or of what the interval is chosen by.
  struct FirstLookCost {
    double own_seconds = 0, agent_seconds = 0;
    int64_t last_step = -1;
  };
  FirstLookCost first_look;
  bool is_in_first_look(int64_t step) const {
    return segment::is_first_look(last_step) || step <= first_look.last_step;
  }
  // Of records, each of which stands for as many steps as `stride` says. Our part taken off; ours in those
  // that were not sampled.
  StepWindow step_seconds, other_step_cost;
  Window<16> sampled_step_cost;
  uint64_t sampled_steps = 0;
  StepStride stride;
  double agent_seconds = 0;    // CPU time spent on this rank
  double judging_seconds = 0;  // of these, on its samples
  uint64_t nonfinite_loss = 0, nonfinite_gradient = 0, nonfinite_output = 0, nonfinite_attention_gradient = 0;
  // Of the last, those of the step that goes on: whether a gradient scaler leaves it out is told when one
  // ends.
  struct Untold {
    uint64_t values = 0, since_ns = 0;
    int64_t step = 0;
    int ends = 0;  // of steps since
  };
  Untold untold_gradient;
  uint64_t refused_slots = 0, refused_tensors = 0;
  int64_t model_drawn = -1;          // step of the last snapshot of the model in the history
  segment::TensorRing tensors = {};  // counts of what its optimizer steps
  History history{kRankColumns, kRankPoints};
  std::deque<RankEvent> events;
  std::vector<std::string> scalar_names;       // of segment::StepRecord::scalars
  std::map<std::string, LoggedScalar> logged;  // at most kMaxScalars

  // The layer of this label, made if need be; null when there are too many.
  LayerStatistics* layer_of(const std::string& label);
  void note_event(const char* what, int64_t step, const std::string& layer, std::optional<double> value);
  uint64_t calls(uint32_t pass) const;
  uint64_t in_flight(uint32_t pass) const;
  bool no_attention_seen() const { return steps >= 10 && calls(0) + calls(1) == 0; }
  // Our time on the threads that train over the time without us, and the agent's share of the node's cores:
  // of all steps seen, and of the last minutes.
  std::optional<double> slowdown(int cores_per_rank) const;
  std::optional<double> recent_slowdown(int cores_per_rank) const;
  // Forgets what only a page draws and layers of which no summary has anything to say: 20 KiB of each layer.
  void keep_what_is_told();
  // The layer nearest to, or furthest beyond, an alarm; null when no layer has been judged.
  const LayerStatistics* worst_layer() const;
  // In the order of the labels, what has none first. A mean over the whole model would hide what one layer,
  // or one head of it, does.
  std::vector<LayerAlarm> alarms() const;
};

// Borrows from the view. The second is of a slot of key positions.
AttentionSlice slice_of(const segment::SlotView& view);
KeyColumns columns_of(const segment::SlotView& view);

struct LayerOfCall {
  std::string label, name, source;
};

// The label under which a call is counted, or an empty one: then it belongs to the rank alone.
LayerOfCall layer_of(const segment::SegmentReader& segment, const segment::Slot& slot,
                     const RankStatistics& rank);

void observe_slice(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                   RankStatistics* rank);

// Judged slices of key positions; each is judged by dK and by dV.
inline uint64_t key_slices_of(const RankStatistics& rank) {
  const PassStatistics* known = statistics_of(rank, static_cast<uint32_t>(JudgedTensor::kGradKey));
  return known != nullptr ? known->judged : 0;
}

// An agent before this one has taken the steps up to `last`, and `watch`, if there is one, knows what they
// brought.
void take_up(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank);

void observe_step(const segment::StepRecord& step, RankStatistics* rank);

// One that the detectors have found.
void observe_event(const EventLine& line, RankStatistics* rank);

// A snapshot of a tensor that this rank has completed: what the page draws.
void draw_weights(const TensorSnapshot& snapshot, RankStatistics* rank);

// Of heads that this rank has shown.
void draw_spectrum(const std::string& layer, const LayerSpectrum& spectrum, RankStatistics* rank);

// Once an interval.
void draw_model(const Weights& weights, RankStatistics* rank);

// Share of rows with a second score next to the largest.
std::optional<double> near_tie_ratio(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_RANK_STATE_H_
