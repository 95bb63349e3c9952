#include "libmonitor/gradient_cost.h"

#include <algorithm>

namespace foreshock {
namespace {

constexpr double kWeight = 0.2;    // of a new value in the running mean
constexpr double kMostBeyond = 4;  // a measurement counts for at most this many times what was expected

}  // namespace

uint64_t GradientCost::due_ns() const {
  const double kernels = kKernelNs * static_cast<double>(kernels_);
  const double expected = ns_per_byte_ * static_cast<double>(bytes_) + kernels;
  return static_cast<uint64_t>(std::max(expected + owed_ns_, 0.0));
}

uint64_t GradientCost::ask(uint64_t bytes, uint64_t kernels) {
  bytes_ = bytes;
  kernels_ = kernels;
  return due_ns();
}

uint64_t GradientCost::sent(const SentGradients& at) {
  const double expected = ns_per_byte_ * static_cast<double>(bytes_);
  const uint64_t charged = due_ns();
  owed_ns_ += expected + kKernelNs * static_cast<double>(kernels_) - static_cast<double>(charged);
  sent_[next_++ % kMost] = {at, bytes_, expected};
  return charged;
}

uint64_t GradientCost::take_owed() {
  const auto owed = static_cast<uint64_t>(std::max(owed_ns_, 0.0));
  owed_ns_ -= static_cast<double>(owed);
  return owed;
}

// What lies between the two looks at the clock is what was expected of the bytes; the kernels beside it are
// charged as they are.
void GradientCost::measured(const Sent& one, uint64_t begin_ns, uint64_t end_ns) {
  if (end_ns < begin_ns) return;
  const auto ns = static_cast<double>(end_ns - begin_ns);
  owed_ns_ += ns - one.expected_ns;
  const double each = ns / static_cast<double>(one.bytes);
  const double counted = is_measured_ ? std::min(each, kMostBeyond * ns_per_byte_) : each;
  ns_per_byte_ += (is_measured_ ? kWeight : 1) * (counted - ns_per_byte_);
  is_measured_ = true;
}

}  // namespace foreshock
