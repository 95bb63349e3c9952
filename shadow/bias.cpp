// Pools the signed bias of slices (sampled parts of attention calls).
#include "shadow/bias.h"

#include <algorithm>
#include <cmath>

namespace foreshock {

BiasSums excess_bias(const BiasSums& result, const BiasSums& floor) {
  if (!(result.denominator > 0) || !(floor.denominator > 0)) return {};
  const double floor_bias = floor.numerator / floor.denominator;
  return {result.numerator - floor_bias * result.denominator, result.denominator};
}

double unexplained_bias(const BiasSums& result, std::initializer_list<BiasSums> controls) {
  if (!(result.denominator > 0) || !std::isfinite(result.numerator)) return 0;
  double least = 0, most = 0;
  for (const BiasSums& control : controls) {
    if (!(control.denominator > 0) || !std::isfinite(control.numerator)) continue;
    least = std::min(least, control.numerator / control.denominator);
    most = std::max(most, control.numerator / control.denominator);
  }
  const double bias = result.numerator / result.denominator;
  return bias - std::clamp(bias, least, most);
}

// Keeps the last kSlices slices. Ignores a slice whose denominator is below kNegligible times the usual one.
// usual_octave_, the base-2 logarithm of the usual one, rises fast with larger slices and falls slowly.
void BiasPool::add(const BiasCluster& cluster, const BiasSums& sums) {
  if (!std::isfinite(sums.numerator) || !(sums.denominator > 0) || !std::isfinite(sums.denominator)) return;
  constexpr double kRise = 0.5, kFall = 0.05;  // octaves per slice; they balance at about the 90th percentile
  const double octave = std::log2(sums.denominator);
  if (!has_usual_) usual_octave_ = octave;
  has_usual_ = true;
  usual_octave_ += octave > usual_octave_ ? std::min(kRise, octave - usual_octave_) : -kFall;
  if (octave < usual_octave_ + std::log2(kNegligible)) return;
  entries_[next_] = {cluster, sums};
  next_ = (next_ + 1) % kSlices;
  size_ = std::min(size_ + 1, kSlices);
}

// Adds up the slices of each cluster. Returns the number of clusters.
size_t BiasPool::add_up(std::array<BiasSums, kSlices>* clusters) const {
  std::array<BiasCluster, kSlices> known;
  size_t count = 0;
  for (size_t i = 0; i < size_; ++i) {
    const Entry& entry = entries_[i];
    const auto found = std::find(known.begin(), known.begin() + count, entry.cluster);
    const size_t at = found - known.begin();
    if (at == count) {
      known[count++] = entry.cluster;
      (*clusters)[at] = {};
    }
    (*clusters)[at].numerator += entry.sums.numerator;
    (*clusters)[at].denominator += entry.sums.denominator;
  }
  return count;
}

// Returns the bias, all.numerator / all.denominator, and z: the bias divided by its standard error between
// clusters. A cluster's weight is its denominator, limited to `most`. The declaration derives the formulas.
std::optional<Bias> BiasPool::bias() const {
  if (size_ == 0) return std::nullopt;
  std::array<BiasSums, kSlices> clusters;
  const size_t count = add_up(&clusters);
  std::array<double, kSlices> weights;
  for (size_t i = 0; i < count; ++i) weights[i] = clusters[i].denominator;
  std::nth_element(weights.begin(), weights.begin() + count / 2, weights.begin() + count);
  const double most = kMostWeight * weights[count / 2];
  BiasSums all;
  double squared_weights = 0;
  for (size_t i = 0; i < count; ++i) {
    BiasSums& sums = clusters[i];
    const double shrink = std::min(1.0, most / sums.denominator);
    sums.numerator *= shrink;
    sums.denominator *= shrink;
    all.numerator += sums.numerator;
    all.denominator += sums.denominator;
    squared_weights += sums.denominator * sums.denominator;
  }
  Bias result = {all.numerator / all.denominator, std::nullopt, static_cast<int>(size_),
                 static_cast<int>(count)};
  const double effective = all.denominator * all.denominator / squared_weights;
  if (count < kMinClusters || effective < kLeastEffective) return result;
  double squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const BiasSums& sums = clusters[i];
    const double error =
        (sums.numerator - result.ulp * sums.denominator) / (1 - sums.denominator / all.denominator);
    squares += error * error;
  }
  const double deviation = std::sqrt(squares * (count - 1) / count) / all.denominator;
  if (deviation > 0) result.z = result.ulp / deviation;
  return result;
}

}  // namespace foreshock
