/* foreshock/adapter.h: the seam between libforeshock.so and the adapters that `foreshock run` builds for one
 * exact torch. Not for trainers: use <foreshock/hook.h>. C99.
 *
 * Compiled graphs that call no dispatcher (AOTInductor packages, Inductor with cpp_wrapper) call attention
 * through torch's C shim, whose functions libforeshock.so interposes (libmonitor/interpose_shims.cpp). It
 * knows the arguments, the adapter knows the tensors behind the handles.
 */
#ifndef FORESHOCK_ADAPTER_H_
#define FORESHOCK_ADAPTER_H_

#include <foreshock/hook.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(number, function of torch's C shim, operation it is, pass). Device functions are counted, not described.
 */
#define FORESHOCK_SHIMS(X)                                                                                 \
  X(0, aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu,                                         \
    "_scaled_dot_product_flash_attention_for_cpu", FORESHOCK_FORWARD)                                      \
  X(1, aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward,                                \
    "_scaled_dot_product_flash_attention_for_cpu_backward", FORESHOCK_BACKWARD)                            \
  X(2, aoti_torch_cuda__scaled_dot_product_flash_attention, "_scaled_dot_product_flash_attention",         \
    FORESHOCK_FORWARD)                                                                                     \
  X(3, aoti_torch_cuda__scaled_dot_product_flash_attention_backward,                                       \
    "_scaled_dot_product_flash_attention_backward", FORESHOCK_BACKWARD)                                    \
  X(4, aoti_torch_cuda__scaled_dot_product_efficient_attention, "_scaled_dot_product_efficient_attention", \
    FORESHOCK_FORWARD)                                                                                     \
  X(5, aoti_torch_cuda__scaled_dot_product_efficient_attention_backward,                                   \
    "_scaled_dot_product_efficient_attention_backward", FORESHOCK_BACKWARD)                                \
  X(6, aoti_torch_cuda__scaled_dot_product_cudnn_attention, "_scaled_dot_product_cudnn_attention",         \
    FORESHOCK_FORWARD)                                                                                     \
  X(7, aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward,                                       \
    "_scaled_dot_product_cudnn_attention_backward", FORESHOCK_BACKWARD)                                    \
  X(8, aoti_torch_cuda__flash_attention_forward, "_flash_attention_forward", FORESHOCK_FORWARD)            \
  X(9, aoti_torch_cuda__flash_attention_forward_v2, "_flash_attention_forward", FORESHOCK_FORWARD)         \
  X(10, aoti_torch_cuda__flash_attention_backward, "_flash_attention_backward", FORESHOCK_BACKWARD)        \
  X(11, aoti_torch_cuda__efficient_attention_forward, "_efficient_attention_forward", FORESHOCK_FORWARD)   \
  X(12, aoti_torch_cuda__efficient_attention_backward, "_efficient_attention_backward", FORESHOCK_BACKWARD)

enum { FORESHOCK_SHIM_COUNT = 13 };

/* One call of a shim function. Tensors are torch's AtenTensorHandle; NULL: absent. */
typedef struct foreshock_shim_call {
  uint32_t size; /* sizeof, as in hook.h */
  uint32_t number;
  const void *query, *key, *value, *mask, *grad_out;
  const void *out, *log_sum_exp; /* given to a backward; of a forward once it has returned */
  const void* grad_query;        /* once a backward has returned */
  double scale;                  /* 0: torch's default */
  double dropout;
  int32_t causal;
  int32_t failed; /* nonzero: the function returned an error */
} foreshock_shim_call;

/* What an adapter exports for the shims, by these names. */

/* Before the function: nonzero when the call is wanted described. Every call is followed by ..._ended. */
int foreshock_adapter_shim_begins(const foreshock_shim_call* call);

/* After the function returned, with the results filled in; `wanted` is what ..._begins answered. */
void foreshock_adapter_shim_ended(const foreshock_shim_call* call, int wanted);

/* What an adapter exports for doors that see calls but not who makes them: nonzero while this thread is in
 * the middle of a backward pass, where a forward call is a recomputation. */
int foreshock_adapter_in_backward(void);

#ifdef __cplusplus
}
#endif

#endif /* FORESHOCK_ADAPTER_H_ */
