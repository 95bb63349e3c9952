#include "shadow/bias.h"

#include <algorithm>
#include <cmath>

namespace foreshock {

void BiasPool::add(const BiasCluster& cluster, const BiasSums& sums) {
  if (!std::isfinite(sums.numerator) || !(sums.denominator > 0) || !std::isfinite(sums.denominator)) return;
  entries_[next_] = {cluster, sums};
  next_ = (next_ + 1) % kSlices;
  size_ = std::min(size_ + 1, kSlices);
}

std::optional<Bias> BiasPool::bias() const {
  if (size_ == 0) return std::nullopt;
  std::array<Entry, kSlices> clusters;
  size_t count = 0;
  BiasSums all;
  for (size_t i = 0; i < size_; ++i) {
    const Entry& entry = entries_[i];
    all.numerator += entry.sums.numerator;
    all.denominator += entry.sums.denominator;
    const auto end = clusters.begin() + count;
    const auto found =
        std::find_if(clusters.begin(), end, [&](const Entry& e) { return e.cluster == entry.cluster; });
    if (found == end) {
      clusters[count++] = entry;
    } else {
      found->sums.numerator += entry.sums.numerator;
      found->sums.denominator += entry.sums.denominator;
    }
  }
  Bias result = {all.numerator / all.denominator, std::nullopt, static_cast<int>(size_),
                 static_cast<int>(count)};
  if (count < kMinClusters) return result;
  double squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const double error = clusters[i].sums.numerator - result.ulp * clusters[i].sums.denominator;
    squares += error * error;
  }
  const double deviation = std::sqrt(squares * count / (count - 1)) / all.denominator;
  if (deviation > 0) result.z = result.ulp / deviation;
  return result;
}

}  // namespace foreshock
