// What is usual for a series: its mean and spread, learned and slowly followed.
#ifndef FORESHOCK_DETECT_BASELINE_H_
#define FORESHOCK_DETECT_BASELINE_H_

#include <cstdint>

namespace foreshock {

// Mean and variance with exponential forgetting: of the first values the plain ones, later as if of the last
// `memory` ones. Once `learning` values are known, one that lies beyond kClip standard deviations counts as
// if it lay there: a spike does not become usual by itself, and a level that has moved for good does in the
// end, since the spread grows with every clipped value (by 15/(2 memory) each), so that no alarm is locked
// in.
class Baseline {
 public:
  static constexpr double kClip = 4;

  // `x` finite; memory >= 2.
  void add(double x, double memory, uint64_t learning);

  double mean() const { return mean_; }
  double std() const;
  uint64_t count() const { return count_; }

  template <class State>
  void fields(State& state) {
    state(mean_);
    state(variance_);
    state(count_);
  }

 private:
  double mean_ = 0;
  double variance_ = 0;
  uint64_t count_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_BASELINE_H_
