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

// A figure of the agent that is not finite is infinite. It was written as null, and is NaN in a line that was
// read.
SampleLine with_infinite_figures(SampleLine line) {
  SampleLine::visit(line, [](const char*, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, RecordNumber>)
      if (value && std::isnan(*value)) value = std::numeric_limits<double>::infinity();
  });
  return line;
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
  foreshock::observe(with_infinite_figures(line), &rank);
  const uint32_t tensor = tensor_of(line);
  rank.judged[pass_of(tensor)] += !is_key_gradient(tensor);
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
