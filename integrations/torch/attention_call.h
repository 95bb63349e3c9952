// From the arguments and results of an operation to the description of hook.h, or the reason why there is
// none. Views only: no tensor is made, nothing is read but the offsets of sequences.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_

#include <algorithm>
#include <atomic>
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

// One sequence of a batch that is packed without padding.
struct Sequence {
  int64_t number = 0, query = 0, queries = 0, key = 0, keys = 0;  // first position and length of each
};

// Chooses one sequence, each position as likely as any other over many calls; false when the offsets cannot
// be read here or make no sense.
inline bool ChooseSequence(const AttentionInputs& in, Sequence* chosen) {
  const at::Tensor &q = in.sequences_q, &k = in.sequences_k.defined() ? in.sequences_k : in.sequences_q;
  for (const at::Tensor& offsets : {q, k}) {
    if (!HasData(offsets) || !offsets.is_cpu() || offsets.scalar_type() != at::kInt || offsets.dim() != 1 ||
        !offsets.is_contiguous() || !IsInMemory(offsets))
      return false;
  }
  const int64_t count = q.numel() - 1;
  if (count < 1 || k.numel() != count + 1) return false;
  const auto *from_q = q.const_data_ptr<int32_t>(), *from_k = k.const_data_ptr<int32_t>();
  if (from_q[0] < 0 || from_k[0] < 0 || from_q[count] > in.query.size(-3) || from_k[count] > in.key.size(-3))
    return false;
  static constinit std::atomic<uint64_t> calls{0};
  const uint64_t turn = calls.fetch_add(1, std::memory_order_relaxed);
  // Multiples of the golden ratio fall evenly into the packed positions.
  const double place = static_cast<double>(turn * 0x9e3779b97f4a7c15u >> 11) * 0x1p-53;
  const auto wanted = from_q[0] + static_cast<int64_t>(place * (from_q[count] - from_q[0]));
  for (int64_t n = 0; n < count; ++n) {
    const Sequence one{n, from_q[n], int64_t{from_q[n + 1]} - from_q[n], from_k[n],
                       int64_t{from_k[n + 1]} - from_k[n]};
    if (one.queries < 0 || one.keys < 0) return false;
    const bool holds = turn == 0 ? one.queries > chosen->queries : one.query + one.queries > wanted;
    // The first call decides how much room slices get, so it gives its longest sequence.
    if (one.queries > 0 && one.keys > 0 && holds) *chosen = one;
    if (turn != 0 && chosen->queries > 0) break;
  }
  return chosen->queries > 0;
}

// All sequences of a call one after the other, with or without a dimension of one batch before them.
inline bool IsPacked(const at::Tensor& tensor) {
  return tensor.dim() == 3 || (tensor.dim() == 4 && tensor.size(0) == 1);
}

// (total, head, d) as (1, head, position, d) of one sequence.
inline foreshock_tensor OneSequence(const at::Tensor& packed, int64_t first, int64_t length) {
  foreshock_tensor view = View(packed);
  if (!view.data || !IsPacked(packed) || first + length > packed.size(-3)) return {};
  view.data = static_cast<const char*>(view.data) + first * packed.stride(-3) * packed.element_size();
  const int64_t shape[] = {1, packed.size(-2), length, packed.size(-1)};
  const int64_t stride[] = {0, packed.stride(-2), packed.stride(-3), packed.stride(-1)};
  std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view.shape);
  std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view.stride);
  view.dims = FORESHOCK_TENSOR_DIMS;
  return view;
}

// (head, total), or (sequence, head, position), as (1, head, position).
inline foreshock_tensor OneLogSumExp(const at::Tensor& packed, const Sequence& one) {
  foreshock_tensor view = View(packed);
  if (!view.data || (packed.dim() != 2 && packed.dim() != 3)) return {};
  const int64_t head = packed.dim() - 2, position = packed.dim() - 1;
  const int64_t first = head == 0 ? one.query * packed.stride(1) : one.number * packed.stride(0);
  if ((head == 0 ? one.query : 0) + one.queries > packed.size(position)) return {};
  view.data = static_cast<const char*>(view.data) + first * packed.element_size();
  const int64_t shape[] = {1, packed.size(head), one.queries, 1};
  const int64_t stride[] = {0, packed.stride(head), packed.stride(position), 0};
  std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view.shape);
  std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view.stride);
  view.dims = 3;
  return view;
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
  const int64_t queries = call->query.shape[2], keys = call->key.shape[2];
  call->causal = static_cast<int32_t>(in.causal);
  if (in.causal == kSquareOnly && queries == keys) call->causal = FORESHOCK_CAUSAL_TOP_LEFT;
  if (call->causal < FORESHOCK_CAUSAL_NONE || call->causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    return FORESHOCK_SKIP_MASK;
  // A window wider than the sequence is none; one that ends at the query itself is another word for causal.
  if (in.window_left >= 0 && in.window_left < keys) return FORESHOCK_SKIP_MASK;
  if (in.causal == 0 && in.window_right > 0 && in.window_right < std::max(queries, keys))
    return FORESHOCK_SKIP_MASK;
  if (in.window_right == 0) call->causal = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  // The first queries see no key at all; what a kernel leaves there is its own affair.
  if (call->causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && queries > keys) return FORESHOCK_SKIP_MASK;
  return kDescribed;
}

// Fills the tensors of a call; false when they do not fit together.
inline bool DescribeTensors(const AttentionInputs& in, bool backward, foreshock_attention_call* call) {
  if (in.sequences_q.defined()) {
    Sequence one;
    if (!IsPacked(in.query) || !IsPacked(in.key) || !IsPacked(in.value) || !ChooseSequence(in, &one))
      return false;
    call->query = OneSequence(in.query, one.query, one.queries);
    call->key = OneSequence(in.key, one.key, one.keys);
    call->value = OneSequence(in.value, one.key, one.keys);
    call->out = OneSequence(in.out, one.query, one.queries);
    call->log_sum_exp = OneLogSumExp(in.log_sum_exp, one);
    // flash-attn lays a single query of several grouped heads out as its heads, and what it returns of their
    // sums is then in another order than (head, all queries): csrc/flash_attn/flash_api.cpp, mha_varlen_fwd.
    if (one.queries == 1 && call->query.shape[1] != call->key.shape[1]) call->log_sum_exp = {};
    if (backward) {
      call->grad_out = OneSequence(in.grad_out, one.query, one.queries);
      call->grad_query = OneSequence(in.grad_query, one.query, one.queries);
    }
    return true;
  }
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
  call->scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(call->query.shape[3])));
  call->dropout = in.dropout;
  call->layer_identity = LayerOf(in.query);
  call->stream = StreamOf(in.query);
  if (in.layer.isString()) call->layer_name = in.layer.toStringRef().c_str();
  return DescribeCausal(in, call);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_CALL_H_
