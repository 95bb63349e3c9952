#include "detect/loss_rise.h"

#include <algorithm>
#include <cmath>

namespace foreshock {
namespace {

constexpr double kMemory = 16;  // blocks

}  // namespace

std::optional<int64_t> LossRiseRule::observe(int64_t step, double loss, bool in_event) {
  if (in_event) begin_anew();
  if (in_event || !std::isfinite(loss)) return std::nullopt;
  if (in_block_ == 0) block_step_ = step;
  sum_ += loss / static_cast<double>(kBlock);
  if (++in_block_ < kBlock) return std::nullopt;
  const double mean = sum_;
  sum_ = 0;
  in_block_ = 0;
  return end_block(mean);
}

std::optional<int64_t> LossRiseRule::end_block(double mean) {
  if (blocks_++ == 0) {
    previous_ = best_ = mean;
    return std::nullopt;
  }
  const double noise = std::sqrt(std::max(squares_.mean(), 0.0) / 2);
  const bool learned = squares_.count() >= kLearning;
  const bool high = learned && mean > best_ + std::max(kSigmas * noise, kLeastShare * std::fabs(best_));
  const double step = mean - previous_;
  squares_.add(step * step, kMemory, kLearning);
  previous_ = mean;
  best_ = std::min(best_, mean);
  if (!high) high_in_row_ = 0;
  if (!high) return std::nullopt;
  if (high_in_row_++ == 0) onset_step_ = block_step_;
  if (high_in_row_ < kPersistence) return std::nullopt;
  high_in_row_ = 0;
  best_ = mean;
  return onset_step_;
}

}  // namespace foreshock
