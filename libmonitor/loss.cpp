#include "libmonitor/loss.h"

#include <cmath>

namespace foreshock {
namespace {

// fp32 division and scaling round once, 2^-24; 1e-5 leaves room for a loss computed in another order.
// Neighbouring 1/k differ by more than that up to k = 1e5.
constexpr double kTolerance = 1e-5;

bool is_whole(double x) { return std::fabs(x - std::nearbyint(x)) <= kTolerance * x; }

// root = nll / k, or root = nll * 2^n / k with a gradient scaler (n >= 0, k a whole number).
bool is_scaled(double root, double nll) {
  if (!(root != 0) || !(nll != 0) || !(root / nll > 0)) return false;
  const double ratio = nll / root;  // k / 2^n
  if (ratio >= 1 - kTolerance) return is_whole(ratio) && ratio < 1e5;
  int exponent = 0;
  const double mantissa = std::frexp(ratio, &exponent);  // in [0.5, 1)
  // A scaler's scale is a power of two of at least 2^1; with accumulation the numerator is a small whole
  // number.
  for (int k = 1; k <= 64; ++k) {
    int shift = 0;
    if (std::fabs(std::frexp(k, &shift) - mantissa) <= kTolerance) return true;
  }
  return false;
}

}  // namespace

void LossFollower::settle(double root) {
  const bool nll_is_the_loss = nll_since_root_ == 1 && is_scaled(root, last_nll_);
  settled_ = nll_is_the_loss ? FORESHOCK_LOSS_NLL : FORESHOCK_LOSS_BACKWARD_ROOT;
}

// Shares add up to that mean, those that are whole to k times as much; what else there may be in a loss makes
// less of a difference than the middle between both, a factor of sqrt(k).
void LossFollower::settle_roots() {
  const Mean &roots = mean_[FORESHOCK_LOSS_BACKWARD_ROOT], &summed = mean_[kSummed];
  if (roots_ != Roots::kUnknown || roots.weight < 2 || mean_[FORESHOCK_LOSS_NLL].weight > 0) return;
  const double together = roots.sum / (summed.sum / summed.weight);
  if (!(together > 0) || std::isinf(together)) return;
  roots_ = together < std::sqrt(roots.weight) ? Roots::kShares : Roots::kWhole;
}

void LossFollower::observe(double value, uint32_t source) {
  if (source < FORESHOCK_LOSS_REPORTED || source > FORESHOCK_LOSS_LOGGED) return;
  if (source == FORESHOCK_LOSS_REPORTED) settled_ = source;
  if (source == FORESHOCK_LOSS_NLL) {
    last_nll_ = value;
    ++nll_since_root_;
  }
  if (source == FORESHOCK_LOSS_BACKWARD_ROOT) {
    // A first backward whose loss is not finite tells nothing about who is the loss.
    if (settled_ == 0 && std::isfinite(value)) settle(value);
    nll_since_root_ = 0;
  }
  mean_[source].add(value, 1);
}

void LossFollower::observe_sum(double sum, double weight) {
  if (weight >= 0 && std::isfinite(weight)) mean_[kSummed].add(sum, weight);
}

bool LossFollower::is_reported() const { return settled_ == FORESHOCK_LOSS_REPORTED; }

void LossFollower::forget_step() {
  for (Mean& each : mean_) each = {};
  nll_since_root_ = 0;
}

bool LossFollower::take(double* loss, uint32_t* source) {
  // Without a root (autograd.grad instead of backward) a cross-entropy that needed gradients is the loss.
  const bool has_root = mean_[FORESHOCK_LOSS_BACKWARD_ROOT].weight > 0;
  if (settled_ == 0 && mean_[FORESHOCK_LOSS_NLL].weight > 0) settled_ = FORESHOCK_LOSS_NLL;
  if (settled_ == 0 && mean_[kSummed].weight > 0 && !has_root) settled_ = kSummed;
  settle_roots();
  const uint32_t seen = settled_ != 0 ? settled_ : uint32_t{FORESHOCK_LOSS_LOGGED};
  Mean mean = mean_[seen];
  if (seen == FORESHOCK_LOSS_BACKWARD_ROOT && roots_ == Roots::kShares && has_root) mean.weight = 1;
  forget_step();
  if (mean.weight == 0) return false;
  *loss = mean.sum / mean.weight;
  *source = seen == kSummed ? uint32_t{FORESHOCK_LOSS_NLL} : seen;
  return true;
}

}  // namespace foreshock
