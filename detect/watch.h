// All detectors of one rank of a run, over all its restarts: values in, events out, and which episodes of
// detectors preceded each loss event.
#ifndef FORESHOCK_DETECT_WATCH_H_
#define FORESHOCK_DETECT_WATCH_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "detect/detector.h"
#include "detect/loss_rules.h"
#include "detect/thresholds.h"

namespace foreshock {

// A time of one detector at one place above quiet.
struct Episode {
  DetectorId detector;
  std::string place, layer;
  Level most = Level::kWatch;  // the highest level of it
  int64_t since_step = 0;      // it began
  int64_t warn_step = -1;      // it warned for the first time; -1: not yet
  int64_t end_step = -1;       // -1: it lasts
};

class Precursors {
 public:
  static constexpr size_t kMost = 128;      // episodes; the oldest that is over goes first, then the oldest
  static constexpr size_t kMostNamed = 16;  // before one event
  static constexpr int64_t kHorizon = 256;  // steps: what was over for longer is no precursor

  // A level has changed.
  void note(DetectorId detector, const std::string& place, const std::string& layer, Level level,
            int64_t step);

  // Those that began before `onset` and lasted to it, or ended at most kHorizon steps before; those that
  // warned first, then the earliest.
  std::vector<Episode> before(int64_t onset) const;

  // In the order in which they began.
  const std::deque<Episode>& episodes() const { return episodes_; }

  // Another stretch of the training begins.
  void clear() { episodes_.clear(); }

  template <class State>
  void fields(State& state);

 private:
  std::deque<Episode> episodes_;
};

// One episode; `id` and `most` in range or the state is refused.
template <class State>
void episode_fields(State& state, Episode& episode) {
  int id = static_cast<int>(episode.detector), most = static_cast<int>(episode.most);
  state(id);
  state(most);
  const bool in_range = id >= 0 && id < static_cast<int>(kDetectors) && most >= 0 && most < kLevels;
  state.require(in_range);
  episode.detector = static_cast<DetectorId>(in_range ? id : 0);
  episode.most = static_cast<Level>(in_range ? most : 0);
  state(episode.place);
  state(episode.layer);
  for (int64_t* step : {&episode.since_step, &episode.warn_step, &episode.end_step}) state(*step);
}

// A list of things that are read and written by `item`.
template <class State, class List, class Item>
void list_fields(State& state, List& list, uint64_t most, const Item& item) {
  if constexpr (State::kReads) {
    list.clear();
    const uint64_t count = state.count(most);
    for (uint64_t n = 0; n < count && state.good(); ++n) item(state, list.emplace_back());
  } else {
    state(static_cast<uint64_t>(list.size()));
    for (auto& each : list) item(state, each);
  }
}

template <class State>
void Precursors::fields(State& state) {
  list_fields(state, episodes_, kMost, episode_fields<State>);
}

// What has happened, in the order in which it was found out.
enum class WatchEventKind : int {
  kLossSpike,              // `step`: the onset
  kDivergence,             // `step`: the onset
  kLossRise,               // `step`: the onset
  kNonfiniteGradientNorm,  // the first step of a stretch
  kResumed,                // the step count has gone back: to `step`, from `value`
  kPrecursor,              // a detector's level has changed to `level`
};
inline constexpr int kWatchEventKinds = 6;
inline constexpr int kLossEventKinds = 3;  // the first ones
const char* name_of(WatchEventKind kind);

struct WatchEvent {
  WatchEventKind kind;
  int64_t step;
  double value;  // that was judged; NaN: it was not finite
  // Of a precursor only:
  DetectorId detector = DetectorId::kCount;
  std::string place, layer;
  Level level = Level::kQuiet;
  double score = 0;
};

// A value that a detector was given, and what it made of it.
struct WatchReading {
  DetectorId detector;
  std::string place;
  int64_t step;
  double value;
  Reading reading;
};

struct LossEventSeen {
  WatchEventKind kind = WatchEventKind::kLossSpike;
  int64_t onset_step = 0, declared_step = 0;
  std::vector<Episode> preceded_by;
};

// Loss events of one kind over all attempts, by their onsets; -1: none.
struct LossCount {
  uint64_t count = 0;
  int64_t first_step = -1, last_step = -1;
};

struct DetectorState {
  Level level = Level::kQuiet;                     // the highest of all places
  std::string layer;                               // one that has it
  int64_t since_step = -1;                         // it has been above quiet there; -1: it is quiet
  int64_t last_warn_step = -1;                     // -1: never
  uint64_t values = 0, watches = 0, warnings = 0;  // given; times that a level has risen to it
  size_t series = 0;                               // that it follows
  uint64_t series_dropped = 0;                     // that its room has no place for, or had to give up
  // The last value of the series nearest to a warning. NaN: there was none since this process started.
  double value = NAN, score = 0;
  std::string value_layer;
  int64_t value_step = -1;
};

// Detectors of single tensors, of which a model has many times as many as layers.
constexpr bool is_per_tensor(DetectorId id) {
  return id == DetectorId::kRmsStaleness || id == DetectorId::kWeightShift;
}

// Every detector has room of its own, so that no series of one can keep out another's. The detectors of the
// loss and of the gradient norm have one series each. Those of layers take in every new layer: when the room
// is full, the series that has been quiet and without a value for longest is given up. Those of tensors
// refuse further ones instead: tensors come in turns, and each would be given up before its next value.
class RankWatch {
 public:
  static constexpr size_t kMostLayers = 4096;           // series of one detector
  static constexpr size_t kMostTensors = 8192;          // likewise
  static constexpr size_t kMostDroppedNames = 1 << 17;  // of one detector; further ones are not counted
  static constexpr size_t kMostLossEvents = 64;

