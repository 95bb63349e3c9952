#include "cli/report_model.h"

#include <cmath>
#include <limits>
#include <utility>

namespace foreshock::cli {

void Signals::take(const std::string& layer, const std::vector<WatchReading>& readings) {
  for (const WatchReading& reading : readings) {
    std::set<std::string>& known = layers_[static_cast<size_t>(reading.detector)];
    if (!layer.empty() && known.size() < kMostSeries) known.insert(layer);
    const std::pair key(static_cast<int>(reading.detector), reading.place);
    const auto found = series_.find(key);
    size_t& count = is_per_tensor(reading.detector) ? tensors_ : others_;
    if (found == series_.end() && count >= kMostSeries) continue;
    count += found == series_.end();
    Series& series = found != series_.end() ? found->second : series_[key];
    series.layer = layer;
    series.points.push_back({reading.step, reading.value, reading.reading.score});
    if (series.points.size() > kMostPoints) series.points.pop_front();
  }
}

std::vector<SignalPoint> Signals::around(DetectorId detector, const std::string& layer, int64_t first,
                                         int64_t event, int64_t last) const {
  const Series* loudest = nullptr;
  double highest = -1;
  for (auto at = series_.lower_bound({static_cast<int>(detector), ""}); at != series_.end(); ++at) {
    if (at->first.first != static_cast<int>(detector)) break;
    if (at->second.layer != layer) continue;
    for (const SignalPoint& point : at->second.points) {
      if (point.step < first || point.step > event || !(point.score > highest)) continue;
      highest = point.score;
      loudest = &at->second;
    }
  }
  std::vector<SignalPoint> points;
  if (loudest == nullptr) return points;
  for (const SignalPoint& point : loudest->points)
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
  return b > a ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

bool Trail::goes_back(const StepLine& line) const {
  return line.step && !attempts_.empty() && *line.step < attempts_.back().last;
}

void Trail::add(const StepLine& line) {
  if (!line.step) return;
  const bool is_other_process = std::exchange(process_begins_, false) && !attempts_.empty();
  if (is_other_process && !goes_back(line) && went_on_.size() < kMostAttempts) went_on_.push_back(*line.step);
  if (attempts_.empty() || goes_back(line)) {
    if (attempts_.size() < kMostAttempts) attempts_.push_back({*line.step, *line.step});
    attempts_.back().last = *line.step;
    recent_.clear();
  }
  ++steps_;
  Attempt& attempt = attempts_.back();
  if (const int64_t gap = steps_between(attempt.last, *line.step); gap > 1)
    missed_ += static_cast<uint64_t>(gap) - 1;
  attempt.last = *line.step;
  recent_.push_back({*line.step, line.loss, line.gradient_norm, line.learning_rate, line.batch_id,
                     line.skipped_steps, line.sample_interval_steps});
  if (recent_.size() > kMostRecent) recent_.pop_front();
}

}  // namespace foreshock::cli
