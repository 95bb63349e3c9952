// Updates the statistics of one rank (one trainer process) from the results of checked slices, from step
// records and from weight snapshots. Decides which alarms these statistics give. A slice is a copied part of
// one attention call, which the agent has computed again in fp64 (the reference). `pass` is 0 for forward, 1
// for backward; `tensor` is 0 for the output, 1 for dQ, 2 for dK and 3 for dV.
#include "agent/rank_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "detect/detector.h"
#include "exporters/http_routes.h"
#include "segment/layout.h"
#include "shadow/written_out.h"

namespace foreshock {

History::History(std::span<const Column> columns, size_t points) : columns_(columns), most_points_(points) {}

// Doubles the steps per point: points p with equal p >> 1 become one. cells_ begins with point first_point_.
void History::merge_neighbours() {
  const size_t points = cells_.size() / columns_.size();
  std::vector<Cell> merged(cells_.size());
  size_t target = 0;
  for (size_t n = 0; n < points; ++n) {
    target = static_cast<size_t>(((first_point_ + static_cast<int64_t>(n)) >> 1) - (first_point_ >> 1));
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Cell& old_cell = cell(n, c);
      Cell& new_cell = merged[target * columns_.size() + c];
      if (columns_[c].keep == Keep::kMean)
        new_cell.combined += old_cell.combined;
      else if (old_cell.count > 0 && (new_cell.count == 0 || old_cell.combined > new_cell.combined))
        new_cell.combined = old_cell.combined;
      new_cell.count += old_cell.count;
    }
  }
  merged.resize((target + 1) * columns_.size());
  cells_ = std::move(merged);
  first_point_ >>= 1;
  ++shift_;
}

// Makes sure that there is a point for `step`, which must not be before the first point.
void History::extend_to(int64_t step) {
  while (static_cast<uint64_t>((step >> shift_) - first_point_) >= most_points_) merge_neighbours();
  const auto points = static_cast<size_t>((step >> shift_) - first_point_) + 1;
  if (cells_.size() < points * columns_.size()) cells_.resize(points * columns_.size());
}

void History::add(int64_t step, size_t column, double value) {
  if (step < 0 || !std::isfinite(value)) return;
  if (first_point_ < 0) first_point_ = step;
  if ((step >> shift_) < first_point_) return;
  extend_to(step);
  Cell& target = cell(static_cast<size_t>((step >> shift_) - first_point_), column);
  const auto rounded = static_cast<float>(value);
  if (columns_[column].keep == Keep::kMean)
    target.combined += rounded;
  else if (target.count == 0 || rounded > target.combined)
    target.combined = rounded;
  ++target.count;
}

void History::copy_to(HistoryTable* table) const {
  const size_t points = cells_.size() / columns_.size();
  table->first_step = first_point_ < 0 ? 0 : first_point_ << shift_;
  table->steps_per_point = int64_t{1} << shift_;
  table->columns.clear();
  for (size_t c = 0; c < columns_.size(); ++c) {
    std::vector<float> values(points, std::numeric_limits<float>::quiet_NaN());
    for (size_t n = 0; n < points; ++n) {
      const Cell& source = cells_[n * columns_.size() + c];
      if (source.count == 0) continue;
      const float divisor = columns_[c].keep == Keep::kMean ? static_cast<float>(source.count) : 1;
      values[n] = source.combined / divisor;
    }
    table->columns.emplace_back(columns_[c].name, std::move(values));
  }
}

namespace {

// Limit of PassStatistics::lse_error_ratio, which is already relative to the tolerance.
constexpr double kLseErrorRatio = 1;

bool is_alarm(const std::optional<Bias>& bias, double limit) {
  return bias && bias->z && std::fabs(*bias->z) > kBiasZ && std::fabs(bias->ulp) > limit;
}

// Returns the last step that note_alarms() has stored for this kind of alarm; else the last slice's step.
int64_t last_alarm_step(const PassStatistics& pass, AlarmKind kind) {
  const auto found = pass.past.find(kind);
  return found != pass.past.end() ? found->second.last_step : pass.last_step;
}

// Returns the largest ratio of one of the layer's values to its alarm limit. NaN or Inf in a slice gives
// infinity. Unknown values count as 0. A bias counts only if it is significant, and not in a layer that
// is_mixed, whose calls may come from several layers. excess_bias is the kernel's bias minus that of a
// correct algorithm. conservation_ratio is by how much sum(dK) = 0 or sum(dV) = sum(dO) is violated, relative
// to roundings. rounded_bias is a control, the bias of the rounded reference, with one limit for all tensors.
double alarm_nearness(const LayerStatistics& layer) {
  double nearness = 0;
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) {
    const PassStatistics* statistics = statistics_of(layer, tensor);
    if (statistics == nullptr) continue;
    if (max_of(statistics->nonfinite_slices).value_or(0) > 0) return INFINITY;
    const auto compare = [&](const SampleWindow& values, double limit) {
      nearness = std::max(nearness, max_of(values).value_or(0) / limit);
    };
    compare(statistics->ratio_of_limit, 1);
    compare(statistics->conservation_ratio, kConservationRatio);
    const std::optional<Bias> excess = statistics->excess_bias.bias();
    if (excess && excess->z && std::fabs(*excess->z) > kBiasZ && !layer.is_mixed &&
        !is_alarm(statistics->rounded_bias.bias(), kRoundedBiasUlp))
      nearness = std::max(nearness, std::fabs(excess->ulp) / bias_limit(tensor, statistics->dtype));
    compare(statistics->lse_error_ratio, kLseErrorRatio);
  }
  return nearness;
}

