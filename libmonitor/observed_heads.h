// How many heads attention has here, from its sampled calls.
#ifndef FORESHOCK_LIBMONITOR_OBSERVED_HEADS_H_
#define FORESHOCK_LIBMONITOR_OBSERVED_HEADS_H_

#include <atomic>
#include <cstdint>

#include "libmonitor/checked_call.h"
#include "libmonitor/head_rows.h"

namespace foreshock {

// Any thread.
class ObservedHeads {
 public:
  void reset() { seen_.store(0, std::memory_order_relaxed); }

  void see(const CheckedCall& call) {
    const uint64_t heads = bounded(call.shape.heads), kv_heads = bounded(call.shape.kv_heads),
                   dim = bounded(call.head_dim);
    const uint64_t now =
        heads == 0 || kv_heads == 0 || dim == 0 ? kMixed : heads << 40 | kv_heads << 20 | dim;
    const uint64_t before = seen_.load(std::memory_order_relaxed);
    if (before != now) seen_.store(before == 0 ? now : kMixed, std::memory_order_relaxed);
  }

  // All zero before the first call, and where calls differ: then it is not known whose heads are whose.
  HeadGeometry get() const {
    const uint64_t seen = seen_.load(std::memory_order_relaxed);
    if (seen == kMixed) return {};
    return {static_cast<uint32_t>(seen >> 40), static_cast<uint32_t>(seen >> 20 & kMost),
            static_cast<uint32_t>(seen & kMost)};
  }

 private:
  static constexpr uint64_t kMost = (1u << 20) - 1, kMixed = ~uint64_t{0};
  static uint64_t bounded(int64_t size) {
    return size > 0 && static_cast<uint64_t>(size) <= kMost ? static_cast<uint64_t>(size) : 0;
  }
  std::atomic<uint64_t> seen_{0};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_OBSERVED_HEADS_H_
