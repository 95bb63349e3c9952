// Hooks two kinds of attention that bypass torch's fused operations: the math path, and calls through torch's
// C shim (at the end of the file).
//
// scaled_dot_product_attention takes the math path if no fused kernel supports the call (dropout on a CPU,
// masks that need gradients, three dimensions, fp64 on a GPU). The path consists of ordinary operations and
// _safe_softmax, which only this path calls, once per forward pass. So a hook of _safe_softmax counts forward
// passes without cost for other operations. Backward passes and compiled graphs are not counted.
//
// A sample needs query, key, value and output together, which only torch's RecordFunction sees. Its callbacks
// cost every operation 0.25 to 0.4 us, so they are active only with --math-path and during sampled steps.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_

#include <ATen/record_function.h>
#include <foreshock/adapter.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "attention.h"

namespace foreshock::adapter {

inline constexpr const char* kMathPath = "_scaled_dot_product_attention_math";

// Counts forward passes of the math path with enter_attention(). The hook samples none of them, since it has
// no query and no key. While MathPathSampler is on, MathPathSampler counts them instead. It raises
// attention_depth (attention.h), the number of attention calls in which this thread is, above 0.
class SafeSoftmaxHook final : public c10::OperatorKernel {
 public:
  SafeSoftmaxHook(const c10::FunctionSchema& schema, int32_t number)
      : number_(number), arguments_(static_cast<int>(schema.arguments().size())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;  // for what torch calls after this hook
    const at::Tensor& scores = tensor_or_undefined(peek(*stack, arguments_, 0));
    const bool is_counted = attention_depth == 0 && reaches_kernel(below) && has_data(scores);
    if (is_counted && enter_attention(number_, /*backward=*/false, scores))
      foreshock_attention_skip(number_, FORESHOCK_SKIP_OFF);  // reason: samples of the math path are off
    op.redispatchBoxed(below, stack);
  }

 private:
  const int32_t number_;  // of the operation, from foreshock_register_op
  const int arguments_;   // number of arguments of _safe_softmax
};

// Samples the math path with RecordFunction's callbacks, which it enables during sampled steps.
class MathPathSampler {
 public:
  // Call it once, at set-up. Adds the callbacks if `foreshock run --math-path` is on. They are never removed,
  // only disabled, since removal is unsafe while other threads run. `number`: from foreshock_register_op.
  // In calls of the math path, heads come first and causal masks are aligned at the top left.
  static void prepare(int32_t number) {
    const char* setting = std::getenv("FORESHOCK_MATH_PATH");
    const bool on = setting && (!std::strcmp(setting, "on") || !std::strcmp(setting, "1") ||
                                !std::strcmp(setting, "true") || !std::strcmp(setting, "yes"));
    const auto found = c10::Dispatcher::singleton().findSchema({std::string("aten::") + kMathPath, ""});
    if (!on || !found) return;
    number_ = number;
    arguments_ = new AttentionArguments(found->schema(), kHeadsFirstTopLeft, /*backward=*/false);
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
    at::disableCallback(handle_);
  }

  // Called at the end of a step. Enables the callbacks if the next step is sampled, else disables them.
  static void on_step_end() {
    const bool wanted = arguments_ && foreshock_step_is_sampled() != 0;
    const bool was_enabled = is_enabled_.exchange(wanted);
    if (was_enabled == wanted) return;
    wanted ? at::reenableCallback(handle_) : at::disableCallback(handle_);
  }

 private:
  // A call of the math path that is running. While it exists, SafeSoftmaxHook does not count the call again.
  struct Call final : at::ObserverContext {
    AttentionDepth depth;  // raises attention_depth while the call runs
    bool sampled = false;
    AttentionInputs inputs;
  };

  // torch calls this function before every operation and passes the result to on_end(). Null: the operation
  // is not an outermost call of the math path.
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) noexcept try {
    // The first comparison, of 13 characters, is cheap and excludes most operations.
    if (attention_depth != 0 || std::strncmp(function.name(), "aten::_scaled", 13) != 0 ||
        std::strcmp(function.name() + std::strlen("aten::"), kMathPath) != 0)
      return nullptr;
    const auto given = function.inputs();
    const Stack stack(given.begin(), given.end());
    if (stack.size() != static_cast<size_t>(arguments_->arguments())) return nullptr;
    const at::Tensor& query = arguments_->query(stack);
    if (!has_data(query) || query.is_meta()) return nullptr;
    auto call = std::make_unique<Call>();
    call->sampled = enter_attention(number_, /*backward=*/false, query);
    if (call->sampled) call->inputs = arguments_->keep(stack);
    return call;
  } catch (...) {
    return nullptr;
  }

  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) noexcept {
    auto* call = static_cast<Call*>(context);
    if (!call || !call->sampled) return;
    foreshock_attention_call description{};
    description.op = number_;
    uint32_t reason = FORESHOCK_SKIP_UNKNOWN;  // why the call is skipped; kDescribed: it is not skipped
    try {
      if (!function.outputs().empty()) {
        call->inputs.out = tensor_or_undefined(function.outputs()[0]);
        reason = describe_call(call->inputs, kHeadsFirstTopLeft, /*backward=*/false, &description);
      }
    } catch (...) {  // reason stays FORESHOCK_SKIP_UNKNOWN
    }
    if (reason == kDescribed) return foreshock_attention_leave(&description);
    foreshock_attention_skip(number_, reason);
  }

  static inline int32_t number_ = -1;
  static inline const AttentionArguments* arguments_ = nullptr;  // null: --math-path is off
  static inline at::CallbackHandle handle_ = 0;
  static inline std::atomic<bool> is_enabled_{false};
};

