// Adds and evaluates the optimizer statistics of weight tensors: sums over a tensor's elements, indexed by
// segment::OptimizerNumber. join() adds a part of the same tensor, pool() adds another tensor. g is an
// element's gradient, v^ Adam's second moment of it with bias correction, eps Adam's epsilon. The staleness
// is g^2 / max(v^, eps^2). An element is surprised if g^2 is above 50 times v^ of the step before, and
// epsilon-dominated if sqrt(v^) < eps.
#include "agent/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace foreshock {
namespace {

// Whether a sum of squares or a count is known: NaN, negative and infinite values count as unknown.
bool is_known(double x) { return std::isfinite(x) && x >= 0; }

std::optional<double> ratio(double numerator, double denominator) {
  if (!is_known(numerator) || !is_known(denominator) || denominator == 0) return std::nullopt;
  return numerator / denominator;
}

std::optional<double> root(const std::optional<double>& square) {
  return square ? std::optional<double>(std::sqrt(*square)) : std::nullopt;
}

// Adds `other` to *to. If one of them is unknown, *to becomes the other one.
void add_known(double other, double* to) {
  if (is_known(other)) *to = is_known(*to) ? *to + other : other;
}

// Adds a tensor's numerator and denominator of a ratio to the sums over all tensors. If either is unknown,
// neither is added, so that both sums cover the same tensors.
void add_pair(double numerator, double denominator, double* to_numerator, double* to_denominator) {
  if (!is_known(numerator) || !is_known(denominator)) return;
  add_known(numerator, to_numerator);
  add_known(denominator, to_denominator);
}

}  // namespace

OptimizerSums OptimizerSums::from_payload(segment::Bytes payload, double weight_squares,
                                          double update_squares) {
  OptimizerSums sums;
  std::fill(std::begin(sums.values), std::end(sums.values), std::numeric_limits<double>::quiet_NaN());
  const size_t bytes = std::min(payload.size() / sizeof(double) * sizeof(double), sizeof sums.values);
  if (bytes > 0) std::memcpy(sums.values, payload.data(), bytes);
  sums.weight_squares = weight_squares;
  sums.update_squares = update_squares;
  return sums;
}

std::optional<double> OptimizerSums::gradient_rms() const {
  return root(ratio(values[segment::kGradientSumOfSquares], values[segment::kGradientElements]));
}
std::optional<double> OptimizerSums::rms_staleness() const {
  return root(ratio(values[segment::kStalenessSum], values[segment::kMomentElements]));
}
std::optional<double> OptimizerSums::surprise_ratio() const {
  return ratio(values[segment::kSurprised], values[segment::kSurpriseElements]);
}
std::optional<double> OptimizerSums::epsilon_dominated_ratio() const {
  return ratio(values[segment::kEpsilonDominated], values[segment::kMomentElements]);
}
std::optional<double> OptimizerSums::update_ratio() const {
  return root(ratio(update_squares, weight_squares));
}

void OptimizerSums::join(const OptimizerSums& other) {
  // From kSeenLearningRate on, values are settings, which all parts share. NaN (unknown) plus x is NaN.
  for (uint32_t n = 0; n < segment::kSeenLearningRate; ++n) values[n] += other.values[n];
  weight_squares += other.weight_squares;
  update_squares += other.update_squares;
}

void OptimizerSums::pool(const OptimizerSums& other) {
  using namespace segment;
  add_pair(other.values[kGradientSumOfSquares], other.values[kGradientElements],
           &values[kGradientSumOfSquares], &values[kGradientElements]);
  add_known(other.values[kGradientNonFinite], &values[kGradientNonFinite]);
  // Two ratios share the denominator kMomentElements, so these three are added together or not at all.
  if (is_known(other.values[kStalenessSum]) && is_known(other.values[kEpsilonDominated]) &&
      is_known(other.values[kMomentElements]))
    for (const OptimizerNumber n : {kStalenessSum, kEpsilonDominated, kMomentElements})
      add_known(other.values[n], &values[n]);
  add_known(other.values[kMomentUnusable], &values[kMomentUnusable]);
  add_pair(other.values[kSurprised], other.values[kSurpriseElements], &values[kSurprised],
           &values[kSurpriseElements]);
  add_pair(other.update_squares, other.weight_squares, &update_squares, &weight_squares);
}

void OptimizerHealth::set(const TensorKey& key, uint32_t dims, int64_t step, const OptimizerSums& sums) {
  if (tensors_.size() >= kMostTensors && !tensors_.contains(key)) return;  // bounds memory
  tensors_[key] = {dims, step, sums};
}

void OptimizerHealth::forget_before(int64_t step) {
  std::erase_if(tensors_, [step](const auto& entry) { return entry.second.step < step; });
}

std::optional<OptimizerHealth::Summary> OptimizerHealth::summary() const {
  if (tensors_.empty()) return std::nullopt;
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  Summary summary{OptimizerSums::from_payload({}, unknown, unknown), {}, {}, {}, {}};
  const auto keep_largest = [](const std::optional<double>& value, const std::string& name,
                               std::optional<double>* largest, std::string* largest_name) {
    if (!value || (*largest && **largest >= *value)) return;
    *largest = value;
    *largest_name = name;
  };
  for (const auto& [key, tensor] : tensors_) {
    summary.pooled.pool(tensor.sums);
    keep_largest(tensor.sums.rms_staleness(), key.name, &summary.staleness_max, &summary.stalest);
    if (tensor.dims >= 2)  // all elements of a vector may be near 0, which makes its update ratio large
      keep_largest(tensor.sums.update_ratio(), key.name, &summary.update_ratio_max, &summary.fastest);
  }
  return summary;
}

}  // namespace foreshock
