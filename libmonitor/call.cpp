// Checks attention calls, and finds the sampled sequence of a packed batch.
#include "libmonitor/call.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/packed.h"

namespace foreshock {
namespace {

// hook.h (C) and DType number the storage formats equally.
constexpr bool is_same(DType type, int number) { return static_cast<int>(type) == number; }
static_assert(is_same(DType::kFp64, FORESHOCK_FP64) && is_same(DType::kFp32, FORESHOCK_FP32) &&
              is_same(DType::kBf16, FORESHOCK_BF16) && is_same(DType::kFp16, FORESHOCK_FP16) &&
              is_same(DType::kBool, FORESHOCK_BOOL));

TensorView view_of(const foreshock_tensor& tensor) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = tensor.dtype <= FORESHOCK_BOOL ? static_cast<DType>(tensor.dtype) : DType::kNone;
  std::copy_n(tensor.shape, 4, view.shape);
  std::copy_n(tensor.stride, 4, view.stride);
  return view;
}

// Returns a view of a mask. If it has fewer than 4 dimensions, they are the last ones of the view.
TensorView right_aligned_view_of(const foreshock_tensor& tensor) {
  TensorView view = view_of(tensor);
  const int missing = 4 - static_cast<int>(std::min<uint32_t>(tensor.dims, 4));
  for (int n = 3; n >= 0; --n) {
    view.shape[n] = n >= missing ? tensor.shape[n - missing] : 1;
    view.stride[n] = n >= missing ? tensor.stride[n - missing] : 0;
  }
  return view;
}

// Whether all tensors that are set, except grad_key and grad_value, are on one device. The CPU has no index.
bool is_on_one_device(const foreshock_attention_call& call) {
  const foreshock_tensor& query = call.query;
  for (const foreshock_tensor* tensor :
       {&call.key, &call.value, &call.out, &call.log_sum_exp, &call.mask, &call.grad_out, &call.grad_query}) {
    if (tensor->data == nullptr) continue;
    if (tensor->device_type != query.device_type) return false;
    if (query.device_type != FORESHOCK_DEVICE_CPU && tensor->device_index != query.device_index) return false;
  }
  return true;
}

// Returns `tensor`, or an absent tensor if an older caller's struct ends before offset `end` of this field.
foreshock_tensor given(const foreshock_attention_call& call, size_t end, const foreshock_tensor& tensor) {
  return call.size >= end ? tensor : foreshock_tensor{};
}

bool has_shape(const TensorView& view, int64_t a, int64_t b, int64_t c, int64_t d) {
  return view.data != nullptr && view.shape[0] == a && view.shape[1] == b && view.shape[2] == c &&
         view.shape[3] == d;
}

bool broadcasts(int64_t size, int64_t full_size) { return size == full_size || size == 1; }

// Extends the mask to `shape`: a dimension of size 1 gets stride 0.
void broadcast(TensorView* mask, const int64_t (&shape)[4]) {
  for (int n = 0; n < 4; ++n) {
    if (mask->shape[n] == 1 && shape[n] != 1) mask->stride[n] = 0;
    mask->shape[n] = shape[n];
  }
}

// Removes the gradients of keys and values if this is a forward call, or if one of them does not match the
// call. The call can be judged without them.
void drop_mismatched_key_gradients(const foreshock_attention_call& call, ValidatedCall* checked) {
  ValidatedCall& c = *checked;
  const auto [batch, heads, kv_heads, queries, keys] = c.shape;
  const auto is_on_query_device = [&](const foreshock_tensor& tensor) {
    return tensor.device_type == call.query.device_type &&
           (tensor.device_type == FORESHOCK_DEVICE_CPU || tensor.device_index == call.query.device_index);
  };
  if (c.pass == FORESHOCK_BACKWARD && has_shape(c.grad_key, batch, kv_heads, keys, c.head_dim) &&
      has_shape(c.grad_value, batch, kv_heads, keys, c.value_dim) && c.grad_key.dtype == c.dtype &&
      c.grad_value.dtype == c.dtype && is_on_query_device(call.grad_key) &&
      is_on_query_device(call.grad_value))
    return;
  c.grad_key = c.grad_value = {};
}

constexpr int64_t kMaxHeadDim = 4096;  // the agent accepts no larger head dimension

// The functions from here to validate_call() are for packed batches. Tensors of a packed batch have no batch
// dimension. They hold several sequences one after the other, and int32 arrays (the offsets) have the
// positions at which the sequences begin.

constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max();

bool is_aligned(const int32_t* offsets) {
  return offsets != nullptr && reinterpret_cast<uint64_t>(offsets) % alignof(int32_t) == 0;
}

void add_batch_dimension(TensorView* view) {
  for (int n = 3; n > 0; --n) {
    view->shape[n] = view->shape[n - 1];
    view->stride[n] = view->stride[n - 1];
  }
  view->shape[0] = 1;
  view->stride[0] = 0;
}

// Whether log_sum_exp is absent or has one of its two layouts: (1, head, position in the batch) or, if
// lse_by_sequence, (sequence, head, position in the sequence). Sets lse_by_sequence.
bool check_log_sum_exp(const foreshock_attention_call& call, ValidatedCall* checked) {
  const TensorView& lse = checked->log_sum_exp;
  if (lse.data == nullptr) return true;
  checked->lse_by_sequence = call.log_sum_exp.dims == 3;
  const int64_t rows = checked->lse_by_sequence ? checked->shape.queries : checked->query.shape[2];
  const int64_t batch = checked->lse_by_sequence ? call.sequences : 1;
  return is_floating(lse.dtype) && lse.shape[0] == batch && lse.shape[1] == checked->shape.heads &&
         lse.shape[2] >= rows && lse.shape[3] == 1;
}

// Gives all tensors a batch dimension of size 1, except a log_sum_exp whose first dimension is the sequences.
void add_batch(const foreshock_attention_call& call, ValidatedCall* checked) {
  for (TensorView* view : {&checked->query, &checked->key, &checked->value, &checked->out, &checked->grad_out,
                           &checked->grad_query, &checked->grad_key, &checked->grad_value})
    add_batch_dimension(view);
  if (call.log_sum_exp.dims == 2) add_batch_dimension(&checked->log_sum_exp);
}

// Checks what only packed calls have, and stores it in *checked. Does not read the offsets, which may be on a
// device. Returns -1 or the reason to skip the call.
int check_packed(const foreshock_attention_call& call, ValidatedCall* checked) {
  CallShape& shape = checked->shape;
  const int64_t queries = shape.queries, keys = shape.keys;
  if (call.mask.data != nullptr) return FORESHOCK_SKIP_MASK;
  if (!is_aligned(call.query_offsets) || !is_aligned(call.key_offsets) || call.sequences < 1 ||
      call.sequences > kMaxOffset || queries > kMaxOffset || keys > kMaxOffset || call.longest_query < 1 ||
      call.longest_key < 1)
    return FORESHOCK_SKIP_LAYOUT;
  shape.queries = std::min(queries, call.longest_query);
  shape.keys = std::min(keys, call.longest_key);
  if (!check_log_sum_exp(call, checked)) return FORESHOCK_SKIP_LAYOUT;
  // With the same offsets a sequence has as many keys as queries, so both kinds of causal mask are equal.
  if (call.query_offsets == call.key_offsets && checked->causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    checked->causal = FORESHOCK_CAUSAL_TOP_LEFT;
  checked->packed = {.query_offsets = reinterpret_cast<uint64_t>(call.query_offsets),
                     .key_offsets = reinterpret_cast<uint64_t>(call.key_offsets),
                     .count = static_cast<uint32_t>(call.sequences),
                     .queries = static_cast<uint32_t>(queries),
                     .keys = static_cast<uint32_t>(keys),
                     .longest_query = static_cast<uint32_t>(shape.queries),
                     .longest_key = static_cast<uint32_t>(shape.keys),
                     .place = 0};
  return -1;
}

void restrict_rows(int64_t first, int64_t length, TensorView* view) {
  if (view->data == nullptr) return;
  view->data = view->row(0, 0, first);
  view->shape[2] = length;
}

}  // namespace

int validate_call(const foreshock_attention_call& call, uint32_t pass, ValidatedCall* checked) {
  // Dropout changes the output, which then cannot be recomputed. It does not change the scores or their
  // log-sum-exp, so a forward call can still be judged by these. `!(x == 0)` treats NaN as dropout too.
  const bool has_dropout = !(call.dropout == 0);
  if (has_dropout && (pass == FORESHOCK_BACKWARD || !(call.dropout > 0 && call.dropout <= 1)))
    return FORESHOCK_SKIP_DROPOUT;
  if (call.query.device_type != FORESHOCK_DEVICE_CPU && call.query.device_type != FORESHOCK_DEVICE_CUDA)
    return FORESHOCK_SKIP_LAYOUT;
  if (!is_on_one_device(call)) return FORESHOCK_SKIP_LAYOUT;

  ValidatedCall& c = *checked;
  c.packed = {};
  c.lse_by_sequence = false;
  c.sequence = 0;
  const bool is_packed = call.query_offsets != nullptr;
  const uint32_t dims = is_packed ? 3 : 4;
  c.query = view_of(call.query);
  c.key = view_of(call.key);
  c.value = view_of(call.value);
  c.out = has_dropout ? TensorView{} : view_of(call.out);
  c.log_sum_exp = view_of(call.log_sum_exp);
  c.mask = right_aligned_view_of(call.mask);
  c.grad_out = view_of(call.grad_out);
  c.grad_query = view_of(call.grad_query);
  c.grad_key = view_of(
      given(call, offsetof(foreshock_attention_call, grad_key) + sizeof call.grad_key, call.grad_key));
  c.grad_value = view_of(
      given(call, offsetof(foreshock_attention_call, grad_value) + sizeof call.grad_value, call.grad_value));
  c.device_type = call.query.device_type;
  c.device_index = call.query.device_index;
  c.stream = call.stream;
  c.pass = pass;
  c.dtype = c.query.dtype;
  c.causal = call.causal;
  c.scale = call.scale;
  const bool is_finite = c.scale * 0 == 0;  // Inf and NaN give NaN
  if (call.query.dims != dims || call.key.dims != dims || call.value.dims != dims || !is_floating(c.dtype) ||
      c.causal < FORESHOCK_CAUSAL_NONE || c.causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT || !is_finite ||
      c.scale == 0)
    return FORESHOCK_SKIP_LAYOUT;
  if (is_packed) add_batch(call, checked);
  const int64_t batch = c.query.shape[0], heads = c.query.shape[1], queries = c.query.shape[2];
  const int64_t kv_heads = c.key.shape[1], keys = c.key.shape[2];
  c.head_dim = c.query.shape[3];
  c.value_dim = c.value.shape[3];
  c.shape = {batch, heads, kv_heads, queries, keys};
  if (batch < 1 || heads < 1 || queries < 1 || keys < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      c.head_dim < 1 || c.value_dim < 1 || c.head_dim > kMaxHeadDim || c.value_dim > kMaxHeadDim ||
      !has_shape(c.query, batch, heads, queries, c.head_dim) ||
      !has_shape(c.key, batch, kv_heads, keys, c.head_dim) ||
      !has_shape(c.value, batch, kv_heads, keys, c.value_dim) || c.key.dtype != c.dtype ||
      c.value.dtype != c.dtype)
    return FORESHOCK_SKIP_LAYOUT;
  if (!has_dropout && (!has_shape(c.out, batch, heads, queries, c.value_dim) || c.out.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  if (pass == FORESHOCK_BACKWARD && (!has_shape(c.grad_out, batch, heads, queries, c.value_dim) ||
                                     !has_shape(c.grad_query, batch, heads, queries, c.head_dim) ||
                                     c.grad_out.dtype != c.dtype || c.grad_query.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  drop_mismatched_key_gradients(call, checked);
  if (is_packed) return check_packed(call, checked);
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

// Takes the sequence at the fraction `place` / 2^32 of all query positions of the packed batch.
int take_sequence(uint32_t place, ValidatedCall* checked) {
  ValidatedCall& c = *checked;
  c.packed.place = place;
  const SequencePlace found = find_sequence(c.packed, HostMemory());
  c.packed = {};  // from here on the call has only this sequence and is not packed
  if (found.queries == 0) return FORESHOCK_SKIP_LAYOUT;  // invalid offsets
  // With more queries than keys, the first rows see no key, and kernels differ in what they write for them.
  if (c.causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && found.queries > found.keys) return FORESHOCK_SKIP_MASK;
  c.sequence = found.number;
  c.shape.queries = found.queries;
  c.shape.keys = found.keys;
  for (TensorView* view : {&c.query, &c.out, &c.grad_out, &c.grad_query})
    restrict_rows(found.query, found.queries, view);
  for (TensorView* view : {&c.key, &c.value, &c.grad_key, &c.grad_value})
    restrict_rows(found.key, found.keys, view);
  if (c.lse_by_sequence && c.log_sum_exp.data != nullptr)
    c.log_sum_exp.data = c.log_sum_exp.row(found.number, 0, 0);
  else
    restrict_rows(found.query, found.queries, &c.log_sum_exp);
  return -1;
}

void ObservedHeads::add(const ValidatedCall& call) {
  const auto bounded = [](int64_t size) {
    return size > 0 && static_cast<uint64_t>(size) <= kMostSize ? static_cast<uint64_t>(size) : 0;
  };
  const uint64_t heads = bounded(call.shape.heads), kv_heads = bounded(call.shape.kv_heads),
                 dim = bounded(call.head_dim);
  const uint64_t now = heads == 0 || kv_heads == 0 || dim == 0 ? kMixed : heads << 40 | kv_heads << 20 | dim;
  const uint64_t before = seen_.load(std::memory_order_relaxed);
  if (before != now) seen_.store(before == 0 ? now : kMixed, std::memory_order_relaxed);
}

}  // namespace foreshock
