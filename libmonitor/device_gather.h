// What one gather on a device is to copy for a slot. Pure; the twin of copy_slot (slice_copy.h).
#ifndef FORESHOCK_LIBMONITOR_DEVICE_GATHER_H_
#define FORESHOCK_LIBMONITOR_DEVICE_GATHER_H_

#include "kernels/device_jobs.h"
#include "libmonitor/checked_call.h"
#include "segment/layout.h"

namespace foreshock {

// Where the payloads of a slot begin and end, from the start of the slot.
struct PayloadRange {
  uint64_t begin, end;
};
PayloadRange payloads_of(const segment::Slot& slot);

// Copies the payloads that slot_of (slice_plan.h) placed to device memory as they will lie in the slot: the
// first one at `to`. Times and clock are left to the caller.
GatherJob gather_for_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot,
                          uint64_t to);

// The same for the sequence of a packed call that holds call.packed.place: what there is of it. Where it is
// told is left to the caller too.
PackedGatherJob packed_gather_for_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot,
                                       uint64_t to);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_GATHER_H_
