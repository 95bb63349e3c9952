#include "libmonitor/slice_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/gather.h"

namespace foreshock {
namespace {

static_assert(static_cast<uint32_t>(DType::kFp64) == FORESHOCK_FP64);
static_assert(static_cast<uint32_t>(DType::kFp32) == FORESHOCK_FP32);
static_assert(static_cast<uint32_t>(DType::kBf16) == FORESHOCK_BF16);
static_assert(static_cast<uint32_t>(DType::kFp16) == FORESHOCK_FP16);
static_assert(static_cast<uint32_t>(DType::kBool) == FORESHOCK_BOOL);
static_assert(segment::kRowsPerSlice == kRowsPerSample);
static_assert(segment::kSkipReasons == FORESHOCK_SKIP_REASONS);

constexpr uint64_t round_up(uint64_t value) { return (value + 63) / 64 * 64; }

TensorView view_of(const foreshock_tensor& tensor) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = tensor.dtype <= FORESHOCK_BOOL ? static_cast<DType>(tensor.dtype) : DType::kNone;
  std::copy_n(tensor.shape, 4, view.shape);
  std::copy_n(tensor.stride, 4, view.stride);
  return view;
}

// A mask of fewer dimensions stands for the last ones, as everywhere in broadcasting.
TensorView right_aligned_view_of(const foreshock_tensor& tensor) {
  TensorView view = view_of(tensor);
  const int missing = 4 - static_cast<int>(std::min<uint32_t>(tensor.dims, 4));
  for (int n = 3; n >= 0; --n) {
    view.shape[n] = n >= missing ? tensor.shape[n - missing] : 1;
    view.stride[n] = n >= missing ? tensor.stride[n - missing] : 0;
  }
  return view;
}

bool has_shape(const TensorView& view, int64_t a, int64_t b, int64_t c, int64_t d) {
  return view.data != nullptr && view.shape[0] == a && view.shape[1] == b && view.shape[2] == c &&
         view.shape[3] == d;
}

bool broadcasts(int64_t have, int64_t want) { return have == want || have == 1; }

// A dimension of size 1 that stands for many is read with stride 0.
void broadcast(TensorView* mask, const int64_t (&shape)[4]) {
  for (int n = 0; n < 4; ++n) {
    if (mask->shape[n] == 1 && shape[n] != 1) mask->stride[n] = 0;
    mask->shape[n] = shape[n];
  }
}

int64_t visible_keys(const CheckedCall& call, int64_t position) {
  int64_t limit = call.shape.keys;
  if (call.causal == FORESHOCK_CAUSAL_TOP_LEFT) limit = position + 1;
  if (call.causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    limit = position + 1 + call.shape.keys - call.shape.queries;
  return std::clamp<int64_t>(limit, 0, call.shape.keys);
}

// One row of every chosen head and position, packed.
void copy_rows(const TensorView& from, const Slice& slice, int64_t width, char* to) {
  for (int head = 0; head < slice.heads; ++head)
    for (int n = 0; n < slice.positions; ++n)
      to += gather_row_heads(from, slice.batch, slice.first_head + head, slice.position[n], 1, width, to);
}

}  // namespace

int check_call(const foreshock_attention_call& call, uint32_t pass, CheckedCall* checked) {
  if (call.size < offsetof(foreshock_attention_call, layer_identity)) return FORESHOCK_SKIP_UNKNOWN;
  // `!(x == 0)` so that a NaN counts as dropout too: then the call cannot be recomputed either.
  if (!(call.dropout == 0)) return FORESHOCK_SKIP_DROPOUT;
  if (call.query.device_type != FORESHOCK_DEVICE_CPU) return FORESHOCK_SKIP_LAYOUT;

  CheckedCall& c = *checked;
  c.query = view_of(call.query);
  c.key = view_of(call.key);
  c.value = view_of(call.value);
  c.out = view_of(call.out);
  c.log_sum_exp = view_of(call.log_sum_exp);
  c.mask = right_aligned_view_of(call.mask);
  c.grad_out = view_of(call.grad_out);
  c.grad_query = view_of(call.grad_query);
  c.pass = pass;
  c.dtype = c.query.dtype;
  c.causal = call.causal;
  c.scale = call.scale;
  if (call.query.dims != 4 || call.key.dims != 4 || call.value.dims != 4 || !is_floating(c.dtype) ||
      c.causal < FORESHOCK_CAUSAL_NONE || c.causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT || !(c.scale * 0 == 0) ||
      c.scale == 0)
    return FORESHOCK_SKIP_LAYOUT;
  const int64_t batch = c.query.shape[0], heads = c.query.shape[1], queries = c.query.shape[2];
  const int64_t kv_heads = c.key.shape[1], keys = c.key.shape[2];
  c.head_dim = c.query.shape[3];
  c.value_dim = c.value.shape[3];
  c.shape = {batch, heads, kv_heads, queries, keys};
  if (batch < 1 || heads < 1 || queries < 1 || keys < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      c.head_dim < 1 || c.value_dim < 1 || c.head_dim > 4096 || c.value_dim > 4096 ||
      !has_shape(c.query, batch, heads, queries, c.head_dim) ||
      !has_shape(c.key, batch, kv_heads, keys, c.head_dim) ||
      !has_shape(c.value, batch, kv_heads, keys, c.value_dim) ||
      !has_shape(c.out, batch, heads, queries, c.value_dim) || c.key.dtype != c.dtype ||
      c.value.dtype != c.dtype || c.out.dtype != c.dtype)
    return FORESHOCK_SKIP_LAYOUT;
  if (pass == FORESHOCK_BACKWARD && (!has_shape(c.grad_out, batch, heads, queries, c.value_dim) ||
                                     !has_shape(c.grad_query, batch, heads, queries, c.head_dim) ||
                                     c.grad_out.dtype != c.dtype || c.grad_query.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  if (c.log_sum_exp.data != nullptr &&
      (!has_shape(c.log_sum_exp, batch, heads, queries, 1) || !is_floating(c.log_sum_exp.dtype)))
    return FORESHOCK_SKIP_LAYOUT;
  if (c.mask.data != nullptr) {
    const int64_t full[4] = {batch, heads, queries, keys};
    for (int n = 0; n < 4; ++n)
      if (!broadcasts(c.mask.shape[n], full[n])) return FORESHOCK_SKIP_MASK;
    if (c.mask.dtype == DType::kNone) return FORESHOCK_SKIP_MASK;
    broadcast(&c.mask, full);
  }
  return -1;
}

uint64_t slot_bytes_for(const CheckedCall& call) {
  const uint64_t element = size_of(call.dtype), rows = kRowsPerSample;
  const uint64_t head_dim = static_cast<uint64_t>(call.head_dim),
                 value_dim = static_cast<uint64_t>(call.value_dim);
  const uint64_t keys = static_cast<uint64_t>(call.shape.keys);
  uint64_t bytes = round_up(sizeof(segment::Slot)) + round_up(keys * head_dim * element) +
                   round_up(keys * value_dim * element) + 2 * round_up(rows * head_dim * element) +
                   2 * round_up(rows * value_dim * element) + round_up(rows * 8);
  bytes += round_up(rows * keys * std::max<uint64_t>(4, element));
  return bytes;
}

bool plan_slot(const CheckedCall& call, const Slice& slice, uint64_t capacity, segment::Slot* slot) {
  const int rows = slice.rows();
  int64_t most_keys = 1;
  for (int head = 0; head < slice.heads; ++head) {
    for (int n = 0; n < slice.positions; ++n) {
      const int row = head * slice.positions + n;
      const int64_t limit = visible_keys(call, slice.position[n]);
      slot->key_limit[row] = static_cast<uint32_t>(limit);
      slot->position[row] = static_cast<uint32_t>(slice.position[n]);
      slot->head[row] = static_cast<uint32_t>(slice.first_head + head);
      most_keys = std::max(most_keys, limit);
    }
  }
  slot->pass = call.pass;
  slot->dtype = static_cast<uint32_t>(call.dtype);
  slot->mask_dtype = call.mask.data ? static_cast<uint32_t>(call.mask.dtype) : 0;
  slot->lse_dtype = call.log_sum_exp.data ? static_cast<uint32_t>(call.log_sum_exp.dtype) : 0;
  slot->rows = static_cast<uint32_t>(rows);
  slot->keys = static_cast<uint32_t>(most_keys);
  slot->head_dim = static_cast<uint32_t>(call.head_dim);
  slot->value_dim = static_cast<uint32_t>(call.value_dim);
  slot->heads_in_slice = static_cast<uint32_t>(slice.heads);
  slot->batch = slice.batch;
  slot->kv_head = slice.kv_head;
  slot->query_length = static_cast<uint64_t>(call.shape.queries);
  slot->key_length = static_cast<uint64_t>(call.shape.keys);
  slot->scale = call.scale;

  uint64_t end = round_up(sizeof(segment::Slot));
  const auto place = [&](segment::PayloadId id, uint64_t count, DType type) {
    const uint64_t bytes = count * size_of(type);
    slot->payload[id] = {bytes ? end : 0, bytes};
    end = round_up(end + bytes);
  };
  const uint64_t r = slot->rows, k = slot->keys;
  place(segment::kQuery, r * slot->head_dim, call.dtype);
  place(segment::kKey, k * slot->head_dim, call.dtype);
  place(segment::kValue, k * slot->value_dim, call.dtype);
  place(segment::kOut, r * slot->value_dim, call.dtype);
  if (call.log_sum_exp.data) place(segment::kLogSumExp, r, call.log_sum_exp.dtype);
  if (call.mask.data) place(segment::kMask, r * k, call.mask.dtype);
  if (call.pass == FORESHOCK_BACKWARD) {
    place(segment::kGradOut, r * slot->value_dim, call.dtype);
    place(segment::kGradQuery, r * slot->head_dim, call.dtype);
  }
  return end <= capacity;
}

void copy_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot, char* base) {
  const auto at = [&](segment::PayloadId id) { return base + slot.payload[id].offset; };
  const int64_t keys = slot.keys;
  copy_rows(call.query, slice, call.head_dim, at(segment::kQuery));
  gather_rows(call.key, slice.batch, slice.kv_head, 0, keys, at(segment::kKey));
  gather_rows(call.value, slice.batch, slice.kv_head, 0, keys, at(segment::kValue));
  copy_rows(call.out, slice, call.value_dim, at(segment::kOut));
  if (call.log_sum_exp.data) copy_rows(call.log_sum_exp, slice, 1, at(segment::kLogSumExp));
  if (call.mask.data) copy_rows(call.mask, slice, keys, at(segment::kMask));
  if (call.pass == FORESHOCK_BACKWARD) {
    copy_rows(call.grad_out, slice, call.value_dim, at(segment::kGradOut));
    copy_rows(call.grad_query, slice, call.head_dim, at(segment::kGradQuery));
  }
}

}  // namespace foreshock
