#include "detect/limit.h"

#include <algorithm>

namespace foreshock {

double Limit::observe(const DetectorInfo& info, double value) {
  last_.add(value);
  double largest = 0, second = 0;
  const size_t count = std::min<size_t>(last_.size(), info.learning);
  for (size_t back = 0; back < count; ++back) {
    const double x = last_.latest(back);
    second = std::max(second, std::min(x, largest));
    largest = std::max(largest, x);
  }
  return std::min(second / info.warn, 1e6);
}

}  // namespace foreshock