// Returns foreshock's time / the training's own time. `own`: foreshock's part of `train`; `agent`: CPU time.
std::optional<double> slowdown_of(double train, double own, double agent, int cores_per_rank) {
  if (train <= own) return std::nullopt;
  return (own + agent / std::max(cores_per_rank, 1)) / (train - own);
}

bool several_beyond(const SampleWindow& values, double limit, int least_count = kSlicesBeyond) {
  return values.nth_largest(static_cast<size_t>(least_count)) > limit;
}

}  // namespace

// Whether bias and excess bias both give an alarm and have the same sign, and the control gives none.
bool is_biased(const PassStatistics& pass, uint32_t tensor) {
  const double limit = bias_limit(tensor, pass.dtype);
  const std::optional<Bias> bias = pass.bias.bias(), excess = pass.excess_bias.bias();
  return is_alarm(bias, limit) && is_alarm(excess, limit) && (bias->ulp > 0) == (excess->ulp > 0) &&
         !is_alarm(pass.rounded_bias.bias(), kRoundedBiasUlp);
}

bool has_large_errors(const PassStatistics& pass, uint32_t tensor) {
  const int several = is_key_gradient(tensor) ? kSlicesBeyondKeys : kSlicesBeyond;
  return several_beyond(pass.ratio_of_limit, 1, several);
}

uint32_t tensor_of(const SampleLine& slice) {
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor)
    if (slice.tensor == kJudgedTensorNames[tensor]) return tensor;
  return slice.pass == "backward" ? 1 : 0;
}

// In a line on dK or dV, `keys` is the number of query rows of all heads that share the key, with which the
// limit grows.
double ratio_limit_of(const SampleLine& slice) {
  const uint32_t tensor = tensor_of(slice);
  const auto rows = static_cast<uint64_t>(std::max<int64_t>(slice.keys.value_or(0), 0));
  return ratio_limit(tensor, dtype_named(slice.dtype), is_key_gradient(tensor) ? rows : 0,
                     slice.unexplained_bias_ulp.value_or(0));
}

namespace {

bool is_nonfinite(const SampleLine& slice) { return slice.nonfinite_result.value_or(false); }

// A tensor of a layer, with its statistics.
struct JudgedPart {
  const LayerStatistics& layer;
  const PassStatistics& statistics;
  uint32_t tensor;
};

// Whether a bias says nothing beside the errors of the same slices. Rounding moves a value by less than one
// spacing, so a larger bias is the mean of larger errors. One that began before them is an alarm of its own.
bool is_bias_of_errors(const PassStatistics& pass, uint32_t tensor) {
  const std::optional<Bias> bias = pass.bias.bias();
  return bias && std::fabs(bias->ulp) > 1 && has_large_errors(pass, tensor);
}

// One kind of alarm: whether the last slices give it, its value, whether a slice shows it by itself, and the
// onset among the last slices; null: the alarm begins with the slice that gives it.
struct AlarmRule {
  AlarmKind kind;
  bool (*holds)(const JudgedPart& part);
  std::optional<double> (*value)(const PassStatistics& statistics);
  bool (*is_shown_by)(const SampleLine& slice, const JudgedPart& part);
  SteppedWindow::Onset (*onset)(const PassStatistics& statistics);
};
constexpr AlarmRule kAlarmRules[kAlarmKinds] = {
    {AlarmKind::kNonfinite,
     [](const JudgedPart& part) { return max_of(part.statistics.nonfinite_slices).value_or(0) > 0; },
     [](const PassStatistics&) { return std::optional<double>(); },
     [](const SampleLine& slice, const JudgedPart&) { return is_nonfinite(slice); },
     [](const PassStatistics& statistics) { return statistics.nonfinite_slices.onset_above(0); }},
    // A bias is visible only in the pool of slices, so every slice that the pool takes contributes to it; a
    // slice whose denominator is 0 has no value for the pool.
    {AlarmKind::kBias,
     [](const JudgedPart& part) {
       const bool is_known = part.statistics.past.contains(AlarmKind::kBias);
       return is_biased(part.statistics, part.tensor) && !part.layer.is_mixed &&
              (is_known || !is_bias_of_errors(part.statistics, part.tensor));
     },
     [](const PassStatistics& statistics) { return std::optional(statistics.bias.bias()->ulp); },
     [](const SampleLine& slice, const JudgedPart& part) {
       return slice.bias_ulp_sum.value_or(0) > 0 && !is_bias_of_errors(part.statistics, part.tensor);
     },
     nullptr},
    // The ratio to unfused attention gives no alarm. At large scores unfused attention may be as wrong as a
    // faulty kernel, and in small slices it may be more exact than a sound fused kernel.
    {AlarmKind::kFusedRatio,
     [](const JudgedPart& part) { return has_large_errors(part.statistics, part.tensor); },
     [](const PassStatistics& statistics) { return max_of(statistics.fused_ratio); },
     [](const SampleLine& slice, const JudgedPart& part) {
       return slice.fused_ratio && part.statistics.ratio_of_limit.latest(0) > 1;
     },
     [](const PassStatistics& statistics) { return statistics.ratio_of_limit.onset_above(1); }},
    {AlarmKind::kConservation,
     [](const JudgedPart& part) {
       return several_beyond(part.statistics.conservation_ratio, kConservationRatio);
     },
     [](const PassStatistics& statistics) { return max_of(statistics.conservation_ratio); },
     [](const SampleLine& slice, const JudgedPart&) {
       return slice.conservation_ratio.value_or(0) > kConservationRatio;
     },
     [](const PassStatistics& statistics) {
       return statistics.conservation_ratio.onset_above(kConservationRatio);
     }},
    {AlarmKind::kLogSumExp,
     [](const JudgedPart& part) { return several_beyond(part.statistics.lse_error_ratio, kLseErrorRatio); },
     [](const PassStatistics& statistics) { return max_of(statistics.lse_error_ratio); },
     [](const SampleLine& slice, const JudgedPart&) {
       return slice.lse_error_ratio.value_or(0) > kLseErrorRatio;
     },
     [](const PassStatistics& statistics) { return statistics.lse_error_ratio.onset_above(kLseErrorRatio); }},
};

}  // namespace

