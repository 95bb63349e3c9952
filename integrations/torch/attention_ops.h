// Lists the attention operations that are hooked, and what their arguments mean. These are torch's fused
// operations, and custom operations of other packages, which may be imported later or never. Composite
// operations (scaled_dot_product_attention itself, the math path) are not hooked here, because a kernel for
// them at an autograd key would remove the gradients from compiled graphs.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_

#include <foreshock/hook.h>

#include <cstring>

#include "dispatch.h"

namespace foreshock::adapter {

// The order of dimensions of query, key, value, output and their gradients.
enum class Order {
  kHeadsFirst,      // (batch, head, position, d)
  kPositionsFirst,  // (batch, position, head, d)
  kAsSaid           // given by an argument of the operation
};

// A causal mask with unspecified alignment: it can be used only if there are as many queries as keys.
inline constexpr int32_t kSquareOnly = -1;

// The meaning of an operation's arguments and results that their names do not show. For all operations:
// - the default scale is 1 / sqrt(d), with d of the query that the operation gets. A caller that pads d with
//   zeros to a multiple of 8 passes the scale of the unpadded d;
// - log-sum-exp is the natural logarithm, over scaled and masked scores before dropout, in fp32, with shape
//   (batch, head, query). It may have one more dimension of size 1 (cuDNN), rows padded to a multiple of 32
//   (efficient) or more (flash-attn before 2.7), or be absent. For packed sequences it has (head, all
//   queries), or (sequence, head, query) with rows as long as the longest (efficient, flash-attn before 2.7);
// - a mask or bias is added to the scaled scores, whatever its strides;
// - query head h reads kv-head h / (query heads / kv-heads).
struct Semantics {
  Order order;
  int32_t causal;            // meaning of `is_causal`: FORESHOCK_CAUSAL_..., kSquareOnly
  bool packs = false;        // accepts offsets of packed sequences; tensors are then (all positions, head, d)
  bool in_function = false;  // called inside an autograd.Function, where gradients are off by design
  bool fills_out = false;    // the output is an argument, the first result the log-sum-exp
  bool flat_bias = false;    // a bias of three dimensions is (batch x head, query, key)
};

// Causal means j <= i in the CPU kernel, in the math path (tril() of a queries x keys matrix), and in the
// documentation of scaled_dot_product_attention.
inline constexpr Semantics kUpperLeft{Order::kHeadsFirst, FORESHOCK_CAUSAL_TOP_LEFT};

// "Lower right" according to torch/nn/attention/bias.py, which calls this operation.
inline constexpr Semantics kSdpaFlash{Order::kHeadsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT};

// is_causal becomes CausalFromTopLeft: aten/src/ATen/native/transformers/cuda/attention.cu.
inline constexpr Semantics kSdpaEfficient = kUpperLeft;

// aten/src/ATen/native/cudnn/MHA.cpp calls SDPA_attributes::set_causal_mask, which aligns at the top left
// (documentation of cudnn-frontend). Calls with packed sequences are not described, since cuDNN's log-sum-exp
// then has a layout of its own.
inline constexpr Semantics kCudnn = kUpperLeft;

// Used by devices of other vendors; the alignment of the causal mask is unknown.
inline constexpr Semantics kOverrideable{Order::kHeadsFirst, kSquareOnly};

// flash-attention aligns at the bottom right since 2.1 (its README). torch.nn.attention.varlen, nested
// tensors, and xformers with torch's kernels call the operations of aten.
inline constexpr Semantics kFlash{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT, true, true};
inline constexpr Semantics kFlashInplace{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT, true, true,
                                         true};

// The numbers of custom_mask_type (CustomMaskType in sdp_utils_cpp.h) equal FORESHOCK_CAUSAL_.... The layout
// of a bias is that of get_bias_4d_view() in mem_eff_attention/pytorch_utils.h.
inline constexpr Semantics kEfficient{
    Order::kPositionsFirst, FORESHOCK_CAUSAL_TOP_LEFT, true, true, false, true};
static_assert(FORESHOCK_CAUSAL_NONE == 0 && FORESHOCK_CAUSAL_TOP_LEFT == 1 &&
              FORESHOCK_CAUSAL_BOTTOM_RIGHT == 2);

// The arguments of foreshock::tap give their own meaning.
inline constexpr Semantics kTap{Order::kAsSaid, kSquareOnly};

struct AttentionOp {
  const char* space;
  const char* name;
  const char* overload;
  uint32_t pass;
  const Semantics* semantics;
};

inline constexpr uint32_t kAhead = FORESHOCK_FORWARD, kBack = FORESHOCK_BACKWARD;

inline constexpr AttentionOp kAttentionOps[] = {
    {"aten", "_scaled_dot_product_flash_attention_for_cpu", "", kAhead, &kUpperLeft},
    {"aten", "_scaled_dot_product_flash_attention_for_cpu_backward", "", kBack, &kUpperLeft},
    {"aten", "_scaled_dot_product_flash_attention", "", kAhead, &kSdpaFlash},
    {"aten", "_scaled_dot_product_flash_attention", "quantized", kAhead, &kSdpaFlash},
    {"aten", "_scaled_dot_product_flash_attention_backward", "", kBack, &kSdpaFlash},
    {"aten", "_scaled_dot_product_efficient_attention", "", kAhead, &kSdpaEfficient},
    {"aten", "_scaled_dot_product_efficient_attention_backward", "", kBack, &kSdpaEfficient},
    {"aten", "_scaled_dot_product_cudnn_attention", "", kAhead, &kCudnn},
    {"aten", "_scaled_dot_product_cudnn_attention_backward", "", kBack, &kCudnn},
    {"aten", "_scaled_dot_product_fused_attention_overrideable", "", kAhead, &kOverrideable},
    {"aten", "_scaled_dot_product_fused_attention_overrideable_backward", "", kBack, &kOverrideable},
    {"aten", "_flash_attention_forward", "", kAhead, &kFlash},
    {"aten", "_flash_attention_forward", "quantized", kAhead, &kFlash},
    {"aten", "_flash_attention_forward_no_dropout_inplace", "", kAhead, &kFlashInplace},
    {"aten", "_flash_attention_backward", "", kBack, &kFlash},
    {"aten", "_efficient_attention_forward", "", kAhead, &kEfficient},
    {"aten", "_efficient_attention_backward", "", kBack, &kEfficient},
    {"aten", "_cudnn_attention_forward", "", kAhead, &kCudnn},
    {"aten", "_cudnn_attention_backward", "", kBack, &kCudnn},
    {"foreshock", "tap", "", kAhead, &kTap},
    {"foreshock", "tap_backward", "", kBack, &kTap},
    {"flash_attn", "_flash_attn_forward", "", kAhead, &kFlash},
    {"flash_attn", "_flash_attn_backward", "", kBack, &kFlash},
    {"flash_attn", "_flash_attn_varlen_forward", "", kAhead, &kFlash},
    {"flash_attn", "_flash_attn_varlen_backward", "", kBack, &kFlash},
    {"flash_attn_3", "_flash_attn_forward", "", kAhead, &kFlash},
    {"flash_attn_3", "_flash_attn_backward", "", kBack, &kFlash},
    {"xformers_flash", "flash_fwd", "", kAhead, &kFlash},
    {"xformers_flash", "flash_bwd", "", kBack, &kFlash},
    {"xformers_flash3", "flash_fwd", "", kAhead, &kFlash},
    {"xformers_flash3", "flash_bwd", "", kBack, &kFlash},
};

inline bool has_tensor(const c10::FunctionSchema& schema, const char* name, const char* other) {
  for (const c10::Argument& argument : schema.arguments()) {
    if ((argument.name() == name || argument.name() == other) &&
        argument.type()->kind() == c10::TypeKind::TensorType)
      return true;
  }
  return false;
}

// Whether the operation is in the table or in one of torch's namespaces. Attention in those namespaces calls
// operations of the table.
inline bool is_known_op(const c10::OperatorName& op) {
  for (const char* space : {"aten::", "prims::", "foreshock::", "torch_attn::", "inductor::", "onnx::"}) {
    if (op.name.rfind(space, 0) == 0) return true;
  }
  for (const AttentionOp& known : kAttentionOps) {
    if (op.name == std::string(known.space) + "::" + known.name) return true;
  }
  return false;
}

// Reports the names of unknown operations whose arguments look like attention. torch calls it when an
// operation is registered, while it holds the dispatcher's mutex. The callback only reads the schema and
// notes the name.
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
