// Attention operations by name: torch's fused ones, and the custom operations of other packages, which need
// not have been imported. Composite ones (scaled_dot_product_attention itself, the math path) are not here: a
// kernel for those at an autograd key takes the gradients out of compiled graphs.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_

#include <foreshock/hook.h>

namespace foreshock::adapter {

// What the arguments mean.
enum class Meaning {
  kSdpa,   // (batch, head, position, d); causal: key j visible to query i iff j <= i
  kFlash,  // (batch, position, head, d), or (total, head, d) with offsets of sequences; causal: aligned at
           // the bottom right (flash-attention since 2.1); windows, soft caps and the like are told apart by
           // their names
  kTap,    // foreshock::tap: as its own arguments say
  kOther,  // counted, not described
};

struct AttentionOp {
  const char* space;
  const char* name;
  const char* overload;
  uint32_t pass;
  Meaning meaning;
};

inline constexpr uint32_t kAhead = FORESHOCK_FORWARD, kBack = FORESHOCK_BACKWARD;

inline constexpr AttentionOp kAttentionOps[] = {
    {"aten", "_scaled_dot_product_flash_attention_for_cpu", "", kAhead, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_flash_attention_for_cpu_backward", "", kBack, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_flash_attention", "", kAhead, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_flash_attention", "quantized", kAhead, Meaning::kOther},
    {"aten", "_scaled_dot_product_flash_attention_backward", "", kBack, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_efficient_attention", "", kAhead, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_efficient_attention_backward", "", kBack, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_cudnn_attention", "", kAhead, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_cudnn_attention_backward", "", kBack, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_fused_attention_overrideable", "", kAhead, Meaning::kSdpa},
    {"aten", "_scaled_dot_product_fused_attention_overrideable_backward", "", kBack, Meaning::kSdpa},
    // torch.nn.attention.varlen, nested tensors and xformers with torch's own kernels end here.
    {"aten", "_flash_attention_forward", "", kAhead, Meaning::kFlash},
    {"aten", "_flash_attention_forward", "quantized", kAhead, Meaning::kOther},
    {"aten", "_flash_attention_forward_no_dropout_inplace", "", kAhead, Meaning::kOther},
    {"aten", "_flash_attention_backward", "", kBack, Meaning::kFlash},
    {"aten", "_efficient_attention_forward", "", kAhead, Meaning::kOther},
    {"aten", "_efficient_attention_backward", "", kBack, Meaning::kOther},
    {"aten", "_cudnn_attention_forward", "", kAhead, Meaning::kOther},
    {"aten", "_cudnn_attention_backward", "", kBack, Meaning::kOther},
    {"foreshock", "tap", "", kAhead, Meaning::kTap},
    {"foreshock", "tap_backward", "", kBack, Meaning::kTap},
    {"flash_attn", "_flash_attn_forward", "", kAhead, Meaning::kFlash},
    {"flash_attn", "_flash_attn_backward", "", kBack, Meaning::kFlash},
    {"flash_attn", "_flash_attn_varlen_forward", "", kAhead, Meaning::kFlash},
    {"flash_attn", "_flash_attn_varlen_backward", "", kBack, Meaning::kFlash},
    {"flash_attn_3", "_flash_attn_forward", "", kAhead, Meaning::kFlash},
    {"flash_attn_3", "_flash_attn_backward", "", kBack, Meaning::kFlash},
    {"xformers_flash", "flash_fwd", "", kAhead, Meaning::kFlash},
    {"xformers_flash", "flash_bwd", "", kBack, Meaning::kFlash},
    {"xformers_flash3", "flash_fwd", "", kAhead, Meaning::kFlash},
    {"xformers_flash3", "flash_bwd", "", kBack, Meaning::kFlash},
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
