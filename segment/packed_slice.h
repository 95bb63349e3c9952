// A slice of one sequence of a packed batch, whose extent its device has told beside its rows.
#ifndef FORESHOCK_SEGMENT_PACKED_SLICE_H_
#define FORESHOCK_SEGMENT_PACKED_SLICE_H_

#include "segment/parser.h"

namespace foreshock::segment {

// *view, a whole slice as parse_slot or JoinedSlice gives it, becomes what would be there if the sequence had
// been a call of its own: dimensions, limits and positions of what its device has told, and payloads no
// longer than that. Without rows where there was nothing to bring, or rows that may see no key, of which
// nobody promises what a kernel makes. Null, or why what is told cannot be. Leaves every other slice as it
// is.
const char* settle_packed(SlotView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_PACKED_SLICE_H_