std::vector<LayerAlarm> alarms_of(const LayerStatistics& layer, uint32_t tensor) {
  std::vector<LayerAlarm> alarms;
  const PassStatistics* statistics = statistics_of(layer, tensor);
  if (statistics == nullptr) return alarms;
  for (const AlarmRule& rule : kAlarmRules)
    if (rule.holds({layer, *statistics, tensor}))
      alarms.push_back({&layer, pass_of(tensor), rule.kind, rule.value(*statistics),
                        last_alarm_step(*statistics, rule.kind), tensor});
  return alarms;
}

void note_alarms(const SampleLine& slice, LayerStatistics* layer) {
  const uint32_t tensor = tensor_of(slice);
  const int64_t step = *slice.step;
  PassStatistics& statistics = statistics_of(tensor, layer);
  for (const LayerAlarm& alarm : alarms_of(*layer, tensor)) {
    // An alarm outlasts the slices that caused it. If it comes from earlier slices only, this step is not
    // stored.
    const AlarmRule& rule = kAlarmRules[static_cast<size_t>(alarm.kind)];
    if (!rule.is_shown_by(slice, {*layer, statistics, tensor})) continue;
    const auto onset = rule.onset != nullptr ? rule.onset(statistics) : SteppedWindow::Onset{step};
    const auto [found, is_new] =
        statistics.past.try_emplace(alarm.kind, PastAlarm{onset.step, step, alarm.value});
    PastAlarm& past = found->second;
    if (is_new && onset.before < onset.step) past.sound_step = onset.before;  // step numbers may fall
    past.slices += is_new ? 0 : 1;
    past.first_step = std::min(past.first_step, step);
    past.last_step = std::max(past.last_step, step);
    // Negated, so that a stored NaN is replaced.
    if (alarm.value && !(std::fabs(past.most.value_or(0)) >= std::fabs(*alarm.value)))
      past.most = alarm.value;
    if (const std::optional<double>& error = slice.relative_error_mean; error && std::isfinite(*error))
      past.relative_error = std::max(past.relative_error.value_or(0), *error);
  }
}

const char* name_of(RunState state) {
  constexpr const char* kNames[] = {"running", "finished", "failed", "preempted", "interrupted"};
  return kNames[static_cast<int>(state)];
}

LayerStatistics* RankStatistics::layer_of(const std::string& label) {
  const auto found = layers.find(label);
  if (found != layers.end()) return &found->second;
  return layers.size() < kMostLayers ? &layers[label] : nullptr;
}

uint64_t RankStatistics::note_event(const char* what, int64_t step, const std::string& layer,
                                    std::optional<double> value) {
  for (RankEvent& event : events) {
    if (event.what != what || event.layer != layer) continue;
    event.last_step = step;
    event.value = value;
    return ++event.count;
  }
  events.push_back({what, layer, step, step, 1, value});
  if (events.size() > kMostEvents) events.pop_front();
  return 1;
}

std::string RankStatistics::operation_of(const segment::Slot& slot) const {
  const bool is_registered = slot.op >= 0 && static_cast<size_t>(slot.op) < ops.size();
  return is_registered ? segment::text_of(ops[static_cast<size_t>(slot.op)].name) : "";
}

uint64_t RankStatistics::calls(uint32_t wanted_pass) const {
  uint64_t sum = 0;
  for (size_t op = 0; op < ops.size(); ++op)
    if (ops[op].pass == wanted_pass) sum += totals.calls[op];
  return sum;
}

uint64_t RankStatistics::in_flight(uint32_t wanted_pass) const {
  uint64_t ended = judged[wanted_pass];
  for (uint64_t count : lost[wanted_pass]) ended += count;
  // `judged` and `lost` are updated later than `totals`, so they may count slices that `totals` does not.
  return totals.sampled[wanted_pass] > ended ? totals.sampled[wanted_pass] - ended : 0;
}