// An operation that compiled programs (AOTInductor, cpp_wrapper) call through torch's C shim, whose functions
// take handles instead of tensors. libforeshock.so interposes the shim function and passes its arguments to
// this file. Compiled graphs have no autograd history, so the layer of such a call is unknown.
struct ShimRow {
  const char* operation;
  uint32_t pass;          // FORESHOCK_FORWARD or _BACKWARD
  bool can_be_described;  // by describe_shim()
  int32_t number;         // the operation's number from foreshock_register_op; -1: not registered
};

// The rows of FORESHOCK_SHIMS (adapter.h). Only rows 0 and 1, the functions for the CPU, can be described.
#define FORESHOCK_SHIM_ROW(row, function, operation, pass) {operation, pass, (row) < 2, -1},
inline ShimRow shim_rows[FORESHOCK_SHIM_COUNT] = {FORESHOCK_SHIMS(FORESHOCK_SHIM_ROW)};
#undef FORESHOCK_SHIM_ROW

// Must be called after LateOps::start, which registers operations with the same names: a shim function gets
// the number of the operation with its name.
inline void register_shims() {
  for (ShimRow& row : shim_rows) row.number = foreshock_register_op(row.operation, row.pass);
}

// The tensor behind a handle of the C shim; undefined for a null handle.
inline const at::Tensor& tensor_of(const void* handle) {
  static const at::Tensor* undefined = new at::Tensor();
  return handle ? *static_cast<const at::Tensor*>(handle) : *undefined;
}

// Describes a call of a CPU shim function. given.number: its index in shim_rows. Returns false if its tensors
// are not supported.
inline bool describe_shim(const foreshock_shim_call& given, foreshock_attention_call* call) {
  const at::Tensor& query = tensor_of(given.query);
  if (query.dim() != 4) return false;
  call->size = sizeof(*call);
  call->version = FORESHOCK_ABI_VERSION;
  call->op = shim_rows[given.number].number;
  call->query = view_of(query);
  call->key = view_of(tensor_of(given.key));
  call->value = view_of(tensor_of(given.value));
  call->out = view_of(tensor_of(given.out));
  call->log_sum_exp = view_of(tensor_of(given.log_sum_exp));
  call->grad_out = view_of(tensor_of(given.grad_out));
  call->grad_query = view_of(tensor_of(given.grad_query));
  if (!view_mask(tensor_of(given.mask), *call, &call->mask)) return false;
  // A scale of 0 stands for the default.
  call->scale = given.scale != 0 ? given.scale : 1 / std::sqrt(static_cast<double>(query.size(3)));
  call->dropout = given.dropout;
  // The CPU kernel aligns at the top left.
  call->causal = given.causal ? FORESHOCK_CAUSAL_TOP_LEFT : FORESHOCK_CAUSAL_NONE;
  return call->query.data && call->key.data && call->value.data;
}

// Must be called before the shim function, and shim_ended() after it in every case. True: sampled.
inline int shim_begins(const foreshock_shim_call& given) noexcept {
  const ShimRow& row = shim_rows[given.number];
  const at::Tensor& query = tensor_of(given.query);
  const bool is_outermost = attention_depth == 0;
  ++attention_depth;
  const bool is_counted = is_outermost && row.number >= 0 && has_data(query);
  return is_counted && enter_attention(row.number, row.pass == FORESHOCK_BACKWARD, query);
}

// `is_sampled`: the result of shim_begins().
inline void shim_ended(const foreshock_shim_call& given, bool is_sampled) noexcept {
  --attention_depth;
  if (!is_sampled) return;
  const ShimRow& row = shim_rows[given.number];
  const uint64_t begin = now_ns();
  foreshock_attention_call call{};
  uint32_t reason = given.failed ? FORESHOCK_SKIP_UNKNOWN : FORESHOCK_SKIP_LAYOUT;
  try {
    if (!given.failed && row.can_be_described && describe_shim(given, &call)) reason = kDescribed;
  } catch (...) {
    reason = FORESHOCK_SKIP_UNKNOWN;
  }
  call.prepare_ns = now_ns() - begin;
  if (reason == kDescribed) return foreshock_attention_leave(&call);
  foreshock_attention_skip(row.number, reason);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_
