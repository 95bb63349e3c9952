// Where the slice of a call goes: into one slot, or into several that hold a range of its keys each.
#ifndef FORESHOCK_LIBMONITOR_SLICE_PLAN_H_
#define FORESHOCK_LIBMONITOR_SLICE_PLAN_H_

#include "libmonitor/checked_call.h"
#include "segment/layout.h"

namespace foreshock {

struct SlicePlan {
  segment::Slot all = {};  // what every slot of the slice says: dimensions, rows, limits
  uint32_t slots = 1;
  uint32_t first_keys = 0, other_keys = 0;  // that the first slot holds, and every other but the last
};

// Bytes a slot needs to hold any slice of a call of this shape whole (forward and backward, with a mask of 4
// bytes an entry).
uint64_t slot_bytes_for(const CheckedCall& call);

// Plans for slots of `capacity` bytes, of which a slice may take `most_slots`. A slice that needs more loses
// the rows that see the most keys, as far as a mask that is causal makes that help: *slice is what is left.
// False when not even one position fits.
bool plan_slice(const CheckedCall& call, uint64_t capacity, uint32_t most_slots, Slice* slice,
                SlicePlan* plan);

// The header of slot number `part` of the slice, with its payload table; all but tickets, step, time and
// layer.
segment::Slot slot_of(const SlicePlan& plan, uint32_t part);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SLICE_PLAN_H_
