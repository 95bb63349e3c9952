// One detector on one series: what the table says, with the state that it needs.
#ifndef FORESHOCK_DETECT_DETECTOR_H_
#define FORESHOCK_DETECT_DETECTOR_H_

#include <variant>

#include "detect/drift.h"
#include "detect/growth.h"
#include "detect/level.h"
#include "detect/limit.h"
#include "detect/shift.h"
#include "detect/state.h"

namespace foreshock {

// Pure: the readings follow from the values in the order in which they come. No clock, no input, no heap.
class Detector {
 public:
  explicit Detector(DetectorId id);

  // A value that is not finite, or whose control is not, changes nothing and reads as before with the score
  // 0: others count and report those. `step` is only a coordinate; it may go back.
  Reading observe(int64_t step, double value, double control = 0);

  Level level() const { return rule_.level(); }
  DetectorId id() const { return id_; }

  // Everything but the id.
  template <class State>
  void fields(State& state) {
    std::visit([&](auto& statistic) { statistic.fields(state); }, statistic_);
    rule_.fields(state);
  }

 private:
  DetectorId id_;
  std::variant<Drift, Shift, Limit, Growth> statistic_;
  LevelRule rule_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_DETECTOR_H_
