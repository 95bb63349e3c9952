// Makes the lines of the record from the state of ranks and tensors. docs/record.md defines every field.
#include "agent/record_lines.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "agent/rank_state.h"
#include "detect/conditions.h"
#include "exporters/record.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

std::vector<int64_t> copy_words(const uint32_t (&words)[segment::kRowsPerSlice], uint32_t count) {
  return {words, words + count};
}

// A slice of key positions (slot.columns is 1) has keys of one key-value head, and all query rows that see
// them. Returns the query heads that read this key-value head. dK and dV are sums over the rows of these
// heads. The number of heads comes from the trainer, so it is limited.
std::vector<int64_t> heads_of_columns(const segment::Slot& slot) {
  constexpr uint32_t kMostListed = 256;
  std::vector<int64_t> heads(std::min(slot.heads_in_slice, kMostListed));
  for (size_t n = 0; n < heads.size(); ++n) heads[n] = int64_t{slot.head[0]} + static_cast<int64_t>(n);
  return heads;
}

// Sets a Wasserstein distance and its certified bounds. Without a distance they stay unknown.
void set_distance(const std::optional<Wasserstein>& distance, std::optional<double>* value,
                  std::optional<double>* low, std::optional<double>* high) {
  if (!distance) return;
  *value = distance->value;
  *low = distance->low;
  *high = distance->high;
}

std::optional<int64_t> known(int64_t number) {  // negative: unknown
  return number >= 0 ? std::optional<int64_t>(number) : std::nullopt;
}

void set_identity(const TensorSnapshot& snapshot, TensorLine* line) {
  line->tensor = snapshot.key.name;
  line->attempt = known(snapshot.attempt);
  line->tensor_parallel = known(snapshot.key.tensor_parallel);
  line->pipeline_parallel = known(snapshot.key.pipeline_parallel);
  line->expert_parallel = known(snapshot.key.expert_parallel);
  line->of_rank = known(snapshot.key.rank);
}

