#include "agent/histogram_quota.h"

#include <algorithm>

namespace foreshock {

bool HistogramQuota::takes(const TensorSnapshot& snapshot) {
  if (bytes_ == 0) return false;
  const int64_t window = snapshot.step / static_cast<int64_t>(snapshot.interval);
  if (window != window_) stride_ = uint64_t{1} << std::min(spent_ / (bytes_ / kParts + 1), kParts - 1);
  window_ = window;
  const uint64_t text = (snapshot.stored.size() + 2) / 3 * 4;  // as base64
  const bool fits = snapshot.stored.size() <= kLongest && spent_ + text <= bytes_;
  if (!fits || static_cast<uint64_t>(window) % stride_ != 0) {
    ++left_out_;
    return false;
  }
  spent_ += text;
  return true;
}

}  // namespace foreshock
