// Attention that passes no dispatcher: AOTInductor packages and Inductor's cpp_wrapper call the functions of
// torch's C shim, which they find through their PLT, so that a library loaded before torch (preloaded, or
// linked first) stands before them. The shim is a frozen ABI: new arguments come with a new name. The types
// are torch's own, so that a test compiles this file after torch's headers and any difference is an error.
//
// Without torch, or without the real function, these functions fail as the shim does and touch nothing.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>

#include "foreshock/adapter.h"
#include "libmonitor/door.h"

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using AOTITorchError = int32_t;

namespace foreshock {
namespace {

constexpr AOTITorchError kSuccess = 0, kFailure = 1;

struct Shim {
  const char* function;
  std::atomic<void*> real;
};

#define FORESHOCK_SHIM_ROW(number, function, operation, pass) {#function, nullptr},
constinit Shim g_shims[FORESHOCK_SHIM_COUNT] = {FORESHOCK_SHIMS(FORESHOCK_SHIM_ROW)};
#undef FORESHOCK_SHIM_ROW

// The adapter's; null where there is none, and then calls are only passed on.
std::atomic<int (*)(const foreshock_shim_call*)> g_begins{nullptr};
std::atomic<void (*)(const foreshock_shim_call*, int)> g_ended{nullptr};

// The function that would have been called without us. Found at its first call, which also is when a torch
// that came by a way of its own (dlopen of LibTorch, say) gets its adapter.
template <class Function>
Function real_function(int number, Function ours) {
  Shim& shim = g_shims[number];
  void* found = shim.real.load(std::memory_order_acquire);
  if (found == nullptr) {
    load_adapter();
    found = find_in_mapped("libtorch", shim.function);  // libtorch_cpu.so, libtorch_cuda.so, libtorch_hip.so
    if (found == nullptr) found = dlsym(RTLD_NEXT, shim.function);
    if (found == reinterpret_cast<void*>(ours)) found = nullptr;
    shim.real.store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

// One call on its way through us.
class Passage {
 public:
  Passage(uint32_t number, AtenTensorHandle query) {
    call_.size = sizeof call_;
    call_.number = number;
    call_.query = query;
    begins_ = g_begins.load(std::memory_order_acquire);
  }

  foreshock_shim_call& call() { return call_; }

  void begin() {
    if (begins_ != nullptr) wanted_ = begins_(&call_);
  }

  AOTITorchError end(AOTITorchError error) {
    call_.failed = error != kSuccess;
    if (begins_ != nullptr) g_ended.load(std::memory_order_acquire)(&call_, wanted_);
    return error;
  }

 private:
  foreshock_shim_call call_ = {};
  int (*begins_)(const foreshock_shim_call*);
  int wanted_ = 0;
};

AtenTensorHandle given(AtenTensorHandle* optional) { return optional != nullptr ? *optional : nullptr; }

}  // namespace

void attach_shims(void* adapter) {
  const auto begins =
      reinterpret_cast<int (*)(const foreshock_shim_call*)>(dlsym(adapter, "foreshock_adapter_shim_begins"));
  const auto ended = reinterpret_cast<void (*)(const foreshock_shim_call*, int)>(
      dlsym(adapter, "foreshock_adapter_shim_ended"));
  if (begins == nullptr || ended == nullptr) return;
  g_ended.store(ended, std::memory_order_release);
  g_begins.store(begins, std::memory_order_release);
}

}  // namespace foreshock

using foreshock::given;
using foreshock::kFailure;
using foreshock::Passage;
using foreshock::real_function;

// Counted: passed on, and told to the adapter without its arguments.
#define FORESHOCK_COUNTED(number, name, parameters, arguments) \
  extern "C" FORESHOCK_EXPORT AOTITorchError name parameters { \
    const auto real = real_function(number, &name);            \
    if (real == nullptr) return kFailure;                      \
    Passage passage(number, query);                            \
    passage.begin();                                           \
    return passage.end(real arguments);                        \
  }                                                            \
  static_assert(true)

extern "C" {

FORESHOCK_EXPORT AOTITorchError aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout_p, int32_t is_causal,
    AtenTensorHandle* attn_mask, double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1) {
  const auto real = real_function(0, &aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu);
  if (real == nullptr) return kFailure;
  Passage passage(0, query);
  foreshock_shim_call& call = passage.call();
  call.key = key;
  call.value = value;
  call.mask = given(attn_mask);
  call.scale = scale != nullptr ? *scale : 0;
  call.dropout = dropout_p;
  call.causal = is_causal;
  passage.begin();
  const AOTITorchError error = real(query, key, value, dropout_p, is_causal, attn_mask, scale, ret0, ret1);
  if (error == foreshock::kSuccess) {
    call.out = *ret0;
    call.log_sum_exp = *ret1;
  }
  return passage.end(error);
}

FORESHOCK_EXPORT AOTITorchError aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward(
    AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
    AtenTensorHandle out, AtenTensorHandle logsumexp, double dropout_p, int32_t is_causal,
    AtenTensorHandle* attn_mask, double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
    AtenTensorHandle* ret2) {
  const auto real = real_function(1, &aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward);
  if (real == nullptr) return kFailure;
  Passage passage(1, query);
  foreshock_shim_call& call = passage.call();
  call.key = key;
  call.value = value;
  call.mask = given(attn_mask);
  call.grad_out = grad_out;
  call.out = out;
  call.log_sum_exp = logsumexp;
  call.scale = scale != nullptr ? *scale : 0;
  call.dropout = dropout_p;
  call.causal = is_causal;
  passage.begin();
  const AOTITorchError error = real(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
                                    attn_mask, scale, ret0, ret1, ret2);
  if (error == foreshock::kSuccess) call.grad_query = *ret0;
  return passage.end(error);
}

}  // extern "C"

FORESHOCK_COUNTED(2, aoti_torch_cuda__scaled_dot_product_flash_attention,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, double dropout_p,
                   int32_t is_causal, int32_t return_debug_mask, double* scale, AtenTensorHandle* ret0,
                   AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3, int64_t* ret4,
                   int64_t* ret5, AtenTensorHandle* ret6, AtenTensorHandle* ret7, AtenTensorHandle* ret8),
                  (query, key, value, dropout_p, is_causal, return_debug_mask, scale, ret0, ret1, ret2, ret3,
                   ret4, ret5, ret6, ret7, ret8));

