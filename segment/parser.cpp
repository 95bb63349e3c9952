// Parses the bytes of a segment (functions of reader.h). Checks every field that a trainer has written before
// the agent uses it. Functions that return const char* return null on success, else the error. A slot holds a
// slice (a copied part of an attention call) or one of its parts. Pass 0 is forward, pass 1 backward.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "segment/checksum.h"
#include "segment/layout.h"
#include "segment/reader.h"

namespace foreshock::segment {
namespace {

// What the header must say of a region: the size of its records and the bounds of their number. Records of
// kSlots, and the single record of kTensors (the ring of all tensor records), may be larger than record_size.
struct Expected {
  RegionId id;
  uint64_t record_size;
  uint64_t least_count, most_count;
};
constexpr Expected kExpected[] = {
    {kIdentity, sizeof(Identity), 1, 1},
    {kOps, sizeof(Op), 1, kMaxOps},
    {kThreads, sizeof(ThreadBlock), 1, kThreadBlocks},
    {kSteps, sizeof(StepRecord), 1, kStepRecords},
    {kLayers, sizeof(Layer), 1, kMaxLayers},
    {kProgress, sizeof(Progress), 1, 1},
    {kSlots, sizeof(Slot), 0, kMaxSlots},
    {kScalarNames, sizeof(ScalarName), 0, kMaxScalars},
    {kUnseenNames, sizeof(UnseenName), 0, kMaxUnseen},
    {kTensors, kLeastTensorsBytes, 0, 1},
    {kCoverage, sizeof(Coverage), 0, 1},
};
// Largest slot, in bytes. Limits what a hostile file can make the agent read, and keeps the product of record
// size and number of records in check_region() within 64 bits.
constexpr uint64_t kMostSlot = uint64_t{1} << 34;
// Largest ring of tensors, in bytes. A tensor record may fill the ring, and is read as a whole.
constexpr uint64_t kMostTensors = uint64_t{64} << 20;
constexpr uint32_t kMaxHeadDim = 4096;  // the trainer's library samples no call with a larger head dimension

// Storage formats, with the numbers of hook.h; 0: the tensor is absent.
constexpr uint32_t kFp64 = 1, kFp32 = 2, kBf16 = 3, kFp16 = 4, kBool = 5;

constexpr uint64_t element_bytes(uint32_t dtype) {
  constexpr uint64_t kBytes[] = {0, 8, 4, 2, 2, 1};
  return dtype < std::size(kBytes) ? kBytes[dtype] : 0;
}

bool is_floating(uint32_t dtype) { return dtype >= kFp64 && dtype <= kFp16; }

// Checks a slice of query rows with the keys that they see.
const char* check_rows(const Slot& slot) {
  if (slot.keys > slot.key_length) return "keys out of range";
  if (slot.rows % slot.heads_in_slice != 0) return "heads do not divide rows";
  for (uint32_t row = 0; row < slot.rows; ++row) {
    if (slot.seen_end[row] > slot.keys) return "a row that sees keys beyond the slice";
    if (slot.position[row] >= slot.query_length) return "row position beyond the queries";
  }
  return nullptr;
}

// Checks a slice of key positions (slot.columns is 1). Here `rows` counts sampled keys, `keys` counts query
// rows (of all query heads of the kv-head), and the queries seen_begin to seen_end see each sampled key.
// Trainers take such slices only from backward calls that have log_sum_exp, and from packed batches only if
// they know the sequence.
const char* check_columns(const Slot& slot) {
  if (slot.pass != 1 || slot.packed != kNotPacked || slot.lse_dtype == 0)
    return "key positions of a call that has none";
  // The first condition bounds query_length, so that the product in the second does not overflow.
  if (slot.query_length > slot.keys || slot.query_length * slot.heads_in_slice != slot.keys)
    return "query rows that are not those of the heads";
  for (uint32_t row = 0; row < slot.rows; ++row) {
    if (slot.seen_end[row] > slot.query_length) return "a key that queries beyond the last one see";
    if (slot.position[row] >= slot.key_length) return "key position beyond the keys";
  }
  return nullptr;
}

// Returns the bytes by which the payloads grow with each of slot.keys (keys, or query rows if columns is 1).
uint64_t bytes_per_key(const Slot& slot) {
  const uint64_t element = element_bytes(slot.dtype), head = slot.head_dim, value = slot.value_dim;
  // Mask and kept weights.
  const uint64_t mask = slot.rows * (element_bytes(slot.mask_dtype) + element_bytes(slot.kept_dtype));
  if (slot.columns == 1)  // query, out and its gradient, log_sum_exp, mask
    return (head + 2 * value) * element + element_bytes(slot.lse_dtype) + mask;
  return (head + value) * element + mask;  // key, value, mask
}

const char* check_window(const Slot& slot) {
  const auto is_known = [](int64_t keys) { return keys >= -1 && keys <= kMostWindow; };
  if (!is_known(slot.window.left) || !is_known(slot.window.right) || slot.window.is_bottom_right > 1)
    return "unknown window";
  const uint32_t rows = std::min(slot.rows, kRowsPerSlice);
  for (uint32_t row = 0; row < rows; ++row)
    if (slot.seen_begin[row] > slot.seen_end[row]) return "a range that ends before it begins";
  return nullptr;
}

const char* check_dimensions(const Slot& slot) {
  if (slot.pass >= kPasses) return "unknown pass";
  if (!is_floating(slot.dtype)) return "unknown storage format";
  if (slot.mask_dtype > kBool) return "unknown mask format";
  if (slot.kept_dtype > kBool) return "unknown format of kept weights";
  if (slot.kept_dtype != 0 ? !(slot.dropout > 0 && slot.dropout < 1) : slot.dropout != 0)
    return "dropout out of range";
  if (!(slot.soft_cap >= 0) || !std::isfinite(slot.soft_cap)) return "soft cap out of range";
  if (slot.lse_dtype != 0 && !is_floating(slot.lse_dtype)) return "unknown log-sum-exp format";
  const uint32_t most_without_out = slot.pass == 0 ? 1 : 0;  // only a forward call may lack its output
  if (slot.without_out > most_without_out) return "no output where there has to be one";
  if (slot.rows == 0 || slot.rows > kRowsPerSlice) return "rows out of range";
  if (slot.keys == 0) return "keys out of range";
  if (slot.keys > kMostSliceKeys) return "more keys than a slice may have";
  if (slot.head_dim == 0 || slot.head_dim > kMaxHeadDim || slot.value_dim == 0 ||
      slot.value_dim > kMaxHeadDim)
    return "head dimension out of range";
  if (slot.packed > kPacked || (slot.packed != kNotPacked && slot.mask_dtype + slot.kept_dtype != 0))
    return "unknown kind of packing";
  if (const char* why = check_window(slot)) return why;
  if (slot.columns > 1) return "unknown kind of slice";
  if (slot.columns_skip >= kColumnsSkips) return "unknown reason for no key positions";
  // Does not overflow: at most 2^22 keys times 3 * 2^12 dimensions times 2^3 bytes.
  if (slot.keys * bytes_per_key(slot) > kMostSliceBytes) return "more bytes than a slice may have";
  if (slot.heads_in_slice == 0) return "heads do not divide rows";
  if (!std::isfinite(slot.scale) || slot.scale == 0) return "scale is not a finite number";
  if (slot.layer_source > static_cast<uint32_t>(LayerSource::kUnnamedParameter))
    return "unknown layer source";
  // With at most one part, the slot holds the whole slice, and first_key and part_keys are not used.
  if (slot.parts > kMaxSlots || (slot.parts > 1 ? slot.part >= slot.parts : slot.part != 0))
    return "part out of range";
  if (slot.parts > 1 &&
      (slot.part_keys == 0 || slot.first_key >= slot.keys || slot.part_keys > slot.keys - slot.first_key))
    return "keys of the part out of range";
  return slot.columns == 1 ? check_columns(slot) : check_rows(slot);
}

// The agent and the trainer's library come from different releases if one was upgraded during the run.
const char* check_version(uint32_t version) {
  if (version < kLayoutVersion)
    return "its layout is older than this agent reads: upgrade foreshock where the trainer runs";
  if (version > kLayoutVersion)
    return "its layout is newer than this agent's: upgrade foreshock where the agent runs, and "
           "start the agent again";
  return nullptr;
}

const char* check_region(const Expected& expected, const Region& region, uint64_t file_size) {
  if (region.count < expected.least_count || region.count > expected.most_count)
    return "region with an impossible number of records";
  if (region.count == 0) return nullptr;
  uint64_t most = expected.record_size;
  if (expected.id == kSlots) most = kMostSlot;
  if (expected.id == kTensors) most = kMostTensors;
  if (region.record_size < expected.record_size || region.record_size > most || region.record_size % 8 != 0)
    return "region with an impossible record size";
  if (region.offset % 64 != 0 || region.offset > file_size ||
      region.record_size * region.count > file_size - region.offset)
    return "region outside the file";
  return nullptr;
}

constexpr int64_t kStepsEnd = int64_t{1} << 62;        // all step numbers must be smaller
constexpr uint64_t kMostElements = uint64_t{1} << 48;  // of a tensor; a limit of the Wasserstein distance
constexpr uint64_t kMostOfRank = uint64_t{1} << 38;    // elements of a rank's part of a tensor: 1 TiB of fp32

// Checks that the rank's part [offset, offset + part) is inside the tensor, and the limits of their sizes.
const char* check_shapes(const TensorRecord& record) {
  if (record.dims > kTensorDims) return "tensor with too many dimensions";
  uint64_t elements = 1;  // of the part
  for (uint32_t n = 0; n < kTensorDims; ++n) {
    const int64_t shape = record.shape[n], offset = record.offset[n], part = record.part[n];
    if (shape < 0 || offset < 0 || part < 0 || offset > shape || part > shape - offset)
      return "part outside its tensor";
    if (n >= record.dims && shape != 1) return "tensor with a dimension that it has not";
    if (part != 0 && elements > kMostElements / static_cast<uint64_t>(part))
      return "tensor of an impossible size";
    elements *= static_cast<uint64_t>(part);
  }
  uint64_t whole = 1;  // elements of the tensor
  for (const int64_t shape : record.shape) {
    if (shape != 0 && whole > kMostElements / static_cast<uint64_t>(shape))
      return "tensor of an impossible size";
    whole *= static_cast<uint64_t>(shape);
  }
  if (elements > kMostOfRank) return "part of an impossible size";
  return record.elements == elements ? nullptr : "elements differ from the shape";
}

const char* check_histogram(const TensorRecord& record) {
  const uint64_t bytes = record.payload[kTensorHistogram].bytes;
  switch (record.form) {
    case HistogramForm::kNone:
      return bytes == 0 ? nullptr : "histogram of no form";
    case HistogramForm::kValues:
      return bytes == record.elements * element_bytes(record.dtype) ? nullptr : "values of another size";
    case HistogramForm::kPatterns:
      return record.dtype == kFp32 ? "patterns of fp32" : nullptr;
    case HistogramForm::kBins:
      return record.dtype != kFp32 ? "bins of a 16-bit format" : nullptr;
  }
  return "unknown form of histogram";
}

const char* check_record(const TensorRecord& record) {
  if (record.kind != TensorKind::kSnapshot && record.kind != TensorKind::kGradientLook)
    return "unknown kind of tensor record";
  if (record.dtype != kFp32 && record.dtype != kBf16 && record.dtype != kFp16)
    return "unknown storage format";
  if (record.step < 0 || record.step >= kStepsEnd) return "tensor of an unknown step";
  if (record.interval == 0 || record.interval > kMostTensorInterval)
    return "tensor with an impossible interval";
  if (record.tensors == 0) return "tensor of none";
  if (const char* why = check_shapes(record)) return why;
  return check_histogram(record);
}

}  // namespace

const char* parse_header(Bytes bytes, uint64_t file_size, Header* header) {
  if (bytes.size() < sizeof(Header)) return "too short for a segment";
  std::memcpy(header, bytes.data(), sizeof(Header));
  if (std::memcmp(header->magic, kSegmentMagic, sizeof kSegmentMagic) != 0) return "not a foreshock segment";
  if (const char* why = check_version(header->layout_version)) return why;
  if (header->file_size != file_size) return "file size differs from the header's";
  for (const Expected& expected : kExpected)
    if (const char* why = check_region(expected, header->regions[expected.id], file_size)) return why;
  return nullptr;
}

Totals parse_threads(Bytes region) {
  Totals totals;
  // Adds an array of uint64_t, of one or two dimensions, to another one, element by element.
  const auto add = [](auto& sums, const auto& counters) {
    auto* sum = reinterpret_cast<uint64_t*>(&sums);
    const auto* counter = reinterpret_cast<const uint64_t*>(&counters);
    for (size_t n = 0; n < sizeof(sums) / sizeof(uint64_t); ++n) sum[n] += counter[n];
  };
  for (uint64_t n = 0; n < region.size() / sizeof(ThreadBlock); ++n) {
    const auto block = record_at<ThreadBlock>(region, n);
    add(totals.calls, block.calls);
    add(totals.unsampled, block.unsampled);
    add(totals.sampled, block.sampled);
    add(totals.skipped, block.skipped);
    totals.hook_ns += block.hook_ns;
    totals.step_ns += block.step_ns;
  }
  return totals;
}

std::vector<StepRecord> parse_steps(Bytes region, uint64_t cursor, uint64_t* lost) {
  std::vector<StepRecord> records;
  for (uint64_t n = 0; n < region.size() / sizeof(StepRecord); ++n) {
    const auto record = record_at<StepRecord>(region, n);
    if (record.sequence % 2 == 0 && record.sequence / 2 > cursor && record.checksum == checksum_of(record))
      records.push_back(record);
  }
  std::sort(records.begin(), records.end(),
            [](const StepRecord& a, const StepRecord& b) { return a.sequence < b.sequence; });
  // Record n has sequence 2n. The numbers are consecutive unless records were overwritten or damaged. A
  // record that is being written is left out, so the older record that it overwrites is missing too.
  const uint64_t newest = records.empty() ? cursor : records.back().sequence / 2;
  // The minimum keeps the difference at 0 or more in a damaged region, which may have several equal numbers.
  *lost = newest - cursor - std::min<uint64_t>(records.size(), newest - cursor);
  return records;
}

void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]) {
  std::fill_n(sizes, kPayloads, 0);
  const uint64_t element = element_bytes(slot.dtype);
  const uint64_t rows = slot.part == 0 ? slot.rows : 0;  // only the first part has the payloads of the rows
  const uint64_t keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  if (slot.columns == 1) {
    sizes[kQuery] = keys * slot.head_dim * element;
    sizes[kOut] = sizes[kGradOut] = keys * slot.value_dim * element;
    sizes[kLogSumExp] = keys * element_bytes(slot.lse_dtype);
    sizes[kMask] = slot.rows * keys * element_bytes(slot.mask_dtype);
    sizes[kKept] = slot.rows * keys * element_bytes(slot.kept_dtype);
    sizes[kKey] = sizes[kGradKey] = rows * slot.head_dim * element;
    sizes[kValue] = sizes[kGradValue] = rows * slot.value_dim * element;
    // A sum for each column of dK and of dV, and one for dQ.
    if (slot.part == 0) sizes[kKeySums] = (slot.head_dim + slot.value_dim + 1) * kKeySumBytes;
    return;
  }
  sizes[kQuery] = rows * slot.head_dim * element;
  sizes[kKey] = keys * slot.head_dim * element;
  sizes[kValue] = keys * slot.value_dim * element;
  sizes[kOut] = slot.without_out == 1 ? 0 : rows * slot.value_dim * element;
  sizes[kLogSumExp] = rows * element_bytes(slot.lse_dtype);
  sizes[kMask] = slot.rows * keys * element_bytes(slot.mask_dtype);
  sizes[kKept] = slot.rows * keys * element_bytes(slot.kept_dtype);
  const bool backward = slot.pass == 1;
  sizes[kGradOut] = backward ? rows * slot.value_dim * element : 0;
  sizes[kGradQuery] = backward ? rows * slot.head_dim * element : 0;
}

