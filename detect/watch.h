// Class RankWatch runs the detectors (detector.h) and loss rules (loss_rules.h) of one rank, over all
// restarts of a run. It takes values, returns events, and finds for each loss event (a spike, divergence or
// rise of the loss) the episodes of detectors that preceded it. A detector has a series of values for each
// layer or weight tensor, or a single one. A series has a level (quiet, watch, warn), which rises if its
// values become unusual.
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

#include "detect/circumstances.h"
#include "detect/detector.h"
#include "detect/loss_rules.h"
#include "detect/state.h"

namespace foreshock {

// A period in which one series of a detector was above level quiet.
struct Episode {
  DetectorId detector;
  std::string place, layer;    // name of the series (a layer's label or a tensor's name); its layer's label
  Level most = Level::kWatch;  // highest level during the episode
  int64_t since_step = 0;      // first step
  int64_t warn_step = -1;      // first step at which it warned; -1: not yet
  int64_t end_step = -1;       // first step at level quiet again; -1: not over
};

// Keeps the episodes of all detectors and finds those that preceded a loss event.
class Precursors {
 public:
  static constexpr size_t kMost = 128;      // episodes kept; the oldest one that is over is dropped first
  static constexpr size_t kMostNamed = 16;  // episodes that before() returns at most
  static constexpr int64_t kHorizon = 256;  // steps from the end of an episode to the onset, at most

  // Records that the level of a series has changed to `level` at `step`.
  void note(DetectorId detector, const std::string& place, const std::string& layer, Level level,
            int64_t step);
  // Returns the episodes that began before step `onset` and either lasted until `onset` or ended at most
  // kHorizon steps before `onset`. Those that warned come first. Both groups are sorted by first step.
  std::vector<Episode> before(int64_t onset) const;

  const std::deque<Episode>& episodes() const { return episodes_; }  // in the order of their first step
  void clear() { episodes_.clear(); }  // called when the training has gone back to an earlier step

  template <class State>
  void fields(State& state);  // saves or restores the members (state.h)

 private:
  std::deque<Episode> episodes_;
};

// The functions ..._fields save or restore objects: `State` is StateWriter or StateReader of state.h, and
// state(x) writes or reads x. The order of the calls is the format. state.require(false) marks the bytes as
// invalid; the functions go on, so they must also limit the values that they use as an index or enum.
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

// Writes or reads a list, by item(state, element) for each element. Refuses lists longer than `most`.
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

// The kinds of events. The comments explain `step`, `value` and `level` of the WatchEvent. The onset of a
// loss event is the step at which it began; the rule declares the event some steps later.
enum class WatchEventKind : int {
  kLossSpike,              // `step` is the onset
  kDivergence,             // `step` is the onset
  kLossRise,               // `step` is the onset
  kNonfiniteGradientNorm,  // `step` is the first of consecutive steps with such a norm
  kResumed,                // the training has gone back to `step` from the step `value`
  kPrecursor,              // a detector's level has changed to `level` at `step`
};
inline constexpr int kWatchEventKinds = 6;
inline constexpr int kLossEventKinds = 3;  // the first three kinds are the loss events
const char* name_of(WatchEventKind kind);

struct WatchEvent {
  WatchEventKind kind;
  int64_t step;
  double value;  // the value that caused the event; NaN: not finite, or a series was removed (RankWatch)
  // Of kPrecursor only (place and layer as in Episode):
  DetectorId detector = DetectorId::kCount;
  std::string place, layer;
  Level level = Level::kQuiet;
  double score = 0;
};

// A value given to a detector, and the detector's level and score after it.
struct WatchReading {
  DetectorId detector;
  std::string place;
  int64_t step;
  double value;
  Reading reading;
};

struct LossEventSeen {
  WatchEventKind kind = WatchEventKind::kLossSpike;
  std::string loss;  // "loss", or the name of the loss of another optimizer
  int64_t onset_step = 0, declared_step = 0;
  std::vector<Episode> preceded_by;
  std::vector<Circumstance> circumstances;  // the earliest first
};

// Number, first onset and last onset of the loss events of one kind, over all restarts; -1: no event.
struct LossCount {
  uint64_t count = 0;
  int64_t first_step = -1, last_step = -1;
};

// The state of one detector over all its series.
struct DetectorState {
  Level level = Level::kQuiet;  // highest level of any series
  std::string layer;            // layer of a series with that level
  int64_t since_step = -1;      // first step of an open episode in that layer; -1: none
  int64_t last_warn_step = -1;  // -1: never
  // Values given to the detector; how often a level has risen from quiet to watch; and how often to warn.
  uint64_t values = 0, watches = 0, warnings = 0;
  size_t series = 0;            // series at present
  uint64_t series_dropped = 0;  // series refused or removed at the limit (RankWatch)
  // The last finite value of the series with the highest score, with its score, layer and step. NaN and step
  // -1: no series has had a finite value since this process started or the step count last went back.
  double value = NAN, score = 0;
  std::string value_layer;
  int64_t value_step = -1;
};

// Whether the detector has a series for each weight tensor. Others have one for each layer, or a single one.
constexpr bool is_per_tensor(DetectorId id) { return id == DetectorId::kWeightShift; }

// All detectors of one rank. Every detector has its own limit of series, so that one detector cannot displace
// the series of another. A detector of layers accepts every new layer. At the limit it first removes one of
// its series at the lowest level, the one whose last value is the oldest. A detector of tensors,
// is_per_tensor(), refuses new series at the limit: tensors are measured in turns, so every series would be
// removed before its next value.
class RankWatch {
 public:
  static constexpr size_t kMostLayers = 4096;           // series of a detector of layers
  static constexpr size_t kMostTensors = 8192;          // series of a detector of tensors
  static constexpr size_t kMostDroppedNames = 1 << 17;  // a detector counts at most this many refused series
  static constexpr size_t kMostLossEvents = 64;
  static constexpr size_t kMostOtherLosses = 16;  // a segment has as many names of numbers