// Unknown if an earlier agent may have seen some events, or if a later process of the rank counts them.
std::optional<LossCount> RankStatistics::loss_event_count(WatchEventKind kind) const {
  if (!loss_events_known || !current) return std::nullopt;
  return watch != nullptr ? watch->losses(kind) : LossCount();
}

std::optional<double> RankStatistics::slowdown(int cores_per_rank) const {
  return slowdown_of(cost.train_seconds, cost.own_seconds, agent_seconds - first_look.agent_seconds,
                     cores_per_rank);
}

std::optional<double> RankStatistics::recent_slowdown(int cores_per_rank) const {
  return slowdown_of(recent_cost.train_seconds, recent_cost.own_seconds, recent_cost.agent_seconds,
                     cores_per_rank);
}

const LayerStatistics* RankStatistics::worst_layer() const {
  const LayerStatistics* worst = nullptr;
  double worst_nearness = -1;
  for (const auto& [label, layer] : layers) {
    if (layer.pass[0].judged + layer.pass[1].judged == 0 && layer.keys.empty()) continue;
    // Until the first layer name was known, calls were counted by their ordinal (index in the step). Such
    // layers are skipped, since the later calls are counted under the names.
    if (layer.source == "ordinal" && layer_source != "ordinal") continue;
    const double nearness = alarm_nearness(layer);
    if (nearness > worst_nearness) {
      worst_nearness = nearness;
      worst = &layer;
    }
  }
  return worst;
}

// Drops the histories, the names, and the layers that the summary does not mention.
void RankStatistics::shrink_to_summary() {
  layer_names = {};
  history = History(kRankColumns, kRankPoints);
  const LayerStatistics* worst = worst_layer();
  std::erase_if(layers, [&](const auto& entry) {
    const LayerStatistics& layer = entry.second;
    bool is_in_summary = &layer == worst || layer.nonfinite_steps > 0;
    for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) {
      const PassStatistics* statistics = statistics_of(layer, tensor);
      const bool had_alarm = statistics != nullptr && !statistics->past.empty();
      is_in_summary |= had_alarm || !alarms_of(layer, tensor).empty();
    }
    return !is_in_summary;
  });
  for (auto& [label, layer] : layers) layer.history = History(kLayerColumns, kLayerPoints);
}

std::vector<LayerAlarm> RankStatistics::alarms() const {
  std::vector<LayerAlarm> found;
  each_tensor([&found](const LayerStatistics& layer, uint32_t tensor, const PassStatistics&) {
    const std::vector<LayerAlarm> own = alarms_of(layer, tensor);
    found.insert(found.end(), own.begin(), own.end());
  });
  return found;
}

