#include "detect/loss_event.h"

#include <algorithm>
#include <cmath>

#include "detect/robust_z.h"

namespace foreshock {

LossVerdict LossEventRule::observe(int64_t step, double loss) {
  LossVerdict verdict;
  const bool finite = std::isfinite(loss);
  verdict.high = !finite;
  if (window_.full() && finite) {
    const WindowSummary before = *window_.summary();
    const double spread = std::max(before.std, kLossLeastSpread * std::fabs(before.mean));
    verdict.high = loss > before.mean + kLossSigmas * spread;
    if (spread > 0) verdict.z = (loss - before.mean) / spread;
    verdict.robust_z = robust_z(window_.data(), window_.size(), loss);
  }
  nonfinite_in_row_ = finite ? 0 : std::min(nonfinite_in_row_ + 1, kMostInRow);
  if (verdict.high) {
    if (high_in_row_ == 0) onset_step_ = step;
    high_in_row_ = std::min(high_in_row_ + 1, kMostInRow);
    quiet_in_row_ = 0;
    verdict.event = declare(step);
  } else {
    high_in_row_ = 0;
    quiet_in_row_ = std::min(quiet_in_row_ + 1, kMostInRow);
    if (quiet_in_row_ >= kLossPersistence) in_spike_ = diverged_ = false;
  }
  if (!verdict.high) window_.add(loss);
  verdict.in_event = in_spike_ || diverged_;
  return verdict;
}

void LossEventRule::restart() {
  window_.clear();
  high_in_row_ = quiet_in_row_ = nonfinite_in_row_ = 0;
  in_spike_ = diverged_ = false;
}

// At most one event a loss. A divergence may follow the spike that it began as, with the same onset.
std::optional<LossEvent> LossEventRule::declare(int64_t step) {
  if (nonfinite_in_row_ >= kLossPersistence && !diverged_) return raise(LossEventKind::kDivergence, step);
  if (high_in_row_ >= static_cast<int>(kLossWindow) && nonfinite_in_row_ == 0) {
    window_.clear();
    high_in_row_ = 0;
    if (!diverged_) return raise(LossEventKind::kDivergence, step);
    return std::nullopt;
  }
  if (high_in_row_ >= kLossPersistence && window_.full() && !in_spike_ && !diverged_) {
    return raise(LossEventKind::kSpike, step);
  }
  return std::nullopt;
}

std::optional<LossEvent> LossEventRule::raise(LossEventKind kind, int64_t step) {
  if (kind == LossEventKind::kSpike) {
    in_spike_ = true;
    ++spikes_;
  } else {
    diverged_ = true;
    ++divergences_;
  }
  return LossEvent{kind, onset_step_, step};
}

}  // namespace foreshock
