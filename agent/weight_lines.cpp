#include "agent/weight_lines.h"

#include <algorithm>
#include <cmath>

#include "agent/fnv.h"
#include "exporters/record_line.h"

namespace foreshock {
namespace {

void tell(const std::optional<Wasserstein>& distance, std::optional<double>* value,
          std::optional<double>* low, std::optional<double>* high) {
  if (!distance) return;
  *value = distance->value;
  *low = distance->low;
  *high = distance->high;
}

std::optional<int64_t> known(int64_t number) {
  return number >= 0 ? std::optional<int64_t>(number) : std::nullopt;
}

void tell_identity(const TensorSnapshot& snapshot, TensorLine* line) {
  line->tensor = snapshot.key.name;
  line->attempt = known(snapshot.attempt);
  line->tensor_parallel = known(snapshot.key.tensor_parallel);
  line->pipeline_parallel = known(snapshot.key.pipeline_parallel);
  line->expert_parallel = known(snapshot.key.expert_parallel);
  line->of_rank = known(snapshot.key.rank);
}

void tell_parts(const TensorSnapshot& snapshot, TensorLine* line) {
  line->parts = snapshot.parts.size();
  line->ranks = snapshot.ranks;
  if (snapshot.parts.size() == 1 && snapshot.elements == snapshot.whole_elements) return;
  std::vector<TensorPart> parts = snapshot.parts;  // as ranks were read; equal parts have equal lines
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

TensorLine tensor_line(const std::string& run, const TensorSnapshot& snapshot, bool with_histogram) {
  TensorLine line;
  line.run = run;
  line.scope = "node";
  line.step = snapshot.step;
  line.time = snapshot.time;
  tell_identity(snapshot, &line);
  line.layer = snapshot.layer;
  line.dtype = name_of(snapshot.dtype);
  line.shape = snapshot.shape;
  line.whole_elements = snapshot.whole_elements;
  line.interval_steps = snapshot.interval;
  line.odd_ranks = snapshot.odd_ranks;
  if (snapshot.parts.empty()) return line;  // of a late replica nothing else is new
  line.elements = snapshot.elements;
  tell_parts(snapshot, &line);
  line.previous_step = snapshot.previous_step;
  line.initial_step = snapshot.initial_step;
  tell(snapshot.previous, &line.wasserstein_previous, &line.wasserstein_previous_low,
       &line.wasserstein_previous_high);
  tell(snapshot.initial, &line.wasserstein_initial, &line.wasserstein_initial_low,
       &line.wasserstein_initial_high);
  const auto elements = static_cast<double>(snapshot.elements);
  if (snapshot.elements > 0) line.rms = std::sqrt(snapshot.sum_of_squares / elements);
  if (snapshot.histogram.finite > 0) line.mean_abs = mean_magnitude(snapshot.histogram);
  line.update_elements = snapshot.update_elements;
  line.update_mean_abs = snapshot.update_mean_abs();
  line.update_max_abs = snapshot.update_max_magnitude;
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
  tell(pool.previous, &line.wasserstein_previous, &line.wasserstein_previous_low,
       &line.wasserstein_previous_high);
  tell(pool.initial, &line.wasserstein_initial, &line.wasserstein_initial_low,
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
  const double nonfinite = sums.values[segment::kGradientNonFinite];
  if (nonfinite >= 0 && nonfinite < 0x1p53) line.nonfinite_gradient_values = static_cast<uint64_t>(nonfinite);
  line.learning_rate = finite(sums.values[segment::kSeenLearningRate]);
  line.beta1 = finite(sums.values[segment::kSeenBeta1]);
  line.beta2 = finite(sums.values[segment::kSeenBeta2]);
  line.epsilon = finite(sums.values[segment::kSeenEpsilon]);
  line.weight_decay = finite(sums.values[segment::kSeenWeightDecay]);
  return line;
}

}  // namespace foreshock