namespace {

using segment::given;

void add_known(SampleWindow& window, const std::optional<double>& value) {
  if (value) window.add(*value);
}

void add_known(SteppedWindow& window, const std::optional<double>& value, int64_t step) {
  if (value) window.add(*value, step);
}

// Returns why a slice of dQ has no slice of key positions beside it.
segment::ColumnsSkip columns_skip_of(const SampleLine& slice) {
  for (uint32_t why = 0; why < segment::kColumnsSkips; ++why)
    if (slice.key_positions_skipped == segment::kColumnsSkipNames[why])
      return static_cast<segment::ColumnsSkip>(why);
  return segment::kColumnsTaken;
}

// Numbers of rows of a slice. A record that was read may contain any number.
int count_of(const RecordInteger& rows) {
  return static_cast<int>(std::clamp<int64_t>(rows.value_or(0), 0, segment::kRowsPerSlice));
}

// Whether no key column of the slice could be compared: a mask hides all of them, the output's gradient is 0,
// or their weights are noise (kScoresAreNoise).
bool has_no_comparable_column(const SampleLine& slice) {
  return is_key_gradient(tensor_of(slice)) && slice.rows_not_comparable.value_or(0) > 0 &&
         slice.rows_not_comparable == slice.rows;
}

// Whether the slice says that the trainer's result is right, or that it is wrong. It does not if the exact
// result is 0 in all its rows, if too few rows decide, or if only the scores were compared (dropout).
bool is_decided(const SampleLine& slice) {
  return slice.fused_ratio || is_nonfinite(slice) || slice.relative_error_max == 0.0;
}

// Rows of a slice of dQ whose log_sum_exp covers more keys than the call has. Records of older versions have
// no number: then the call may have a part of its keys, and sums over all keys are not judged.
int partial_rows(const SampleLine& slice) {
  const bool is_of_query = tensor_of(slice) == static_cast<uint32_t>(JudgedTensor::kGradQuery);
  return is_of_query && !slice.rows_partial ? 1 : count_of(slice.rows_partial);
}

// The bias pools treat slices with equal clusters as dependent, since these may share keys and values.
BiasCluster cluster_of(const SampleLine& slice) {
  return {slice.batch.value_or(0), slice.kv_head.value_or(0), *slice.step,
          static_cast<int>(slice.rank.value_or(0))};
}

// `limit`: of the fused_ratio of this slice.
void add_pass(const SampleLine& slice, double limit, PassStatistics* pass) {
  const bool is_compared = !has_no_comparable_column(slice);
  const BiasCluster cluster = cluster_of(slice);
  const double ulp_sum = slice.bias_ulp_sum.value_or(0);
  const BiasSums bias = {slice.bias_error_sum.value_or(0), ulp_sum};
  const BiasSums floor_bias =
      slice.floor_bias_ulp ? BiasSums{*slice.floor_bias_ulp * ulp_sum, ulp_sum} : BiasSums{};
  pass->dtype = dtype_named(slice.dtype);
  pass->judged += is_compared;
  pass->decided += is_decided(slice);
  pass->written_out += is_compared && is_written_out(slice.op);
  pass->last_step = *slice.step;
  pass->partial += slice.partial.value_or(false);
  pass->with_partial_rows += partial_rows(slice) > 0;
  pass->nonfinite += is_nonfinite(slice);
  pass->nonfinite_slices.add(is_nonfinite(slice), *slice.step);
  add_known(pass->relative_error_mean, slice.relative_error_mean);
  add_known(pass->relative_error_max, slice.relative_error_max);
  add_known(pass->deviation_ratio, slice.deviation_ratio);
  if (slice.fused_ratio) pass->add_fused_ratio(*slice.fused_ratio, limit);
  add_known(pass->lse_error_ratio, slice.lse_error_ratio, *slice.step);
  pass->bias.add(cluster, bias);
  pass->excess_bias.add(cluster, excess_bias(bias, floor_bias));
  pass->rounded_bias.add(cluster, {slice.rounded_reference_bias_error_sum.value_or(0), ulp_sum});
}

void add_known(History& history, int64_t step, size_t column, const std::optional<double>& value) {
  if (value) history.add(step, column, *value);
}

// The ratio in the history is the one that the limits judge.
void add_to_history(const SampleLine& slice, RankStatistics* rank) {
  History& history = rank->history;
  const int64_t step = *slice.step;
  if (pass_of(tensor_of(slice)) == 1)
    return add_known(history, step, kColumnRatioBackward, slice.fused_ratio);
  add_known(history, step, kColumnRatioForward, slice.fused_ratio);
  add_known(history, step, kColumnRatioForwardMax, slice.fused_ratio);
  if (const std::optional<Bias> bias = rank->pass[0].bias.bias()) {
    history.add(step, kColumnBias, bias->ulp);
    add_known(history, step, kColumnBiasZ, bias->z);
  }
  if (const std::optional<Bias> control = rank->pass[0].rounded_bias.bias())
    history.add(step, kColumnControlBias, control->ulp);
}

void add_to_history(const SampleLine& slice, LayerStatistics* layer) {
  const uint32_t pass = pass_of(tensor_of(slice));
  const LayerColumn column = pass == 0 ? kLayerRatioForward : kLayerRatioBackward;
  add_known(layer->history, *slice.step, column, slice.fused_ratio);
  const std::optional<Bias> bias = layer->pass[0].bias.bias();
  if (pass == 0 && bias) layer->history.add(*slice.step, kLayerBias, bias->ulp);
}

void add_scores(const SampleLine& slice, ScoreStatistics* scores) {
  add_known(scores->lse_error, slice.lse_error_abs_max);
  add_known(scores->logit, slice.logit_abs_max);
  add_known(scores->entropy_min, slice.entropy_nats_min);
  add_known(scores->entropy_mean, slice.entropy_nats_mean);
  add_known(scores->near_tie_ratio, slice.near_tie_ratio);
}

// Returns the better of two layer sources, in the order annotation, parameter, ordinal, unknown.
std::string better_source(const std::string& a, const std::string& b) {
  for (auto source :
       {segment::LayerSource::kAnnotation, segment::LayerSource::kParameter, segment::LayerSource::kOrdinal})
    if (a == segment::name_of(source) || b == segment::name_of(source)) return segment::name_of(source);
  return segment::name_of(segment::LayerSource::kUnknown);
}

// Returns (x - mean) / standard deviation of the values before x. Absent until the window is full.
std::optional<double> standard_score(const Window<kLossWindow>& window, double x) {
  const auto summary = window.summary();
  if (!summary || !window.full() || !(summary->std > 0) || !std::isfinite(x)) return std::nullopt;
  return (x - summary->mean) / summary->std;
}

void observe_loss(const segment::StepRecord& step, RankStatistics* rank) {
  if (!std::isfinite(step.loss)) ++rank->nonfinite_loss;
  if (std::isfinite(step.loss))
    rank->nonfinite_loss_since = -1;
  else if (rank->nonfinite_loss_since < 0)
    rank->nonfinite_loss_since = static_cast<int64_t>(step.step);
  // An agent that has replaced another one has not seen the first loss.
  if (!rank->first_loss && rank->taken_up_step < 0) rank->first_loss = step.loss;
  rank->last_loss = step.loss;
  rank->loss_source = step.loss_source;
  rank->loss_window.add(step.loss);
}

void observe_gradient(double norm, RankStatistics* rank) {
  if (!std::isfinite(norm)) ++rank->nonfinite_gradient;
  rank->gradient_norm = norm;
  rank->gradient_window.add(norm);
  rank->gradient_zscore = standard_score(rank->gradient_before, norm);
  rank->gradient_before.add(norm);
}

// Time constant of recent_cost, which the overhead alert reads. It is short, so that a removed cause
// disappears within minutes. It is long enough to average a sampled step with the unsampled steps around it.
constexpr double kRecentSeconds = 300;

void add_cost(const RankStatistics::Cost& step, double decay, RankStatistics::Cost* sum) {
  sum->train_seconds = decay * sum->train_seconds + step.train_seconds;
  sum->own_seconds = decay * sum->own_seconds + step.own_seconds;
  sum->agent_seconds = decay * sum->agent_seconds + step.agent_seconds;
}

// A step that took at least kShortestPause seconds and more than kMostMedians times the median of the last
// steps contains a pause: the trainer was stopped, or wrote a checkpoint. If the pause counted as training
// time, the monitor's share would look small for minutes. The median is used from kStepsForMedian steps on.
constexpr double kMostMedians = 20, kShortestPause = 1;
constexpr size_t kStepsForMedian = 16;

// Returns the duration of a step that took `seconds`, without a pause. `cost` is the monitor's part of it;
// `usual` has the durations of the last steps without the monitor's part.
double training_seconds(double seconds, double cost, const StepWindow& usual) {
  if (seconds < kShortestPause || usual.size() < kStepsForMedian) return seconds;
  const double median = median_of(usual);
  return seconds - cost > kMostMedians * median ? median + cost : seconds;
}

// Takes the cost of a step from the grant of the first look (the first samples of a process), as far as the
// grant suffices, and returns this part; the budget pays the rest. The trainer computes the same sum.
double take_grant(const segment::StepRecord& step, double cost, RankStatistics::FirstLookCost* first_look) {
  if (!segment::is_first_look(step)) return 0;
  const double granted = std::min(cost, segment::kFirstLookSeconds - first_look->own_seconds);
  first_look->own_seconds += granted;
  first_look->last_step = step.step;
  return granted;
}

void observe_cost(const segment::StepRecord& step, RankStatistics* rank) {
  const double seconds = 1e-9 * static_cast<double>(step.duration_ns),
               cost = 1e-9 * static_cast<double>(step.cost_ns);
  const double granted = take_grant(step, cost, &rank->first_look);
  const double trained = training_seconds(seconds, cost, rank->step_seconds);
  // The agent's CPU time since the previous step. rank->cost.agent_seconds ends at the previous step.
  const double agent = rank->agent_seconds - rank->first_look.agent_seconds - rank->cost.agent_seconds;
  const RankStatistics::Cost spent = {trained, cost - granted, std::max(agent, 0.0)};
  add_cost(spent, /*decay=*/1, &rank->cost);
  add_cost(spent, std::exp(-trained / kRecentSeconds), &rank->recent_cost);
  rank->step_seconds.add(seconds - cost);
  rank->history.add(step.step, kColumnStepSeconds, seconds);
  if (const uint64_t start = rank->identity.start_time_ns; start > 0 && step.time_ns >= start)
    rank->history.add(step.step, kColumnElapsed, 1e-9 * static_cast<double>(step.time_ns - start));
  if (seconds > cost) rank->history.add(step.step, kColumnSlowdown, cost / (seconds - cost));
  // The costs below decide the sampling interval, so they exclude the first look, which has its own grant.
  if (segment::is_first_look(step)) return;
  if (step.sampled != 0) {
    ++rank->sampled_steps;
    rank->sampled_step_cost.add(cost);
  } else {
    rank->other_step_cost.add(cost);
  }
}

void observe_scalars(const segment::StepRecord& step, RankStatistics* rank) {
  for (size_t n = 0; n < rank->scalar_names.size() && n < segment::kMaxScalars; ++n) {
    if ((step.scalars_given >> n & 1) == 0) continue;  // bit n is 1 if the step has a value of scalar n
    const int64_t own_step = step.scalar_step[n];
    rank->logged[rank->scalar_names[n]] = {step.scalars[n], own_step >= 0 ? own_step : step.step};
  }
}

void note_given_up_tensors(const segment::StepRecord& step, RankStatistics* rank) {
  if (!given(step, segment::kGaveUpTensors) || rank->tensors_given_up_step >= 0) return;
  rank->tensors_given_up_step = step.step;
  rank->tensors_given_up_failed = given(step, segment::kGaveUpFailed);
  rank->note_event("tensors_given_up", step.step, "", std::nullopt);
}

// NaN and Inf in attention gradients wait in RankStatistics::pending_gradient and are counted when their
// step, or a later one, ends. If only steps with smaller numbers end, the values are counted after
// kEndsToWaitFor ends. If no step ends, they are counted at the next such gradient after kSecondsToWait.
constexpr int kEndsToWaitFor = 2;
constexpr double kSecondsToWait = 120;

void count_pending_gradient(RankStatistics* rank) {
  rank->nonfinite_attention_gradient += rank->pending_gradient.values;
  rank->pending_gradient = {};
}

void observe_attention_gradient(const SampleLine& slice, RankStatistics* rank) {
  const uint64_t nonfinite = slice.nonfinite_gradient_values.value_or(0);
  if (nonfinite == 0) return;
  const double time = slice.time.value_or(0);
  RankStatistics::PendingGradient& pending = rank->pending_gradient;
  if (pending.values == 0) pending.since = time;
  pending.values += nonfinite;
  pending.step = std::max(pending.step, *slice.step);
  const bool has_ended = rank->last_step.sequence != 0 && rank->last_step.step >= pending.step;
  if (has_ended || time > pending.since + kSecondsToWait) count_pending_gradient(rank);
}

void count_gradient_at_end_of(const segment::StepRecord& step, RankStatistics* rank) {
  RankStatistics::PendingGradient& pending = rank->pending_gradient;
  if (pending.values == 0) return;
  if (++pending.ends >= kEndsToWaitFor || step.step >= pending.step) count_pending_gradient(rank);
}

}  // namespace

