#include "cli/tensor_merger.h"

#include <algorithm>
#include <cmath>

#include "agent/record_lines.h"
#include "exporters/record_line.h"
#include "shadow/stored_histogram.h"

namespace foreshock::cli {
namespace {

constexpr const char* kJob = "job";

void start(const TensorLine& line, TensorSnapshot* snapshot) {
  snapshot->key.name = line.tensor;
  snapshot->key.tensor_parallel = static_cast<int32_t>(line.tensor_parallel.value_or(-1));
  snapshot->key.pipeline_parallel = static_cast<int32_t>(line.pipeline_parallel.value_or(-1));
  snapshot->key.expert_parallel = static_cast<int32_t>(line.expert_parallel.value_or(-1));
  snapshot->key.rank = static_cast<int32_t>(line.of_rank.value_or(-1));
  snapshot->layer = line.layer;
  snapshot->step = line.step.value_or(-1);
  snapshot->time = line.time.value_or(0);
  snapshot->interval = std::max<uint64_t>(line.interval_steps.value_or(1), 1);
  snapshot->attempt = static_cast<int32_t>(line.attempt.value_or(-1));
  snapshot->whole_elements = line.whole_elements.value_or(0);
  snapshot->shape = line.shape;
}

// What can be added up of a line, without its histogram.
void add_sums(const TensorLine& line, TensorSnapshot* snapshot) {
  const auto elements = static_cast<double>(line.elements.value_or(0));
  snapshot->time = std::min(snapshot->time, line.time.value_or(snapshot->time));
  snapshot->elements += line.elements.value_or(0);
  snapshot->ranks += line.ranks.value_or(0);
  const double rms = line.rms.value_or(std::nan(""));
  snapshot->sum_of_squares += rms * rms * elements;
  if (line.update_mean_abs && line.update_max_abs) {
    const uint64_t updated = line.update_elements.value_or(line.elements.value_or(0));
    snapshot->update_elements += updated;
    snapshot->update_sum_magnitude =
        snapshot->update_sum_magnitude.value_or(0) + *line.update_mean_abs * static_cast<double>(updated);
    snapshot->update_max_magnitude =
        std::max(snapshot->update_max_magnitude.value_or(0), *line.update_max_abs);
  }
  for (size_t at = 0; at + 4 <= std::min(line.part_offsets.size(), line.part_shapes.size()); at += 4) {
    TensorPart part;
    part.offset.assign(line.part_offsets.begin() + static_cast<ptrdiff_t>(at),
                       line.part_offsets.begin() + static_cast<ptrdiff_t>(at) + 4);
    part.shape.assign(line.part_shapes.begin() + static_cast<ptrdiff_t>(at),
                      line.part_shapes.begin() + static_cast<ptrdiff_t>(at) + 4);
    snapshot->parts.push_back(std::move(part));
  }
}

bool is_whole(const TensorLine& line) { return line.elements && line.elements == line.whole_elements; }

// Ranks, of whatever replica.
void add_ranks(const std::vector<TensorMerger::NodeLine>& nodes, TensorLine* to) {
  std::vector<int64_t> odd;
  uint64_t ranks = 0;
  for (const auto& node : nodes) {
    odd.insert(odd.end(), node.line.odd_ranks.begin(), node.line.odd_ranks.end());
    ranks += node.line.ranks.value_or(0);
  }
  to->odd_ranks = odd;
  to->ranks = ranks;
}

}  // namespace

// Of replicas the first one; that they are equal is looked at here.
std::vector<const TensorMerger::NodeLine*> TensorMerger::different(const std::vector<NodeLine>& nodes) {
  std::vector<const NodeLine*> result;
  for (const NodeLine& node : nodes) {
    if (!node.line.elements) continue;  // of a late replica
    const auto same = std::find_if(result.begin(), result.end(), [&](const NodeLine* other) {
      return other->line.part_offsets == node.line.part_offsets &&
             other->line.part_shapes == node.line.part_shapes && other->line.elements == node.line.elements;
    });
    if (same == result.end()) {
      result.push_back(&node);
    } else if ((*same)->line.histogram_hash != node.line.histogram_hash) {
      EventLine event;
      event.run = node.line.run;
      event.step = node.line.step;
      event.time = node.line.time;
      event.event = "weight_mismatch";
      event.layer = node.line.layer;
      event.detail =
          node.line.tensor + " differs between the nodes of " + (*same)->path + " and " + node.path;
      event_ = event;
    }
  }
  // Sums come out alike in whatever order the records are named.
  std::sort(result.begin(), result.end(),
            [](const NodeLine* a, const NodeLine* b) { return a->line.part_offsets < b->line.part_offsets; });
  return result;
}

std::string TensorMerger::put_together(const std::vector<const NodeLine*>& parts,
                                       TensorSnapshot* snapshot) const {
  start(parts[0]->line, snapshot);
  for (const NodeLine* part : parts) {
    const TensorLine& line = part->line;
    const std::optional<std::string> bytes = from_base64(line.histogram);
    Histogram histogram;
    if (!bytes || !restore(*bytes, &histogram) ||
        histogram.finite + histogram.non_finite() != line.elements.value_or(0))
      return part->path + ": the histogram of " + line.tensor + " at step " + std::to_string(snapshot->step) +
             " cannot be read";
    if (line.interval_steps != parts[0]->line.interval_steps || line.dtype != parts[0]->line.dtype ||
        line.shape != parts[0]->line.shape)
      return line.tensor + " at step " + std::to_string(snapshot->step) + ": " + parts[0]->path + " and " +
             part->path + " tell of different tensors";
    merge(histogram, &snapshot->histogram);
    add_sums(line, snapshot);
  }
  return "";
}

// First snapshots are those that the agents have, `initial_step`; where they know none, there is none here.
void TensorMerger::follow(std::optional<int64_t> initial_step, TensorSnapshot* snapshot) {
  if (is_anew_) {
    goes_on_ = snapshot->step > static_cast<int64_t>(snapshot->interval);
    series_.begin_anew(goes_on_);
    is_anew_ = false;
  }
  if (initial_step.value_or(-1) != series_.initial_step(snapshot->key)) series_.forget_initial(snapshot->key);
  series_.take(!goes_on_, snapshot);
  series_.pass(snapshot->step);
  for (const PoolSnapshot& pool : series_.completed()) {
    models_.push_back(model_line(tensor_->run, pool));
    models_.back().scope = kJob;
  }
}

std::string TensorMerger::take(const std::vector<NodeLine>& nodes) {
  tensor_.reset();
  models_.clear();
  event_.reset();
  std::vector<const NodeLine*> parts = different(nodes);
  const auto whole =
      std::find_if(parts.begin(), parts.end(), [](const auto* each) { return is_whole(each->line); });
  if (whole != parts.end()) parts = {*whole};
  uint64_t elements = 0;
  bool has_histograms = true;
  for (const NodeLine* part : parts) {
    elements += *part->line.elements;
    has_histograms &= !part->line.histogram.empty();
  }
  const bool is_complete = !parts.empty() && elements == parts[0]->line.whole_elements;
  if (!is_complete || (!has_histograms && whole == parts.end())) return "";
  if (whole != parts.end() && !has_histograms) {
    tensor_ = parts[0]->line;
  } else {
    TensorSnapshot snapshot;
    if (const std::string problem = put_together(parts, &snapshot); !problem.empty()) return problem;
    tensor_ = parts[0]->line;
    const std::string dtype = tensor_->dtype;
    follow(parts[0]->line.initial_step, &snapshot);
    if (!is_whole(*tensor_)) tensor_ = tensor_line(tensor_->run, snapshot, false);
    tensor_->dtype = dtype;
  }
  tensor_->scope = kJob;
  tensor_->histogram.clear();
  add_ranks(nodes, &*tensor_);
  return "";
}

}  // namespace foreshock::cli
