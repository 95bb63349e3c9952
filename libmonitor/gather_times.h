// How long the gathers took on the trainer's stream. A device writes it into the slot, before the sequence
// word that makes the slot visible; here the slots on their way are remembered until it can be read. Memory
// of the host alone is looked at, and nothing is waited for.
#ifndef FORESHOCK_LIBMONITOR_GATHER_TIMES_H_
#define FORESHOCK_LIBMONITOR_GATHER_TIMES_H_

#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// Thread-compatible.
class GatherTimes {
 public:
  // Gathers into the slots of a slice, `ticket` and those after it, were given to a stream.
  void expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts);

  struct Spent {
    uint64_t ns = 0;
    uint32_t slices = 0;
  };
  // Of the slices that have arrived since it was last asked. A slot that holds something else by now counts
  // as much as the last one that could be read.
  Spent take();

 private:
  struct Expected {
    segment::Slot* slot;
    uint64_t sequence;
    bool is_first;
  };
  void collect();

  // A slot is claimed again only once it was seen, so no more are on their way at once.
  Expected expected_[segment::kMaxSlots] = {};
  uint32_t count_ = 0;
  uint64_t last_ns_ = 0;
  Spent spent_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_GATHER_TIMES_H_
