// Attention called through torch's C shim (AOTInductor, cpp_wrapper): the core has interposed the function
// and knows its arguments; here are the tensors behind its handles. Compiled graphs hold no autograd history,
// so such a call names no layer.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_AOTI_SHIMS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_AOTI_SHIMS_H_

#include <foreshock/adapter.h>

#include <cmath>

#include "attention_hook.h"

namespace foreshock::adapter {

struct ShimRow {
  const char* operation;
  uint32_t pass;
  bool described;
  int32_t number;  // of the operation; -1: unknown to the core
};

#define FORESHOCK_SHIM_ROW(number, function, operation, pass) {operation, pass, (number) < 2, -1},
inline ShimRow shim_rows[FORESHOCK_SHIM_COUNT] = {FORESHOCK_SHIMS(FORESHOCK_SHIM_ROW)};
#undef FORESHOCK_SHIM_ROW

// After the operations of the dispatcher, whose numbers these share.
inline void RegisterShims() {
  for (ShimRow& row : shim_rows) row.number = foreshock_register_op(row.operation, row.pass);
}

inline const at::Tensor& TensorOf(const void* handle) {
  static const at::Tensor* undefined = new at::Tensor();
  return handle ? *static_cast<const at::Tensor*>(handle) : *undefined;
}

inline bool DescribeShim(const foreshock_shim_call& given, foreshock_attention_call* call) {
  const at::Tensor& query = TensorOf(given.query);
  if (query.dim() != 4) return false;
  call->size = sizeof(*call);
  call->version = FORESHOCK_ABI_VERSION;
  call->op = shim_rows[given.number].number;
  call->query = View(query);
  call->key = View(TensorOf(given.key));
  call->value = View(TensorOf(given.value));
  call->out = View(TensorOf(given.out));
  call->log_sum_exp = View(TensorOf(given.log_sum_exp));
  call->grad_out = View(TensorOf(given.grad_out));
  call->grad_query = View(TensorOf(given.grad_query));
  if (!ViewMask(TensorOf(given.mask), *call, &call->mask)) return false;
  call->scale = given.scale != 0 ? given.scale : 1 / std::sqrt(static_cast<double>(query.size(3)));
  call->dropout = given.dropout;
  call->causal =
      given.causal ? FORESHOCK_CAUSAL_TOP_LEFT : FORESHOCK_CAUSAL_NONE;  // as the CPU kernel counts
  return call->query.data && call->key.data && call->value.data;
}

inline int ShimBegins(const foreshock_shim_call& given) noexcept {
  const ShimRow& row = shim_rows[given.number];
  const at::Tensor& query = TensorOf(given.query);
  const bool ours = attention_depth++ == 0 && row.number >= 0 && HasData(query);
  return ours && EnterAttention(row.number, row.pass == FORESHOCK_BACKWARD, query);
}

inline void ShimEnded(const foreshock_shim_call& given, bool wanted) noexcept {
  --attention_depth;
  if (!wanted) return;
  const ShimRow& row = shim_rows[given.number];
  const uint64_t begin = NowNs();
  foreshock_attention_call call{};
  uint32_t reason = given.failed ? FORESHOCK_SKIP_UNKNOWN : FORESHOCK_SKIP_LAYOUT;
  try {
    if (!given.failed && row.described && DescribeShim(given, &call)) reason = FORESHOCK_SKIP_REASONS;
  } catch (...) {
    reason = FORESHOCK_SKIP_UNKNOWN;
  }
  call.prepare_ns = NowNs() - begin;
  if (reason == FORESHOCK_SKIP_REASONS) return foreshock_attention_leave(&call);
  foreshock_attention_skip(row.number, reason);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_AOTI_SHIMS_H_
