// Chooses the slice of a call by random numbers that follow from a hash, computes which bytes of the call are
// copied into which slots of shared memory, and copies them on the host or describes the copy for a device's
// kernel. A Slice names the sampled heads and positions, a SlicePlan its slots; a segment::Slot is the header
// of a slot.
//
// A slice of rows has the sampled rows of query, out and their gradients, and all keys that they see. A slice
// of key positions has the sampled rows of key, value and their gradients, and all query rows. Both have the
// mask of their rows and keys, and what dropout has kept of their weights. In the header
// of its slots `columns` is 1, `rows` counts the sampled keys, `keys` counts the query rows, and seen_begin
// and seen_end are those of the queries that see a key.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/gather.h"
#include "kernels/key_sums.h"
#include "kernels/packed.h"
#include "libmonitor/call.h"
#include "libmonitor/sampling.h"
#include "segment/checksum.h"

namespace foreshock {
namespace {

// What a random number is for.
enum Purpose : uint64_t {
  kBatch = 1,
  kKvHead,
  kFirstHead,
  kPackedPosition,
  kTakesColumns,
  kCountsNonfinite,
  kTakesEnds,
  kPosition = 16
};

// Returns the random number of one choice for one call. Choices with different `purpose` are independent.
uint64_t random_of(uint64_t seed, int64_t step, uint64_t call, int rank, uint64_t purpose) {
  return mix(seed, static_cast<uint64_t>(step), call, static_cast<uint64_t>(rank) << 8 | purpose);
}

// Divides `length` positions into at most `most` equal parts, and chooses a position in each part. One slice
// in four has the first and the last position: in a model that classifies by its first or last token, only
// the gradient of this token's row is not 0.
void choose_positions(int64_t length, int64_t most, const auto& random, Slice* slice) {
  slice->parts = slice->positions = static_cast<int>(std::min(length, most));
  const uint32_t parts = static_cast<uint32_t>(slice->parts);
  const bool takes_ends = random(kTakesEnds) % 4 == 0;
  for (uint32_t n = 0; n < parts; ++n) {
    slice->fraction[n] = static_cast<uint32_t>(random(kPosition + n) >> 32);
    if (takes_ends && n == 0) slice->fraction[n] = 0;
    if (takes_ends && n + 1 == parts) slice->fraction[n] = UINT32_MAX;
    slice->position[n] =
        static_cast<int64_t>(position_in_part(static_cast<uint64_t>(length), n, parts, slice->fraction[n]));
  }
}

}  // namespace

Slice choose_slice(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank) {
  const auto random = [&](uint64_t purpose) { return random_of(seed, step, call, rank, purpose); };
  const int64_t group = shape.heads / shape.kv_heads;  // query heads that share a kv-head
  Slice slice;
  slice.batch = below(random(kBatch), shape.batch);
  slice.kv_head = below(random(kKvHead), shape.kv_heads);
  slice.heads = static_cast<int>(std::min<int64_t>(group, kRowsPerSample));  // one row per position and head
  slice.first_head = slice.kv_head * group + below(random(kFirstHead), group - slice.heads + 1);
  choose_positions(shape.queries, kRowsPerSample / slice.heads, random, &slice);
  // Without the rank, so that all ranks count in the same calls. Ranks that wait for each other then lose the
  // time of the count once, not once for each rank.
  slice.counts_nonfinite = mix(seed, static_cast<uint64_t>(step), call, kCountsNonfinite) % 2 == 0;
  return slice;
}

// The purposes are those of choose_slice(), so both slices of a call have the same batch element and kv-head.
Slice choose_columns(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank) {
  const auto random = [&](uint64_t purpose) { return random_of(seed, step, call, rank, purpose); };
  Slice slice;
  slice.batch = below(random(kBatch), shape.batch);
  slice.kv_head = below(random(kKvHead), shape.kv_heads);
  slice.heads = static_cast<int>(shape.heads / shape.kv_heads);
  slice.first_head = slice.kv_head * slice.heads;
  choose_positions(shape.keys, kRowsPerSample, random, &slice);
  return slice;
}

bool takes_columns(const ValidatedCall& call, bool is_affordable, uint64_t seed, int64_t step,
                   uint64_t number) {
  // The share of calls follows from the elements that are read, in elements of the call's format: `rows` by a
  // slice of rows (keys and values of a kv-head, mask), `copied` by a slice of key positions (queries,
  // outputs, output gradients, mask), `summed` by its sums over all keys (dK, dV and dQ). If the budget is
  // large
  // (`is_affordable`), key positions may copy as many elements as rows in the mean. Else their mean extra
  // cost must stay below 0.3 of the rows' cost; kExtraCost is lower, since real costs differ from these
  // counts by up to a fourth. `scattered`: a mask with a line for each query is read at one place of a cache
  // line (64 bytes) for each sampled key. kFixed: what any slice costs before it copies keys, its header and
  // query rows: 2 us, in the time for an element of a long slice (docs/attention-error.md, Cost).
  constexpr double kExtraCost = 0.22, kFixed = 6000;
  const CallShape& shape = call.shape;
  const auto head_dim = static_cast<double>(call.head_dim), value_dim = static_cast<double>(call.value_dim);
  const auto keys = static_cast<double>(shape.keys), queries = static_cast<double>(shape.queries);
  const auto group = static_cast<double>(shape.heads / shape.kv_heads),
             element = static_cast<double>(size_of(call.dtype));
  const double sampled = std::min<double>(kRowsPerSample, keys);
  double mask = 0, scattered = 0;
  for (const TensorView* view : {&call.mask, &call.kept}) {
    if (!view->data) continue;
    const double lines = (view->stride[1] == 0 ? 1 : group) * (view->stride[2] == 0 ? 1 : queries);
    mask += static_cast<double>(size_of(view->dtype)) / element;
    scattered += lines * sampled * 64 / element;
  }
  const double rows = kFixed + keys * (head_dim + value_dim + kRowsPerSample * mask);
  const double weights = call.weights.data ? keys : 0;  // log_sum_exp_of_weights() reads all of them
  const double copied = kFixed + group * queries * (head_dim + 2 * value_dim + sampled * mask + weights);
  const double summed = keys * (head_dim + value_dim) + group * queries * head_dim;
  const double share =
      std::min(0.5, is_affordable ? rows / copied : kExtraCost * rows / (copied + summed + scattered));
  return static_cast<double>(random_of(seed, step, number, 0, kTakesColumns) >> 32) < share * 0x1p32;
}

uint32_t choose_packed_position(uint64_t seed, int64_t step, uint64_t call, int rank) {
  return static_cast<uint32_t>(random_of(seed, step, call, rank, kPackedPosition) >> 32);
}

namespace {

static_assert(segment::kRowsPerSlice == kRowsPerSample);

// A payload is one tensor's part of a slot. Payloads follow the header in the order of segment::PayloadId.
constexpr uint64_t kAlignment = 64;  // of payloads, in bytes
constexpr uint64_t round_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr uint64_t kHeaderBytes = round_up(sizeof(segment::Slot));

// Returns the keys that a query position sees. For a packed batch on a device (packed.count > 0) the end is
// an upper bound, because the device chooses the sequence later; no sequence is longer than shape.keys. The
// reader computes both ends again (settle_packed() in segment/reader.h).
segment::PositionRange keys_seen_by(const ValidatedCall& call, int64_t position) {
  if (call.packed.count > 0 && call.window.is_bottom_right != 0) return {0, call.shape.keys};
  return keys_seen(call.window, call.shape.queries, call.shape.keys, position);
}

void set_seen(segment::PositionRange seen, int row, segment::Slot* slot) {
  slot->seen_begin[row] = static_cast<uint32_t>(seen.begin);
  slot->seen_end[row] = static_cast<uint32_t>(seen.end);
}

uint64_t size_of_dtype(uint32_t dtype) { return size_of(static_cast<DType>(dtype)); }

// Computes the sizes in bytes of the payloads of a slot that holds `keys` keys (query rows if slot.columns is
// 1). The first slot of a slice (`is_first`) also holds the payloads of the sampled rows.
void sizes_of(const segment::Slot& slot, uint64_t keys, bool is_first,
              uint64_t (&sizes)[segment::kPayloads]) {
  const uint64_t element = size_of_dtype(slot.dtype), rows = is_first ? slot.rows : 0;
  std::fill_n(sizes, segment::kPayloads, 0);
  if (slot.columns == 1) {
    sizes[segment::kQuery] = keys * slot.head_dim * element;
    sizes[segment::kOut] = sizes[segment::kGradOut] = keys * slot.value_dim * element;
    sizes[segment::kLogSumExp] = keys * size_of_dtype(slot.lse_dtype);
    sizes[segment::kMask] = slot.rows * keys * size_of_dtype(slot.mask_dtype);
    sizes[segment::kKept] = slot.rows * keys * size_of_dtype(slot.kept_dtype);
    sizes[segment::kKey] = sizes[segment::kGradKey] = rows * slot.head_dim * element;
    sizes[segment::kValue] = sizes[segment::kGradValue] = rows * slot.value_dim * element;
    if (is_first)
      sizes[segment::kKeySums] = key_sum_count(slot.head_dim, slot.value_dim) * segment::kKeySumBytes;
    return;
  }
  sizes[segment::kQuery] = rows * slot.head_dim * element;
  sizes[segment::kKey] = keys * slot.head_dim * element;
  sizes[segment::kValue] = keys * slot.value_dim * element;
  sizes[segment::kOut] = slot.without_out != 0 ? 0 : rows * slot.value_dim * element;
  sizes[segment::kLogSumExp] = rows * size_of_dtype(slot.lse_dtype);
  sizes[segment::kMask] = slot.rows * keys * size_of_dtype(slot.mask_dtype);
  sizes[segment::kKept] = slot.rows * keys * size_of_dtype(slot.kept_dtype);
  if (slot.pass != FORESHOCK_BACKWARD) return;
  sizes[segment::kGradOut] = rows * slot.value_dim * element;
  sizes[segment::kGradQuery] = rows * slot.head_dim * element;
}

uint64_t slot_bytes(const segment::Slot& slot, uint64_t keys, bool is_first) {
  uint64_t sizes[segment::kPayloads];
  sizes_of(slot, keys, is_first, sizes);
  uint64_t bytes = kHeaderBytes;
  for (uint64_t size : sizes) bytes += round_up(size);
  return bytes;
}

// Returns the bytes by which the payloads grow with each key (query row if slot.columns is 1).
uint64_t bytes_per_key(const segment::Slot& slot) {
  const uint64_t element = size_of_dtype(slot.dtype), head = slot.head_dim, value = slot.value_dim;
  const uint64_t mask = slot.rows * (size_of_dtype(slot.mask_dtype) + size_of_dtype(slot.kept_dtype));
  if (slot.columns == 1) return (head + 2 * value) * element + size_of_dtype(slot.lse_dtype) + mask;
  return (head + value) * element + mask;
}

// Returns how many keys (query rows if slot.columns is 1) fit into a slot of `capacity` bytes.
uint32_t keys_within(const segment::Slot& slot, uint64_t capacity, bool is_first) {
  // At most six payloads grow with the keys. Rounding each up adds less than kAlignment.
  const uint64_t bytes_without_keys = slot_bytes(slot, 0, is_first) + 6 * kAlignment;
  if (capacity <= bytes_without_keys) return 0;
  const uint64_t per_key = bytes_per_key(slot);
  return static_cast<uint32_t>(std::min<uint64_t>((capacity - bytes_without_keys) / per_key, slot.keys));
}

void set_fields_of_rows(const ValidatedCall& call, const Slice& slice, segment::Slot* slot) {
  int64_t most_keys = 1;  // at least one key is copied, even if no row sees any
  for (int row = 0; row < slice.rows(); ++row) {
    const int64_t position = slice.position[row % slice.positions];
    const segment::PositionRange seen = keys_seen_by(call, position);
    set_seen(seen, row, slot);
    slot->position[row] = static_cast<uint32_t>(position);
    slot->head[row] = static_cast<uint32_t>(slice.first_head + row / slice.positions);
    most_keys = std::max(most_keys, seen.end);
  }
  slot->rows = static_cast<uint32_t>(slice.rows());
  slot->keys = static_cast<uint32_t>(most_keys);
  slot->heads_in_slice = static_cast<uint32_t>(slice.heads);
}

void set_fields_of_call(const ValidatedCall& call, const Slice& slice, segment::Slot* slot) {
  slot->pass = call.pass;
  slot->dtype = static_cast<uint32_t>(call.dtype);
  slot->mask_dtype = call.mask.data ? static_cast<uint32_t>(call.mask.dtype) : 0;
  slot->without_out = call.out.data == nullptr;
  slot->lse_dtype = call.log_sum_exp.data ? static_cast<uint32_t>(call.log_sum_exp.dtype) : 0;
  slot->head_dim = static_cast<uint32_t>(call.head_dim);
  slot->value_dim = static_cast<uint32_t>(call.value_dim);
  // The index of the batch element or, in a packed batch, of the sequence; the other one is always 0. If only
  // the device can find the sequence, both are 0 here, and the device stores its index in the SequenceTold.
  slot->batch = slice.batch + call.sequence;
  slot->kv_head = slice.kv_head;
  slot->query_length = static_cast<uint64_t>(call.shape.queries);
  slot->key_length = static_cast<uint64_t>(call.shape.keys);
  slot->scale = call.scale;
  slot->soft_cap = call.soft_cap;
  slot->dropout = call.dropout;
  slot->kept_dtype = call.kept.data ? static_cast<uint32_t>(call.kept.dtype) : 0;
  slot->window = call.window;
  slot->packed = call.packed.count == 0 ? segment::kNotPacked : segment::kPacked;
}

// Computes how many slots of `capacity` bytes the slice needs. Returns false if the first cannot hold a key.
bool split(uint64_t capacity, SlicePlan* plan) {
  const segment::Slot& slot = plan->header;
  plan->slots = 1;
  plan->first_keys = slot.keys;
  if (slot_bytes(slot, slot.keys, true) <= capacity) return true;
  plan->first_keys = keys_within(slot, capacity, true);
  plan->other_keys = keys_within(slot, capacity, false);
  if (plan->first_keys == 0) return false;  // other_keys is at least as large, so it is not 0 below
  plan->slots += (slot.keys - plan->first_keys + plan->other_keys - 1) / plan->other_keys;
  return true;
}

}  // namespace

// Returns the bytes of a backward slice with output, log_sum_exp and mask. Of the formats that these may
// have, the largest usual one is taken.
uint64_t slot_bytes_for(const ValidatedCall& call) {
  segment::Slot slot = {};
  set_fields_of_call(call, {}, &slot);
  slot.rows = kRowsPerSample;
  slot.pass = FORESHOCK_BACKWARD;
  slot.without_out = 0;
  slot.lse_dtype = FORESHOCK_FP64;
  slot.mask_dtype = size_of(call.dtype) == 8 ? FORESHOCK_FP64 : FORESHOCK_FP32;
  return slot_bytes(slot, static_cast<uint64_t>(call.shape.keys), true);
}

bool plan_slice(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, Slice* slice,
                SlicePlan* plan) {
  set_fields_of_call(call, *slice, &plan->header);
  // The last position is removed first, because with a causal mask it sees the most keys.
  for (; slice->positions > 0; --slice->positions) {
    set_fields_of_rows(call, *slice, &plan->header);
    if (split(capacity, plan) && plan->slots <= most_slots) return true;
  }
  return false;
}

bool plan_columns(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, const Slice& slice,
                  SlicePlan* plan) {
  segment::Slot& slot = plan->header;
  set_fields_of_call(call, slice, &slot);
  const uint64_t rows = static_cast<uint64_t>(slice.heads) * static_cast<uint64_t>(call.shape.queries);
  if (!call.log_sum_exp.data) slot.lse_dtype = FORESHOCK_FP64;
  slot.columns = 1;  // exchanges the meanings of rows and keys (see the top of this file)
  slot.rows = static_cast<uint32_t>(slice.positions);
  if (rows > segment::kMostSliceKeys || rows * bytes_per_key(slot) > segment::kMostSliceBytes) return false;
  slot.keys = static_cast<uint32_t>(rows);
  slot.heads_in_slice = static_cast<uint32_t>(slice.heads);
  for (int n = 0; n < slice.positions; ++n) {
    slot.position[n] = static_cast<uint32_t>(slice.position[n]);
    set_seen(queries_seeing(call.window, call.shape.queries, call.shape.keys, slice.position[n]), n, &slot);
    slot.head[n] = static_cast<uint32_t>(slice.first_head);
  }
  return split(capacity, plan) && plan->slots <= most_slots;
}

segment::Slot slot_of(const SlicePlan& plan, uint32_t part) {
  segment::Slot slot = plan.header;
  if (plan.slots > 1) {
    slot.part = part;
    slot.parts = plan.slots;
    slot.first_key = part == 0 ? 0 : plan.first_keys + (part - 1) * plan.other_keys;
    slot.part_keys = std::min(part == 0 ? plan.first_keys : plan.other_keys, slot.keys - slot.first_key);
  }
  uint64_t sizes[segment::kPayloads];
  sizes_of(slot, plan.slots > 1 ? slot.part_keys : slot.keys, part == 0, sizes);
  uint64_t end = kHeaderBytes;
  for (uint32_t id = 0; id < segment::kPayloads; ++id) {
    slot.payload[id] = {sizes[id] != 0 ? end : 0, sizes[id]};
    end += round_up(sizes[id]);
  }
  return slot;
}

namespace {

// Copies the first `width` elements of every sampled row, without gaps, head by head.
void copy_rows(const TensorView& from, const Slice& slice, int64_t width, char* to) {
  for (int head = 0; head < slice.heads; ++head)
    for (int n = 0; n < slice.positions; ++n)
      to += gather_row_starts(from, slice.batch, slice.first_head + head, slice.position[n], 1, width, to);
}

// Copies query rows [first, first + count) of the sampled heads; rows are numbered head by head.
void copy_query_rows(const TensorView& from, const Slice& slice, int64_t queries, int64_t first,
                     int64_t count, char* to) {
  while (count > 0) {
    const int64_t head = first / queries, position = first % queries;
    const int64_t rows_of_head = std::min(count, queries - position);
    to += gather_rows(from, slice.batch, slice.first_head + head, position, rows_of_head, to);
    first += rows_of_head;
    count -= rows_of_head;
  }
}

// Copies the mask of query rows [first, first + count) at the sampled key positions: a line of `count`
// numbers for each position. Reads row by row, since the rows of a mask lie far apart. Bits: as large as an
// element.
template <class Bits>
void copy_mask_lines(const TensorView& mask, const Slice& slice, int64_t queries, int64_t first,
                     int64_t count, char* to) {
  constexpr int64_t kElement = sizeof(Bits);
  for (int64_t n = 0; n < count; ++n) {
    const int64_t head = slice.first_head + (first + n) / queries, position = (first + n) % queries;
    const char* row = mask.row(slice.batch, head, position);
    for (int line = 0; line < slice.positions; ++line) {
      const auto bits = load_unaligned<Bits>(row + slice.position[line] * mask.stride[3] * kElement);
      std::memcpy(to + (line * count + n) * kElement, &bits, kElement);
    }
  }
}

void copy_mask_columns(const TensorView& mask, const Slice& slice, int64_t queries, int64_t first,
                       int64_t count, char* to) {
  switch (size_of(mask.dtype)) {
    case 1:
      return copy_mask_lines<uint8_t>(mask, slice, queries, first, count, to);
    case 2:
      return copy_mask_lines<uint16_t>(mask, slice, queries, first, count, to);
    case 4:
      return copy_mask_lines<uint32_t>(mask, slice, queries, first, count, to);
    default:
      return copy_mask_lines<uint64_t>(mask, slice, queries, first, count, to);
  }
}

// Does the work of copy_slot() for a slice of key positions, where first_key and part_keys mean query rows.
void copy_columns(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot, char* base) {
  const auto at = [&](segment::PayloadId id) { return base + slot.payload[id].offset; };
  const int64_t first = slot.first_key, rows = slot.parts > 1 ? slot.part_keys : slot.keys;
  const auto put_rows = [&](const TensorView& from, segment::PayloadId id) {
    copy_query_rows(from, slice, call.shape.queries, first, rows, at(id));
  };
  put_rows(call.query, segment::kQuery);
  put_rows(call.out, segment::kOut);
  if (call.log_sum_exp.data)
    put_rows(call.log_sum_exp, segment::kLogSumExp);
  else
    log_sum_exp_of_weights(call, slice, first, rows, reinterpret_cast<double*>(at(segment::kLogSumExp)));
  put_rows(call.grad_out, segment::kGradOut);
  if (call.mask.data)
    copy_mask_columns(call.mask, slice, call.shape.queries, first, rows, at(segment::kMask));
  if (call.kept.data)
    copy_mask_columns(call.kept, slice, call.shape.queries, first, rows, at(segment::kKept));
  if (slot.part > 0) return;
  const auto put_keys = [&](const TensorView& from, segment::PayloadId id) {
    char* to = at(id);
    for (int n = 0; n < slice.positions; ++n)
      to += gather_rows(from, slice.batch, slice.kv_head, slice.position[n], 1, to);
  };
  put_keys(call.key, segment::kKey);
  put_keys(call.value, segment::kValue);
  put_keys(call.grad_key, segment::kGradKey);
  put_keys(call.grad_value, segment::kGradValue);
  static_assert(sizeof(ColumnSum) == segment::kKeySumBytes);
  sum_over_keys(call.grad_query, call.grad_key, call.grad_value, slice.batch, slice.kv_head,
                reinterpret_cast<ColumnSum*>(at(segment::kKeySums)));
}

TensorView from_column(TensorView view, int64_t first) {
  view.data = static_cast<const char*>(view.data) +
              first * view.stride[3] * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

}  // namespace

void copy_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot, char* base) {
  if (slot.columns == 1) return copy_columns(call, slice, slot, base);
  const auto at = [&](segment::PayloadId id) { return base + slot.payload[id].offset; };
  const int64_t first = slot.first_key, keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  gather_rows(call.key, slice.batch, slice.kv_head, first, keys, at(segment::kKey));
  gather_rows(call.value, slice.batch, slice.kv_head, first, keys, at(segment::kValue));
  if (call.mask.data) copy_rows(from_column(call.mask, first), slice, keys, at(segment::kMask));
  if (call.kept.data) copy_rows(from_column(call.kept, first), slice, keys, at(segment::kKept));
  if (slot.part > 0) return;
  copy_rows(call.query, slice, call.head_dim, at(segment::kQuery));
  if (call.out.data) copy_rows(call.out, slice, call.value_dim, at(segment::kOut));
  if (call.log_sum_exp.data) copy_rows(call.log_sum_exp, slice, 1, at(segment::kLogSumExp));
  if (call.pass == FORESHOCK_BACKWARD) {
    copy_rows(call.grad_out, slice, call.value_dim, at(segment::kGradOut));
    copy_rows(call.grad_query, slice, call.head_dim, at(segment::kGradQuery));
  }
}

uint32_t count_nonfinite_out(const ValidatedCall& call, const Slice& slice) {
  // A window or mask may hide all keys from a query position. Correct kernels may write NaN for it.
  if (call.pass != FORESHOCK_FORWARD || call.device_type != FORESHOCK_DEVICE_CPU || !call.out.data ||
      call.mask.data || has_query_without_keys(call.window, call.shape.queries, call.shape.keys))
    return 0;
  const uint64_t count = count_nonfinite(call.out, slice.batch, slice.first_head);
  if (count == 0 || count_nonfinite(call.query, slice.batch, slice.first_head) > 0 ||
      count_nonfinite(call.key, slice.batch, slice.kv_head) > 0 ||
      count_nonfinite(call.value, slice.batch, slice.kv_head) > 0)
    return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
}

bool fits(const segment::Slot& header, uint64_t slot_bytes) {
  for (const segment::Payload& payload : header.payload)
    if (payload.bytes > 0 && !segment::lies_inside(payload, slot_bytes)) return false;
  return true;
}

uint64_t write_slice(const ValidatedCall& call, const Slice& slice, const SlicePlan& plan,
                     const segment::SegmentWriter& writer, uint64_t ticket, segment::Slot** slots) {
  for (uint32_t part = 0; part < plan.slots; ++part)
    if (!fits(slot_of(plan, part), writer.slot_bytes())) return 0;
  if (!writer.claim(ticket, plan.slots, slots, plan.header)) return 0;
  const uint32_t nonfinite_out = slice.counts_nonfinite ? count_nonfinite_out(call, slice) : 0;
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < plan.slots; ++part) {
    // The shared slot is only written: another process may change it at any time, so that an offset read from
    // it could lead anywhere. `header` is the truth.
    segment::Slot& slot = *slots[part];
    const segment::Slot header = slot_of(plan, part);
    slot.first_key = header.first_key;
    slot.part_keys = header.part_keys;
    slot.nonfinite_out = nonfinite_out;
    std::memcpy(slot.payload, header.payload, sizeof slot.payload);
    if (call.device_type == FORESHOCK_DEVICE_CPU)
      copy_slot(call, slice, header, reinterpret_cast<char*>(&slot));
    for (const segment::Payload& payload : header.payload) bytes += payload.bytes;
  }
  return bytes;
}