FORESHOCK_COUNTED(3, aoti_torch_cuda__scaled_dot_product_flash_attention_backward,
                  (AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key,
                   AtenTensorHandle value, AtenTensorHandle out, AtenTensorHandle logsumexp,
                   AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k, int64_t max_q, int64_t max_k,
                   double dropout_p, int32_t is_causal, AtenTensorHandle philox_seed,
                   AtenTensorHandle philox_offset, double* scale, AtenTensorHandle* ret0,
                   AtenTensorHandle* ret1, AtenTensorHandle* ret2),
                  (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                   is_causal, philox_seed, philox_offset, scale, ret0, ret1, ret2));

FORESHOCK_COUNTED(4, aoti_torch_cuda__scaled_dot_product_efficient_attention,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                   AtenTensorHandle* attn_bias, int32_t compute_log_sumexp, double dropout_p,
                   int32_t is_causal, double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3),
                  (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale, ret0, ret1,
                   ret2, ret3));

FORESHOCK_COUNTED(5, aoti_torch_cuda__scaled_dot_product_efficient_attention_backward,
                  (AtenTensorHandle grad_out_, AtenTensorHandle query, AtenTensorHandle key,
                   AtenTensorHandle value, AtenTensorHandle attn_bias, AtenTensorHandle out,
                   AtenTensorHandle logsumexp, AtenTensorHandle philox_seed, AtenTensorHandle philox_offset,
                   double dropout_p, const int32_t* grad_input_mask, int64_t grad_input_mask_len_,
                   int32_t is_causal, double* scale, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3),
                  (grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset,
                   dropout_p, grad_input_mask, grad_input_mask_len_, is_causal, scale, ret0, ret1, ret2,
                   ret3));

FORESHOCK_COUNTED(6, aoti_torch_cuda__scaled_dot_product_cudnn_attention,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                   AtenTensorHandle* attn_bias, int32_t compute_log_sumexp, double dropout_p,
                   int32_t is_causal, int32_t return_debug_mask, double* scale, AtenTensorHandle* ret0,
                   AtenTensorHandle* ret1, AtenTensorHandle* ret2, AtenTensorHandle* ret3, int64_t* ret4,
                   int64_t* ret5, AtenTensorHandle* ret6, AtenTensorHandle* ret7, AtenTensorHandle* ret8),
                  (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask,
                   scale, ret0, ret1, ret2, ret3, ret4, ret5, ret6, ret7, ret8));

