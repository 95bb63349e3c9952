#include "agent/replay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "agent/limits.h"
#include "segment/layout.h"
#include "segment/reader.h"
#include "shadow/judgement.h"

namespace foreshock {
namespace {

// A result that is not finite is infinite in SliceDeviation, and NaN in a line that was read.
std::optional<double> figure_of(const RecordNumber& number) {
  return number && std::isnan(*number) ? std::optional(std::numeric_limits<double>::infinity()) : number;
}

// Returns the sums of a control of the bias from its quotient. Only the quotient is in the line.
BiasSums control_of(const RecordNumber& ulp, double ulp_sum) {
  return ulp ? BiasSums{*ulp * ulp_sum, ulp_sum} : BiasSums{};
}

uint32_t tensor_of(const SampleLine& line) {
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor)
    if (line.tensor == kJudgedTensorNames[tensor]) return tensor;
  return line.pass == "backward" ? 1 : 0;
}

SliceDeviation deviation_of(const SampleLine& line, uint32_t tensor) {
  SliceDeviation d;
  d.backward = tensor != 0;
  d.tensor = static_cast<JudgedTensor>(tensor);
  const auto count = [](const RecordInteger& rows) {
    return static_cast<int>(std::clamp<int64_t>(rows.value_or(0), 0, segment::kRowsPerSlice));
  };
  d.rows_not_comparable = count(line.rows_not_comparable);
  d.rows_compared = count(line.rows) - d.rows_not_comparable;
  d.relative_error_mean = figure_of(line.relative_error_mean);
  d.relative_error_max = figure_of(line.relative_error_max);
  d.deviation_ratio = figure_of(line.deviation_ratio);
  d.fused_ratio = figure_of(line.fused_ratio);
  d.conservation_ratio = figure_of(line.conservation_ratio);
  d.lse_error_ratio = figure_of(line.lse_error_ratio);
  d.lse_error_abs_max = figure_of(line.lse_error_abs_max);
  d.logit_abs_max = figure_of(line.logit_abs_max);
  d.entropy_min = line.entropy_nats_min;
  d.entropy_mean = line.entropy_nats_mean;
  d.near_tie_ratio = line.near_tie_ratio;
  const double ulp_sum = line.bias_ulp_sum.value_or(0);
  d.bias = {line.bias_error_sum.value_or(0), ulp_sum};
  d.floor_bias = control_of(line.floor_bias_ulp, ulp_sum);
  d.rounded_bias = control_of(line.rounded_reference_bias_ulp, ulp_sum);
  d.unexplained_bias = line.unexplained_bias_ulp.value_or(0);
  d.partial = line.partial.value_or(false);
  // Older records have no number: then the call may have a part of its keys, and sums over all keys are not
  // judged.
  const bool is_of_query = tensor == static_cast<uint32_t>(JudgedTensor::kGradQuery);
  d.partial_rows = is_of_query && !line.rows_partial ? 1 : count(line.rows_partial);
  d.nonfinite_anywhere = line.nonfinite_result.value_or(false);
  d.nonfinite_grad_query = line.nonfinite_grad_query.value_or(false);
  return d;
}

// Returns the index of the line's operation in rank->ops, where it is added if it is missing; -1: no room.
int32_t operation_of(const SampleLine& line, uint32_t pass, RankStatistics* rank) {
  for (size_t op = 0; op < rank->ops.size(); ++op)
    if (rank->ops[op].pass == pass && segment::text_of(rank->ops[op].name) == line.op)
      return static_cast<int32_t>(op);
  if (rank->ops.size() >= segment::kMaxOps) return -1;
  segment::Op& op = rank->ops.emplace_back();
  op.pass = pass;
  line.op.copy(op.name, sizeof op.name - 1);
  return static_cast<int32_t>(rank->ops.size() - 1);
}

segment::Slot slot_of(const SampleLine& line, uint32_t tensor, RankStatistics* rank) {
  segment::Slot slot = {};
  slot.step = *line.step;
  slot.pass = pass_of(tensor);
  slot.columns = is_key_gradient(tensor);
  slot.dtype = static_cast<uint32_t>(dtype_named(line.dtype));
  slot.op = operation_of(line, slot.pass, rank);
  slot.batch = line.batch.value_or(0);
  slot.kv_head = line.kv_head.value_or(0);
  slot.keys = static_cast<uint32_t>(std::clamp<int64_t>(line.keys.value_or(0), 0, UINT32_MAX));
  slot.head_dim = static_cast<uint32_t>(line.head_dim.value_or(0));
  slot.value_dim = static_cast<uint32_t>(line.value_dim.value_or(0));
  slot.scale = line.scale.value_or(0);
  return slot;
}

constexpr uint64_t kMostInterval = uint64_t{1} << 32;  // steps; a record may contain any number

uint32_t source_of(const std::string& name) {
  const std::string_view unknown = segment::step_source_name(0);
  for (uint32_t source = 1; segment::step_source_name(source) != unknown; ++source)
    if (name == segment::step_source_name(source)) return source;
  return 0;
}

}  // namespace

