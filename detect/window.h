// The last values of a series, and their summary.
#ifndef FORESHOCK_DETECT_WINDOW_H_
#define FORESHOCK_DETECT_WINDOW_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace foreshock {

// Statistics of the values in a window. std is the sample standard deviation (n - 1); 0 for one value.
struct WindowSummary {
  double min, max, mean, std;
  size_t count;
};

// The last kCapacity finite values. NaN and Inf are only counted. summary() computes from the values each
// time, so rounding errors of removed values do not accumulate.
template <size_t kCapacity>
class Window {
 public:
  void add(double x) {
    if (!std::isfinite(x)) {
      ++nonfinite_;
      return;
    }
    values_[next_] = x;
    next_ = (next_ + 1) % kCapacity;
    size_ = std::min(size_ + 1, kCapacity);
  }

  void clear() { size_ = next_ = 0; }

  size_t size() const { return size_; }
  bool full() const { return size_ == kCapacity; }
  // Number of NaN and Inf in the whole series, not only in the window.
  uint64_t nonfinite() const { return nonfinite_; }

  // The kept values, in no particular order; valid until the next add().
  const double* data() const { return values_.data(); }

  // The value added `back` values ago, 0 being the last one; back < size().
  double latest(size_t back) const { return values_[(next_ + kCapacity - 1 - back) % kCapacity]; }

  // The n-th largest of the last `last` values, n from 1 to kCapacity; -Inf if there are fewer. It exceeds a
  // limit if n of these values do.
  double nth_largest(size_t n, size_t last = kCapacity) const {
    std::array<double, kCapacity> largest;
    largest.fill(-INFINITY);
    for (size_t back = 0; back < std::min(size_, last); ++back) {
      double x = latest(back);
      for (size_t k = 0; k < n; ++k)
        if (x > largest[k]) std::swap(x, largest[k]);
    }
    return largest[n - 1];
  }

  // Absent while the window is empty. Very large values are scaled first, so that nothing overflows.
  std::optional<WindowSummary> summary() const {
    if (size_ == 0) return std::nullopt;
    const auto [min, max] = std::minmax_element(values_.begin(), values_.begin() + size_);
    const double largest = std::max(std::fabs(*min), std::fabs(*max));
    const double unit = largest > 0x1p500 ? 0x1p-520 : 1;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < size_; ++i) sum += values_[i] * unit;
    const double mean = sum / size_;
    for (size_t i = 0; i < size_; ++i) squares += (values_[i] * unit - mean) * (values_[i] * unit - mean);
    const double std = size_ > 1 ? std::sqrt(squares / (size_ - 1)) : 0;
    return WindowSummary{*min, *max, mean / unit, std / unit, size_};
  }

  template <class State>
  void fields(State& state) {
    uint64_t size = size_, next = next_;
    state(size);
    state(next);
    state(nonfinite_);
    state.require(size <= kCapacity && next < kCapacity && (size == kCapacity || next == size));
    // require() only marks the state as invalid, so size_ and next_ must be limited here too.
    size_ = size <= kCapacity ? static_cast<size_t>(size) : 0;
    next_ = next < kCapacity ? static_cast<size_t>(next) : 0;
    for (size_t n = 0; n < size_; ++n) state(values_[n]);
  }

 private:
  std::array<double, kCapacity> values_ = {};
  size_t size_ = 0;
  size_t next_ = 0;
  uint64_t nonfinite_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_WINDOW_H_
