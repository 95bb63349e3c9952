#include "libmonitor/cost_model.h"

#include <algorithm>

namespace foreshock {
namespace {

constexpr double kWeight = 0.2;    // of a new value in a running mean
constexpr double kSurprise = 4;    // an observation counts for at most this many times what was expected
constexpr double kSpread = 0.01;   // of the sizes, relative; below it they tell nothing about the slope
constexpr uint32_t kMost = 10000;  // slices; more than any segment holds

}  // namespace

double CostModel::warm_seconds(double bytes) const {
  const double mean_bytes = bytes_sum_ / weight_, mean_seconds = seconds_sum_ / weight_;
  const double variance = bytes_squares_ / weight_ - mean_bytes * mean_bytes;
  const double limit = kSpread * mean_bytes;
  const double slope = variance > limit * limit
                           ? (products_sum_ / weight_ - mean_bytes * mean_seconds) / variance
                           : mean_seconds / mean_bytes;
  // Never below a tenth of the mean: a fit may cross zero, a slice never costs nothing.
  return std::max(mean_seconds + std::max(slope, 0.0) * (bytes - mean_bytes), 0.1 * mean_seconds);
}

void CostModel::observe_slice(uint64_t bytes, bool cold, double seconds) {
  bytes_ = static_cast<double>(bytes);
  const double warm = warm_seconds(bytes_);
  if (cold) {
    const double beyond = std::clamp((seconds - warm) / bytes_, 0.0, kSurprise * cold_per_byte_ + 1e-12);
    cold_per_byte_ += kWeight * (beyond - cold_per_byte_);
    return;
  }
  seconds = std::min(seconds, kSurprise * warm);
  const auto fade = [](double& sum, double added) { sum = kFading * sum + added; };
  fade(weight_, 1);
  fade(bytes_sum_, bytes_);
  fade(bytes_squares_, bytes_ * bytes_);
  fade(seconds_sum_, seconds);
  fade(products_sum_, bytes_ * seconds);
}

void CostModel::observe_device(uint32_t slices, double seconds) {
  const double each = seconds / slices;
  // The first one stands for itself: nothing is known of a device before.
  const double counted = device_seconds_ == 0 ? each : std::min(each, kSurprise * device_seconds_);
  device_seconds_ += (device_seconds_ == 0 ? 1 : kWeight) * (counted - device_seconds_);
}

void CostModel::observe_step(bool sampled, double seconds) {
  if (sampled)
    extra_[extras_++ % kExtras] = std::max(seconds - other_, 0.0);
  else
    other_ += (other_ == 0 ? 1 : kWeight) * (seconds - other_);
}

double CostModel::slice_seconds(bool cold) const {
  return warm_seconds(bytes_) + device_seconds_ + (cold ? cold_per_byte_ * bytes_ : 0);
}

double CostModel::step_seconds() const {
  double sorted[kExtras];
  const uint32_t count = std::min(extras_, kExtras);
  std::copy_n(extra_, count, sorted);
  std::sort(sorted, sorted + count);
  return count == 0 ? 0 : sorted[count / 2];
}

uint32_t CostModel::slices_within(double seconds, bool cold) const {
  const double slices = (seconds - step_seconds()) / slice_seconds(cold);
  return static_cast<uint32_t>(std::clamp(slices, 0.0, static_cast<double>(kMost)));
}

}  // namespace foreshock
