#include "libmonitor/device_ring.h"

#include <atomic>

namespace foreshock {

void DeviceRing::reset(uint64_t bytes) {
  bytes_ = bytes;
  first_ = count_ = 0;
}

void DeviceRing::free_what_has_left() {
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kMostSlices) {
    // The word may have moved on to a later ticket; it never moves back.
    std::atomic_ref<uint64_t> word(*const_cast<uint64_t*>(at(0).sequence));
    if (word.load(std::memory_order_acquire) < at(0).done) return;
  }
}

bool DeviceRing::find(uint64_t bytes, Place* place) {
  free_what_has_left();
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  if (count_ == kMostSlices || need > bytes_) return false;
  uint64_t begin = 0;
  if (count_ > 0) {
    const uint64_t oldest = at(0).begin, newest = at(count_ - 1).end;
    begin = newest;
    if (newest > oldest) {  // taken in one piece: free behind it, and before it
      if (bytes_ - newest < need) {
        begin = 0;
        if (oldest < need) return false;
      }
    } else if (oldest - newest < need) {
      return false;
    }
  }
  found_ = {begin, begin + need, nullptr, 0};
  *place = {begin, (first_ + count_) % kMostSlices};
  return true;
}

void DeviceRing::commit(const uint64_t* sequence, uint64_t done) {
  found_.sequence = sequence;
  found_.done = done;
  at(count_) = found_;
  ++count_;
}

}  // namespace foreshock
