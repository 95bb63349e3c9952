// Runs the detectors and loss rules of one rank. A detector has a series for each `place` (layer or tensor).
// While a series is above level quiet, it has an episode, which note() begins, updates and ends.
#include "detect/watch.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace foreshock {

// Records that a series has changed to `level`. At the limit of episodes, drops the oldest one that is over.
void Precursors::note(DetectorId detector, const std::string& place, const std::string& layer, Level level,
                      int64_t step) {
  const auto lasting = std::find_if(episodes_.begin(), episodes_.end(), [&](const Episode& each) {
    return each.end_step < 0 && each.detector == detector && each.place == place;
  });
  if (level == Level::kQuiet) {
    if (lasting != episodes_.end()) lasting->end_step = step;
    return;
  }
  Episode* episode = lasting != episodes_.end() ? &*lasting : nullptr;
  if (episode == nullptr) {
    episodes_.push_back({detector, place, layer, level, step, -1, -1});
    episode = &episodes_.back();
  }
  episode->most = std::max(episode->most, level);
  if (level == Level::kWarn && episode->warn_step < 0) episode->warn_step = step;
  if (episodes_.size() <= kMost) return;
  const auto over = std::find_if(episodes_.begin(), episodes_.end(),
                                 [](const Episode& each) { return each.end_step >= 0; });
  episodes_.erase(over != episodes_.end() ? over : episodes_.begin());
}

// Returns the episodes that began before `onset` and lasted until kHorizon steps before it, or longer. Those
// with the highest level come first.
std::vector<Episode> Precursors::before(int64_t onset) const {
  std::vector<Episode> found;
  for (const Episode& each : episodes_) {
    // Unsigned, since the signed difference of arbitrary steps could overflow.
    const bool is_recent = each.end_step < 0 || each.end_step >= onset ||
                           static_cast<uint64_t>(onset) - static_cast<uint64_t>(each.end_step) <= kHorizon;
    if (each.since_step < onset && is_recent) found.push_back(each);
  }
  std::stable_sort(found.begin(), found.end(), [](const Episode& a, const Episode& b) {
    return a.most != b.most ? a.most > b.most : a.since_step < b.since_step;
  });
  if (found.size() > kMostNamed) found.resize(kMostNamed);
  return found;
}

namespace {

// Places and layers have names from trainers, which may choose any length. Names are cut to this many bytes.
constexpr size_t kLongestName = 256;
static_assert(kLongestName <= StateReader::kLongestText);

}  // namespace

const char* name_of(WatchEventKind kind) {
  constexpr const char* kNames[kWatchEventKinds] = {
      "loss_spike", "divergence", "loss_rise", "nonfinite_gradient_norm", "resumed", "precursor"};
  return kNames[static_cast<int>(kind)];
}

void RankWatch::observe_step(int64_t step, const std::optional<double>& loss,
                             const std::optional<double>& gradient_norm, std::vector<WatchEvent>* out,
                             const std::optional<double>& learning_rate,
                             const std::optional<uint64_t>& skipped_steps,
                             const std::map<std::string, double>& other_losses) {
  if (has_step_ && step < last_step_) resume(step, out);
  trail_.add(step, {gradient_norm, learning_rate, skipped_steps, loss});
  has_step_ = true;
  last_step_ = step;
  loss_verdict_ = {};
  for (const auto& [name, other] : other_losses) observe_other_loss(step, name, other, out);
  if (loss) observe_loss(step, *loss, out);
  if (!gradient_norm) return;
  const bool finite = std::isfinite(*gradient_norm);
  if (!finite && !gradient_is_nonfinite_)
    out->push_back({.kind = WatchEventKind::kNonfiniteGradientNorm,
                    .step = step,
                    .value = NAN,
                    .place = {},
                    .layer = {}});
  gradient_is_nonfinite_ = !finite;
  observe(DetectorId::kGradientNorm, "", "", step, *gradient_norm, 0, out);
  observe(DetectorId::kGradientGrowth, "", "", step, *gradient_norm, 0, out);
}

