// Which detectors spoke before a loss event: what a reader asks first.
#ifndef FORESHOCK_DETECT_PRECURSORS_H_
#define FORESHOCK_DETECT_PRECURSORS_H_

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <vector>

#include "detect/level.h"
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

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_PRECURSORS_H_
