// A quantity beyond a fixed limit, seen twice.
#ifndef FORESHOCK_DETECT_LIMIT_H_
#define FORESHOCK_DETECT_LIMIT_H_

#include "detect/thresholds.h"
#include "detect/window.h"

namespace foreshock {

// One value may be beyond by chance; two of the last info.learning (64 at most) are not.
class Limit {
 public:
  // The second largest of the last values over the limit, negative values as 0.
  double observe(const DetectorInfo& info, double value);

  template <class State>
  void fields(State& state) {
    last_.fields(state);
  }

 private:
  Window<64> last_;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_LIMIT_H_
