// Hooks attention that bypasses torch's fused operations: the math path.
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
#include <foreshock/hook.h>

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

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_
