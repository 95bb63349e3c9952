#include "segment/parser.h"

#include <algorithm>
#include <cmath>

#include "segment/tensor_record.h"

namespace foreshock::segment {
namespace {

// What must be found in each region. Records of today may be longer than the least, which is what version 1
// had, or shorter than what a later writer has.
struct Expected {
  RegionId id;
  uint64_t least_record;
  uint64_t least_count, most_count;
};
constexpr Expected kExpected[] = {
    {kIdentity, 344, 1, 1},
    {kOps, 72, 1, kMaxOps},
    {kThreads, 576, 1, kThreadBlocks},
    {kSteps, 240, 1, kStepRecords},
    {kLayers, 200, 1, kMaxLayers},
    {kProgress, 64, 1, 1},
    {kSlots, kSlotOfVersion1, 0, kMaxSlots},
    {kScalarNames, sizeof(ScalarName), 0, kMaxScalars},
    {kUnseenNames, sizeof(UnseenName), 0, kMaxUnseen},
    {kTensors, kTensorHeadOnly, 0, 1},
    {kCoverage, kCoverageOfVersion5, 0, 1},
};
// What a hostile file can make the agent read at once: 4 MiB of steps at most. And no product below may
// overflow.
constexpr uint64_t kMostRecord = 4096;
constexpr uint64_t kMostSlot = uint64_t{1} << 34;
constexpr uint64_t kMostTensors = uint64_t{64} << 20;  // a record may fill it, and is read as a whole

constexpr uint64_t element_bytes(uint32_t dtype) {
  constexpr uint64_t kBytes[] = {0, 8, 4, 2, 2, 1};  // none, fp64, fp32, bf16, fp16, bool
  return dtype < std::size(kBytes) ? kBytes[dtype] : 0;
}

bool is_floating(uint32_t dtype) { return dtype >= 1 && dtype <= 4; }

const char* check_dimensions(const Slot& slot) {
  if (slot.pass >= kPasses) return "unknown pass";
  if (!is_floating(slot.dtype)) return "unknown storage format";
  if (slot.mask_dtype > 5) return "unknown mask format";
  if (slot.lse_dtype != 0 && !is_floating(slot.lse_dtype)) return "unknown log-sum-exp format";
  if (slot.without_out > (slot.pass == 0 ? 1u : 0u)) return "no output where there has to be one";
  if (slot.rows == 0 || slot.rows > kRowsPerSlice) return "rows out of range";
  if (slot.keys == 0 || slot.keys > slot.key_length) return "keys out of range";
  if (slot.keys > kMostSliceKeys) return "more keys than a slice may have";
  if (slot.head_dim == 0 || slot.head_dim > 4096 || slot.value_dim == 0 || slot.value_dim > 4096)
    return "head dimension out of range";
  if (slot.packed > kPackedBottomRight || (slot.packed != kNotPacked && slot.mask_dtype != 0))
    return "unknown kind of packing";
  // No overflow: 2^22 keys times 2^13 dimensions times 2^3 bytes.
  if (slot.keys * ((uint64_t{slot.head_dim} + slot.value_dim) * element_bytes(slot.dtype) +
                   slot.rows * element_bytes(slot.mask_dtype)) >
      kMostSliceBytes)
    return "more bytes than a slice may have";
  if (slot.heads_in_slice == 0 || slot.rows % slot.heads_in_slice != 0) return "heads do not divide rows";
  if (!std::isfinite(slot.scale) || slot.scale == 0) return "scale is not a finite number";
  if (slot.layer_source > static_cast<uint32_t>(LayerSource::kOrdinal)) return "unknown layer source";
  if (slot.parts > kMaxSlots || (slot.parts > 1 ? slot.part >= slot.parts : slot.part != 0))
    return "part out of range";
  if (slot.parts > 1 &&
      (slot.part_keys == 0 || slot.first_key >= slot.keys || slot.part_keys > slot.keys - slot.first_key))
    return "keys of the part out of range";
  for (uint32_t row = 0; row < slot.rows; ++row) {
    if (slot.key_limit[row] > slot.keys) return "key limit beyond the keys";
    if (slot.position[row] >= slot.query_length) return "row position beyond the queries";
  }
  return nullptr;
}

// The agent and the library in the trainer come from different releases when one was upgraded in mid-run.
const char* check_version(uint32_t version) {
  if (version < kOldestLayoutVersion)
    return "its layout is older than this agent reads: upgrade foreshock where the trainer runs";
  if (version > kLayoutVersion)
    return "its layout is newer than this agent's: upgrade foreshock where the agent runs, and start the "
           "agent "
           "again";
  return nullptr;
}

const char* check_region(const Expected& expected, const Region& region, uint64_t file_size) {
  if (region.count < expected.least_count || region.count > expected.most_count)
    return "region with an impossible number of records";
  if (region.count == 0) return nullptr;
  const uint64_t most = expected.id == kSlots     ? kMostSlot
                        : expected.id == kTensors ? kMostTensors
                                                  : kMostRecord;
  if (region.record_size < expected.least_record || region.record_size > most || region.record_size % 8 != 0)
    return "region with an impossible record size";
  if (region.offset % 64 != 0 || region.offset > file_size ||
      region.record_size * region.count > file_size - region.offset)
    return "region outside the file";
  return nullptr;
}

}  // namespace

const char* parse_header(Bytes bytes, uint64_t file_size, Header* header) {
  if (bytes.size() < kHeaderOfVersion1) return "too short for a segment";
  *header = {};
  std::memcpy(header, bytes.data(), kHeaderOfVersion1);
  if (std::memcmp(header->magic, kSegmentMagic, sizeof kSegmentMagic) != 0) return "not a foreshock segment";
  if (const char* why = check_version(header->layout_version)) return why;
  const bool is_first = header->layout_version == 1;
  const size_t needed = is_first ? kHeaderOfVersion1 : sizeof(Header);
  if (header->header_size < needed || bytes.size() < needed) return "header too small";
  std::memcpy(header, bytes.data(), needed);
  if (is_first) header->slot_header_size = kSlotOfVersion1;
  if (header->file_size != file_size) return "file size differs from the header's";
  if (header->slot_header_size < kSlotOfVersion1 || header->slot_header_size > kMostRecord ||
      header->slot_header_size % 8 != 0)
    return "slot header of an impossible size";
  for (const Expected& expected : kExpected) {
    if (const char* why = check_region(expected, header->regions[expected.id], file_size)) return why;
  }
  const Region& slots = header->regions[kSlots];
  if (slots.count > 0 && slots.record_size < header->slot_header_size)
    return "slots without room for a header";
  return nullptr;
}

Totals parse_threads(Bytes region, const Region& shape) {
  Totals totals;
  const auto add = [](auto& to, const auto& from) {
    auto* a = reinterpret_cast<uint64_t*>(&to);
    const auto* b = reinterpret_cast<const uint64_t*>(&from);
    for (size_t n = 0; n < sizeof(to) / sizeof(uint64_t); ++n) a[n] += b[n];
  };
  for (uint64_t n = 0; n < shape.count; ++n) {
    auto block = record_at<ThreadBlock>(region, shape.record_size, n);
    add(totals.calls, block.calls);
    for (uint32_t op = 0; op < kMaxOpsOfVersion2; ++op) totals.calls[op] += block.older_calls[op];
    add(totals.unsampled, block.unsampled);
    add(totals.sampled, block.sampled);
    for (uint32_t pass = 0; pass < kPasses; ++pass)
      for (uint32_t reason = 0; reason < kSkipReasons; ++reason)
        totals.skipped[pass][reason] += block.skipped(pass, reason);
    totals.hook_ns += block.hook_ns;
    totals.step_ns += block.step_ns;
  }
  return totals;
}

std::vector<StepRecord> parse_steps(Bytes region, const Region& shape, uint64_t cursor, uint64_t* lost) {
  std::vector<StepRecord> records;
  for (uint64_t n = 0; n < shape.count; ++n) {
    const auto record = record_at<StepRecord>(region, shape.record_size, n);
    if (record.sequence % 2 == 0 && record.sequence / 2 > cursor) records.push_back(record);
  }
  std::sort(records.begin(), records.end(),
            [](const StepRecord& a, const StepRecord& b) { return a.sequence < b.sequence; });
  // Numbers are consecutive when nothing was overwritten. A writer in the middle of its newest record leaves
  // a gap at the old end of the ring, which is the record it overwrites.
  const uint64_t newest = records.empty() ? cursor : records.back().sequence / 2;
  *lost = newest - cursor - std::min<uint64_t>(records.size(), newest - cursor);
  return records;
}

void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]) {
  std::fill_n(sizes, kPayloads, 0);
  const uint64_t element = element_bytes(slot.dtype);
  const uint64_t rows = slot.part == 0 ? slot.rows : 0;  // all but the keys is in the first part
  const uint64_t keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  sizes[kQuery] = rows * slot.head_dim * element;
  sizes[kKey] = keys * slot.head_dim * element;
  sizes[kValue] = keys * slot.value_dim * element;
  sizes[kOut] = slot.without_out == 1 ? 0 : rows * slot.value_dim * element;
  sizes[kLogSumExp] = rows * element_bytes(slot.lse_dtype);
  sizes[kMask] = slot.rows * keys * element_bytes(slot.mask_dtype);
  const bool backward = slot.pass == 1;
  sizes[kGradOut] = backward ? rows * slot.value_dim * element : 0;
  sizes[kGradQuery] = backward ? rows * slot.head_dim * element : 0;
}

const char* parse_slot(Bytes bytes, uint32_t header_size, SlotView* view) {
  if (bytes.size() < header_size) return "slot too short";
  view->header = {};
  std::memcpy(&view->header, bytes.data(), std::min<size_t>(header_size, sizeof(Slot)));
  const Slot& slot = view->header;
  if (const char* why = check_dimensions(slot)) return why;
  uint64_t sizes[kPayloads];
  payload_sizes(slot, sizes);
  for (uint32_t id = 0; id < kPayloads; ++id) {
    const Payload& payload = slot.payload[id];
    if (payload.bytes != sizes[id]) return "payload size differs from the dimensions";
    if (payload.bytes == 0) {
      view->payload[id] = {};
      continue;
    }
    if (payload.offset < header_size || payload.offset % 8 != 0 || payload.offset > bytes.size() ||
        payload.bytes > bytes.size() - payload.offset)
      return "payload outside the slot";
    view->payload[id] = bytes.subspan(payload.offset, payload.bytes);
  }
  return nullptr;
}

}  // namespace foreshock::segment