const char* parse_slot(Bytes bytes, SlotView* view) {
  if (bytes.size() < sizeof(Slot)) return "slot too short";
  std::memcpy(&view->header, bytes.data(), sizeof(Slot));
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
    if (!lies_inside(payload, bytes.size()) || payload.offset % 8 != 0) return "payload outside the slot";
    view->payload[id] = bytes.subspan(payload.offset, payload.bytes);
  }
  return nullptr;
}

// A filler is a record without content. It takes the end of the ring if the next record begins at the start.
const char* parse_tensor_length(Bytes bytes, uint64_t unread, uint64_t to_end, uint64_t* length,
                                bool* is_filler) {
  uint32_t kind = 0;
  if (bytes.size() < sizeof *length + sizeof kind) return "tensor record too short";
  std::memcpy(length, bytes.data(), sizeof *length);
  std::memcpy(&kind, bytes.data() + sizeof *length, sizeof kind);
  *is_filler = kind == static_cast<uint32_t>(TensorKind::kFiller);
  if (*length == 0 || *length % kTensorAlign != 0 || *length > unread || *length > to_end)
    return "tensor record of an impossible length";
  if (*is_filler && *length != to_end) return "filler in the middle of the ring";
  return nullptr;
}

const char* parse_tensor(Bytes bytes, TensorView* view) {
  *view = {};
  TensorRecord& record = view->record;
  if (bytes.size() < sizeof record) return "tensor record too short";
  std::memcpy(&record, bytes.data(), sizeof record);
  if (record.bytes != bytes.size()) return "tensor record of another length";
  if (const char* why = check_record(record)) return why;
  for (uint32_t id = 0; id < kTensorPayloads; ++id) {
    const Payload& payload = record.payload[id];
    if (payload.bytes == 0) continue;
    if (!lies_inside<TensorRecord>(payload, bytes.size()) || payload.offset % 8 != 0)
      return "payload outside the tensor record";
    view->payload[id] = bytes.subspan(payload.offset, payload.bytes);
  }
  if (record.kind == TensorKind::kGradientLook &&
      view->payload[kTensorGradientLook].size() != sizeof(GradientLook))
    return "look at a gradient of another size";
  return nullptr;
}

