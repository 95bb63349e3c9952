#include "agent/adviser.h"

#include <algorithm>

namespace foreshock {

void Adviser::note(int64_t rank, const EventLine& event,
                   const std::array<DetectorState, kDetectors>& states) {
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorState& state = states[n];
    Signal& signal = signals_[rank][n];
    const bool is_its = event.detector == kDetectorTable[n].name;
    const bool is_at_level = is_its && event.level == name_of(state.level);
    if (state.level == Level::kQuiet) {
      signal = {};
    } else if (state.level != signal.level) {
      const double score = is_its ? event.score.value_or(0) : 0;
      const std::string& layer = is_at_level ? event.layer : state.layer;
      signal = {state.level, rank, event.step.value_or(0), kDetectorTable[n].name, layer, score};
    } else if (is_its && !is_at_level && event.layer == signal.layer) {
      signal.layer = state.layer;  // it was the first of several, and is over
    }
  }
}

void Adviser::restore(int64_t rank, const std::array<DetectorState, kDetectors>& states) {
  for (size_t n = 0; n < kDetectors; ++n)
    if (states[n].level != Level::kQuiet)
      signals_[rank][n] = {
          states[n].level, rank, std::max<int64_t>(states[n].last_warn_step, 0), kDetectorTable[n].name,
          states[n].layer, 0};
}

Signal Adviser::loudest(const std::set<int64_t>& ranks) const {
  Signal loudest;
  for (const auto& [rank, signals] : signals_) {
    if (!ranks.contains(rank)) continue;
    for (const Signal& signal : signals)
      if (signal.level > loudest.level ||
          (signal.level == loudest.level && signal.since_step < loudest.since_step))
        loudest = signal;
  }
  return loudest;
}

}  // namespace foreshock
