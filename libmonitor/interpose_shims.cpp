// Interposes the attention functions of torch's C shim. Compiled models (AOTInductor packages, Inductor's
// cpp_wrapper) call these functions and bypass torch's dispatcher, where the adapter (the library that
// connects foreshock with one version of torch) hooks all other attention calls. The dynamic linker finds the
// functions here first if libforeshock.so is preloaded or linked before torch.
//
// An untested torch must keep working too. So no function here declares the arguments of torch's function:
// all words that the caller put into registers and onto the stack are forwarded unchanged
// (FORESHOCK_PARAMETERS in base.h: w0, ... for integers, d0, ... for doubles, s0, ... for the stack). Words
// are read as arguments only if an adapter for exactly this torch is loaded: the query of every function, and
// all arguments of the two CPU functions (numbers 0 and 1 of FORESHOCK_SHIMS in adapter.h; tests/abi compares
// the arguments with torch's headers). Without torch's function, a function here returns kFailure.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "foreshock/adapter.h"
#include "libmonitor/base.h"
#include "libmonitor/bootstrap.h"

namespace foreshock {
namespace {

constexpr int32_t kSuccess = 0, kFailure = 1;  // results of torch's C shim

// Stack words to forward: more than the longest function has.
#define FORESHOCK_STACK(X)                                                                              \
  X(s0), X(s1), X(s2), X(s3), X(s4), X(s5), X(s6), X(s7), X(s8), X(s9), X(s10), X(s11), X(s12), X(s13), \
      X(s14), X(s15), X(s16), X(s17), X(s18), X(s19), X(s20), X(s21), X(s22), X(s23)
constexpr int kStackWords = 24;

using Function = int32_t (*)(FORESHOCK_PARAMETERS);

struct Shim {
  const char* function;     // name of the function
  uint32_t pass;            // FORESHOCK_FORWARD or FORESHOCK_BACKWARD
  std::atomic<void*> real;  // torch's function; null until it has been found
};

#define FORESHOCK_SHIM_ROW(number, function, operation, pass) {#function, pass, nullptr},
constinit Shim g_shims[FORESHOCK_SHIM_COUNT] = {FORESHOCK_SHIMS(FORESHOCK_SHIM_ROW)};
#undef FORESHOCK_SHIM_ROW

// Functions of the adapter (adapter.h), called before and after torch's function. Null without an adapter;
// calls are then only forwarded. g_begins returns whether to sample the call; g_ended gets this result.
std::atomic<int (*)(const foreshock_shim_call*)> g_begins{nullptr};
std::atomic<void (*)(const foreshock_shim_call*, int)> g_ended{nullptr};

// Returns torch's function; null if it is missing. It is looked up at every call until it is found. Before a
// look-up, load_adapter() loads the adapter unless it is already loaded: the program may have just loaded
// torch. `ours`: the function of this file that has the same name.
Function real_function(uint32_t number, void* ours) {
  Shim& shim = g_shims[number];
  void* found = shim.real.load(std::memory_order_acquire);
  if (found == nullptr) {
    load_adapter();
    // Matches libtorch_cpu.so, libtorch_cuda.so and libtorch_hip.so.
    found = find_original("libtorch", shim.function, nullptr, ours);
    shim.real.store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

const void* handle_of(Word word) { return reinterpret_cast<const void*>(word); }

// Reads the value that a pointer argument points to. A null pointer (an absent argument) gives 0.
template <class T>
T pointed_to(Word word) {
  T value{};
  if (word != 0) std::memcpy(&value, reinterpret_cast<const void*>(word), sizeof value);
  return value;
}

// aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal,
// attn_mask, scale, ret0, ret1). dropout_p is a double in d0, so it takes none of `words`.
void read_forward(const Word* words, foreshock_shim_call* call) {
  call->key = handle_of(words[1]);
  call->value = handle_of(words[2]);
  call->causal = static_cast<int32_t>(words[3]);
  call->mask = pointed_to<const void*>(words[4]);
  call->scale = pointed_to<double>(words[5]);
}

// ..._backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale, ret0...)
void read_backward(const Word* words, foreshock_shim_call* call) {
  call->grad_out = handle_of(words[0]);
  call->key = handle_of(words[2]);
  call->value = handle_of(words[3]);
  call->out = handle_of(words[4]);
  call->log_sum_exp = handle_of(words[5]);
  call->causal = static_cast<int32_t>(words[6]);
  call->mask = pointed_to<const void*>(words[7]);
  call->scale = pointed_to<double>(words[8]);
}

// Reads the results from the memory to which the last arguments (ret0, ret1) point.
void read_results(const Word* words, foreshock_shim_call* call) {
  if (call->number == 0) {
    call->out = pointed_to<const void*>(words[6]);
    call->log_sum_exp = pointed_to<const void*>(words[7]);
  } else if (call->number == 1) {
    call->grad_query = pointed_to<const void*>(words[9]);
  }
}

// Calls torch's function, and the adapter before and after it. `number` indexes FORESHOCK_SHIMS.
int32_t forward_call(uint32_t number, void* ours, FORESHOCK_PARAMETERS) {
  const Function real = real_function(number, ours);
  if (real == nullptr) return kFailure;
  const auto begins = g_begins.load(std::memory_order_acquire);
  if (begins == nullptr) return real(FORESHOCK_ARGUMENTS);
  const Word words[] = {FORESHOCK_INTEGERS(FORESHOCK_NAME), FORESHOCK_STACK(FORESHOCK_NAME)};
  static_assert(sizeof words / sizeof *words == kIntegerRegisters + kStackWords);
  foreshock_shim_call call = {};
  call.size = sizeof call;
  call.number = number;
  // The first argument is the query, or in a backward function grad_out, followed by the query.
  call.query = handle_of(words[g_shims[number].pass == FORESHOCK_BACKWARD ? 1 : 0]);
  call.dropout = number <= 1 ? d0 : 0;  // the only floating-point argument of the CPU functions
  if (number == 0) read_forward(words, &call);
  if (number == 1) read_backward(words, &call);
  const int is_wanted = begins(&call);
  const int32_t error = real(FORESHOCK_ARGUMENTS);
  call.failed = error != kSuccess;
  if (is_wanted != 0 && call.failed == 0) read_results(words, &call);
  g_ended.load(std::memory_order_acquire)(&call, is_wanted);
  return error;
}

}  // namespace

void attach_shims(void* adapter) {
  const auto begins =
      reinterpret_cast<int (*)(const foreshock_shim_call*)>(dlsym(adapter, "foreshock_adapter_shim_begins"));
  const auto ended = reinterpret_cast<void (*)(const foreshock_shim_call*, int)>(
      dlsym(adapter, "foreshock_adapter_shim_ended"));
  if (begins == nullptr || ended == nullptr) return;
  g_ended.store(ended, std::memory_order_release);  // first: a call that sees `begins` needs `ended` too
  g_begins.store(begins, std::memory_order_release);
}

}  // namespace foreshock

#define FORESHOCK_SHIM(number, name, operation, pass)                                            \
  extern "C" FORESHOCK_EXPORT int32_t name(FORESHOCK_PARAMETERS) {                               \
    return foreshock::forward_call(number, reinterpret_cast<void*>(&name), FORESHOCK_ARGUMENTS); \
  }

FORESHOCK_SHIMS(FORESHOCK_SHIM)