  // An optimizer step has ended. What is not known is absent. Events are appended to `*out`.
  void observe_step(int64_t step, const std::optional<double>& loss,
                    const std::optional<double>& gradient_norm, std::vector<WatchEvent>* out);

  // A value of a series of one detector. `place`: a layer's label or a tensor's name; `layer`: the label (""
  // unknown). `span`: steps that the value covers. A series whose span changes starts to learn again, since
  // its earlier values mean something else.
  Reading observe(DetectorId detector, const std::string& place, const std::string& layer, int64_t step,
                  double value, double control, std::vector<WatchEvent>* out, int64_t span = 0);

  // Of the last loss, if it was one of the last step.
  const LossVerdict& loss_verdict() const { return loss_verdict_; }
  // The last kMostLossEvents.
  const std::deque<LossEventSeen>& loss_events() const { return loss_events_; }
  // `kind`: a loss event. Counts only grow, whatever restarts.
  const LossCount& losses(WatchEventKind kind) const { return losses_[static_cast<size_t>(kind)]; }
  // Of one series; quiet where there is none.
  Level level_of(DetectorId detector, const std::string& place) const;
  // Looks at all places: not for every value.
  std::array<DetectorState, kDetectors> states() const;

  // Every reading from now on is appended to `*readings`; null: none. No part of the state.
  void collect(std::vector<WatchReading>* readings) { readings_ = readings; }

  template <class State>
  void fields(State& state);

 private:
  using Key = std::pair<int, std::string>;
  struct Series {
    Detector detector;
    std::string layer;
    int64_t span = 0;
    uint64_t last_used = 0;  // of used_
    // What it was given last; no part of the state.
    double value = NAN, score = 0;
    int64_t step = -1;
  };
  using SeriesMap = std::map<Key, Series>;

  void observe_loss(int64_t step, double loss, std::vector<WatchEvent>* out);
  void note_loss_event(WatchEventKind kind, int64_t onset, int64_t declared, double loss,
                       std::vector<WatchEvent>* out);
  void resume(int64_t step, std::vector<WatchEvent>* out);
  SeriesMap::iterator series_of(DetectorId detector, const std::string& place, const std::string& layer,
                                int64_t step, std::vector<WatchEvent>* out);
  void give_up_one(DetectorId detector, int64_t step, std::vector<WatchEvent>* out);
  void end_episode(const SeriesMap::value_type& series, int64_t step, double value,
                   std::vector<WatchEvent>* out);
  template <class State>
  void series_fields(State& state);

  SeriesMap series_;
  size_t count_[kDetectors] = {};  // of series_
  uint64_t used_ = 0;              // values so far
  uint64_t given_up_[kDetectors] = {};
  std::unordered_set<uint64_t> refused_[kDetectors];  // hashes of the names of tensors
  LossEventRule loss_rule_;
  LossRiseRule rise_rule_;
  LossVerdict loss_verdict_;
  Precursors precursors_;
  std::deque<LossEventSeen> loss_events_;
  std::array<LossCount, kLossEventKinds> losses_;
  std::array<DetectorState, kDetectors> counts_;  // without level and layer
  bool has_step_ = false, gradient_is_nonfinite_ = false;
  int64_t last_step_ = 0;
  std::vector<WatchReading>* readings_ = nullptr;
};

template <class State>
void RankWatch::series_fields(State& state) {
  if constexpr (State::kReads) {
    series_.clear();
    std::fill(std::begin(count_), std::end(count_), size_t{0});
    const uint64_t count = state.count(kDetectors * std::max(kMostLayers, kMostTensors));
    for (uint64_t n = 0; n < count && state.good(); ++n) {
      int id = 0;
      std::string place, layer;
      state(id);
      state(place);
      state(layer);
      state.require(id >= 0 && id < static_cast<int>(kDetectors));
      if (!state.good()) return;
      Series series = {Detector(static_cast<DetectorId>(id)), std::move(layer)};
      state(series.span);
      state(series.last_used);
      series.detector.fields(state);
      count_[id] += series_.insert_or_assign({id, std::move(place)}, std::move(series)).second;
    }
  } else {
    state(static_cast<uint64_t>(series_.size()));
    for (auto& [key, series] : series_) {
      state(key.first);
      state(key.second);
      state(series.layer);
      state(series.span);
      state(series.last_used);
      series.detector.fields(state);
    }
  }
}

template <class State>
void RankWatch::fields(State& state) {
  series_fields(state);
  loss_rule_.fields(state);
  rise_rule_.fields(state);
  precursors_.fields(state);
  list_fields(state, loss_events_, kMostLossEvents, [](State& to, LossEventSeen& seen) {
    int kind = static_cast<int>(seen.kind);
    to(kind);
    to.require(kind >= 0 && kind < kWatchEventKinds);
    seen.kind = static_cast<WatchEventKind>(kind >= 0 && kind < kWatchEventKinds ? kind : 0);
    to(seen.onset_step);
    to(seen.declared_step);
    list_fields(to, seen.preceded_by, Precursors::kMostNamed, episode_fields<State>);
  });
  for (DetectorState& each : counts_) {
    state(each.last_warn_step);
    for (uint64_t* count : {&each.values, &each.watches, &each.warnings}) state(*count);
  }
  state(has_step_);
  state(gradient_is_nonfinite_);
  state(last_step_);
  for (LossCount& each : losses_) {
    state(each.count);
    state(each.first_step);
    state(each.last_step);
  }
  state(used_);
  for (uint64_t& number : given_up_) state(number);
}

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_WATCH_H_