void add_to_history(const TensorSnapshot& snapshot, RankStatistics* rank) {
  if (!snapshot.previous || snapshot.layer.empty()) return;
  LayerStatistics* layer = rank->layer_of(snapshot.layer);
  if (layer == nullptr) return;
  layer->label = snapshot.layer;
  layer->history.add(snapshot.step, kLayerWasserstein, snapshot.previous->value);
}

void add_to_history(const Weights& weights, RankStatistics* rank) {
  const PoolSnapshot& model = weights.model();
  if (model.step < 0 || model.step == rank->model_step_in_history) return;
  rank->model_step_in_history = model.step;
  if (model.previous) rank->history.add(model.step, kColumnWasserstein, model.previous->value);
  add_known(rank->history, model.step, kColumnUpdate, model.update_mean_abs);
  const auto optimizer = weights.optimizer().summary();
  if (!optimizer) return;
  add_known(rank->history, model.step, kColumnStaleness, optimizer->pooled.rms_staleness());
  add_known(rank->history, model.step, kColumnStalenessMax, optimizer->staleness_max);
  add_known(rank->history, model.step, kColumnUpdateRatio, optimizer->pooled.update_ratio());
  add_known(rank->history, model.step, kColumnUpdateRatioMax, optimizer->update_ratio_max);
}

