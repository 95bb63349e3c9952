// From the tensors of an attention call to the bytes of a slot. No state, no heap.
#ifndef FORESHOCK_LIBMONITOR_SLICE_COPY_H_
#define FORESHOCK_LIBMONITOR_SLICE_COPY_H_

#include "libmonitor/checked_call.h"
#include "segment/layout.h"

namespace foreshock {

// Copies the payloads that slot_of (slice_plan.h) placed. `base` is the start of the slot.
void copy_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot, char* base);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SLICE_COPY_H_
