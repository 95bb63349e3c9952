// Collects data for a report from record lines: attention errors, detectors' inputs (Signals), steps (Trail).
#include "cli/report_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "detect/detector.h"

namespace foreshock::cli {
namespace {

enum Curve { kForward, kBackward, kKeys };  // indexes in kCurves; kKeys: dK and dV
constexpr History::Column kCurves[] = {
    {"forward", History::Keep::kMax}, {"backward", History::Keep::kMax}, {"keys", History::Keep::kMax}};
constexpr History::Column kLayerCurve[] = {{"error", History::Keep::kMax}};

}  // namespace

AttentionErrors::AttentionErrors() : curve_(kCurves, kPoints) {}

void AttentionErrors::take(const SampleLine& line) {
  if (!line.step) return;
  if (!line.fused_ratio || !std::isfinite(*line.fused_ratio)) return;
  const double error = *line.fused_ratio / ratio_limit_of(line);  // as in the agent's alarm
  const uint32_t tensor = tensor_of(line);
  curve_.add(*line.step, is_key_gradient(tensor) ? kKeys : tensor == 0 ? kForward : kBackward, error);
  auto layer = layers_.find(line.layer);
  if (layer == layers_.end() && layers_.size() < kMostLayers)
    layer = layers_.try_emplace(line.layer, kLayerCurve, kLayerPoints).first;
  if (layer != layers_.end()) layer->second.add(*line.step, 0, error);
  ++largest_.slices;
  if (error <= largest_.value) return;
  largest_.layer = line.layer;
  largest_.tensor = kJudgedTensorNames[tensor];
  largest_.value = error;
  largest_.at_step = *line.step;
}

HistoryTable AttentionErrors::curve() const {
  HistoryTable table;
  curve_.copy_to(&table);
  return table;
}

std::vector<HistoryTable> AttentionErrors::layers() const {
  std::vector<HistoryTable> tables;
  for (const auto& [layer, history] : layers_) {
    tables.emplace_back().layer = layer;
    history.copy_to(&tables.back());
  }
  return tables;
}

void Signals::take(const std::string& layer, const std::vector<WatchReading>& readings) {
  for (const WatchReading& reading : readings) {
    std::set<std::string>& layers = layers_[static_cast<size_t>(reading.detector)];
    if (!layer.empty() && layers.size() < kMostSeries) layers.insert(layer);
    const std::pair key(static_cast<int>(reading.detector), reading.place);
    const auto found = series_.find(key);
    // The number of series of tensors, or of other series. Each kind has its own limit.
    size_t& count = is_per_tensor(reading.detector) ? tensors_ : others_;
    if (found == series_.end() && count >= kMostSeries) continue;
    count += found == series_.end();  // 1 for a new series
    Series& series = found != series_.end() ? found->second : series_[key];
    series.layer = layer;
    series.points.push_back({reading.step, reading.value, reading.reading.score});
    if (series.points.size() > kMostPoints) series.points.pop_front();
  }
}

// A layer may have several series of a detector, one per tensor. Selects the one that has the highest score
// from `first` to `onset`, and returns its finite points from `first` to `last`.
std::vector<SignalPoint> Signals::around(DetectorId detector, const std::string& layer, int64_t first,
                                         int64_t onset, int64_t last) const {
  const Series* selected = nullptr;
  double highest = -1;  // below every score
  for (auto at = series_.lower_bound({static_cast<int>(detector), ""}); at != series_.end(); ++at) {
    if (at->first.first != static_cast<int>(detector)) break;
    if (at->second.layer != layer) continue;
    for (const SignalPoint& point : at->second.points) {
      if (point.step < first || point.step > onset || !(point.score > highest)) continue;
      highest = point.score;
      selected = &at->second;
    }
  }
  std::vector<SignalPoint> points;
  if (selected == nullptr) return points;
  for (const SignalPoint& point : selected->points)
    if (point.step >= first && point.step <= last && std::isfinite(point.value)) points.push_back(point);
  return points;
}

const std::set<std::string>& Signals::layers(DetectorId detector) const {
  return layers_[static_cast<size_t>(detector)];
}

std::set<std::string> Signals::layers() const {
  std::set<std::string> all;
  for (const std::set<std::string>& of_detector : layers_) all.insert(of_detector.begin(), of_detector.end());
  return all;
}

int64_t steps_between(int64_t a, int64_t b) {
  int64_t difference = 0;
  if (!__builtin_sub_overflow(b, a, &difference)) return difference;
  return b > a ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();  // overflow
}

bool Trail::goes_back(const StepLine& line) const {
  return line.step && !attempts_.empty() && *line.step < attempts_.back().last;
}

void Trail::add(const StepLine& line) {
  if (!line.step) return;
  const bool is_other_process = process_begins_ && !attempts_.empty();
  process_begins_ = false;
  // A process that goes back begins a new attempt below. Any other one continues the last attempt.
  if (is_other_process && !goes_back(line) && continued_at_.size() < kMostAttempts)
    continued_at_.push_back(*line.step);
  if (attempts_.empty() || goes_back(line)) {
    // Beyond kMostAttempts, the last attempt stands for all further ones.
    if (attempts_.size() < kMostAttempts) attempts_.push_back({*line.step, *line.step});
    attempts_.back().last = *line.step;
    recent_.clear();
  }
  ++steps_;
  Attempt& attempt = attempts_.back();
  if (const int64_t gap = steps_between(attempt.last, *line.step); gap > 1)
    missed_ += static_cast<uint64_t>(gap) - 1;  // the steps in between are not in the record
  attempt.last = *line.step;
  recent_.push_back({*line.step, line.loss, line.gradient_norm, line.learning_rate, line.batch_id,
                     line.skipped_steps, line.sample_interval_steps});
  if (recent_.size() > kMostRecent) recent_.pop_front();
}

}  // namespace foreshock::cli