// Adds two results of a slice of key positions that concern the whole call, not only the slice's keys. The
// first is the conservation ratio of dK or dV, from sums over all keys. It is valid only if the call has all
// keys that its log_sum_exp covers, which is assumed after kWholeCalls backward slices of rows without a
// partial row. The second is whether grad_query (dQ) has NaN or Inf; it counts for the backward pass.
void add_whole_call(const SampleLine& slice, LayerStatistics* layer) {
  const uint32_t tensor = tensor_of(slice);
  if (!is_key_gradient(tensor)) return;
  PassStatistics& rows = layer->pass[1];
  if (rows.judged >= kWholeCalls && rows.with_partial_rows == 0)
    add_known(statistics_of(tensor, layer).conservation_ratio, slice.conservation_ratio, *slice.step);
  if (!slice.nonfinite_grad_query.value_or(false)) return;
  ++rows.nonfinite;
  rows.nonfinite_slices.add(1, *slice.step);
}

// Returns a hash of format, head sizes, scale and heads per slice, which all calls of one layer share. Never
// 0, which means no call yet.
uint64_t shape_hash_of(const SampleLine& slice) {
  const auto part_of = [](const RecordInteger& number) { return static_cast<uint64_t>(number.value_or(0)); };
  const auto [first, last] = std::minmax_element(slice.heads.begin(), slice.heads.end());
  const uint64_t heads =
      slice.heads.empty() ? 0 : static_cast<uint64_t>(*last) - static_cast<uint64_t>(*first) + 1;
  uint64_t hash = 1;  // each step multiplies by 2^64 / golden ratio, which spreads the bits
  for (const uint64_t part :
       {static_cast<uint64_t>(dtype_named(slice.dtype)), part_of(slice.head_dim), part_of(slice.value_dim),
        std::bit_cast<uint64_t>(slice.scale.value_or(0)), heads})
    hash = (hash ^ part) * 0x9e3779b97f4a7c15;
  return hash | 1;
}

void note_shape(const SampleLine& slice, LayerStatistics* layer) {
  const uint32_t tensor = tensor_of(slice);
  if (is_key_gradient(tensor)) return;  // a slice of key positions has another shape than a slice of rows
  const uint64_t hash = shape_hash_of(slice);
  uint64_t& known_hash = layer->shape_hash[pass_of(tensor)];
  if (layer->source == "ordinal" && known_hash != 0 && known_hash != hash) layer->is_mixed = true;
  known_hash = hash;
}

// Counts a restart of the step numbers, and marks layers known by ordinal as mixed, because another training
// may run now. A repeated number is not a restart. Numbers of different step_source are not compared.
void note_restart(const segment::StepRecord& step, RankStatistics* rank) {
  const segment::StepRecord& last = rank->last_step;
  if (last.sequence == 0) return;
  const bool has_fallen = step.step >= 0 && step.step < last.step && step.step_source == last.step_source;
  if (!has_fallen && !given(step, segment::kGivenOtherTraining)) return;
  ++rank->step_restarts;
  for (auto& [label, layer] : rank->layers) layer.is_mixed |= layer.source == "ordinal";
}

