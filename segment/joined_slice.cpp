#include "segment/joined_slice.h"

#include <algorithm>
#include <cstring>

namespace foreshock::segment {
namespace {

constexpr PayloadId kSplit[] = {kKey, kValue, kMask};

constexpr uint64_t round_up(uint64_t value) { return (value + 63) / 64 * 64; }

bool is_split(uint32_t id) { return std::find(std::begin(kSplit), std::end(kSplit), id) != std::end(kSplit); }

bool is_of_one_slice(const Slot& a, const Slot& b) {
  return a.parts == b.parts && a.first_ticket == b.first_ticket && a.pass == b.pass && a.dtype == b.dtype &&
         a.mask_dtype == b.mask_dtype && a.rows == b.rows && a.keys == b.keys && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim && a.packed == b.packed &&
         (a.packed == kNotPacked || std::memcmp(&a.told, &b.told, sizeof a.told) == 0);
}

}  // namespace

const char* JoinedSlice::begin(const SlotView& first, uint64_t most_bytes) {
  if (first.header.part != 0) return "a slice that does not begin with its first part";
  whole_ = first;
  next_ = 0;
  keys_ = 0;
  // Only part_keys of the keys are in this part; the sizes of all of them follow.
  const uint64_t here = first.header.part_keys, keys = first.header.keys;
  uint64_t offsets[kPayloads], end = 0;
  for (uint32_t id = 0; id < kPayloads; ++id) {
    const uint64_t size = first.payload[id].size();
    if (is_split(id) && size / here * keys > most_bytes) return "a slice larger than its slots";
    offsets[id] = end;
    end += round_up(is_split(id) ? size / here * keys : size);
  }
  if (end > most_bytes) return "a slice larger than its slots";
  bytes_.resize(end);
  for (uint32_t id = 0; id < kPayloads; ++id) {
    const Bytes from = first.payload[id];
    whole_.payload[id] =
        Bytes(bytes_).subspan(offsets[id], is_split(id) ? from.size() / here * keys : from.size());
    if (!is_split(id) && !from.empty()) std::memcpy(bytes_.data() + offsets[id], from.data(), from.size());
  }
  return add(first);
}

const char* JoinedSlice::add(const SlotView& part) {
  const Slot& slot = part.header;
  if (slot.part != next_ || is_whole() || !is_of_one_slice(slot, whole_.header))
    return "parts of several slices";
  if (slot.first_key != keys_ || slot.part_keys > slot.keys - keys_)
    return "parts that overlap or leave a gap";
  for (PayloadId id : kSplit) {
    if (part.payload[id].empty()) continue;
    // Keys and values are rows of their own; a mask has as many rows as the slice, of which this is a range
    // of columns.
    const uint64_t rows = id == kMask ? slot.rows : 1;
    const uint64_t from_row = part.payload[id].size() / rows, to_row = whole_.payload[id].size() / rows;
    const uint64_t column = from_row / slot.part_keys * keys_;
    std::byte* to = bytes_.data() + (whole_.payload[id].data() - bytes_.data()) + column;
    for (uint64_t row = 0; row < rows; ++row)
      std::memcpy(to + row * to_row, part.payload[id].data() + row * from_row, from_row);
  }
  keys_ += slot.part_keys;
  if (++next_ == slot.parts && keys_ != slot.keys) return "parts that do not make up the slice";
  return nullptr;
}

SlotView JoinedSlice::take() {
  SlotView view = whole_;
  view.header.parts = view.header.first_key = view.header.part_keys = 0;
  return view;
}

}  // namespace foreshock::segment