// The training has returned to an earlier step. Resets all detectors and rules: their baselines may not fit.
void RankWatch::resume(int64_t step, std::vector<WatchEvent>* out) {
  out->push_back({.kind = WatchEventKind::kResumed,
                  .step = step,
                  .value = static_cast<double>(last_step_),
                  .place = {},
                  .layer = {}});
  trail_.go_back(last_step_, step);
  series_.clear();
  for (auto& heap : removable_) heap.clear();
  std::fill(std::begin(count_), std::end(count_), size_t{0});
  for (auto& names : refused_) names.clear();
  precursors_.clear();
  loss_rule_.restart();
  rise_rule_.restart();
  other_losses_.clear();
  gradient_is_nonfinite_ = false;
}

void RankWatch::observe_loss(int64_t step, double loss, std::vector<WatchEvent>* out) {
  if (!std::isfinite(loss))
    loss = NAN;  // a record does not distinguish NaN and Inf, and a replay must give the same events
  loss_verdict_ = loss_rule_.observe(step, loss, takes_turns());
  if (loss_verdict_.event) {
    const bool spike = loss_verdict_.event->kind == LossEventKind::kSpike;
    note_loss_event(spike ? WatchEventKind::kLossSpike : WatchEventKind::kDivergence, "loss",
                    loss_verdict_.event->onset_step, step, loss, out);
  }
  if (takes_turns()) return;
  const std::optional<int64_t> onset =
      rise_rule_.observe(step, loss, loss_verdict_.high, loss_verdict_.in_event);
  if (onset) note_loss_event(WatchEventKind::kLossRise, "loss", *onset, step, loss, out);
}

void RankWatch::observe_other_loss(int64_t step, const std::string& name, double loss,
                                   std::vector<WatchEvent>* out) {
  if (!other_losses_.contains(name) && other_losses_.size() >= kMostOtherLosses) return;
  const LossVerdict verdict = other_losses_[name].observe(step, loss, /*takes_turns=*/true);
  if (verdict.event)
    note_loss_event(WatchEventKind::kDivergence, name, verdict.event->onset_step, step, NAN, out);
}

void RankWatch::note_loss_event(WatchEventKind kind, const std::string& name, int64_t onset, int64_t declared,
                                double loss, std::vector<WatchEvent>* out) {
  LossCount& count = losses_[static_cast<size_t>(kind)];
  if (count.count++ == 0) count.first_step = onset;
  count.last_step = onset;
  loss_events_.push_back({kind, name, onset, declared, precursors_.before(onset), trail_.before(onset)});
  if (loss_events_.size() > kMostLossEvents) loss_events_.pop_front();
  out->push_back({.kind = kind, .step = onset, .value = loss, .place = {}, .layer = {}});
}

// Removes one series of the detector: among those at the lowest level, the one without a value for longest.
void RankWatch::give_up_one(DetectorId detector, int64_t step, std::vector<WatchEvent>* out) {
  const int id = static_cast<int>(detector);
  auto& heap = removable_[id];
  if (heap.empty() ||
      heap.size() > 4 * count_[id]) {  // 4: entries of series that note_lower_order() repeated
    heap.clear();
    for (auto at = series_.lower_bound({id, ""}); at != series_.end() && at->first.first == id; ++at)
      heap.emplace_back(order_of(at->second), at->first.second);
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto found = series_.find({id, heap.back().second});
    const bool is_removed = found == series_.end();
    if (!is_removed && heap.back().first < order_of(found->second)) {
      heap.back().first = order_of(found->second);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
      continue;
    }
    heap.pop_back();
    if (is_removed) continue;
    end_episode(*found, step, NAN, out);
    series_.erase(found);
    --count_[id];
    ++given_up_[id];
    return;
  }
}

