// Room on a device for slices on their way to the segment: bytes handed out in order and free again in that
// order. The host learns that a slice has left by the sequence word that the stream stores into its slot: it
// reads its own memory and asks the device nothing. Thread-compatible.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_RING_H_
#define FORESHOCK_LIBMONITOR_DEVICE_RING_H_

#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

class DeviceRing {
 public:
  // What lies in the ring at once: each slice has at least one slot of the segment.
  static constexpr uint32_t kMostSlices = segment::kMaxSlots;
  static constexpr uint64_t kAlign = 256;

  // Of `bytes` bytes (a multiple of kAlign), all free.
  void reset(uint64_t bytes);

  // Room for `bytes` bytes in one piece; false when there is none now. Nothing is taken before commit().
  struct Place {
    uint64_t offset = 0;
    uint32_t number = 0;  // of no other slice that is in the ring
  };
  bool find(uint64_t bytes, Place* place);

  // Takes what find() found last. Free again once `*sequence` is not less than `done`.
  void commit(const uint64_t* sequence, uint64_t done);

  uint64_t bytes() const { return bytes_; }
  uint32_t slices() const { return count_; }

 private:
  struct Taken {
    uint64_t begin, end;  // begin <= end
    const uint64_t* sequence;
    uint64_t done;
  };
  Taken& at(uint32_t n) { return taken_[(first_ + n) % kMostSlices]; }
  void free_what_has_left();

  uint64_t bytes_ = 0;
  uint32_t first_ = 0, count_ = 0;  // of taken_, oldest first
  Taken found_ = {};
  Taken taken_[kMostSlices] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_RING_H_
