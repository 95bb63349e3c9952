// The kernel at BackendSelect of every attention operation: check, call on, report. When a call is not
// sampled it adds a filter of a few loads and one call into the core. Nothing of ours throws; what the
// operation throws passes.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_

#include <c10/core/GradMode.h>

#include <atomic>
#include <cmath>

#include "attention_ops.h"
#include "dispatch.h"
#include "layer_walk.h"
#include "parameter_clock.h"
#include "training_clock.h"

namespace foreshock::adapter {

// Calls that an attention operation makes to another one are part of it and not counted.
inline thread_local int attention_depth = 0;

// Calls on real data since the start, per pass; for the self-test and for "no attention seen".
inline constinit std::atomic<uint64_t> attention_calls[2];

struct AttentionDepth {
  AttentionDepth() { ++attention_depth; }
  ~AttentionDepth() { --attention_depth; }
};

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

inline int32_t DeviceOf(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return FORESHOCK_DEVICE_CPU;
  return tensor.is_cuda() ? FORESHOCK_DEVICE_CUDA : FORESHOCK_DEVICE_OTHER;
}

// Absent for an undefined or empty tensor. const_data_ptr only: data_ptr would copy a copy-on-write tensor.
inline foreshock_tensor View(const at::Tensor& tensor) {
  foreshock_tensor view{};
  if (!tensor.defined() || tensor.dim() > FORESHOCK_TENSOR_DIMS || tensor.numel() == 0) return view;
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
// fit.
inline bool ViewMask(const at::Tensor& mask, const foreshock_attention_call& call, foreshock_tensor* view) {
  if (!mask.defined()) return true;
  const int64_t shape[] = {call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2]};
  *view = View(mask);
  if (!view->data || view->dtype == FORESHOCK_DTYPE_NONE) return false;
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

// Counts a call that is about to happen. True: the core wants it described.
inline bool EnterAttention(int32_t operation, bool backward, const at::Tensor& query) noexcept {
  attention_calls[backward].fetch_add(1, std::memory_order_relaxed);
  const bool in_backward = InBackward();
  uint32_t flags = in_backward ? FORESHOCK_IN_BACKWARD : 0;
  if (backward) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
    Clock().SawAttentionBackward();
  } else if (c10::GradMode::is_enabled() && query.requires_grad()) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
  }
  if (!in_backward) ParameterClock::Instance().Look(query);
  return foreshock_attention_enter(operation, flags) != 0;
}