namespace {

// The payloads that are split among the slots if a slice takes several: those with data for each key, or, in
// a slice of key positions (a column slice), for each query row. Part 0 has all other payloads.
constexpr PayloadId kRowSliceSplit[] = {kKey, kValue, kMask, kKept},
                    kColumnSliceSplit[] = {kQuery, kOut, kLogSumExp, kMask, kKept, kGradOut};

std::span<const PayloadId> split_payloads(const Slot& slot) {
  if (slot.columns == 1) return kColumnSliceSplit;
  return kRowSliceSplit;
}

constexpr uint64_t round_up(uint64_t bytes) { return (bytes + 63) / 64 * 64; }  // aligns payloads to 64 bytes

bool is_split(const Slot& slot, uint32_t id) {
  const std::span<const PayloadId> split = split_payloads(slot);
  return std::find(split.begin(), split.end(), id) != split.end();
}

bool are_of_one_slice(const Slot& a, const Slot& b) {
  return a.parts == b.parts && a.first_ticket == b.first_ticket && a.pass == b.pass && a.dtype == b.dtype &&
         a.mask_dtype == b.mask_dtype && a.kept_dtype == b.kept_dtype && a.rows == b.rows &&
         a.keys == b.keys && a.head_dim == b.head_dim && a.value_dim == b.value_dim && a.packed == b.packed &&
         a.columns == b.columns &&
         (a.packed == kNotPacked || std::memcmp(&a.told, &b.told, sizeof a.told) == 0);
}

}  // namespace