// Must be called for a new series, and if the level of a series has fallen.
void RankWatch::note_lower_order(const SeriesMap::value_type& series) {
  auto& heap = removable_[series.first.first];
  if (heap.empty()) return;
  heap.emplace_back(order_of(series.second), series.first.second);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

// Ends the episode of a series that will be removed or learn again; the episode would otherwise never end.
void RankWatch::end_episode(const SeriesMap::value_type& series, int64_t step, double value,
                            std::vector<WatchEvent>* out) {
  const auto& [key, of] = series;  // key: detector and place; of: the Series
  if (of.detector.level() == Level::kQuiet) return;
  precursors_.note(of.detector.id(), key.second, of.layer, Level::kQuiet, step);
  out->push_back(
      {WatchEventKind::kPrecursor, step, value, of.detector.id(), key.second, of.layer, Level::kQuiet, 0});
}

// Finds or adds a series. At its limit, a detector of tensors refuses new series (returns end()), and a
// detector of layers removes another series.
RankWatch::SeriesMap::iterator RankWatch::series_of(DetectorId detector, const std::string& place,
                                                    const std::string& layer, int64_t step,
                                                    std::vector<WatchEvent>* out) {
  const auto id = static_cast<size_t>(detector);
  const Key key = {static_cast<int>(detector), place.substr(0, kLongestName)};
  const auto found = series_.find(key);
  if (found != series_.end()) return found;
  if (is_per_tensor(detector) && count_[id] >= kMostTensors) {
    if (refused_[id].size() < kMostDroppedNames) refused_[id].insert(std::hash<std::string>()(key.second));
    return series_.end();
  }
  if (!is_per_tensor(detector) && count_[id] >= kMostLayers) give_up_one(detector, step, out);
  ++count_[id];
  const auto added = series_.emplace(key, Series{Detector(detector), layer.substr(0, kLongestName)}).first;
  note_lower_order(*added);
  return added;
}

// Gives a value to its series, and reports a change of the level. `control`: the same quantity for the exact
// result, rounded to the trainer's format; only detectors of drift use it. `span`: number of steps that the
// value covers; if it changes, the series learns again.
Reading RankWatch::observe(DetectorId detector, const std::string& place, const std::string& layer,
                           int64_t step, double value, double control, std::vector<WatchEvent>* out,
                           int64_t span) {
  const auto found = series_of(detector, place, layer, step, out);
  if (found == series_.end()) return {};
  const std::string& name = found->first.second;
  Series& series = found->second;
  series.last_used = ++used_;
  if (series.span != span) {
    end_episode(*found, step, value, out);
    series.detector = Detector(detector);
    series.span = span;
    note_lower_order(*found);
  }
  const Level before = series.detector.level();
  const Reading reading = series.detector.observe(step, value, control);
  if (std::isfinite(value)) {
    series.value = value;
    series.score = reading.score;
    series.step = step;
  }
  if (readings_ != nullptr) readings_->push_back({detector, place, step, value, reading});
  DetectorState& state = counts_[static_cast<size_t>(detector)];
  ++state.values;
  if (reading.level == before) return reading;
  if (reading.level < before) note_lower_order(*found);
  state.watches += reading.level == Level::kWatch && before == Level::kQuiet;
  state.warnings += reading.level == Level::kWarn;
  if (reading.level == Level::kWarn) state.last_warn_step = step;
  precursors_.note(detector, name, series.layer, reading.level, step);
  out->push_back(
      {WatchEventKind::kPrecursor, step, value, detector, name, series.layer, reading.level, reading.score});
  return reading;
}

Level RankWatch::level_of(DetectorId detector, const std::string& place) const {
  const auto found = series_.find({static_cast<int>(detector), place.substr(0, kLongestName)});
  return found != series_.end() ? found->second.detector.level() : Level::kQuiet;
}

// For each detector: its counts, the last value of the series with the highest score, the highest level, and
// the first step of an open episode in the layer with that level.
std::array<DetectorState, kDetectors> RankWatch::states() const {
  std::array<DetectorState, kDetectors> states = counts_;
  for (size_t n = 0; n < kDetectors; ++n) {
    states[n].series = count_[n];
    states[n].series_dropped = given_up_[n] + refused_[n].size();
  }
  for (const auto& [key, series] : series_) {
    DetectorState& state = states[static_cast<size_t>(key.first)];
    if (series.step >= 0 && (state.value_step < 0 || series.score > state.score)) {
      state.value = series.value;
      state.score = series.score;
      state.value_layer = series.layer;
      state.value_step = series.step;
    }
    if (series.detector.level() <= state.level) continue;
    state.level = series.detector.level();
    state.layer = series.layer;
  }
  for (const Episode& each : precursors_.episodes()) {
    DetectorState& state = states[static_cast<size_t>(each.detector)];
    if (each.end_step < 0 && state.since_step < 0 && each.layer == state.layer)
      state.since_step = each.since_step;
  }
  return states;
}

}  // namespace foreshock
