#include "libmonitor/checked_call.h"

#include <algorithm>
#include <cstddef>

#include "libmonitor/packed_call.h"

namespace foreshock {
namespace {

static_assert(static_cast<uint32_t>(DType::kFp64) == FORESHOCK_FP64);
static_assert(static_cast<uint32_t>(DType::kFp32) == FORESHOCK_FP32);
static_assert(static_cast<uint32_t>(DType::kBf16) == FORESHOCK_BF16);
static_assert(static_cast<uint32_t>(DType::kFp16) == FORESHOCK_FP16);
static_assert(static_cast<uint32_t>(DType::kBool) == FORESHOCK_BOOL);

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

// Whether every tensor that is there lies where the query does. The host has one place, whatever its number.
bool is_in_one_place(const foreshock_attention_call& call) {
  const foreshock_tensor& query = call.query;
  for (const foreshock_tensor* tensor :
       {&call.key, &call.value, &call.out, &call.log_sum_exp, &call.mask, &call.grad_out, &call.grad_query}) {
    if (tensor->data == nullptr) continue;
    if (tensor->device_type != query.device_type) return false;
    if (query.device_type != FORESHOCK_DEVICE_CPU && tensor->device_index != query.device_index) return false;
  }
  return true;
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

}  // namespace

int check_call(const foreshock_attention_call& call, uint32_t pass, CheckedCall* checked) {
  if (call.size < offsetof(foreshock_attention_call, layer_identity)) return FORESHOCK_SKIP_UNKNOWN;
  // Dropout changes the output, which then cannot be recomputed, but neither scores nor their sums; a
  // gradient it changes all through. `!(x == 0)`, so that a NaN counts as dropout too.
  const bool drops = !(call.dropout == 0);
  if (drops && (pass == FORESHOCK_BACKWARD || !(call.dropout > 0 && call.dropout <= 1)))
    return FORESHOCK_SKIP_DROPOUT;
  if (call.query.device_type != FORESHOCK_DEVICE_CPU && call.query.device_type != FORESHOCK_DEVICE_CUDA)
    return FORESHOCK_SKIP_LAYOUT;
  if (!is_in_one_place(call)) return FORESHOCK_SKIP_LAYOUT;

  CheckedCall& c = *checked;
  c.packed = {};
  c.sums_by_sequence = false;
  c.sequence = 0;
  const bool is_packed = is_packed_call(call);
  const uint32_t dims = is_packed ? 3 : 4;
  c.query = view_of(call.query);
  c.key = view_of(call.key);
  c.value = view_of(call.value);
  c.out = drops ? TensorView{} : view_of(call.out);
  c.log_sum_exp = view_of(call.log_sum_exp);
  c.mask = right_aligned_view_of(call.mask);
  c.grad_out = view_of(call.grad_out);
  c.grad_query = view_of(call.grad_query);
  c.device_type = call.query.device_type;
  c.device_index = call.query.device_index;
  c.stream =
      call.size >= offsetof(foreshock_attention_call, stream) + sizeof call.stream ? call.stream : nullptr;
  c.pass = pass;
  c.dtype = c.query.dtype;
  c.causal = call.causal;
  c.scale = call.scale;
  if (call.query.dims != dims || call.key.dims != dims || call.value.dims != dims || !is_floating(c.dtype) ||
      c.causal < FORESHOCK_CAUSAL_NONE || c.causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT || !(c.scale * 0 == 0) ||
      c.scale == 0)
    return FORESHOCK_SKIP_LAYOUT;
  if (is_packed) add_batch(call, checked);
  const int64_t batch = c.query.shape[0], heads = c.query.shape[1], queries = c.query.shape[2];
  const int64_t kv_heads = c.key.shape[1], keys = c.key.shape[2];
  c.head_dim = c.query.shape[3];
  c.value_dim = c.value.shape[3];
  c.shape = {batch, heads, kv_heads, queries, keys};
  if (batch < 1 || heads < 1 || queries < 1 || keys < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      c.head_dim < 1 || c.value_dim < 1 || c.head_dim > 4096 || c.value_dim > 4096 ||
      !has_shape(c.query, batch, heads, queries, c.head_dim) ||
      !has_shape(c.key, batch, kv_heads, keys, c.head_dim) ||
      !has_shape(c.value, batch, kv_heads, keys, c.value_dim) || c.key.dtype != c.dtype ||
      c.value.dtype != c.dtype)
    return FORESHOCK_SKIP_LAYOUT;
  if (!drops && (!has_shape(c.out, batch, heads, queries, c.value_dim) || c.out.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
  if (pass == FORESHOCK_BACKWARD && (!has_shape(c.grad_out, batch, heads, queries, c.value_dim) ||
                                     !has_shape(c.grad_query, batch, heads, queries, c.head_dim) ||
                                     c.grad_out.dtype != c.dtype || c.grad_query.dtype != c.dtype))
    return FORESHOCK_SKIP_LAYOUT;
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

}  // namespace foreshock
