// A positive quantity that is suddenly far from where it used to be.
#ifndef FORESHOCK_DETECT_SHIFT_H_
#define FORESHOCK_DETECT_SHIFT_H_

#include "detect/baseline.h"
#include "detect/thresholds.h"

namespace foreshock {

// Logarithms, so that a factor counts the same at every size. The recent mean (exponential, of `recent`
// values) against the baseline of the values before it, in standard errors.
class Shift {
 public:
  // The score; 0 for the wrong direction. A value of 0 or below counts as the smallest there is.
  double observe(const DetectorInfo& info, double value);

  template <class State>
  void fields(State& state) {
    usual_.fields(state);
    state(recent_);
  }

 private:
  Baseline usual_;
  double recent_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_SHIFT_H_