class AttentionHook final : public c10::OperatorKernel {
 public:
  AttentionHook(const c10::FunctionSchema& schema, const AttentionOp& op, int32_t number)
      : number_(number),
        backward_(op.pass == FORESHOCK_BACKWARD),
        described_(op.order == Order::kHeadFirst),
        arguments_(static_cast<int>(schema.arguments().size())),
        returns_(static_cast<int>(schema.returns().size())),
        query_(ArgumentIndex(schema, "query")),
        key_(ArgumentIndex(schema, "key")),
        value_(ArgumentIndex(schema, "value")),
        out_(ArgumentIndex(schema, "out")),
        log_sum_exp_(ArgumentIndex(schema, "logsumexp")),
        mask_(std::max(ArgumentIndex(schema, "attn_mask"), ArgumentIndex(schema, "attn_bias"))),
        grad_out_(std::max(ArgumentIndex(schema, "grad_out"), ArgumentIndex(schema, "grad_out_"))),
        scale_(ArgumentIndex(schema, "scale")),
        dropout_(ArgumentIndex(schema, "dropout_p")),
        causal_(ArgumentIndex(schema, "is_causal")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const at::Tensor& query = TensorOrUndefined(Peek(*stack, arguments_, query_));
    const bool ours = attention_depth == 0 && GoesToDevice(below) && HasData(query);
    const AttentionDepth depth;
    if (!ours || !EnterAttention(number_, backward_, query)) return op.redispatchBoxed(below, stack);
    const Inputs inputs = Keep(*stack);
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      foreshock_attention_skip(number_, FORESHOCK_SKIP_UNKNOWN);
      throw;
    }
    Report(inputs, *stack);
  }

 private:
  struct Inputs {
    at::Tensor query, key, value, out, log_sum_exp, mask, grad_out;
    double scale = 0, dropout = 0;
    bool causal = false;
    uint64_t keeping_ns = 0;
  };

  // References, not copies: the operation takes its arguments off the stack.
  Inputs Keep(const Stack& stack) const {
    const uint64_t begin = NowNs();
    const auto tensor = [&](int index) { return TensorOrUndefined(Peek(stack, arguments_, index)); };
    Inputs inputs{tensor(query_), tensor(key_), tensor(value_), {}, {}, tensor(mask_), tensor(grad_out_)};
    if (backward_) {
      inputs.out = tensor(out_);
      inputs.log_sum_exp = tensor(log_sum_exp_);
    }
    const c10::IValue& scale = Peek(stack, arguments_, scale_);
    const c10::IValue& dropout = Peek(stack, arguments_, dropout_);
    const c10::IValue& causal = Peek(stack, arguments_, causal_);
    if (scale.isDouble()) inputs.scale = scale.toDouble();
    if (dropout.isDouble()) inputs.dropout = dropout.toDouble();
    inputs.causal = causal.isBool() && causal.toBool();
    inputs.keeping_ns = NowNs() - begin;
    return inputs;
  }

  void Report(const Inputs& inputs, const Stack& stack) const noexcept {
    const uint64_t begin = NowNs();
    foreshock_attention_call call{};
    uint32_t reason = FORESHOCK_SKIP_LAYOUT;
    try {
      if (described_ && Describe(inputs, stack, &call)) reason = FORESHOCK_SKIP_REASONS;
    } catch (...) {
      reason = FORESHOCK_SKIP_UNKNOWN;
    }
    call.prepare_ns = inputs.keeping_ns + NowNs() - begin;
    if (reason == FORESHOCK_SKIP_REASONS) return foreshock_attention_leave(&call);
    foreshock_attention_skip(number_, reason);
  }

  bool Describe(const Inputs& in, const Stack& stack, foreshock_attention_call* call) const {
    if (in.query.dim() != 4 || in.key.dim() != 4 || in.value.dim() != 4) return false;
    call->size = sizeof(*call);
    call->version = FORESHOCK_ABI_VERSION;
    call->op = number_;
    call->query = View(in.query);
    call->key = View(in.key);
    call->value = View(in.value);
    const auto result = [&](int index) { return View(TensorOrUndefined(Peek(stack, returns_, index))); };
    call->out = backward_ ? View(in.out) : result(0);
    call->log_sum_exp = backward_ ? View(in.log_sum_exp) : result(1);
    if (backward_) {
      call->grad_out = View(in.grad_out);
      call->grad_query = result(0);
    }
    if (!ViewMask(in.mask, *call, &call->mask)) return false;
    call->scale = in.scale != 0 ? in.scale : 1 / std::sqrt(static_cast<double>(in.query.size(3)));
    call->dropout = in.dropout;
    // The CPU kernel compares j <= i. Devices differ when there are more keys than queries, so that is not
    // claimed.
    if (in.causal && !in.query.is_cpu() && in.query.size(2) != in.key.size(2)) return false;
    call->causal = in.causal ? FORESHOCK_CAUSAL_TOP_LEFT : FORESHOCK_CAUSAL_NONE;
    call->layer_identity = LayerOf(in.query);
    return call->query.data && call->key.data && call->value.data;
  }

  const int32_t number_;
  const bool backward_, described_;
  const int arguments_, returns_;
  const int query_, key_, value_, out_, log_sum_exp_, mask_, grad_out_, scale_, dropout_, causal_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_
