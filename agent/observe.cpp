#include "agent/observe.h"

#include <algorithm>
#include <cmath>

#include "segment/layout.h"

namespace foreshock {
namespace {

using segment::given;

void add(SampleWindow& window, const std::optional<double>& value) {
  if (value) window.add(*value);
}

void add_pass(const SliceDeviation& deviation, const BiasCluster& cluster, PassStatistics* pass) {
  ++pass->judged;
  pass->nonfinite += is_nonfinite(deviation);
  pass->nonfinite_slices.add(is_nonfinite(deviation));
  add(pass->relative_error_mean, deviation.relative_error_mean);
  add(pass->relative_error_max, deviation.relative_error_max);
  add(pass->deviation_ratio, deviation.deviation_ratio);
  pass->bias.add(cluster, deviation.bias);
  pass->rounded_bias.add(cluster, deviation.rounded_bias);
}

void add_known(History& history, int64_t step, size_t column, const std::optional<double>& value) {
  if (value) history.add(step, column, *value);
}

void draw_rank(const segment::Slot& slot, const SliceDeviation& deviation, RankStatistics* rank) {
  History& history = rank->history;
  if (slot.pass == 1) return add_known(history, slot.step, kColumnRatioBackward, deviation.deviation_ratio);
  add_known(history, slot.step, kColumnRatioForward, deviation.deviation_ratio);
  add_known(history, slot.step, kColumnRatioForwardMax, deviation.deviation_ratio);
  if (const std::optional<Bias> bias = rank->pass[0].bias.bias()) {
    history.add(slot.step, kColumnBias, bias->ulp);
    add_known(history, slot.step, kColumnBiasZ, bias->z);
  }
  if (const std::optional<Bias> control = rank->pass[0].rounded_bias.bias())
    history.add(slot.step, kColumnControlBias, control->ulp);
}

void draw_layer(const segment::Slot& slot, const SliceDeviation& deviation, LayerStatistics* layer) {
  const LayerColumn column = slot.pass == 0 ? kLayerRatioForward : kLayerRatioBackward;
  add_known(layer->history, slot.step, column, deviation.deviation_ratio);
  const std::optional<Bias> bias = layer->pass[0].bias.bias();
  if (slot.pass == 0 && bias) layer->history.add(slot.step, kLayerBias, bias->ulp);
}

void add_scores(const SliceDeviation& deviation, ScoreStatistics* scores) {
  add(scores->lse_error, deviation.lse_error_abs_max);
  add(scores->logit, deviation.logit_abs_max);
  add(scores->entropy_min, deviation.entropy_min);
  add(scores->entropy_mean, deviation.entropy_mean);
  add(scores->near_tie_ratio, near_tie_ratio(deviation));
}

// The best source that any call has had: annotation, parameter, ordinal, none.
std::string better_source(const std::string& a, const std::string& b) {
  for (auto source :
       {segment::LayerSource::kAnnotation, segment::LayerSource::kParameter, segment::LayerSource::kOrdinal})
    if (a == segment::name_of(source) || b == segment::name_of(source)) return segment::name_of(source);
  return segment::name_of(segment::LayerSource::kUnknown);
}

// Against the full window before it, as the rule of loss events does.
std::optional<double> standard_score(const Window<kLossWindow>& window, double x) {
  const auto summary = window.summary();
  if (!summary || !window.full() || !(summary->std > 0) || !std::isfinite(x)) return std::nullopt;
  return (x - summary->mean) / summary->std;
}

void observe_loss(const segment::StepRecord& step, RankStatistics* rank) {
  if (!std::isfinite(step.loss)) ++rank->nonfinite_loss;
  if (!rank->first_loss && rank->taken_up_step < 0) rank->first_loss = step.loss;
  rank->last_loss = step.loss;
  rank->loss_source = step.loss_source;
  rank->loss_window.add(step.loss);
}

void observe_gradient(double norm, RankStatistics* rank) {
  if (!std::isfinite(norm)) ++rank->nonfinite_gradient;
  rank->gradient_norm = norm;
  rank->gradient_window.add(norm);
  rank->gradient_zscore = standard_score(rank->gradient_reference, norm);
  rank->gradient_reference.add(norm);
}

// Of the alert on it: what has been mended is forgotten after some of these, and one sampled step in many is
// still spread over all that it was taken for.
constexpr double kRecentSeconds = 300;

void add_cost(const RankStatistics::Cost& step, double keep, RankStatistics::Cost* sum) {
  sum->train_seconds = keep * sum->train_seconds + step.train_seconds;
  sum->own_seconds = keep * sum->own_seconds + step.own_seconds;
  sum->agent_seconds = keep * sum->agent_seconds + step.agent_seconds;
}

void note_loss_event(WatchEventKind kind, int64_t step, RankStatistics* rank) {
  if (kind != WatchEventKind::kLossSpike && kind != WatchEventKind::kDivergence) return;
  std::vector<int64_t>& steps =
      kind == WatchEventKind::kLossSpike ? rank->spike_steps : rank->divergence_steps;
  if (steps.size() < kMostSpikes) steps.push_back(step);
}

void observe_cost(const segment::StepRecord& step, RankStatistics* rank) {
  const double seconds = 1e-9 * static_cast<double>(step.duration_ns),
               cost = 1e-9 * static_cast<double>(step.cost_ns);
  const RankStatistics::Cost spent = {seconds, cost, rank->agent_seconds - rank->cost.agent_seconds};
  add_cost(spent, 1, &rank->cost);
  add_cost(spent, std::exp(-seconds / kRecentSeconds), &rank->recent_cost);
  rank->step_seconds.add(seconds - cost);
  rank->history.add(step.step, kColumnStepSeconds, seconds);
  if (seconds > cost) rank->history.add(step.step, kColumnSlowdown, cost / (seconds - cost));
  if (step.sampled != 0) {
    ++rank->sampled_steps;
    rank->sampled_step_cost.add(cost);
  } else {
    rank->other_step_cost.add(cost);
  }
}

void observe_scalars(const segment::StepRecord& step, RankStatistics* rank) {
  for (size_t n = 0; n < rank->scalar_names.size() && n < segment::kMaxScalars; ++n) {
    if ((step.scalars_given >> n & 1) == 0) continue;
    const int64_t own_step = step.scalar_step[n];
    rank->logged[rank->scalar_names[n]] = {step.scalars[n], own_step >= 0 ? own_step : step.step};
  }
}

void observe_giving_up(const segment::StepRecord& step, RankStatistics* rank) {
  if (!given(step, segment::kGivenUpTensors) || rank->tensors_given_up_step >= 0) return;
  rank->tensors_given_up_step = step.step;
  rank->tensors_given_up_failed = given(step, segment::kGivenUpFailed);
  rank->note_event("tensors_given_up", step.step, "", std::nullopt);
}

// Told whatever becomes of their step: when so many have ended since, in case that it has another number than
// was thought, and when none ends for so long.
constexpr int kEndsToWaitFor = 2;
constexpr uint64_t kNanosecondsToWait = 120'000'000'000;

void tell_gradient(RankStatistics* rank) {
  rank->nonfinite_attention_gradient += rank->untold_gradient.values;
  rank->untold_gradient = {};
}

void observe_attention_gradient(uint64_t nonfinite, const segment::Slot& slot, RankStatistics* rank) {
  if (nonfinite == 0) return;
  RankStatistics::Untold& untold = rank->untold_gradient;
  if (untold.values == 0) untold.since_ns = slot.time_ns;
  untold.values += nonfinite;
  untold.step = std::max(untold.step, slot.step);
  const bool has_ended = rank->last_step.sequence != 0 && rank->last_step.step >= untold.step;
  if (has_ended || slot.time_ns > untold.since_ns + kNanosecondsToWait) tell_gradient(rank);
}

void observe_end_of_gradient(const segment::StepRecord& step, RankStatistics* rank) {
  RankStatistics::Untold& untold = rank->untold_gradient;
  if (untold.values == 0) return;
  if (++untold.ends >= kEndsToWaitFor || step.step >= untold.step) tell_gradient(rank);
}

}  // namespace

void draw_weights(const TensorSnapshot& snapshot, RankStatistics* rank) {
  if (!snapshot.previous || snapshot.layer.empty()) return;
  LayerStatistics* layer = rank->layer_of(snapshot.layer);
  if (layer == nullptr) return;
  layer->label = snapshot.layer;
  layer->history.add(snapshot.step, kLayerWasserstein, snapshot.previous->value);
}

void draw_spectrum(const std::string& label, const LayerSpectrum& spectrum, RankStatistics* rank) {
  rank->history.add(spectrum.step, kColumnEffectiveRank, spectrum.effective_rank_mean);
  LayerStatistics* layer = rank->layer_of(label);
  if (layer == nullptr) return;
  layer->label = label;
  layer->history.add(spectrum.step, kLayerEffectiveRank, spectrum.effective_rank_mean);
}

void draw_model(const Weights& weights, RankStatistics* rank) {
  const PoolSnapshot& model = weights.model();
  if (model.step < 0 || model.step == rank->model_drawn) return;
  rank->model_drawn = model.step;
  if (model.previous) rank->history.add(model.step, kColumnWasserstein, model.previous->value);
  add_known(rank->history, model.step, kColumnUpdate, model.update_mean_abs);
  const auto optimizer = weights.optimizer().summary();
  if (!optimizer) return;
  add_known(rank->history, model.step, kColumnStaleness, optimizer->pooled.rms_staleness());
  add_known(rank->history, model.step, kColumnStalenessMax, optimizer->staleness_max);
  add_known(rank->history, model.step, kColumnUpdateRatio, optimizer->pooled.update_ratio());
  add_known(rank->history, model.step, kColumnUpdateRatioMax, optimizer->update_ratio_max);
}

std::optional<double> near_tie_ratio(const SliceDeviation& deviation) {
  if (deviation.rows_with_keys == 0) return std::nullopt;
  return static_cast<double>(deviation.near_tie_rows) / deviation.rows_with_keys;
}

void observe_slice(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                   RankStatistics* rank) {
  const BiasCluster cluster = {slot.batch, slot.kv_head, slot.step, rank->identity.rank};
  add_pass(deviation, cluster, &rank->pass[slot.pass]);
  if (slot.pass == 0) add_scores(deviation, &rank->scores);
  draw_rank(slot, deviation, rank);
  rank->layer_source = better_source(rank->layer_source, layer.source);
  rank->nonfinite_output += deviation.nonfinite_out + deviation.nonfinite_lse;
  observe_attention_gradient(deviation.nonfinite_grad_query, slot, rank);
  LayerStatistics* known = layer.label.empty() ? nullptr : rank->layer_of(layer.label);
  LayerStatistics& statistics = known != nullptr ? *known : rank->unnamed;
  add_pass(deviation, cluster, &statistics.pass[slot.pass]);
  note_alarms(deviation, slot.step, slot.pass, &statistics);
  if (known == nullptr) return;
  statistics.label = layer.label;
  statistics.name = layer.name;
  statistics.source = layer.source;
  if (slot.pass == 0) add_scores(deviation, &statistics.scores);
  draw_layer(slot, deviation, &statistics);
}

void observe_event(const EventLine& line, RankStatistics* rank) {
  for (const WatchEventKind kind : {WatchEventKind::kLossSpike, WatchEventKind::kDivergence})
    if (line.event == name_of(kind)) note_loss_event(kind, *line.step, rank);
  // The end of an alarm is no event to the reader of a page.
  if (line.level == name_of(Level::kQuiet)) return;
  const std::string what = line.detector.empty() ? line.event : line.level + "_" + line.detector;
  rank->note_event(what.c_str(), *line.step, line.layer, line.value);
}

void take_up(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank) {
  rank->taken_up_step = last.step;
  rank->loss_events_known = watch != nullptr;
  observe_giving_up(last, rank);
  if (watch != nullptr)
    for (const LossEventSeen& event : watch->loss_events())
      note_loss_event(event.kind, event.onset_step, rank);
  if (given(last, segment::kGivenLoss)) {
    rank->last_loss = last.loss;
    rank->loss_source = last.loss_source;
  }
  if (given(last, segment::kGivenGradientNorm)) rank->gradient_norm = last.gradient_norm;
  if (given(last, segment::kGivenLearningRate)) rank->learning_rate = last.learning_rate;
}

void observe_step(const segment::StepRecord& step, RankStatistics* rank) {
  rank->last_step = step;
  observe_end_of_gradient(step, rank);
  rank->stride.tell(step.step);
  observe_cost(step, rank);
  observe_giving_up(step, rank);
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
