#include "segment/packed_slice.h"

#include <algorithm>

namespace foreshock::segment {
namespace {

uint32_t visible_keys(const Slot& slot, uint32_t position) {
  const SequenceTold& told = slot.told;
  if (slot.packed == kPackedTopLeft) return std::min(position + 1, told.keys);
  if (slot.packed == kPackedBottomRight) return position + 1 + (told.keys - told.queries);
  return told.keys;
}

bool has_rows(const Slot& slot) {
  const SequenceTold& told = slot.told;
  if (told.positions == 0 || told.queries == 0 || told.keys == 0) return false;
  return slot.packed != kPackedBottomRight || told.queries <= told.keys;
}

const char* check(const Slot& slot) {
  const SequenceTold& told = slot.told;
  if (told.queries > slot.query_length || told.keys > slot.key_length) return "a sequence beyond the longest";
  if (told.positions > slot.rows / slot.heads_in_slice || told.positions > told.queries)
    return "more positions than were asked for";
  for (uint32_t n = 0; n < told.positions; ++n) {
    if (told.position[n] >= told.queries) return "row position beyond the sequence";
    if (visible_keys(slot, told.position[n]) > slot.keys) return "key limit beyond the keys";
  }
  return nullptr;
}

}  // namespace

const char* settle_packed(SlotView* view) {
  Slot& slot = view->header;
  if (slot.packed == kNotPacked) return nullptr;
  const SequenceTold told = slot.told;
  const uint32_t heads = slot.heads_in_slice, planned = slot.rows / heads;
  uint32_t keys = 0;
  if (!has_rows(slot)) {
    slot.rows = 0;
  } else if (const char* why = check(slot)) {
    return why;
  } else {
    slot.rows = heads * told.positions;
    for (uint32_t row = 0; row < slot.rows; ++row) {
      const uint32_t position = told.position[row % told.positions];
      // Never behind where the head's first row was planned, so it is still there.
      slot.head[row] = slot.head[row / told.positions * planned];
      slot.position[row] = position;
      slot.key_limit[row] = visible_keys(slot, position);
      keys = std::max(keys, slot.key_limit[row]);
    }
  }
  slot.keys = keys;
  slot.batch = told.number;
  slot.query_length = told.queries;
  slot.key_length = told.keys;
  slot.packed = kNotPacked;
  uint64_t sizes[kPayloads];
  payload_sizes(slot, sizes);
  for (uint32_t id = 0; id < kPayloads; ++id) view->payload[id] = view->payload[id].first(sizes[id]);
  return nullptr;
}

}  // namespace foreshock::segment
