// From the arguments and results of an operation to the description of hook.h, or the reason why there is
// none. Views only: no tensor is made, nothing of one is read.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention_arguments.h"
#include "device_stream.h"
#include "layer_walk.h"

namespace foreshock::adapter {

inline constexpr uint32_t kDescribed = FORESHOCK_SKIP_REASONS;

inline uint32_t DtypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return FORESHOCK_FP64;
    case at::kFloat:
      return FORESHOCK_FP32;
    case at::kBFloat16:
      return FORESHOCK_BF16;
    case at::kHalf:
      return FORESHOCK_FP16;
    case at::kBool:
      return FORESHOCK_BOOL;
    default:
      return FORESHOCK_DTYPE_NONE;
  }
}

inline bool IsFp8(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.element_size() == 1;
}

inline int32_t DeviceOf(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return FORESHOCK_DEVICE_CPU;
  return tensor.is_cuda() ? FORESHOCK_DEVICE_CUDA : FORESHOCK_DEVICE_OTHER;
}

// Absent for an undefined or empty tensor, and for one whose memory was taken away. const_data_ptr only:
// data_ptr would copy a copy-on-write tensor.
inline foreshock_tensor View(const at::Tensor& tensor) {
  foreshock_tensor view{};
  if (!tensor.defined() || tensor.dim() > FORESHOCK_TENSOR_DIMS || !IsInMemory(tensor)) return view;
  view.data = tensor.const_data_ptr();
  view.dtype = DtypeOf(tensor);
  view.dims = static_cast<uint32_t>(tensor.dim());
  view.device_type = DeviceOf(tensor);
  view.device_index = tensor.get_device();
  for (int64_t d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) {
    view.shape[d] = d < tensor.dim() ? tensor.size(d) : 1;
    view.stride[d] = d < tensor.dim() ? tensor.stride(d) : 0;
  }
  return view;
}

// The mask as every query, key pair of the call sees it: stride 0 where it is broadcast. False if it does not
// fit. `is_flat`: three dimensions are (batch x head, query, key).
inline bool ViewMask(const at::Tensor& mask, const foreshock_attention_call& call, foreshock_tensor* view,
                     bool is_flat = false) {
  if (!mask.defined()) return true;
  const int64_t shape[] = {call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2]};
  *view = View(mask);
  if (!view->data || view->dtype == FORESHOCK_DTYPE_NONE) return false;
  if (is_flat && mask.dim() == 3) {
    const int64_t stride[] = {shape[1] * mask.stride(0), mask.stride(0), mask.stride(1), mask.stride(2)};
    if (mask.size(0) != shape[0] * shape[1] || mask.size(1) != shape[2] || mask.size(2) != shape[3])
      return false;
    std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view->shape);
    std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view->stride);
    view->dims = FORESHOCK_TENSOR_DIMS;
    return true;
  }
  const int64_t missing = FORESHOCK_TENSOR_DIMS - mask.dim();
  for (int64_t d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) {
    const int64_t size = d < missing ? 1 : mask.size(d - missing);
    if (size != 1 && size != shape[d]) return false;
    view->shape[d] = shape[d];
    view->stride[d] = size == 1 ? 0 : mask.stride(d - missing);
  }
  view->dims = FORESHOCK_TENSOR_DIMS;
  return true;
}

// All sequences of a call one after the other, with or without a dimension of one batch before them.
inline bool IsPacked(const at::Tensor& tensor) {
  return tensor.dim() == 3 || (tensor.dim() == 4 && tensor.size(0) == 1);
}

// (total, head, d) as (head, total, d).
inline foreshock_tensor PackedView(const at::Tensor& packed) {
  foreshock_tensor view = packed.defined() && IsPacked(packed) ? View(packed) : foreshock_tensor{};
  if (!view.data) return {};
  const int64_t shape[] = {packed.size(-2), packed.size(-3), packed.size(-1), 1};
  const int64_t stride[] = {packed.stride(-2), packed.stride(-3), packed.stride(-1), 0};
  std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view.shape);
  std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view.stride);
  view.dims = 3;
  return view;
}

// Where the sequences of a packed call begin; false when nobody could read them where the tensors lie.
inline bool DescribeOffsets(const AttentionInputs& in, foreshock_attention_call* call) {
  const at::Tensor &q = in.sequences_q, &k = in.sequences_k.defined() ? in.sequences_k : in.sequences_q;
  for (const at::Tensor& offsets : {q, k}) {
    if (!HasData(offsets) || offsets.device() != in.query.device() || offsets.scalar_type() != at::kInt ||
        offsets.dim() != 1 || !offsets.is_contiguous() || !IsInMemory(offsets))
      return false;
  }
  if (q.numel() < 2 || k.numel() != q.numel()) return false;
  call->query_offsets = q.const_data_ptr<int32_t>();
  call->key_offsets = k.const_data_ptr<int32_t>();
  call->sequences = q.numel() - 1;
  // Where it is not said, a sequence may be as long as all of them; with the same offsets, as the queries.
  call->longest_query = in.longest_q > 0 ? in.longest_q : call->query.shape[1];
  call->longest_key = in.longest_k > 0                           ? in.longest_k
                      : call->query_offsets == call->key_offsets ? call->longest_query
                                                                 : call->key.shape[1];
  return true;
}