const char* JoinedSlice::begin(const SlotView& first, uint64_t most_bytes) {
  if (first.header.part != 0) return "a slice that does not begin with its first part";
  whole_ = first;
  next_part_ = 0;
  joined_keys_ = 0;
  // A split payload has equal bytes for each key, so its size here gives its size for all keys of the slice.
  const uint64_t part_keys = first.header.part_keys, keys = first.header.keys;
  uint64_t offsets[kPayloads], sizes[kPayloads], end = 0;
  for (uint32_t id = 0; id < kPayloads; ++id) {
    sizes[id] = first.payload[id].size();
    if (is_split(first.header, id)) sizes[id] = sizes[id] / part_keys * keys;
    if (sizes[id] > most_bytes) return "a slice larger than its slots";
    offsets[id] = end;
    end += round_up(sizes[id]);
  }
  if (end > most_bytes) return "a slice larger than its slots";
  bytes_.resize(end);
  for (uint32_t id = 0; id < kPayloads; ++id) {
    const Bytes from = first.payload[id];
    whole_.payload[id] = Bytes(bytes_).subspan(offsets[id], sizes[id]);
    if (!is_split(first.header, id) && !from.empty())
      std::memcpy(bytes_.data() + offsets[id], from.data(), from.size());
  }
  return add(first);  // copies the split payloads
}

