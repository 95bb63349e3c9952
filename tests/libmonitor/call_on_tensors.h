#ifndef FORESHOCK_TESTS_LIBMONITOR_CALL_ON_TENSORS_H_
#define FORESHOCK_TESTS_LIBMONITOR_CALL_ON_TENSORS_H_

#include <numeric>
#include <vector>

#include "foreshock/hook.h"

namespace foreshock {

// A call on fp32 tensors laid out as torch does it: (batch, position, head, dimension) in memory.
struct CallOnTensors {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 12, keys = 12, dim = 6;
  std::vector<float> query, key, value, out, lse, mask, kept, grad_out, grad_query, grad_key, grad_value;
  foreshock_attention_call call = {};

  foreshock_tensor tensor(std::vector<float>* storage, int64_t heads, int64_t length, float first) {
    storage->resize(batch * heads * length * dim);
    std::iota(storage->begin(), storage->end(), first);
    return {storage->data(),
            {batch, heads, length, dim},
            {length * heads * dim, dim, heads * dim, 1},
            FORESHOCK_FP32,
            4,
            FORESHOCK_DEVICE_CPU,
            0};
  }
  void build(bool backward) {
    call.size = sizeof call;
    call.version = FORESHOCK_ABI_VERSION;
    call.scale = 0.5;
    call.causal = FORESHOCK_CAUSAL_TOP_LEFT;
    call.query = tensor(&query, heads, queries, 0);
    call.key = tensor(&key, kv_heads, keys, 10000);
    call.value = tensor(&value, kv_heads, keys, 20000);
    call.out = tensor(&out, heads, queries, 30000);
    lse.resize(batch * heads * queries);
    std::iota(lse.begin(), lse.end(), 40000.f);
    call.log_sum_exp = {lse.data(),
                        {batch, heads, queries, 1},
                        {heads * queries, queries, 1, 0},
                        FORESHOCK_FP32,
                        3,
                        FORESHOCK_DEVICE_CPU,
                        0};
    if (!backward) return;
    call.grad_out = tensor(&grad_out, heads, queries, 50000);
    call.grad_query = tensor(&grad_query, heads, queries, 60000);
  }
  // A backward call with the gradients of keys and values as well.
  void build_with_key_gradients() {
    build(true);
    call.grad_key = tensor(&grad_key, kv_heads, keys, 70000);
    call.grad_value = tensor(&grad_value, kv_heads, keys, 80000);
  }
  float at(const std::vector<float>& storage, int64_t heads, int64_t length, int64_t b, int64_t h, int64_t n,
           int64_t d) const {
    return storage[((b * length + n) * heads + h) * dim + d];
  }
};

// Gives the call a window, and no causal mask.
inline void set_window(int32_t alignment, int64_t left, int64_t right, foreshock_attention_call* call) {
  call->causal = FORESHOCK_CAUSAL_NONE;
  call->window = alignment;
  call->window_left = left;
  call->window_right = right;
}

// Adds dropout whose kept weights have the shape of the mask of the call, and other numbers.
inline void add_kept_like_mask(CallOnTensors* call) {
  call->kept.resize(call->mask.size());
  std::iota(call->kept.begin(), call->kept.end(), 1e6f);
  call->call.kept = call->call.mask;
  call->call.kept.data = call->kept.data();
  call->call.dropout = 0.25;
  call->call.soft_cap = 30;
}

// What stands for (position, key) whatever the batch and head.
inline void add_mask(CallOnTensors* call) {
  call->call.causal = FORESHOCK_CAUSAL_NONE;
  call->mask.resize(call->queries * call->keys);
  std::iota(call->mask.begin(), call->mask.end(), 0.f);
  call->call.mask = {call->mask.data(),
                     {call->queries, call->keys, 1, 1},
                     {call->keys, 1, 0, 0},
                     FORESHOCK_FP32,
                     2,
                     FORESHOCK_DEVICE_CPU,
                     0};
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_CALL_ON_TENSORS_H_