namespace {

static_assert(kMostPositions == kRowsPerSample);

// The functions below describe a copy for the gather kernel of a device, in pieces of one tensor each. This
// one describes the first `width` columns of the rows [first, first + count) of a head.
GatherPiece consecutive_rows(const TensorView& from, int64_t batch, int64_t head, int64_t first,
                             int64_t count, int64_t width) {
  GatherPiece piece = {};
  piece.from = reinterpret_cast<uint64_t>(from.row(batch, head, 0));
  piece.row_stride = from.stride[2];
  piece.column_stride = from.stride[3];
  piece.heads = 1;
  piece.rows = static_cast<uint32_t>(count);
  piece.width = static_cast<uint32_t>(width);
  piece.element = static_cast<uint32_t>(size_of(from.dtype));
  piece.first_row = static_cast<uint32_t>(first);
  return piece;
}

// Adds the piece to the job. Its copy begins `to` bytes after the address to which the job copies.
void add_piece(GatherPiece piece, uint64_t to, GatherJob* job) {
  piece.to = to;
  job->piece[job->pieces++] = piece;
}

// Describes the rows of the sampled heads at the sampled positions: `width` columns from column `first` on.
// is_listed 1: the kernel copies the rows whose positions the job lists, not consecutive rows.
GatherPiece chosen_rows(const TensorView& from, const Slice& slice, int64_t first, int64_t width) {
  GatherPiece piece = consecutive_rows(from, slice.batch, slice.first_head, 0, slice.positions, width);
  piece.from += static_cast<uint64_t>(first * from.stride[3] * static_cast<int64_t>(size_of(from.dtype)));
  piece.head_stride = from.stride[1];
  piece.heads = static_cast<uint32_t>(slice.heads);
  piece.is_listed = 1;
  return piece;
}

// Describes the rows of the kv-head at the sampled key positions.
GatherPiece chosen_keys(const TensorView& from, const Slice& slice, int64_t width) {
  GatherPiece piece = consecutive_rows(from, slice.batch, slice.kv_head, 0, slice.positions, width);
  piece.is_listed = 1;
  return piece;
}

// Adds pieces for query rows [first, first + count) of the sampled heads; rows are numbered head by head.
// These are at most three pieces: the rest of a head, whole heads, and the beginning of a head.
void add_query_rows(const TensorView& from, const Slice& slice, int64_t first, int64_t count, int64_t width,
                    uint64_t to, GatherJob* job) {
  const int64_t queries = from.shape[2];
  while (count > 0) {
    const int64_t head = slice.first_head + first / queries, position = first % queries;
    const int64_t whole = position == 0 ? count / queries : 0;
    const int64_t rows = whole > 0 ? queries : std::min(count, queries - position);
    GatherPiece piece = consecutive_rows(from, slice.batch, head, position, rows, width);
    if (whole > 1)  // one piece for several whole heads
      piece.head_stride = from.stride[1], piece.heads = static_cast<uint32_t>(whole);
    add_piece(piece, to, job);
    const int64_t taken = rows * piece.heads;
    first += taken;
    count -= taken;
    to += static_cast<uint64_t>(taken * width) * piece.element;
  }
}

// Does the same for the mask of the sampled keys: for each key a line with a number for each of these rows. A
// piece with the rows of one head has a thread for each number; one with several heads has a row for each.
void add_mask_lines(const TensorView& mask, const Slice& slice, int64_t first, int64_t count, uint64_t to,
                    GatherJob* job) {
  const int64_t queries = mask.shape[2];
  const uint64_t element = size_of(mask.dtype), line_bytes = static_cast<uint64_t>(count) * element;
  while (count > 0) {
    const int64_t head = slice.first_head + first / queries, position = first % queries;
    const int64_t heads = std::max<int64_t>(1, position == 0 ? count / queries : 0);
    const int64_t rows = heads > 1 ? queries : std::min(count, queries - position);
    GatherPiece piece = heads == 1 ? consecutive_rows(mask, slice.batch, head, position, rows, 1)
                                   : consecutive_rows(mask, slice.batch, head, 0, heads, queries);
    if (heads > 1) piece.row_stride = mask.stride[1], piece.column_stride = mask.stride[2];
    piece.head_stride = mask.stride[3];
    piece.heads = static_cast<uint32_t>(slice.positions);
    piece.is_listed = 2;
    piece.head_bytes = line_bytes;
    add_piece(piece, to, job);
    first += heads * rows;
    count -= heads * rows;
    to += static_cast<uint64_t>(heads * rows) * element;
  }
}
// A slice of key positions has six payloads of query rows, with at most three pieces each, and four of keys.
static_assert(kMostPieces >= 6 * 3 + 4, "a slice of key positions");

GatherJob gather_of(const Slice& slice, uint64_t to) {
  GatherJob job = {};
  job.to = to;
  for (int n = 0; n < slice.positions; ++n) job.position[n] = static_cast<uint32_t>(slice.position[n]);
  return job;
}

// Describes `heads` heads of one batch element for the kernel that sums over all keys.
DeviceView rows_of(const TensorView& view, int64_t batch, int64_t head, int64_t heads) {
  return {.data = reinterpret_cast<uint64_t>(view.row(batch, head, 0)),
          .stride = {view.stride[1], view.stride[2], view.stride[3]},
          .heads = static_cast<uint32_t>(heads),
          .rows = static_cast<uint32_t>(view.shape[2]),
          .width = static_cast<uint32_t>(view.shape[3]),
          .reserved = 0};
}

}  // namespace