const char* JoinedSlice::add(const SlotView& part) {
  const Slot& slot = part.header;
  if (slot.part != next_part_ || is_whole() || !are_of_one_slice(slot, whole_.header))
    return "parts of several slices";
  if (slot.first_key != joined_keys_ || slot.part_keys > slot.keys - joined_keys_)
    return "parts that overlap or leave a gap";
  for (PayloadId id : split_payloads(slot)) {
    if (part.payload[id].empty()) continue;
    // The part's bytes are appended to those of the earlier parts. Mask and kept weights are matrices with a
    // line for each of slot.rows, and the part has some columns of each line. Other payloads count as a
    // single line.
    const uint64_t lines = id == kMask || id == kKept ? slot.rows : 1;
    const uint64_t from_bytes = part.payload[id].size() / lines, to_bytes = whole_.payload[id].size() / lines;
    // The bytes of a line that came from the earlier parts.
    const uint64_t done_bytes = from_bytes / slot.part_keys * joined_keys_;
    std::byte* to = bytes_.data() + (whole_.payload[id].data() - bytes_.data()) + done_bytes;
    for (uint64_t line = 0; line < lines; ++line)
      std::memcpy(to + line * to_bytes, part.payload[id].data() + line * from_bytes, from_bytes);
  }
  joined_keys_ += slot.part_keys;
  if (++next_part_ == slot.parts && joined_keys_ != slot.keys) return "parts that do not make up the slice";
  return nullptr;
}