  // Takes the numbers of an ended optimizer step; unknown numbers are absent. Appends events to `*out`. A
  // step below the last one means that the training has gone back: all detectors and rules then start again.
  // `learning_rate` and `skipped_steps` are only used for the circumstances of loss events. `other_losses`:
  // losses of other optimizers with backward passes of their own, by name. From the first one on, until the
  // training goes back, losses are only checked for NaN and Inf (loss_rules.h).
  void observe_step(int64_t step, const std::optional<double>& loss,
                    const std::optional<double>& gradient_norm, std::vector<WatchEvent>* out,
                    const std::optional<double>& learning_rate = {},
                    const std::optional<uint64_t>& skipped_steps = {},
                    const std::map<std::string, double>& other_losses = {});

  // Takes a value of a series of one detector. `place` names the series: a layer's label or a tensor's name.
  // `layer`: the label of the layer, "" if unknown. `control`: the same quantity, computed from the exact
  // result rounded to the trainer's format. Only detectors of a drift (Look::kDrift) use it. `span`: number
  // of steps that the value covers; 0 if it belongs to one step, or if all values of the series cover equally
  // many steps or unknown numbers of them. If the span changes, the series learns
  // again, since its earlier values have another meaning. Appends events to `*out`. A refused series gives a
  // quiet Reading.
  Reading observe(DetectorId detector, const std::string& place, const std::string& layer, int64_t step,
                  double value, double control, std::vector<WatchEvent>* out, int64_t span = 0);

  // The verdict on the last step's loss; empty if that step had none.
  const LossVerdict& loss_verdict() const { return loss_verdict_; }
  // Whether optimizers take turns, each on a loss of its own.
  bool takes_turns() const { return !other_losses_.empty(); }
  // The last kMostLossEvents loss events.
  const std::deque<LossEventSeen>& loss_events() const { return loss_events_; }
  // Counts of a kind of loss event, one of the first kLossEventKinds; restarts do not reset them.
  const LossCount& losses(WatchEventKind kind) const { return losses_[static_cast<size_t>(kind)]; }
  Level level_of(DetectorId detector, const std::string& place) const;  // quiet if there is no such series
  // The states of all detectors. Iterates over all series: do not call it for every value.
  std::array<DetectorState, kDetectors> states() const;

  // From now on appends every reading to `*readings`; null: collects no readings. Not in the saved state.
  void collect(std::vector<WatchReading>* readings) { readings_ = readings; }

  template <class State>
  void fields(State& state);  // saves or restores the members (state.h)

