#include "libmonitor/slice_plan.h"

#include <algorithm>

namespace foreshock {
namespace {

static_assert(segment::kRowsPerSlice == kRowsPerSample);

constexpr uint64_t kUnit = 64;  // what payloads are aligned to
constexpr uint64_t round_up(uint64_t value) { return (value + kUnit - 1) / kUnit * kUnit; }
constexpr uint64_t kHeader = round_up(sizeof(segment::Slot));

// Of a packed batch: at most, since no sequence is longer than this one nor a row of it at a later position.
int64_t visible_keys(const CheckedCall& call, int64_t position) {
  int64_t limit = call.shape.keys;
  if (call.causal == FORESHOCK_CAUSAL_TOP_LEFT) limit = position + 1;
  if (call.causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && call.packed.count == 0)
    limit = position + 1 + call.shape.keys - call.shape.queries;
  return std::clamp<int64_t>(limit, 0, call.shape.keys);
}

uint64_t size_of_dtype(uint32_t dtype) { return size_of(static_cast<DType>(dtype)); }

// Sizes of the payloads of a slot that holds `keys` keys, and the rest too if it is the first.
void sizes_of(const segment::Slot& slot, uint64_t keys, bool is_first,
              uint64_t (&sizes)[segment::kPayloads]) {
  const uint64_t element = size_of_dtype(slot.dtype), rows = is_first ? slot.rows : 0;
  std::fill_n(sizes, segment::kPayloads, 0);
  sizes[segment::kQuery] = rows * slot.head_dim * element;
  sizes[segment::kKey] = keys * slot.head_dim * element;
  sizes[segment::kValue] = keys * slot.value_dim * element;
  sizes[segment::kOut] = slot.without_out != 0 ? 0 : rows * slot.value_dim * element;
  sizes[segment::kLogSumExp] = rows * size_of_dtype(slot.lse_dtype);
  sizes[segment::kMask] = slot.rows * keys * size_of_dtype(slot.mask_dtype);
  if (slot.pass != FORESHOCK_BACKWARD) return;
  sizes[segment::kGradOut] = rows * slot.value_dim * element;
  sizes[segment::kGradQuery] = rows * slot.head_dim * element;
}

uint64_t bytes_of(const segment::Slot& slot, uint64_t keys, bool is_first) {
  uint64_t sizes[segment::kPayloads];
  sizes_of(slot, keys, is_first, sizes);
  uint64_t bytes = kHeader;
  for (uint64_t size : sizes) bytes += round_up(size);
  return bytes;
}

// How many keys a slot of `capacity` bytes holds.
uint32_t keys_within(const segment::Slot& slot, uint64_t capacity, bool is_first) {
  const uint64_t without = bytes_of(slot, 0, is_first) + 3 * kUnit;  // three payloads are rounded up
  if (capacity <= without) return 0;
  const uint64_t per_key = (slot.head_dim + slot.value_dim) * size_of_dtype(slot.dtype) +
                           slot.rows * size_of_dtype(slot.mask_dtype);
  return static_cast<uint32_t>(std::min<uint64_t>((capacity - without) / per_key, slot.keys));
}

void describe_rows(const CheckedCall& call, const Slice& slice, segment::Slot* slot) {
  int64_t most_keys = 1;
  for (int row = 0; row < slice.rows(); ++row) {
    const int64_t position = slice.position[row % slice.positions];
    const int64_t limit = visible_keys(call, position);
    slot->key_limit[row] = static_cast<uint32_t>(limit);
    slot->position[row] = static_cast<uint32_t>(position);
    slot->head[row] = static_cast<uint32_t>(slice.first_head + row / slice.positions);
    most_keys = std::max(most_keys, limit);
  }
  slot->rows = static_cast<uint32_t>(slice.rows());
  slot->keys = static_cast<uint32_t>(most_keys);
  slot->heads_in_slice = static_cast<uint32_t>(slice.heads);
}

void describe_call(const CheckedCall& call, const Slice& slice, segment::Slot* slot) {
  slot->pass = call.pass;
  slot->dtype = static_cast<uint32_t>(call.dtype);
  slot->mask_dtype = call.mask.data ? static_cast<uint32_t>(call.mask.dtype) : 0;
  slot->without_out = call.out.data == nullptr;
  slot->lse_dtype = call.log_sum_exp.data ? static_cast<uint32_t>(call.log_sum_exp.dtype) : 0;
  slot->head_dim = static_cast<uint32_t>(call.head_dim);
  slot->value_dim = static_cast<uint32_t>(call.value_dim);
  slot->batch = slice.batch + call.sequence;
  slot->kv_head = slice.kv_head;
  slot->query_length = static_cast<uint64_t>(call.shape.queries);
  slot->key_length = static_cast<uint64_t>(call.shape.keys);
  slot->scale = call.scale;
  slot->packed = call.packed.count == 0 ? segment::kNotPacked : segment::packed_word(call.causal);
}

// How many slots the rows of plan->all need; false when one slot cannot hold a key.
bool split(uint64_t capacity, SlicePlan* plan) {
  const segment::Slot& slot = plan->all;
  plan->slots = 1;
  plan->first_keys = slot.keys;
  if (bytes_of(slot, slot.keys, true) <= capacity) return true;
  plan->first_keys = keys_within(slot, capacity, true);
  plan->other_keys = keys_within(slot, capacity, false);
  if (plan->first_keys == 0) return false;
  plan->slots += (slot.keys - plan->first_keys + plan->other_keys - 1) / plan->other_keys;
  return true;
}

}  // namespace

uint64_t slot_bytes_for(const CheckedCall& call) {
  segment::Slot slot = {};
  describe_call(call, {}, &slot);
  slot.rows = kRowsPerSample;
  slot.pass = FORESHOCK_BACKWARD;
  slot.without_out = 0;
  slot.lse_dtype = FORESHOCK_FP64;
  slot.mask_dtype = size_of(call.dtype) == 8 ? FORESHOCK_FP64 : FORESHOCK_FP32;
  return bytes_of(slot, static_cast<uint64_t>(call.shape.keys), true);
}

bool plan_slice(const CheckedCall& call, uint64_t capacity, uint32_t most_slots, Slice* slice,
                SlicePlan* plan) {
  describe_call(call, *slice, &plan->all);
  for (; slice->positions > 0; --slice->positions) {
    describe_rows(call, *slice, &plan->all);
    if (split(capacity, plan) && plan->slots <= most_slots) return true;
  }
  return false;
}

segment::Slot slot_of(const SlicePlan& plan, uint32_t part) {
  segment::Slot slot = plan.all;
  if (plan.slots > 1) {
    slot.part = part;
    slot.parts = plan.slots;
    slot.first_key = part == 0 ? 0 : plan.first_keys + (part - 1) * plan.other_keys;
    slot.part_keys = std::min(part == 0 ? plan.first_keys : plan.other_keys, slot.keys - slot.first_key);
  }
  uint64_t sizes[segment::kPayloads];
  sizes_of(slot, plan.slots > 1 ? slot.part_keys : slot.keys, part == 0, sizes);
  uint64_t end = kHeader;
  for (uint32_t id = 0; id < segment::kPayloads; ++id) {
    slot.payload[id] = {sizes[id] != 0 ? end : 0, sizes[id]};
    end += round_up(sizes[id]);
  }
  return slot;
}

}  // namespace foreshock