SlotView JoinedSlice::take() {
  SlotView view = whole_;
  view.header.parts = view.header.first_key = view.header.part_keys = 0;
  return view;
}

namespace {

// Returns the keys that the query at `position` of the sampled sequence of a packed batch (sequences without
// padding) sees. SequenceTold, written by the device, has the sequence's lengths and the sampled positions.
PositionRange keys_seen_in(const Slot& slot, uint32_t position) {
  return keys_seen(slot.window, slot.told.queries, slot.told.keys, position);
}

// Whether the slice of a packed batch has rows that can be judged. If a query sees no key, there are none.
bool has_rows(const Slot& slot) {
  const SequenceTold& told = slot.told;
  if (told.positions == 0 || told.queries == 0 || told.keys == 0) return false;
  return !has_query_without_keys(slot.window, told.queries, told.keys);
}

// Checks that the lengths and positions from the device are within the limits that the host has planned.
const char* check_extent(const Slot& slot) {
  const SequenceTold& told = slot.told;
  if (told.queries > slot.query_length || told.keys > slot.key_length) return "a sequence beyond the longest";
  if (told.positions > slot.rows / slot.heads_in_slice || told.positions > told.queries)
    return "more positions than were asked for";
  for (uint32_t n = 0; n < told.positions; ++n) {
    if (told.position[n] >= told.queries) return "row position beyond the sequence";
    if (keys_seen_in(slot, told.position[n]).end > slot.keys) return "a row that sees keys beyond the slice";
  }
  return nullptr;
}

}  // namespace

// Replaces the dimensions and rows that the host planned by those of the sequence that the device chose.
const char* settle_packed(SlotView* view) {
  Slot& slot = view->header;
  if (slot.packed == kNotPacked) return nullptr;
  const SequenceTold told = slot.told;
  const uint32_t heads = slot.heads_in_slice, planned = slot.rows / heads;  // planned positions per head
  uint32_t keys = 0;
  if (!has_rows(slot)) {
    slot.rows = 0;
  } else if (const char* why = check_extent(slot)) {
    return why;
  } else {
    slot.rows = heads * told.positions;
    for (uint32_t row = 0; row < slot.rows; ++row) {
      const uint32_t position = told.position[row % told.positions];
      // head[] is ordered by head, with `planned` rows for each, and is compacted in place to the real number
      // of rows. The first planned row of a head still has the head's number when it is read here.
      slot.head[row] = slot.head[row / told.positions * planned];
      slot.position[row] = position;
      const PositionRange seen = keys_seen_in(slot, position);
      slot.seen_begin[row] = static_cast<uint32_t>(seen.begin);
      slot.seen_end[row] = static_cast<uint32_t>(seen.end);
      keys = std::max(keys, slot.seen_end[row]);
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
