// From a slot as the trainer wrote it to what can be judged, and to the layer it belongs to.
#ifndef FORESHOCK_AGENT_SLOT_SLICE_H_
#define FORESHOCK_AGENT_SLOT_SLICE_H_

#include <string>

#include "agent/rank.h"
#include "segment/reader.h"
#include "shadow/slice.h"

namespace foreshock {

// Borrows from the view.
AttentionSlice slice_of(const segment::SlotView& view);

struct LayerOfCall {
  std::string label, name, source;
};

// The label under which a call is counted, or an empty one: then it belongs to the rank alone.
LayerOfCall layer_of(const segment::SegmentReader& segment, const segment::Slot& slot,
                     const RankStatistics& rank);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_SLOT_SLICE_H_