PayloadRange payloads_of(const segment::Slot& slot) {
  PayloadRange range = {~uint64_t{0}, 0};  // begin: the minimum of the offsets below
  for (const segment::Payload& payload : slot.payload) {
    if (payload.offset == 0) continue;
    range.begin = std::min(range.begin, payload.offset);
    range.end = std::max(range.end, payload.offset + payload.bytes);
  }
  return range;
}

GatherJob gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                          uint64_t to) {
  GatherJob job = gather_of(slice, to);
  const uint64_t begin = payloads_of(slot).begin;
  const auto put = [&](segment::PayloadId id, const GatherPiece& piece) {
    add_piece(piece, slot.payload[id].offset - begin, &job);
  };
  const int64_t first = slot.first_key, keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  put(segment::kKey, consecutive_rows(call.key, slice.batch, slice.kv_head, first, keys, call.head_dim));
  put(segment::kValue, consecutive_rows(call.value, slice.batch, slice.kv_head, first, keys, call.value_dim));
  if (call.mask.data) put(segment::kMask, chosen_rows(call.mask, slice, first, keys));
  if (call.kept.data) put(segment::kKept, chosen_rows(call.kept, slice, first, keys));
  if (slot.part > 0) return job;
  put(segment::kQuery, chosen_rows(call.query, slice, 0, call.head_dim));
  if (call.out.data) put(segment::kOut, chosen_rows(call.out, slice, 0, call.value_dim));
  if (call.log_sum_exp.data) put(segment::kLogSumExp, chosen_rows(call.log_sum_exp, slice, 0, 1));
  if (call.pass == FORESHOCK_BACKWARD) {
    put(segment::kGradOut, chosen_rows(call.grad_out, slice, 0, call.value_dim));
    put(segment::kGradQuery, chosen_rows(call.grad_query, slice, 0, call.head_dim));
  }
  return job;
}

