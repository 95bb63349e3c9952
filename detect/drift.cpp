#include "detect/drift.h"

#include <algorithm>
#include <cmath>

namespace foreshock {

double Drift::observe(const DetectorInfo& info, double value, double control) {
  const bool learned = spread_.count() >= info.learning && spread_.std() > 0;
  spread_.add(value, info.memory, info.learning);
  recent_.add(value, kRecent, UINT64_MAX);
  const double spread = std::max(spread_.std(), recent_.std());
  if (!learned) return 0;
  const double slack = info.recent, most = 2 * info.warn;
  const auto scaled = [&](double x) { return std::clamp(x / spread, -kMost, kMost); };
  up_.add(scaled(value), slack, most, value);
  down_.add(-scaled(value), slack, most, -value);
  control_up_.add(scaled(control), slack, most, control);
  control_down_.add(-scaled(control), slack, most, -control);
  const auto score = [&](const Cusum& side, const Cusum& other) {
    const double statistic = std::max(side.sum() - other.sum(), 0.0) / info.warn;
    return info.least > 0 ? std::min(statistic, std::max(side.mean(), 0.0) / info.least) : statistic;
  };
  return std::max(score(up_, control_up_), score(down_, control_down_));
}

}  // namespace foreshock
