// A small signed error that lasts, whatever its size beside the noise of single values.
#ifndef FORESHOCK_DETECT_DRIFT_H_
#define FORESHOCK_DETECT_DRIFT_H_

#include <initializer_list>

#include "detect/baseline.h"
#include "detect/cusum.h"
#include "detect/thresholds.h"

namespace foreshock {

// The mean is 0 when all is well, by the meaning of the series; only the spread is learned, about the mean of
// the values themselves, so that a bias which is there from the start is still one. Noise that swells is no
// drift: the spread is the larger one of what was learned and of the last kRecent values. No single value
// counts for more than kMost standard deviations.
class Drift {
 public:
  static constexpr double kMost = 4;
  static constexpr double kRecent = 8;

  // The score. `control`: the same quantity of the rounded reference (0 where there is none): what the
  // control sums up to is taken off.
  double observe(const DetectorInfo& info, double value, double control);

  template <class State>
  void fields(State& state) {
    spread_.fields(state);
    recent_.fields(state);
    for (Cusum* one : {&up_, &down_, &control_up_, &control_down_}) one->fields(state);
  }

 private:
  Baseline spread_, recent_;
  Cusum up_, down_, control_up_, control_down_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_DRIFT_H_
