// Lists the attention operations that are hooked, and hooks each once its schema is registered: torch's fused
// operations, and custom operations of other packages, which may be imported later or never. Composite
// operations (scaled_dot_product_attention itself, the math path) are not hooked here: they never reach
// BackendSelect, the key of our hooks, and a hook at an autograd key removes gradients of compiled graphs.
//
// A kernel is not registered before the schema, since torch would list it as dangling
// (torch._C._dispatch_find_dangling_impls). The dispatcher reports a new schema while it holds its own mutex,
// so the kernel cannot be registered in that callback. With Python, a pending call of the interpreter
// registers the kernel; it runs before the import that registered the operation returns. Without Python, the
// next call of hook_arrived() registers it.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_

#include <foreshock/hook.h>

#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "attention.h"
#include "dispatch.h"
#include "interpreter.h"

namespace foreshock::adapter {

// With a causal mask, query i sees key j <= i in the CPU kernel, in the math path (tril() of a queries x keys
// matrix), and in the documentation of scaled_dot_product_attention.
inline constexpr Semantics kUpperLeft{Order::kHeadsFirst, FORESHOCK_CAUSAL_TOP_LEFT};

// "Lower right" according to torch/nn/attention/bias.py, which calls this operation.
inline constexpr Semantics kSdpaFlash{Order::kHeadsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT};

// is_causal becomes CausalFromTopLeft: aten/src/ATen/native/transformers/cuda/attention.cu.
inline constexpr Semantics kSdpaEfficient = kUpperLeft;

// aten/src/ATen/native/cudnn/MHA.cpp calls SDPA_attributes::set_causal_mask, which aligns at the top left
// (documentation of cudnn-frontend). Packed calls are not described: their log-sum-exp has another layout.
inline constexpr Semantics kCudnn = kUpperLeft;

// Devices of other vendors use it. The causal mask has an unknown alignment, so it must be square.
inline constexpr Semantics kOverrideable{Order::kHeadsFirst, kSquareOnly};

// flash-attention aligns at the bottom right since 2.1 (its README). torch.nn.attention.varlen, nested
// tensors, and xformers with torch's kernels call the operations of aten.
inline constexpr Semantics kFlash{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT, /*packs=*/true,
                                  /*in_function=*/true};
inline constexpr Semantics kFlashInplace{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT,
                                         /*packs=*/true, /*in_function=*/true, /*fills_out=*/true};

// The argument custom_mask_type gives the alignment (CustomMaskType in sdp_utils_cpp.h), in the numbers of
// FORESHOCK_CAUSAL_.... A bias has the layout of get_bias_4d_view() in mem_eff_attention/pytorch_utils.h.
inline constexpr Semantics kEfficient{Order::kPositionsFirst, FORESHOCK_CAUSAL_TOP_LEFT, /*packs=*/true,
                                      /*in_function=*/true,   /*fills_out=*/false,       /*flat_bias=*/true};
static_assert(FORESHOCK_CAUSAL_NONE == 0 && FORESHOCK_CAUSAL_TOP_LEFT == 1 &&
              FORESHOCK_CAUSAL_BOTTOM_RIGHT == 2);

// foreshock::tap reports attention that cannot be hooked. Its arguments give the order and the alignment.
inline constexpr Semantics kTap{Order::kByArgument, kSquareOnly};

inline constexpr uint32_t kForward = FORESHOCK_FORWARD, kBackward = FORESHOCK_BACKWARD;

// The most important operations first, since the core's table of operations may become full.
inline constexpr AttentionOp kAttentionOps[] = {
    {"aten", "_scaled_dot_product_flash_attention_for_cpu", "", kForward, &kUpperLeft},
    {"aten", "_scaled_dot_product_flash_attention_for_cpu_backward", "", kBackward, &kUpperLeft},
    {"aten", "_scaled_dot_product_flash_attention", "", kForward, &kSdpaFlash},
    {"aten", "_scaled_dot_product_flash_attention", "quantized", kForward, &kSdpaFlash},
    {"aten", "_scaled_dot_product_flash_attention_backward", "", kBackward, &kSdpaFlash},
    {"aten", "_scaled_dot_product_efficient_attention", "", kForward, &kSdpaEfficient},
    {"aten", "_scaled_dot_product_efficient_attention_backward", "", kBackward, &kSdpaEfficient},
    {"aten", "_scaled_dot_product_cudnn_attention", "", kForward, &kCudnn},
    {"aten", "_scaled_dot_product_cudnn_attention_backward", "", kBackward, &kCudnn},
    {"aten", "_scaled_dot_product_fused_attention_overrideable", "", kForward, &kOverrideable},
    {"aten", "_scaled_dot_product_fused_attention_overrideable_backward", "", kBackward, &kOverrideable},
    {"aten", "_flash_attention_forward", "", kForward, &kFlash},
    {"aten", "_flash_attention_forward", "quantized", kForward, &kFlash},
    {"aten", "_flash_attention_forward_no_dropout_inplace", "", kForward, &kFlashInplace},
    {"aten", "_flash_attention_backward", "", kBackward, &kFlash},
    {"aten", "_efficient_attention_forward", "", kForward, &kEfficient},
    {"aten", "_efficient_attention_backward", "", kBackward, &kEfficient},
    {"aten", "_cudnn_attention_forward", "", kForward, &kCudnn},
    {"aten", "_cudnn_attention_backward", "", kBackward, &kCudnn},
    {"foreshock", "tap", "", kForward, &kTap},
    {"foreshock", "tap_backward", "", kBackward, &kTap},
    {"flash_attn", "_flash_attn_forward", "", kForward, &kFlash},
    {"flash_attn", "_flash_attn_backward", "", kBackward, &kFlash},
    {"flash_attn", "_flash_attn_varlen_forward", "", kForward, &kFlash},
    {"flash_attn", "_flash_attn_varlen_backward", "", kBackward, &kFlash},
    {"flash_attn_3", "_flash_attn_forward", "", kForward, &kFlash},
    {"flash_attn_3", "_flash_attn_backward", "", kBackward, &kFlash},
    {"xformers_flash", "flash_fwd", "", kForward, &kFlash},
    {"xformers_flash", "flash_bwd", "", kBackward, &kFlash},
    {"xformers_flash3", "flash_fwd", "", kForward, &kFlash},
    {"xformers_flash3", "flash_bwd", "", kBackward, &kFlash},
};

// Puts an AttentionHook on an operation whose schema is registered. Returns false if there is no schema or
// the core's table of operations is full. Leaks the torch::Library, since its destructor removes the kernel.
inline bool hook_attention_op(const AttentionOp& op) {
  const std::string qualified = std::string(op.space) + "::" + op.name;
  if (!c10::Dispatcher::singleton().findSchema({qualified, op.overload})) return false;
  const bool is_torch = !std::strcmp(op.space, "aten");
  const int32_t number = foreshock_register_op((is_torch ? op.name : qualified).c_str(), op.pass);
  if (number < 0) return false;
  auto* library =
      new torch::Library(torch::Library::IMPL, op.space, c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const std::string name = *op.overload ? std::string(op.name) + "." + op.overload : op.name;
  library->impl(name.c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AttentionHook>(op, number)));
  return true;
}

// Hooks the operations of kAttentionOps when their schemas are registered. Thread-safe. Never destroyed.
class LateOps final : public c10::OpRegistrationListener {
 public:
  // Hooks the operations that are registered already, including torch's own, and listens for later ones. Call
  // it once. Returns the number of torch's operations that are hooked.
  static int start() {
    LateOps& ops = instance();
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
        std::unique_ptr<c10::OpRegistrationListener>(&ops)));
    ops.hook_new();
    return ops.hooked_of_torch_;
  }

  // Hooks operations that were registered since. Costs one atomic load if there are none.
  static void hook_arrived() noexcept {
    if (instance().has_arrived_.load(std::memory_order_relaxed)) instance().hook_new();
  }

  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const c10::OperatorName& name = op.operator_name();
    for (const AttentionOp& known : kAttentionOps) {
      if (name.overload_name != known.overload || name.name != std::string(known.space) + "::" + known.name)
        continue;
      if (!has_arrived_.exchange(true, std::memory_order_relaxed)) hook_in_pending_call();
    }
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

 private:
  static constexpr size_t kOps = std::size(kAttentionOps);

  static LateOps& instance() {
    static LateOps* ops = new LateOps;
    return *ops;
  }

  void hook_new() noexcept try {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    // Cleared before the loop, so that an operation that is registered during the loop sets the flag again.
    has_arrived_.store(false, std::memory_order_relaxed);
    for (size_t n = 0; n < kOps; ++n) {
      if (is_hooked_[n] || !hook_attention_op(kAttentionOps[n])) continue;
      is_hooked_[n] = true;
      hooked_of_torch_ += !std::strcmp(kAttentionOps[n].space, "aten");
    }
  } catch (...) {
    foreshock_off("adapter_late_ops");
  }

  // Does nothing without Python. Py_AddPendingCall may be called without the interpreter lock.
  static void hook_in_pending_call() noexcept {
    const auto add = Python::get().add_pending;
    if (add) add([](void*) { return hook_arrived(), 0; }, nullptr);
  }

  std::array<bool, kOps> is_hooked_{};
  int hooked_of_torch_ = 0;
  std::atomic<bool> has_arrived_{true};  // true at first, so that start() hooks the existing operations
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// Whether an argument with one of the two names is a tensor.
inline bool has_tensor(const c10::FunctionSchema& schema, const char* name, const char* short_name) {
  for (const c10::Argument& argument : schema.arguments())
    if ((argument.name() == name || argument.name() == short_name) &&
        argument.type()->kind() == c10::TypeKind::TensorType)
      return true;
  return false;
}

// Whether the operation is in kAttentionOps, or in a namespace whose attention calls those operations.
inline bool is_known_op(const c10::OperatorName& op) {
  for (const char* space : {"aten::", "prims::", "foreshock::", "torch_attn::", "inductor::", "onnx::"})
    if (op.name.rfind(space, 0) == 0) return true;
  for (const AttentionOp& known : kAttentionOps)
    if (op.name == std::string(known.space) + "::" + known.name) return true;
  return false;
}

// Reports the names of unknown operations whose arguments look like attention. torch calls it when an
// operation is registered, while it holds the dispatcher's mutex, so it only reads the schema.
class UnhookedOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    try {
      const c10::FunctionSchema& schema = op.schema();
      const bool attends = has_tensor(schema, "query", "q") && has_tensor(schema, "key", "k") &&
                           has_tensor(schema, "value", "v");
      if (attends && !is_known_op(op.operator_name()))
        foreshock_note_unseen(op.operator_name().name.c_str(), FORESHOCK_UNSEEN_REGISTERED);
    } catch (...) {
    }
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

  // Starts listening; call it once. torch also reports the operations registered before. Never removed.
  static void listen() {
    new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<UnhookedOps>()));
  }
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