 private:
  using Key = std::pair<int, std::string>;  // detector and place
  struct Series {
    Detector detector;
    std::string layer;
    int64_t span = 0;
    uint64_t last_used = 0;  // what used_ was at the last value of this series
    // The last finite value, its score and its step; not part of the saved state.
    double value = NAN, score = 0;
    int64_t step = -1;
  };
  using SeriesMap = std::map<Key, Series>;

  void observe_loss(int64_t step, double loss, std::vector<WatchEvent>* out);
  void observe_other_loss(int64_t step, const std::string& name, double loss, std::vector<WatchEvent>* out);
  // `name`: see LossEventSeen::loss.
  void note_loss_event(WatchEventKind kind, const std::string& name, int64_t onset, int64_t declared,
                       double loss, std::vector<WatchEvent>* out);
  void resume(int64_t step, std::vector<WatchEvent>* out);
  SeriesMap::iterator series_of(DetectorId detector, const std::string& place, const std::string& layer,
                                int64_t step, std::vector<WatchEvent>* out);
  // How soon a series is removed at the limit of its detector: the one with the smallest order first.
  using Order = std::pair<Level, uint64_t>;  // its level, and when it was used last
  static Order order_of(const Series& series) { return {series.detector.level(), series.last_used}; }
  void give_up_one(DetectorId detector, int64_t step, std::vector<WatchEvent>* out);
  void note_lower_order(const SeriesMap::value_type& series);
  void end_episode(const SeriesMap::value_type& series, int64_t step, double value,
                   std::vector<WatchEvent>* out);
  template <class State>
  void series_fields(State& state);

  SeriesMap series_;
  // By detector: a heap from which give_up_one() takes series, empty until the limit is reached. It has at
  // least one entry for each series, with its order or a smaller one: an order is corrected when its entry is
  // taken. Not in the saved state.
  std::vector<std::pair<Order, std::string>> removable_[kDetectors];
  size_t count_[kDetectors] = {};                     // by detector: number of its series
  uint64_t used_ = 0;                                 // values observed so far, over all series
  uint64_t given_up_[kDetectors] = {};                // by detector: series removed at the limit
  std::unordered_set<uint64_t> refused_[kDetectors];  // hashes of the names of refused series
  LossEventRule loss_rule_;
  LossRiseRule rise_rule_;
  std::map<std::string, LossEventRule> other_losses_;  // of the other optimizers that take turns
  LossVerdict loss_verdict_;
  Precursors precursors_;
  std::deque<LossEventSeen> loss_events_;
  std::array<LossCount, kLossEventKinds> losses_;
  std::array<DetectorState, kDetectors> counts_;           // only the members that fields() saves are used
  bool has_step_ = false, gradient_is_nonfinite_ = false;  // the second is about the last norm observed
  int64_t last_step_ = 0;
  std::vector<WatchReading>* readings_ = nullptr;
  // Not part of the saved state: an event soon after a restart of the agent has fewer circumstances.
  StepTrail trail_;
};

template <class State>
void RankWatch::series_fields(State& state) {
  if constexpr (State::kReads) {
    series_.clear();
    for (auto& heap : removable_) heap.clear();
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
  map_fields(state, other_losses_, kMostOtherLosses);
  precursors_.fields(state);
  list_fields(state, loss_events_, kMostLossEvents, [](State& to, LossEventSeen& seen) {
    int kind = static_cast<int>(seen.kind);
    to(kind);  // one of the first kLossEventKinds kinds, but any kind is harmless here
    to.require(kind >= 0 && kind < kWatchEventKinds);
    seen.kind = static_cast<WatchEventKind>(kind >= 0 && kind < kWatchEventKinds ? kind : 0);
    to(seen.loss);
    to(seen.onset_step);
    to(seen.declared_step);
    list_fields(to, seen.preceded_by, Precursors::kMostNamed, episode_fields<State>);
    list_fields(to, seen.circumstances, kCircumstanceKinds, [](State& each, Circumstance& circumstance) {
      int which = static_cast<int>(circumstance.kind);
      each(which);
      each.require(which >= 0 && which < kCircumstanceKinds);
      circumstance.kind = static_cast<CircumstanceKind>(which >= 0 && which < kCircumstanceKinds ? which : 0);
      each(circumstance.step);
      each(circumstance.from);
      each(circumstance.to);
    });
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