KeyGatherJob key_gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                                 uint64_t to) {
  KeyGatherJob job = {};
  job.gather = gather_of(slice, to);
  const uint64_t begin = payloads_of(slot).begin;
  const auto offset_of = [&](segment::PayloadId id) { return slot.payload[id].offset - begin; };
  const int64_t first = slot.first_key, rows = slot.parts > 1 ? slot.part_keys : slot.keys;
  const auto put_rows = [&](const TensorView& from, segment::PayloadId id, int64_t width) {
    add_query_rows(from, slice, first, rows, width, offset_of(id), &job.gather);
  };
  put_rows(call.query, segment::kQuery, call.head_dim);
  put_rows(call.out, segment::kOut, call.value_dim);
  put_rows(call.log_sum_exp, segment::kLogSumExp, 1);
  put_rows(call.grad_out, segment::kGradOut, call.value_dim);
  if (call.mask.data) add_mask_lines(call.mask, slice, first, rows, offset_of(segment::kMask), &job.gather);
  if (call.kept.data) add_mask_lines(call.kept, slice, first, rows, offset_of(segment::kKept), &job.gather);
  if (slot.part > 0) return job;
  const auto put_keys = [&](const TensorView& from, segment::PayloadId id, int64_t width) {
    add_piece(chosen_keys(from, slice, width), offset_of(id), &job.gather);
  };
  put_keys(call.key, segment::kKey, call.head_dim);
  put_keys(call.value, segment::kValue, call.value_dim);
  put_keys(call.grad_key, segment::kGradKey, call.head_dim);
  put_keys(call.grad_value, segment::kGradValue, call.value_dim);
  job.sums = to + offset_of(segment::kKeySums);
  job.grad_query = rows_of(call.grad_query, slice.batch, slice.first_head, slice.heads);
  job.grad_key = rows_of(call.grad_key, slice.batch, slice.kv_head, 1);
  job.grad_value = rows_of(call.grad_value, slice.batch, slice.kv_head, 1);
  job.dtype = static_cast<uint32_t>(call.dtype);
  return job;
}

PackedGatherJob packed_gather_for_slot(const ValidatedCall& call, const Slice& slice,
                                       const segment::Slot& slot, uint64_t to) {
  PackedGatherJob job = {};
  job.gather = gather_for_slot(call, slice, slot, to);
  // The kernel finds the sequence, and computes the sampled positions in it from these fractions of 2^32.
  std::copy_n(slice.fraction, kRowsPerSample, job.gather.position);
  job.sequences = call.packed;
  job.parts = static_cast<uint32_t>(slice.parts);
  job.positions = static_cast<uint32_t>(slice.positions);
  job.lse_piece = kMostPieces;  // means: no piece of the job is indexed by sequence
  if (!call.lse_by_sequence) return job;
  // log_sum_exp is indexed by (sequence, head, position). Finds the piece that copies it, by its offset.
  job.lse_stride = call.log_sum_exp.stride[0];
  const uint64_t lse_offset = slot.payload[segment::kLogSumExp].offset;
  for (uint32_t n = 0; n < job.gather.pieces && lse_offset != 0; ++n)
    if (job.gather.piece[n].to == lse_offset - payloads_of(slot).begin) job.lse_piece = n;
  return job;
}

}  // namespace foreshock
