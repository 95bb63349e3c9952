/* foreshock/adapter.h: the interface between libforeshock.so and the adapter, a library that `foreshock run`
 * builds for one exact torch and that hooks torch's operations. Trainers use <foreshock/hook.h>. C99.
 *
 * Compiled graphs that bypass the dispatcher (AOTInductor packages, Inductor with cpp_wrapper) call attention
 * through torch's C shim. libforeshock.so interposes the shim's functions (libmonitor/interpose_shims.cpp)
 * and passes their arguments to the adapter, which can read the tensors behind the handles.
 */
#ifndef FORESHOCK_ADAPTER_H_
#define FORESHOCK_ADAPTER_H_

#include <foreshock/hook.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(number, function of torch's C shim, operation that it calls, pass). Only calls of the CPU functions (0,
 * 1) are sampled; those of the CUDA functions are counted. */
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

/* One call of a shim function. Tensors are torch's AtenTensorHandle; NULL: absent. Of the CUDA functions,
 * only `query` is given. */
typedef struct foreshock_shim_call {
  uint32_t size;   /* sizeof(foreshock_shim_call) */
  uint32_t number; /* of the function in FORESHOCK_SHIMS */
  const void *query, *key, *value, *mask, *grad_out;
  const void *out, *log_sum_exp; /* inputs of a backward; results of a forward, set once it has succeeded */
  const void* grad_query;        /* result of a backward, set once it has succeeded */
  double scale;                  /* 0: torch's default */
  double dropout;
  int32_t causal; /* nonzero: is_causal is true */
  int32_t failed; /* nonzero: the function returned an error */
} foreshock_shim_call;

/* The adapter exports the functions below; libforeshock.so finds them by name. */

/* Called before the shim function. Nonzero: a sample is wanted. With any result,
 * foreshock_adapter_shim_ended() is called later. */
int foreshock_adapter_shim_begins(const foreshock_shim_call* call);

/* Called after the shim function has returned. `wanted`: the result of foreshock_adapter_shim_begins(). */
void foreshock_adapter_shim_ended(const foreshock_shim_call* call, int wanted);

/* Returns nonzero while this thread runs a backward pass; a forward call in it is a recomputation. Serves the
 * interposed functions of TransformerEngine, which receive no such information from torch. */
int foreshock_adapter_in_backward(void);

#ifdef __cplusplus
}
#endif

#endif /* FORESHOCK_ADAPTER_H_ */
