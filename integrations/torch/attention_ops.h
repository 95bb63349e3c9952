// The fused attention operations of torch, by name. Composite ones (scaled_dot_product_attention itself, the
// math path) are not here: a kernel for those at an autograd key takes the gradients out of compiled graphs.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_

#include <foreshock/hook.h>

namespace foreshock::adapter {

// Order of the dimensions of query, key, value: (batch, head, position, d), or another one we count but do
// not describe.
enum class Order { kHeadFirst, kOther };

struct AttentionOp {
  const char* name;
  const char* overload;
  uint32_t pass;
  Order order;
};

inline constexpr AttentionOp kAttentionOps[] = {
    {"_scaled_dot_product_flash_attention_for_cpu", "", FORESHOCK_FORWARD, Order::kHeadFirst},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", "", FORESHOCK_BACKWARD, Order::kHeadFirst},
    {"_scaled_dot_product_flash_attention", "", FORESHOCK_FORWARD, Order::kHeadFirst},
    {"_scaled_dot_product_flash_attention_backward", "", FORESHOCK_BACKWARD, Order::kHeadFirst},
    {"_scaled_dot_product_flash_attention", "quantized", FORESHOCK_FORWARD, Order::kOther},
    {"_scaled_dot_product_efficient_attention", "", FORESHOCK_FORWARD, Order::kHeadFirst},
    {"_scaled_dot_product_efficient_attention_backward", "", FORESHOCK_BACKWARD, Order::kHeadFirst},
    {"_scaled_dot_product_cudnn_attention", "", FORESHOCK_FORWARD, Order::kHeadFirst},
    {"_scaled_dot_product_cudnn_attention_backward", "", FORESHOCK_BACKWARD, Order::kHeadFirst},
    {"_scaled_dot_product_fused_attention_overrideable", "", FORESHOCK_FORWARD, Order::kHeadFirst},
    {"_scaled_dot_product_fused_attention_overrideable_backward", "", FORESHOCK_BACKWARD, Order::kHeadFirst},
    {"_flash_attention_forward", "", FORESHOCK_FORWARD, Order::kOther},
    {"_flash_attention_forward", "quantized", FORESHOCK_FORWARD, Order::kOther},
    {"_flash_attention_forward_no_dropout_inplace", "", FORESHOCK_FORWARD, Order::kOther},
    {"_flash_attention_backward", "", FORESHOCK_BACKWARD, Order::kOther},
    {"_efficient_attention_forward", "", FORESHOCK_FORWARD, Order::kOther},
    {"_efficient_attention_backward", "", FORESHOCK_BACKWARD, Order::kOther},
    {"_cudnn_attention_forward", "", FORESHOCK_FORWARD, Order::kOther},
    {"_cudnn_attention_backward", "", FORESHOCK_BACKWARD, Order::kOther},
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_OPS_H_