void set_parts(const TensorSnapshot& snapshot, TensorLine* line) {
  line->parts = snapshot.parts.size();
  line->ranks = snapshot.ranks;
  if (snapshot.parts.size() == 1 && snapshot.elements == snapshot.whole_elements) return;  // not sharded
  // Sorts the parts, which are in the order in which ranks were read, so that equal parts give equal lines.
  std::vector<TensorPart> parts = snapshot.parts;
  std::sort(parts.begin(), parts.end());
  for (const TensorPart& part : parts) {
    line->part_offsets.insert(line->part_offsets.end(), part.offset.begin(), part.offset.end());
    line->part_shapes.insert(line->part_shapes.end(), part.shape.begin(), part.shape.end());
  }
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

SampleLine sample_line(const RankStatistics& rank, const segment::Slot& slot, const LayerOfCall& layer,
                       const SliceDeviation& deviation, double judge_seconds) {
  SampleLine line;
  line.run = rank.run;
  line.rank = rank.identity.rank;
  line.ticket = slot.ticket;
  line.step = slot.step;
  if (rank.last_step.sequence != 0) line.step_judged = rank.last_step.step;  // sequence 0: no step has ended
  line.time = 1e-9 * static_cast<double>(slot.time_ns);
  line.call = slot.call;
  line.pass = segment::kPassNames[slot.pass];
  line.tensor = kJudgedTensorNames[static_cast<size_t>(deviation.tensor)];
  line.op = rank.operation_of(slot);
  line.layer = layer.label;
  line.layer_name = layer.name;
  line.layer_source = layer.source;
  line.dtype = name_of(static_cast<DType>(slot.dtype));
  line.mask = name_of(static_cast<DType>(slot.mask_dtype));
  line.batch = slot.batch;
  line.kv_head = slot.kv_head;
  line.heads = slot.columns == 1 ? heads_of_columns(slot) : copy_words(slot.head, slot.rows);
  line.positions = copy_words(slot.position, slot.rows);
  line.rows = slot.rows;
  line.rows_not_comparable = deviation.rows_not_comparable;
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
  line.fused_error_norm = deviation.fused_error_norm;
  line.fused_ratio = deviation.fused_ratio;
  line.conservation_ratio = deviation.conservation_ratio;
  line.reference_norm = deviation.reference_norm;
  line.effective_rows = deviation.effective_rows;
  line.plain_effective_rows = deviation.plain_effective_rows;
  line.grad_out_drift = deviation.grad_out_drift;
  line.bias_error_sum = deviation.bias.numerator;
  line.bias_ulp_sum = deviation.bias.denominator;
  if (deviation.bias.denominator > 0) {
    line.bias_ulp = deviation.bias.numerator / deviation.bias.denominator;
    line.unexplained_bias_ulp = deviation.unexplained_bias;
    if (deviation.rounded_bias.denominator > 0)
      line.rounded_reference_bias_ulp = deviation.rounded_bias.numerator / deviation.rounded_bias.denominator;
  }
  line.rounded_reference_bias_error_sum = deviation.rounded_bias.numerator;
  if (deviation.floor_bias.denominator > 0)
    line.floor_bias_ulp = deviation.floor_bias.numerator / deviation.floor_bias.denominator;
  // Forward slices and slices of key positions do not show whether a call has all keys.
  if (deviation.backward && slot.columns == 0) {
    line.partial = deviation.partial;
    line.rows_partial = deviation.partial_rows;
  }
  if (is_nonfinite(deviation)) line.nonfinite_result = true;
  if (deviation.nonfinite_grad_query) line.nonfinite_grad_query = true;
  if (slot.columns_skip != segment::kColumnsTaken)
    line.key_positions_skipped = segment::kColumnsSkipNames[slot.columns_skip];
  line.lse_error_ratio = deviation.lse_error_ratio;
  line.lse_error_abs_max = deviation.lse_error_abs_max;
  line.logit_abs_max = deviation.logit_abs_max;
  line.entropy_nats_min = deviation.entropy_min;
  line.entropy_nats_mean = deviation.entropy_mean;
  line.near_tie_ratio = deviation.near_tie_ratio;
  line.nonfinite_output_values = deviation.nonfinite_out + deviation.nonfinite_lse;
  line.nonfinite_gradient_values = deviation.nonfinite_gradient;
  line.nonfinite_values =
      deviation.nonfinite_inputs + *line.nonfinite_output_values + *line.nonfinite_gradient_values;
  line.judge_seconds = judge_seconds;
  return line;
}

StepLine step_line(const RankStatistics& rank, const segment::StepRecord& step) {
  using segment::given;
  StepLine line;
  line.run = rank.run;
  line.rank = rank.identity.rank;
  line.step = step.step;
  line.time = 1e-9 * static_cast<double>(step.time_ns);
  line.duration_seconds = 1e-9 * static_cast<double>(step.duration_ns);
  if (given(step, segment::kGivenLoss)) line.loss = step.loss;
  if (given(step, segment::kGivenGradientNorm)) line.gradient_norm = step.gradient_norm;
  if (given(step, segment::kGivenLearningRate)) line.learning_rate = step.learning_rate;
  if (given(step, segment::kGivenBatchId)) line.batch_id = step.batch_id;
  line.step_source = segment::step_source_name(step.step_source);
  line.loss_source = segment::loss_source_name(step.loss_source);
  line.sampled = step.sampled != 0;
  line.attention_calls = step.calls;
  if (segment::knows_skips(step)) line.skipped_steps = step.skipped_steps;
  line.sample_interval_steps = step.interval;
  line.overhead_seconds = 1e-9 * static_cast<double>(step.cost_ns);
  // Scalars are numbers that the training logs. Bit n of scalars_given: the step has a value of scalar n.
  for (size_t n = 0; n < rank.scalar_names.size() && n < segment::kMaxScalars; ++n) {
    if ((step.scalars_given >> n & 1) == 0) continue;
    line.logged[rank.scalar_names[n]] = step.scalars[n];
    if (step.scalar_step[n] >= 0) line.logged_step[rank.scalar_names[n]] = step.scalar_step[n];
  }
  return line;
}

RunLine run_line(const RankStatistics& rank, const char* state) {
  const segment::Identity& id = rank.identity;
  RunLine line;
  line.run = rank.run;
  line.state = state;
  line.rank = id.rank;
  line.time = seconds_since_1970();
  line.foreshock_version = FORESHOCK_VERSION;
  line.host = segment::text_of(id.host);
  line.executable = segment::text_of(id.executable);
  line.framework = segment::text_of(id.framework);
  line.instruction_set = reference_target_name();
  line.pid = static_cast<int64_t>(id.pid);
  line.local_rank = id.local_rank;
  line.world_size = id.world_size;
  line.attempt = id.attempt;
  line.sample_seed = id.sample_seed;
  line.slots = id.slots_given;
  line.slot_bytes = id.slot_bytes;
  line.max_slowdown = id.max_slowdown;
  return line;
}

EventLine event_line(const RankStatistics& rank, const char* event, int64_t step, const std::string& layer,
                     std::optional<double> value) {
  EventLine line;
  line.run = rank.run;
  line.rank = rank.identity.rank;
  line.step = step;
  line.time = seconds_since_1970();
  line.event = event;
  line.layer = layer;
  line.value = value;
  return line;
}

FindingLine finding_line(const std::string& run, const Finding& finding, const char* state, int64_t step) {
  const auto known = [](int64_t number) { return number >= 0 ? RecordInteger(number) : std::nullopt; };
  const FindingInfo& info = info_of(finding.kind);
  FindingLine line;
  line.run = run;
  line.state = state;
  line.time = seconds_since_1970();
  line.step = known(step);
  line.finding = info.name;
  line.headline = info.headline;
  line.text = finding.text;
  line.action = info.action;
  line.layer = finding.layer;
  if (finding.tensor >= 0) line.tensor = kJudgedTensorNames[finding.tensor];
  line.rank = known(finding.rank);
  line.since_step = known(finding.since_step);
  line.last_step = known(finding.last_step);
  line.now = finding.now;
  line.largest = finding.largest;
  line.unit = finding.unit;
  line.relative_error = finding.relative_error;
  return line;
}

TensorLine tensor_line(const std::string& run, const TensorSnapshot& snapshot, bool with_histogram) {
  TensorLine line;
  line.run = run;
  line.scope = "node";
  line.step = snapshot.step;
  line.time = snapshot.time;
  set_identity(snapshot, &line);
  line.layer = snapshot.layer;
  line.dtype = name_of(snapshot.dtype);
  line.shape = snapshot.shape;
  line.whole_elements = snapshot.whole_elements;
  line.interval_steps = snapshot.interval;
  line.odd_ranks = snapshot.odd_ranks;
  // A snapshot without parts only reports, in odd_ranks, the ranks whose replicas differ from the others. The
  // values of such a replica are in no line: its rank has sent only a checksum, or the values too late.
  if (snapshot.parts.empty()) return line;
  line.elements = snapshot.elements;
  set_parts(snapshot, &line);
  line.previous_step = snapshot.previous_step;
  line.initial_step = snapshot.initial_step;
  set_distance(snapshot.previous, &line.wasserstein_previous, &line.wasserstein_previous_low,
               &line.wasserstein_previous_high);
  set_distance(snapshot.initial, &line.wasserstein_initial, &line.wasserstein_initial_low,
               &line.wasserstein_initial_high);
  const auto elements = static_cast<double>(snapshot.elements);
  if (snapshot.elements > 0) line.rms = std::sqrt(snapshot.sum_of_squares / elements);
  if (snapshot.histogram.finite > 0) line.mean_abs = mean_magnitude(snapshot.histogram);
  line.update_elements = snapshot.update_elements;
  line.update_mean_abs = snapshot.update_mean_abs();
  line.update_max_abs = snapshot.update_max_magnitude;
  if (snapshot.sample_elements > 0) {
    line.sample_elements = snapshot.sample_elements;
    line.sample_unmoved = snapshot.sample_unmoved;
  }
  line.nonfinite_values = snapshot.histogram.non_finite();
  line.histogram_hash = hexadecimal(fnv1a(snapshot.stored));
  if (with_histogram) line.histogram = to_base64(snapshot.stored);
  return line;
}

ModelLine model_line(const std::string& run, const PoolSnapshot& pool) {
  ModelLine line;
  line.run = run;
  line.scope = "node";
  line.layer = pool.layer;
  line.step = pool.step;
  line.time = pool.time;
  line.interval_steps = pool.interval;
  line.tensors = pool.tensors;
  line.elements = pool.elements;
  set_distance(pool.previous, &line.wasserstein_previous, &line.wasserstein_previous_low,
               &line.wasserstein_previous_high);
  set_distance(pool.initial, &line.wasserstein_initial, &line.wasserstein_initial_low,
               &line.wasserstein_initial_high);
  line.wasserstein_previous_max = pool.previous_max;
  line.wasserstein_initial_max = pool.initial_max;
  line.moved_most = pool.moved_most;
  line.rms = pool.rms;
  line.update_elements = pool.update_elements;
  line.update_mean_abs = pool.update_mean_abs;
  line.update_mean_abs_max = pool.update_mean_abs_max;
  line.histogram_hash = hexadecimal(pool.histogram_hash);
  return line;
}

OptimizerLine optimizer_line(const std::string& run, const TensorSnapshot& snapshot) {
  const OptimizerSums& sums = *snapshot.optimizer;
  OptimizerLine line;
  line.run = run;
  line.step = snapshot.step;
  line.time = snapshot.time;
  line.tensor = snapshot.key.name;
  line.layer = snapshot.layer;
  line.elements = snapshot.elements;
  line.whole_elements = snapshot.whole_elements;
  line.rms_staleness = sums.rms_staleness();
  line.surprise_ratio = sums.surprise_ratio();
  line.epsilon_dominated_ratio = sums.epsilon_dominated_ratio();
  line.update_ratio = sums.update_ratio();
  line.gradient_rms = sums.gradient_rms();
  const double nonfinite = sums.values[segment::kGradientNonFinite];  // NaN: unknown; exact below 2^53
  if (nonfinite >= 0 && nonfinite < 0x1p53) line.nonfinite_gradient_values = static_cast<uint64_t>(nonfinite);
  const double gradient = sums.values[segment::kSeenGradient], counted = sums.values[segment::kSeenStep];
  for (int n = 0; n < kGradientStates; ++n)
    if (gradient == n) line.gradient = name_of(static_cast<GradientState>(n));
  if (counted >= 0 && counted < 0x1p53) line.optimizer_step = static_cast<int64_t>(counted);
  line.learning_rate = finite(sums.values[segment::kSeenLearningRate]);
  line.beta1 = finite(sums.values[segment::kSeenBeta1]);
  line.beta2 = finite(sums.values[segment::kSeenBeta2]);
  line.epsilon = finite(sums.values[segment::kSeenEpsilon]);
  line.weight_decay = finite(sums.values[segment::kSeenWeightDecay]);
  return line;
}

GradientLine gradient_line(const RankStatistics& rank, const segment::TensorView& tensor) {
  const segment::TensorRecord& record = tensor.record;
  segment::GradientLook look;
  std::memcpy(&look, tensor.payload[segment::kTensorGradientLook].data(), sizeof look);
  GradientLine line;
  line.run = rank.run;
  line.rank = rank.identity.rank;
  line.step = record.step;
  line.time = 1e-9 * static_cast<double>(record.time_ns);
  line.tensor = segment::text_of(record.name);
  line.layer = segment::text_of(record.layer);
  line.dtype = name_of(static_cast<DType>(record.dtype));
  line.shape.assign(record.shape, record.shape + record.dims);
  if (!std::equal(record.shape, record.shape + record.dims, record.part)) {
    line.part.assign(record.offset, record.offset + record.dims);
    line.part.insert(line.part.end(), record.part, record.part + record.dims);
  }
  if (look.mesh > 0) line.mesh = look.mesh;
  if (rank.identity.late_ready == 1)
    line.coordinates = {rank.identity.tensor_parallel, rank.identity.pipeline_parallel,
                        rank.identity.expert_parallel};
  line.world_size = rank.identity.world_size;
  line.parameters = look.parameters;
  line.contributions = look.contributions;
  line.whole = look.is_whole == 1;
  for (const auto& [name, sketch] : {std::pair("local", &look.local),
                                     {"last", &look.last},
                                     {"before", &look.before},
                                     {"used", &look.used},
                                     {"value", &look.value}}) {
    for (uint32_t k = 0; k < segment::kSketchProducts; ++k)
      line.sketches[name + std::to_string(k)] = sketch->products[k];
    line.sketches[name] = sketch->norm;
  }
  return line;
}

}  // namespace foreshock