FORESHOCK_COUNTED(7, aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward,
                  (AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key,
                   AtenTensorHandle value, AtenTensorHandle out, AtenTensorHandle logsumexp,
                   AtenTensorHandle philox_seed, AtenTensorHandle philox_offset, AtenTensorHandle attn_bias,
                   AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k, int64_t max_q, int64_t max_k,
                   double dropout_p, int32_t is_causal, double* scale, AtenTensorHandle* ret0,
                   AtenTensorHandle* ret1, AtenTensorHandle* ret2),
                  (grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias,
                   cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale, ret0, ret1, ret2));

FORESHOCK_COUNTED(8, aoti_torch_cuda__flash_attention_forward,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                   AtenTensorHandle* cum_seq_q, AtenTensorHandle* cum_seq_k, int64_t max_q, int64_t max_k,
                   double dropout_p, int32_t is_causal, int32_t return_debug_mask, double* scale,
                   int64_t* window_size_left, int64_t* window_size_right, AtenTensorHandle* seqused_k,
                   AtenTensorHandle* alibi_slopes, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3, AtenTensorHandle* ret4),
                  (query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                   return_debug_mask, scale, window_size_left, window_size_right, seqused_k, alibi_slopes,
                   ret0, ret1, ret2, ret3, ret4));

FORESHOCK_COUNTED(9, aoti_torch_cuda__flash_attention_forward_v2,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                   AtenTensorHandle* cum_seq_q, AtenTensorHandle* cum_seq_k, int64_t max_q, int64_t max_k,
                   double dropout_p, int32_t is_causal, int32_t return_debug_mask, double* scale,
                   int64_t* window_size_left, int64_t* window_size_right, AtenTensorHandle* seqused_k,
                   AtenTensorHandle* alibi_slopes, AtenTensorHandle* block_table, int64_t* num_splits,
                   AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2,
                   AtenTensorHandle* ret3, AtenTensorHandle* ret4),
                  (query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                   return_debug_mask, scale, window_size_left, window_size_right, seqused_k, alibi_slopes,
                   block_table, num_splits, ret0, ret1, ret2, ret3, ret4));

FORESHOCK_COUNTED(10, aoti_torch_cuda__flash_attention_backward,
                  (AtenTensorHandle grad_out, AtenTensorHandle query, AtenTensorHandle key,
                   AtenTensorHandle value, AtenTensorHandle out, AtenTensorHandle logsumexp,
                   AtenTensorHandle cum_seq_q, AtenTensorHandle cum_seq_k, int64_t max_q, int64_t max_k,
                   double dropout_p, int32_t is_causal, AtenTensorHandle rng_state, AtenTensorHandle unused,
                   double* scale, int64_t* window_size_left, int64_t* window_size_right,
                   AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2),
                  (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                   is_causal, rng_state, unused, scale, window_size_left, window_size_right, ret0, ret1,
                   ret2));

FORESHOCK_COUNTED(11, aoti_torch_cuda__efficient_attention_forward,
                  (AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value,
                   AtenTensorHandle* bias, AtenTensorHandle* cu_seqlens_q, AtenTensorHandle* cu_seqlens_k,
                   int64_t* max_seqlen_q, int64_t* max_seqlen_k, double dropout_p, int64_t custom_mask_type,
                   int32_t compute_log_sumexp, double* scale, AtenTensorHandle* seqlen_k,
                   int64_t* window_size, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3, int64_t* ret4, int64_t* ret5),
                  (query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                   custom_mask_type, compute_log_sumexp, scale, seqlen_k, window_size, ret0, ret1, ret2, ret3,
                   ret4, ret5));

FORESHOCK_COUNTED(12, aoti_torch_cuda__efficient_attention_backward,
                  (AtenTensorHandle grad_out_, AtenTensorHandle query, AtenTensorHandle key,
                   AtenTensorHandle value, AtenTensorHandle* bias, AtenTensorHandle out,
                   AtenTensorHandle* cu_seqlens_q, AtenTensorHandle* cu_seqlens_k, int64_t max_seqlen_q,
                   int64_t max_seqlen_k, AtenTensorHandle logsumexp, double dropout_p,
                   AtenTensorHandle philox_seed, AtenTensorHandle philox_offset, int64_t custom_mask_type,
                   int32_t bias_requires_grad, double* scale, int64_t* num_splits_key, int64_t* window_size,
                   int32_t shared_storage_dqdkdv, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3),
                  (grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                   max_seqlen_k, logsumexp, dropout_p, philox_seed, philox_offset, custom_mask_type,
                   bias_requires_grad, scale, num_splits_key, window_size, shared_storage_dqdkdv, ret0, ret1,
                   ret2, ret3));
