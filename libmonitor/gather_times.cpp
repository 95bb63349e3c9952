#include "libmonitor/gather_times.h"

#include <atomic>
#include <utility>

#include "segment/writer.h"

namespace foreshock {

void GatherTimes::expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts) {
  if (count_ + parts > segment::kMaxSlots) collect();
  for (uint32_t part = 0; part < parts && count_ < segment::kMaxSlots; ++part)
    expected_[count_++] = {slots[part], 2 * (ticket + part), part == 0};
}

void GatherTimes::collect() {
  uint32_t kept = 0;
  bool is_on_its_way = false;
  for (uint32_t n = 0; n < count_; ++n) {
    const Expected& one = expected_[n];
    const auto sequence = segment::word(one.slot->sequence);
    const uint64_t before = sequence.load(std::memory_order_acquire);
    // The first part becomes visible last.
    if (one.is_first) is_on_its_way = before < one.sequence;
    if (is_on_its_way) {
      expected_[kept++] = one;
      continue;
    }
    const uint64_t begin = segment::word(one.slot->device_begin_ns).load(std::memory_order_relaxed);
    const uint64_t end = segment::word(one.slot->device_end_ns).load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool is_its = sequence.load(std::memory_order_relaxed) == one.sequence && begin <= end;
    if (is_its) last_ns_ = end - begin;
    spent_.ns += last_ns_;
    spent_.slices += one.is_first;
  }
  count_ = kept;
}

GatherTimes::Spent GatherTimes::take() {
  collect();
  return std::exchange(spent_, {});
}

}  // namespace foreshock
