// The kernel at BackendSelect of every attention operation: check, call on, report. When a call is not
// sampled it adds a filter of a few loads and one call into the core. Nothing of ours throws; what the
// operation throws passes.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_

#include <c10/core/GradMode.h>

#include <atomic>

#include "attention_call.h"
#include "parameter_clock.h"
#include "training_clock.h"

namespace foreshock::adapter {

// Calls that an attention operation makes to another one are part of it and not counted: the outermost one
// is.
inline thread_local int attention_depth = 0;

// Calls on real data since the start, per pass; for the self-test and for "no attention seen".
inline constinit std::atomic<uint64_t> attention_calls[2];

// Calls of foreshock::tap on real data since the start.
inline constinit std::atomic<uint64_t> taps{0};

struct AttentionDepth {
  AttentionDepth() { ++attention_depth; }
  ~AttentionDepth() { --attention_depth; }
};

// Counts a call that is about to happen. True: the core wants it described. `any_mode`: the call is made
// where gradient mode is off by design (inside an autograd.Function), so that only the query's history tells.
inline bool EnterAttention(int32_t operation, bool backward, const at::Tensor& query,
                           bool any_mode = false) noexcept {
  attention_calls[backward].fetch_add(1, std::memory_order_relaxed);
  const bool in_backward = InBackward();
  uint32_t flags = in_backward ? FORESHOCK_IN_BACKWARD : 0;
  if (backward) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
    Clock().SawAttentionBackward();
  } else if (query.requires_grad() && (any_mode || c10::GradMode::is_enabled())) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
  }
  if (!in_backward) ParameterClock::Instance().Look(query);
  return foreshock_attention_enter(operation, flags) != 0;
}

class AttentionHook final : public c10::OperatorKernel {
 public:
  AttentionHook(const AttentionOp& op, int32_t number)
      : number_(number),
        backward_(op.pass == FORESHOCK_BACKWARD),
        is_tap_(op.semantics->order == Order::kAsSaid),
        any_mode_(op.semantics->in_function),
        late_(*op.semantics, backward_) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const AttentionArguments& arguments = late_.of(op);
    const at::Tensor& query = arguments.query(*stack);
    const bool ours = attention_depth == 0 && GoesToDevice(below) && HasData(query);
    const AttentionDepth depth;
    if (!ours) return op.redispatchBoxed(below, stack);
    if (is_tap_) taps.fetch_add(1, std::memory_order_relaxed);
    if (!EnterAttention(number_, backward_, query, any_mode_)) return Run(op, below, stack, arguments);
    AttentionInputs inputs = Keep(arguments, *stack);
    try {
      Run(op, below, stack, arguments);
    } catch (...) {
      foreshock_attention_skip(number_, FORESHOCK_SKIP_UNKNOWN);
      throw;
    }
    Report(&inputs, arguments, *stack);
  }

 private:
  // A tap is done when it has been seen.
  void Run(const c10::OperatorHandle& op, c10::DispatchKeySet below, Stack* stack,
           const AttentionArguments& arguments) const {
    if (!is_tap_) return op.redispatchBoxed(below, stack);
    torch::jit::drop(*stack, static_cast<size_t>(arguments.arguments()));
  }

  static AttentionInputs Keep(const AttentionArguments& arguments, const Stack& stack) {
    const uint64_t begin = NowNs();
    AttentionInputs inputs = arguments.Keep(stack);
    inputs.keeping_ns = NowNs() - begin;
    return inputs;
  }

  void Report(AttentionInputs* inputs, const AttentionArguments& arguments,
              const Stack& stack) const noexcept {
    const uint64_t begin = NowNs();
    foreshock_attention_call call{};
    call.op = number_;
    uint32_t reason = FORESHOCK_SKIP_UNKNOWN;
    try {
      if (!is_tap_) TakeResults(inputs, arguments, stack);
      reason = Describe(*inputs, arguments.semantics(), backward_, &call);
    } catch (...) {
    }
    call.prepare_ns = inputs->keeping_ns + NowNs() - begin;
    if (reason == kDescribed) return foreshock_attention_leave(&call);
    foreshock_attention_skip(number_, reason);
  }

  void TakeResults(AttentionInputs* inputs, const AttentionArguments& arguments, const Stack& stack) const {
    if (arguments.semantics().fills_out) {
      inputs->log_sum_exp = arguments.result(stack, 0);
    } else if (!backward_) {
      inputs->out = arguments.result(stack, 0);
      inputs->log_sum_exp = arguments.result(stack, 1);
    } else if (arguments.returns_gradient()) {
      inputs->grad_query = arguments.result(stack, 0);
    }
  }

  const int32_t number_;
  const bool backward_, is_tap_, any_mode_;
  LateArguments late_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_HOOK_H_