inline foreshock_tensor HeadsFirst(foreshock_tensor view, bool positions_first) {
  if (!positions_first || view.dims != FORESHOCK_TENSOR_DIMS) return view;
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.stride[1], view.stride[2]);
  return view;
}

// Rows may be padded to a multiple; the first ones are those of the queries.
inline foreshock_tensor Unpadded(foreshock_tensor log_sum_exp, int64_t queries) {
  if (log_sum_exp.dims == 3 && log_sum_exp.shape[2] > queries) log_sum_exp.shape[2] = queries;
  return log_sum_exp;
}

inline uint32_t DescribeCausal(const AttentionInputs& in, foreshock_attention_call* call) {
  // Of packed sequences those of the longest.
  const bool is_packed = call->query_offsets != nullptr;
  const int64_t queries = is_packed ? call->longest_query : call->query.shape[2];
  const int64_t keys = is_packed ? call->longest_key : call->key.shape[2];
  call->causal = static_cast<int32_t>(in.causal);
  if (in.causal == kSquareOnly && queries == keys) call->causal = FORESHOCK_CAUSAL_TOP_LEFT;
  if (call->causal < FORESHOCK_CAUSAL_NONE || call->causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    return FORESHOCK_SKIP_MASK;
  // A window wider than the sequence is none; one that ends at the query itself is another word for causal.
  if (in.window_left >= 0 && in.window_left < keys) return FORESHOCK_SKIP_MASK;
  if (in.causal == 0 && in.window_right > 0 && in.window_right < std::max(queries, keys))
    return FORESHOCK_SKIP_MASK;
  if (in.window_right == 0) call->causal = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  // The first queries see no key at all; what a kernel leaves there is its own affair. Of packed sequences
  // the core sees to it, for each by itself.
  if (call->causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && queries > keys && !is_packed)
    return FORESHOCK_SKIP_MASK;
  return kDescribed;
}

inline bool DescribePacked(const AttentionInputs& in, bool backward, foreshock_attention_call* call) {
  call->query = PackedView(in.query);
  call->key = PackedView(in.key);
  call->value = PackedView(in.value);
  call->out = PackedView(in.out);
  if (!call->query.data || !call->key.data || !DescribeOffsets(in, call)) return false;
  // (head, total), or (sequence, head, position). flash-attn lays a single query of several grouped heads out
  // as its heads, and what it returns of their sums is then in another order: csrc/flash_attn/flash_api.cpp,
  // mha_varlen_fwd.
  const bool is_swapped = call->longest_query == 1 && call->query.shape[0] != call->key.shape[0];
  if (in.log_sum_exp.defined() && (in.log_sum_exp.dim() == 2 || in.log_sum_exp.dim() == 3) && !is_swapped)
    call->log_sum_exp = View(in.log_sum_exp);
  if (backward) {
    call->grad_out = PackedView(in.grad_out);
    call->grad_query = PackedView(in.grad_query);
  }
  return true;
}

// Fills the tensors of a call; false when they do not fit together.
inline bool DescribeTensors(const AttentionInputs& in, bool backward, foreshock_attention_call* call) {
  if (in.sequences_q.defined()) return DescribePacked(in, backward, call);
  if (in.query.dim() != 4 || in.key.dim() != 4 || in.value.dim() != 4) return false;
  const auto view = [&](const at::Tensor& tensor) { return HeadsFirst(View(tensor), in.positions_first); };
  call->query = view(in.query);
  call->key = view(in.key);
  call->value = view(in.value);
  call->out = view(in.out);
  call->log_sum_exp = Unpadded(View(in.log_sum_exp), call->query.shape[2]);
  if (backward) {
    call->grad_out = view(in.grad_out);
    call->grad_query = view(in.grad_query);
  }
  return true;
}

// kDescribed, or the reason to skip the call. `in` holds the results too.
inline uint32_t Describe(const AttentionInputs& in, const Semantics& semantics, bool backward,
                         foreshock_attention_call* call) {
  if (!in.query.defined()) return FORESHOCK_SKIP_LAYOUT;
  if (IsFp8(in.query)) return FORESHOCK_SKIP_FP8;
  if (in.stored_otherwise || (in.sequences_q.defined() && !semantics.packs)) return FORESHOCK_SKIP_LAYOUT;
  // A bias over packed sequences has no place for each of them that is written down anywhere.
  if (in.masked_otherwise || (in.sequences_q.defined() && in.mask.defined())) return FORESHOCK_SKIP_MASK;
  call->size = sizeof(*call);
  call->version = FORESHOCK_ABI_VERSION;
  if (!DescribeTensors(in, backward, call)) return FORESHOCK_SKIP_LAYOUT;
  if (!call->query.data || !call->key.data || !call->value.data) return FORESHOCK_SKIP_LAYOUT;
  if (!ViewMask(in.mask, *call, &call->mask, semantics.flat_bias)) return FORESHOCK_SKIP_LAYOUT;
  call->scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(in.query.size(-1))));
  call->dropout = in.dropout;
  call->layer_identity = LayerOf(in.query);
  call->stream = StreamOf(in.query);
  if (in.layer.isString()) call->layer_name = in.layer.toStringRef().c_str();
  return DescribeCausal(in, call);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_