RankStatistics& ReplayedRanks::rank_of(const std::string& run, int64_t rank) {
  RankStatistics*& current = current_[rank];
  if (current == nullptr) {
    current = &processes_.emplace_back();
    current->run = run;
    current->identity.rank = static_cast<int32_t>(rank);
  }
  return *current;
}

// A restarted agent writes "started" again for a process that it followed before.
void ReplayedRanks::observe(const RunLine& line) {
  if (line.state != "started" || !line.rank || !line.pid) return;
  const auto pid = static_cast<decltype(RankStatistics().identity.pid)>(*line.pid);
  RankStatistics* before = &rank_of(line.run, *line.rank);
  const bool is_other = before->identity.pid != 0 && before->identity.pid != pid;
  if (is_other && processes_.size() < kMostReplayedProcesses) {
    before->current = false;
    current_[*line.rank] = nullptr;
  }
  rank_of(line.run, *line.rank).identity.pid = pid;
}

void ReplayedRanks::observe(const StepLine& line) {
  if (!line.rank || line.step.value_or(-1) < 0) return;
  RankStatistics& rank = rank_of(line.run, *line.rank);
  segment::StepRecord step = {};
  step.sequence = rank.last_step.sequence + 2;
  step.step = *line.step;
  step.step_source = source_of(line.step_source);
  step.sampled = line.sampled.value_or(false);
  step.interval = std::min(line.sample_interval_steps.value_or(0), kMostInterval);
  const auto give = [&](const RecordNumber& number, uint32_t bit, double* value) {
    if (!number) return;
    step.given |= bit;
    *value = *number;
  };
  give(line.loss, segment::kGivenLoss, &step.loss);
  give(line.gradient_norm, segment::kGivenGradientNorm, &step.gradient_norm);
  give(line.learning_rate, segment::kGivenLearningRate, &step.learning_rate);
  observe_step(step, &rank);
}

void ReplayedRanks::observe(const SampleLine& line) {
  if (!line.rank || line.step.value_or(-1) < 0) return;
  RankStatistics& rank = rank_of(line.run, *line.rank);
  const bool is_new = !line.layer.empty() && !rank.layers.contains(line.layer);
  if (is_new && layers_ >= kMostReplayedLayers) return;
  layers_ += is_new;
  const uint32_t tensor = tensor_of(line);
  const segment::Slot slot = slot_of(line, tensor, &rank);
  observe_slice(slot, {line.layer, line.layer_name, line.layer_source}, deviation_of(line, tensor), &rank);
  rank.judged[slot.pass] += slot.columns == 0;
}

void ReplayedRanks::observe(const TensorLine& line) {
  if (line.scope == "job") return;
  for (const int64_t rank : line.odd_ranks) ++mismatches_[rank];
}

// The detectors' events are those found now; the others are the agent's.
void ReplayedRanks::observe(const EventLine& line) {
  const bool is_of_agent = line.event == "weight_mismatch" || line.event == "nonfinite" ||
                           line.event == "nonfinite_attention_gradient";
  if (is_of_agent && line.rank && line.step.value_or(-1) >= 0)
    observe_event(line, &rank_of(line.run, *line.rank));
}

std::vector<Finding> ReplayedRanks::findings(const Watches& watches) {
  Ranks ranks;
  for (RankStatistics& rank : processes_) {
    rank.watch = rank.current ? watches.watch_of(rank.run, rank.identity.rank) : nullptr;
    rank.conditions = rank.current ? watches.conditions_of(rank.run) : nullptr;
    ranks.push_back(&rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankStatistics* a, const RankStatistics* b) {
    return a->identity.rank < b->identity.rank;
  });
  return findings_of(ranks, mismatches_, {totals_of(ranks, 0), totals_of(ranks, 1)});
}

}  // namespace foreshock
