// Page's cumulative sum: the standard test for a small shift that lasts.
#ifndef FORESHOCK_DETECT_CUSUM_H_
#define FORESHOCK_DETECT_CUSUM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace foreshock {

// One side: S = max(0, S + z - slack), for z of unit spread and mean 0 when all is well. The sum is held at
// `most`, so that it comes down in reasonable time when the shift is over.
class Cusum {
 public:
  void add(double z, double slack, double most, double value) {
    sum_ = std::min(sum_ + z - slack, most);
    ++count_;
    total_ += value;
    if (sum_ > 0) return;
    sum_ = total_ = 0;
    count_ = 0;
  }

  double sum() const { return sum_; }
  // Mean of the values since the sum was 0 for the last time: an estimate of the shift.
  double mean() const { return count_ > 0 ? total_ / static_cast<double>(count_) : 0; }

  template <class State>
  void fields(State& state) {
    state(sum_);
    state(total_);
    state(count_);
  }

 private:
  double sum_ = 0, total_ = 0;
  uint64_t count_ = 0;
};

// Values until a one-sided CUSUM of independent normal values reaches `threshold` although nothing has
// shifted, on average: Siegmund's approximation (Sequential Analysis, 1985, 2.6), good to a few percent. Two
// sides: half of it.
inline double cusum_run_length(double slack, double threshold) {
  const double b = 2 * slack * (threshold + 1.166);
  return (std::exp(b) - b - 1) / (2 * slack * slack);
}

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_CUSUM_H_