namespace {

// Statistics of the layer, or those of calls without a layer.
LayerStatistics& layer_statistics(const std::string& label, RankStatistics* rank) {
  LayerStatistics* named_layer = label.empty() ? nullptr : rank->layer_of(label);
  return named_layer != nullptr ? *named_layer : rank->unnamed;
}

}  // namespace

void pool_few_rows(const std::string& label, SliceDeviation* deviation, RankStatistics* rank) {
  if (deviation->tensor != JudgedTensor::kGradQuery || deviation->fused_ratio) return;
  LayerStatistics& statistics = layer_statistics(label, rank);
  const std::optional<PooledRows::Ratios> ratios =
      statistics.few_rows.add(deviation->fused_errors, deviation->plain_errors, deviation->reference_norm);
  if (!ratios) return;
  deviation->fused_ratio = ratios->fused;
  deviation->deviation_ratio = ratios->plain;
}

void observe(const SampleLine& slice, RankStatistics* rank) {
  const uint32_t tensor = tensor_of(slice), pass = pass_of(tensor);
  const double limit = ratio_limit_of(slice);
  add_pass(slice, limit, &statistics_of(tensor, rank));
  if (pass == 0) add_scores(slice, &rank->scores);
  if (!is_key_gradient(tensor)) add_to_history(slice, rank);  // histories show slices of rows only
  rank->layer_source = better_source(rank->layer_source, slice.layer_source);
  if (slice.layer.empty() && !is_key_gradient(tensor)) ++rank->slices_without_layer[slice.layer_source];
  rank->nonfinite_output += slice.nonfinite_output_values.value_or(0);
  observe_attention_gradient(slice, rank);
  LayerStatistics& statistics = layer_statistics(slice.layer, rank);
  const bool has_layer = &statistics != &rank->unnamed;
  // A layer is counted at its first slice, hence before add_pass(), which makes `judged` positive.
  if (!is_key_gradient(tensor)) rank->layers_judged[pass] += has_layer && statistics.pass[pass].judged == 0;
  add_pass(slice, limit, &statistics_of(tensor, &statistics));
  add_whole_call(slice, &statistics);
  const auto skip_columns = [&](segment::ColumnsSkip why) {
    ++rank->columns_skipped[why];
    ++statistics.columns_skipped[why];
  };
  if (tensor == static_cast<uint32_t>(JudgedTensor::kGradQuery)) skip_columns(columns_skip_of(slice));
  // Counted once for dK and dV.
  if (tensor == static_cast<uint32_t>(JudgedTensor::kGradKey) && has_no_comparable_column(slice))
    skip_columns(segment::kColumnsEmpty);
  if (has_layer) {
    statistics.label = slice.layer;
    statistics.name = slice.layer_name;
    statistics.source = slice.layer_source;
    note_shape(slice, &statistics);
  }
  note_alarms(slice, &statistics);  // reads the windows set above
  if (!has_layer || is_key_gradient(tensor)) return;
  if (pass == 0) add_scores(slice, &statistics.scores);
  add_to_history(slice, &statistics);
}

void observe_event(const EventLine& line, RankStatistics* rank) {
  if (line.level == name_of(Level::kQuiet)) return;  // the end of a detector's warning is not listed
  const std::string what = line.detector.empty() ? line.event : line.level + "_" + line.detector;
  rank->note_event(what.c_str(), *line.step, line.layer, line.value);
}

std::optional<uint64_t> skipped_steps_of(const RankStatistics& rank) {
  if (!segment::knows_skips(rank.last_step)) return std::nullopt;
  return rank.last_step.skipped_steps + rank.coverage.skipped_in_row;
}

// Continues a rank after `last`, the last step that an earlier agent has processed.
void resume_from(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank) {
  rank->taken_up_step = last.step;
  rank->loss_events_known = watch != nullptr;
  note_given_up_tensors(last, rank);
  if (given(last, segment::kGivenLoss)) {
    rank->last_loss = last.loss;
    rank->loss_source = last.loss_source;
  }
  if (given(last, segment::kGivenGradientNorm)) rank->gradient_norm = last.gradient_norm;
  if (given(last, segment::kGivenLearningRate)) rank->learning_rate = last.learning_rate;
}

void observe_step(const segment::StepRecord& step, RankStatistics* rank) {
  note_restart(step, rank);  // compares the step with the previous last_step
  rank->last_step = step;
  count_gradient_at_end_of(step, rank);
  rank->stride.add(step.step);
  observe_cost(step, rank);
  note_given_up_tensors(step, rank);
  if (given(step, segment::kGivenLoss)) {
    observe_loss(step, rank);
    rank->history.add(step.step, kColumnLoss, step.loss);
    rank->history.add(step.step, kColumnLossMax, step.loss);
  }
  if (given(step, segment::kGivenGradientNorm)) {
    observe_gradient(step.gradient_norm, rank);
    rank->history.add(step.step, kColumnGradientNorm, step.gradient_norm);
  }
  if (given(step, segment::kGivenLearningRate)) rank->learning_rate = step.learning_rate;
  observe_scalars(step, rank);
}

}  // namespace foreshock
