#include "agent/pipeline.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "segment/names.h"

namespace foreshock {
namespace {

using segment::SegmentReader;

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class T>
const T* data_of(segment::Bytes bytes) {
  return bytes.empty() ? nullptr : reinterpret_cast<const T*>(bytes.data());
}

AttentionSlice slice_of(const segment::SlotView& view) {
  const segment::Slot& slot = view.header;
  AttentionSlice slice;
  slice.dtype = static_cast<DType>(slot.dtype);
  slice.rows = static_cast<int>(slot.rows);
  slice.keys = static_cast<int>(slot.keys);
  slice.head_dim = static_cast<int>(slot.head_dim);
  slice.value_dim = static_cast<int>(slot.value_dim);
  slice.scale = slot.scale;
  slice.key_limit = slot.key_limit;
  slice.query = data_of<void*>(view.payload[segment::kQuery]);
  slice.key = data_of<void*>(view.payload[segment::kKey]);
  slice.value = data_of<void*>(view.payload[segment::kValue]);
  slice.out = data_of<void*>(view.payload[segment::kOut]);
  slice.log_sum_exp = data_of<void*>(view.payload[segment::kLogSumExp]);
  slice.log_sum_exp_dtype = static_cast<DType>(slot.lse_dtype);
  slice.mask = data_of<void*>(view.payload[segment::kMask]);
  slice.mask_dtype = static_cast<DType>(slot.mask_dtype);
  slice.grad_out = data_of<void*>(view.payload[segment::kGradOut]);
  slice.grad_query = data_of<void*>(view.payload[segment::kGradQuery]);
  return slice;
}

void add(SampleWindow& window, const std::optional<double>& value) {
  if (value) window.add(*value);
}

std::optional<double> near_tie_ratio(const SliceDeviation& deviation) {
  if (deviation.rows_with_keys == 0) return std::nullopt;
  return static_cast<double>(deviation.near_tie_rows) / deviation.rows_with_keys;
}

void add_pass(const SliceDeviation& deviation, const BiasCluster& cluster, PassStatistics* pass) {
  ++pass->judged;
  add(pass->relative_error_mean, deviation.relative_error_mean);
  add(pass->relative_error_max, deviation.relative_error_max);
  add(pass->deviation_ratio, deviation.deviation_ratio);
  pass->bias.add(cluster, deviation.bias);
  pass->rounded_bias.add(cluster, deviation.rounded_bias);
}

void add_scores(const SliceDeviation& deviation, ScoreStatistics* scores) {
  add(scores->lse_error, deviation.lse_error_abs_max);
  add(scores->logit, deviation.logit_abs_max);
  add(scores->entropy_min, deviation.entropy_min);
  add(scores->entropy_mean, deviation.entropy_mean);
  add(scores->near_tie_ratio, near_tie_ratio(deviation));
}

struct LayerOfCall {
  std::string label, name, source;
};

// The label under which a call is counted, or an empty one: then it belongs to the rank alone.
LayerOfCall layer_of(const SegmentReader& segment, const segment::Slot& slot, const RankStatistics& rank) {
  const auto source = static_cast<segment::LayerSource>(slot.layer_source);
  LayerOfCall layer = {"", "", segment::name_of(source)};
  if (slot.layer < 0) return layer;
  if (source == segment::LayerSource::kOrdinal) {
    // Where layers have names, an ordinal (a forward call of an evaluation, say) is one of them under another name.
    if (rank.layer_source == segment::name_of(segment::LayerSource::kParameter) ||
        rank.layer_source == segment::name_of(segment::LayerSource::kAnnotation))
      return {"", "", segment::name_of(segment::LayerSource::kUnknown)};
    // Not a layer's number but a place in the step, and called so: it can never be mistaken for a name.
    char label[16];
    std::snprintf(label, sizeof label, "call%03d", slot.layer);
    layer.label = label;
    return layer;
  }
  const segment::Layer record = segment.layer(static_cast<uint32_t>(slot.layer));
  if (record.ready != 1) return layer;
  layer.label = segment::text_of(record.label);
  layer.name = segment::text_of(record.name);
  return layer;
}

// The best source that any call has had: annotation, parameter, ordinal, none.
std::string better_source(const std::string& a, const std::string& b) {
  for (auto source : {segment::LayerSource::kAnnotation, segment::LayerSource::kParameter,
                      segment::LayerSource::kOrdinal})
    if (a == segment::name_of(source) || b == segment::name_of(source)) return segment::name_of(source);
  return segment::name_of(segment::LayerSource::kUnknown);
}

std::vector<int64_t> copy_words(const uint32_t (&words)[segment::kRowsPerSlice], uint32_t count) {
  return {words, words + count};
}

SampleLine sample_line(const std::string& run, const RankStatistics& rank, const segment::Slot& slot,
                       const LayerOfCall& layer, const SliceDeviation& deviation, double seconds) {
  SampleLine line;
  line.run = run;
  line.rank = rank.identity.rank;
  line.ticket = slot.ticket;
  line.step = slot.step;
  if (rank.last_step.sequence != 0) line.step_judged = rank.last_step.step;
  line.time = 1e-9 * static_cast<double>(slot.time_ns);
  line.call = slot.call;
  line.pass = segment::kPassNames[slot.pass];
  if (slot.op >= 0 && static_cast<size_t>(slot.op) < rank.ops.size())
    line.op = segment::text_of(rank.ops[static_cast<size_t>(slot.op)].name);
  line.layer = layer.label;
  line.layer_name = layer.name;
  line.layer_source = layer.source;
  line.dtype = name_of(static_cast<DType>(slot.dtype));
  line.mask = name_of(static_cast<DType>(slot.mask_dtype));
  line.batch = slot.batch;
  line.kv_head = slot.kv_head;
  line.heads = copy_words(slot.head, slot.rows);
  line.positions = copy_words(slot.position, slot.rows);
  line.rows = slot.rows;
  line.keys = slot.keys;
  line.head_dim = slot.head_dim;
  line.value_dim = slot.value_dim;
  line.query_length = static_cast<int64_t>(slot.query_length);
  line.key_length = static_cast<int64_t>(slot.key_length);
  line.scale = slot.scale;
  line.reference_version = kReferenceVersion;
  line.relative_error_mean = deviation.relative_error_mean;
  line.relative_error_max = deviation.relative_error_max;
  line.error_norm = deviation.kernel_error_norm;
  line.plain_error_norm = deviation.plain_error_norm;
  line.deviation_ratio = deviation.deviation_ratio;
  line.grad_out_drift = deviation.grad_out_drift;
  line.bias_error_sum = deviation.bias.numerator;
  line.bias_ulp_sum = deviation.bias.denominator;
  if (deviation.bias.denominator > 0) {
    line.bias_ulp = deviation.bias.numerator / deviation.bias.denominator;
    line.rounded_reference_bias_ulp = deviation.rounded_bias.numerator / deviation.rounded_bias.denominator;
  }
  line.rounded_reference_bias_error_sum = deviation.rounded_bias.numerator;
  line.lse_error_abs_max = deviation.lse_error_abs_max;
  line.logit_abs_max = deviation.logit_abs_max;
  line.entropy_nats_min = deviation.entropy_min;
  line.entropy_nats_mean = deviation.entropy_mean;
  line.near_tie_ratio = near_tie_ratio(deviation);
  line.nonfinite_values = deviation.nonfinite_inputs + deviation.nonfinite_out + deviation.nonfinite_lse +
                          deviation.nonfinite_grad_query;
  line.judge_seconds = seconds;
  return line;
}

// Against the full window before it, as the rule of loss events does.
std::optional<double> standard_score(const Window<kLossWindow>& window, double x) {
  const auto summary = window.summary();
  if (!summary || !window.full() || !(summary->std > 0) || !std::isfinite(x)) return std::nullopt;
  return (x - summary->mean) / summary->std;
}

bool given(const segment::StepRecord& step, uint32_t what) { return (step.given & what) != 0; }

}  // namespace

bool Pipeline::poll(SegmentReader& segment, RankStatistics* rank) {
  const double begin = cpu_seconds();
  bool found = false;
  for (const segment::StepRecord& step : segment.new_steps()) {
    found = true;
    follow_step(step, rank);
  }
  rank->steps = segment.steps_taken();
  SegmentReader::Ready ready;
  while (segment.next_ready(&ready)) {
    found = true;
    judge_slot(segment, ready, rank);
  }
  rank->agent_seconds += cpu_seconds() - begin;
  return found;
}

void Pipeline::judge_slot(SegmentReader& segment, const SegmentReader::Ready& ready, RankStatistics* rank) {
  const segment::Slot& slot = ready.view.header;
  if (ready.why != nullptr) {
    ++rank->refused_slots;
    return segment.consume_lost(ready.slot, ready.ticket, slot.pass % segment::kPasses, segment::Lost::kRefused);
  }
  const double begin = cpu_seconds();
  const AttentionSlice slice = slice_of(ready.view);
  if (!is_valid(slice))
    return segment.consume_lost(ready.slot, ready.ticket, slot.pass, segment::Lost::kUnsupported);
  if (rank->ops.size() <= static_cast<size_t>(std::max(slot.op, 0))) rank->ops = segment.ops();

  const SliceDeviation deviation = judge(slice, &workspace_);
  const LayerOfCall layer = layer_of(segment, slot, *rank);
  const BiasCluster cluster = {slot.batch, slot.kv_head, slot.step, rank->identity.rank};
  add_pass(deviation, cluster, &rank->pass[slot.pass]);
  if (slot.pass == 0) add_scores(deviation, &rank->scores);
  if (!layer.label.empty()) {
    LayerStatistics& statistics = rank->layers[layer.label];
    statistics.label = layer.label;
    statistics.name = layer.name;
    statistics.source = layer.source;
    add_pass(deviation, cluster, &statistics.pass[slot.pass]);
    if (slot.pass == 0) add_scores(deviation, &statistics.scores);
  }
  rank->layer_source = better_source(rank->layer_source, layer.source);
  rank->nonfinite_output += deviation.nonfinite_out + deviation.nonfinite_lse;
  rank->nonfinite_attention_gradient += deviation.nonfinite_grad_query;
  if (deviation.nonfinite_out + deviation.nonfinite_grad_query > 0)
    record_event(*rank, "nonfinite", slot.step, layer.label,
                 static_cast<double>(deviation.nonfinite_out + deviation.nonfinite_grad_query));
  if (record_ != nullptr)
    record_->write(sample_line(run_, *rank, slot, layer, deviation, cpu_seconds() - begin));
  segment.consume_judged(ready.slot, ready.ticket, slot.pass);
}

void Pipeline::follow_step(const segment::StepRecord& step, RankStatistics* rank) {
  rank->last_step = step;
  const double seconds = 1e-9 * static_cast<double>(step.duration_ns), cost = 1e-9 * static_cast<double>(step.cost_ns);
  rank->train_seconds += seconds;
  rank->cost_seconds += cost;
  rank->step_seconds.add(seconds - cost);
  if (step.sampled != 0) {
    ++rank->sampled_steps;
    rank->sampled_step_cost.add(cost);
  } else {
    rank->other_step_cost.add(cost);
  }
  HistoryPoint point = {step.step, {}, {}, mean_of(rank->pass[0].deviation_ratio)};
  if (given(step, segment::kGivenLoss)) {
    if (!std::isfinite(step.loss)) ++rank->nonfinite_loss;
    if (!rank->first_loss) rank->first_loss = step.loss;
    rank->last_loss = point.loss = step.loss;
    rank->loss_window.add(step.loss);
    const LossVerdict verdict = rank->loss_events.observe(step.step, step.loss);
    rank->loss_zscore = verdict.z;
    if (verdict.event) {
      const bool diverged = verdict.event->kind == LossEventKind::kDivergence;
      rank->spike_steps.push_back(verdict.event->onset_step);
      record_event(*rank, diverged ? "divergence" : "loss_spike", verdict.event->onset_step, "", step.loss);
    }
  }
  if (given(step, segment::kGivenGradientNorm)) {
    if (!std::isfinite(step.gradient_norm)) ++rank->nonfinite_gradient;
    rank->gradient_norm = point.gradient_norm = step.gradient_norm;
    rank->gradient_window.add(step.gradient_norm);
    rank->gradient_zscore = standard_score(rank->gradient_reference, step.gradient_norm);
    rank->gradient_reference.add(step.gradient_norm);
  }
  if (given(step, segment::kGivenLearningRate)) rank->learning_rate = step.learning_rate;
  rank->history.push_back(point);
  if (rank->history.size() > kHistoryPoints) rank->history.pop_front();
  if (record_ == nullptr) return;
  StepLine line;
  line.run = run_;
  line.rank = rank->identity.rank;
  line.step = step.step;
  line.time = 1e-9 * static_cast<double>(step.time_ns);
  line.duration_seconds = seconds;
  line.loss = point.loss;
  line.gradient_norm = point.gradient_norm;
  if (given(step, segment::kGivenLearningRate)) line.learning_rate = step.learning_rate;
  if (given(step, segment::kGivenBatchId)) line.batch_id = step.batch_id;
  line.step_source = segment::step_source_name(step.step_source);
  line.loss_source = segment::loss_source_name(step.loss_source);
  line.sampled = step.sampled != 0;
  line.attention_calls = step.calls;
  line.skipped_steps = step.skipped_steps;
  line.sample_interval_steps = step.interval;
  line.overhead_seconds = cost;
  record_->write(line);
}

void Pipeline::refresh(const SegmentReader& segment, RankStatistics* rank) {
  rank->identity = segment.identity();
  rank->ops = segment.ops();
  rank->totals = segment.totals();
  rank->steps = segment.steps_taken();
  rank->steps_lost = segment.steps_lost();
  if (rank->last_step.sequence == 0) rank->last_step = segment.last_step();  // an agent before this one took it
  rank->switched_on = segment.switched_on();
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    rank->judged[pass] = segment.judged(pass);
    for (uint32_t reason = 0; reason < segment::kLostReasons; ++reason)
      rank->lost[pass][reason] = segment.lost(pass, static_cast<segment::Lost>(reason));
  }
  for (const segment::Layer& record : segment.layers()) {
    if (record.gradient_step == 0) continue;  // named, but nothing is known of it
    LayerStatistics& layer = rank->layers[segment::text_of(record.label)];
    layer.label = segment::text_of(record.label);
    layer.name = segment::text_of(record.name);
    layer.gradient_norm = record.gradient_norm;
    if (record.nonfinite_steps > layer.nonfinite_steps)
      record_event(*rank, "nonfinite_gradient", static_cast<int64_t>(record.last_nonfinite_step), layer.label,
                   static_cast<double>(record.nonfinite_steps));
    layer.nonfinite_steps = record.nonfinite_steps;
    if (record.nonfinite_steps > 0) layer.last_nonfinite_step = static_cast<int64_t>(record.last_nonfinite_step);
  }
}

void Pipeline::finish(SegmentReader& segment, RankStatistics* rank) {
  poll(segment, rank);
  for (const SegmentReader::Ready& torn : segment.torn())
    segment.consume_lost(torn.slot, torn.ticket, torn.view.header.pass, segment::Lost::kTorn);
  refresh(segment, rank);
}

void Pipeline::record_event(const RankStatistics& rank, const char* event, int64_t step, const std::string& layer,
                            std::optional<double> value) {
  if (record_ == nullptr) return;
  EventLine line;
  line.run = run_;
  line.rank = rank.identity.rank;
  line.step = step;
  line.event = event;
  line.layer = layer;
  line.value = value;
  record_->write(line);
}

}  // namespace foreshock
