// The PyTorch adapter, a shared library that build_adapter.py builds for one exact version of torch. Its
// hooks on torch's operations report attention calls, losses and gradients to the core, that is, to the
// foreshock_ functions (hook.h) of the libforeshock.so that the process has already loaded. This file sets up
// the hooks and exports functions for libforeshock.so and for the Python helper.
#include <cmath>

#include "attention.h"
#include "attention_ops.h"
#include "attention_paths.h"
#include "gradients.h"
#include "interpreter.h"
#include "older_runtime.h"
#include "quiet_steps.h"
#include "weight_report.h"

namespace foreshock::adapter {
namespace {

// The hook of detach. Since detach is called often, it also hooks attention operations that were registered
// late, for processes without Python.
at::Tensor detach_and_hook_arrived(c10::DispatchKeySet keys, const at::Tensor& self) {
  LateOps::hook_arrived();
  return hooked_detach(keys, self);
}

// Hooks the unfused implementation of attention (the math path).
void hook_math_path(torch::Library& aten) {
  const int32_t number = foreshock_register_op(kMathPath, FORESHOCK_FORWARD);
  if (number < 0 || !hook_op<SafeSoftmaxHook>(aten, "_safe_softmax", "", number)) return;
  MathWindow::prepare(number);
}

// Returns how many attention operations of torch are hooked.
int hook_all() {
  // Leaked, since destroying a torch::Library removes its kernels.
  auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const int hooked = LateOps::start();
  hook_math_path(aten);
  register_shims();
  ParameterClock::instance().enable();
  hook_op<LossHook>(aten, "nll_loss_forward", "");
  hook_op<LossHook>(aten, "nll_loss2d_forward", "");
  hook_op<RootHook>(aten, "ones_like", "");
  hook_op<ScalerHook>(aten, "_amp_update_scale_", "");
  hook_op<UnscaleHook>(aten, "_amp_foreach_non_finite_check_and_unscale_", "");
  aten.impl("_local_scalar_dense", torch::CppFunction(TORCH_FN(local_scalar)));
  hook_op<NormHook>(aten, "_foreach_norm", "Scalar");
  hook_op<NormHook>(aten, "linalg_vector_norm", "");
  hook_clipping(aten);
  aten.impl("detach", torch::CppFunction(TORCH_FN(detach_and_hook_arrived)));
  UnhookedOps::listen();
  return hooked;
}

int start_once() noexcept {
  try {
    return hook_all();
  } catch (...) {
    foreshock_off("adapter_failed");
    return 0;
  }
}

}  // namespace
}  // namespace foreshock::adapter

extern "C" {

// Hooks the operations at the first call. Returns how many attention operations of torch are hooked.
FORESHOCK_EXPORT int foreshock_adapter_start(void) {
  static const int hooked = foreshock::adapter::start_once();
  return hooked;
}

// Number of attention calls on real data that the hooks have seen, forward (0) or backward (1).
FORESHOCK_EXPORT uint64_t foreshock_adapter_calls(int backward) {
  return foreshock::adapter::attention_calls[backward != 0].load();
}

// libforeshock.so calls these three when a compiled model calls attention through torch's C shim (adapter.h).
FORESHOCK_EXPORT int foreshock_adapter_shim_begins(const foreshock_shim_call* call) {
  return foreshock::adapter::shim_begins(*call);
}

FORESHOCK_EXPORT void foreshock_adapter_shim_ended(const foreshock_shim_call* call, int wanted) {
  foreshock::adapter::shim_ended(*call, wanted != 0);
}

FORESHOCK_EXPORT int foreshock_adapter_in_backward(void) {
  return foreshock::adapter::in_backward_pass() ? 1 : 0;
}

// The Python helper calls the functions below. They wait for no lock, so it may hold the interpreter lock.

// Call it once the helper reports steps. From then on the adapter counts no steps from versions of weights.
FORESHOCK_EXPORT void foreshock_adapter_steps_are_told(void) {
  foreshock::adapter::ParameterClock::instance().disable();
}

// Backward passes started since the last foreshock_adapter_step_ended. Exact if 0, else possibly too high.
FORESHOCK_EXPORT uint64_t foreshock_adapter_backwards(void) {
  return foreshock::adapter::training_clock().backwards();
}

// Reports the gradients; call it before the optimizer's work. `parameters`: `count` TensorImpl addresses
// (parameter._cdata) of all tensors that the optimizer steps; count 0: no gradients. GradientReport::publish
// explains the other arguments. Returns the nanoseconds spent inside the core, which counts them itself.
FORESHOCK_EXPORT uint64_t foreshock_adapter_step_begins(const void* const* parameters, size_t count,
                                                        double inverse_scale, uint32_t copies,
                                                        uint32_t may_be_written_untracked) {
  auto& gradients = foreshock::adapter::gradient_report();
  const uint64_t before = gradients.core_ns();
  try {
    gradients.publish(parameters, count, inverse_scale, copies, may_be_written_untracked != 0);
  } catch (...) {
    foreshock_off("adapter_gradients");
  }
  return gradients.core_ns() - before;
}

// A new reference to the n-th function of quiet_steps.h; nullptr after the last one.
FORESHOCK_EXPORT void* foreshock_adapter_quiet_function(uint32_t n) {
  return foreshock::adapter::quiet_function(n);
}

// The value of a one-element tensor in host memory, by the address of its TensorImpl; NaN if it has none.
// Reads the memory directly, since a call through the dispatcher costs several times as much.
FORESHOCK_EXPORT double foreshock_adapter_number(const void* tensor) {
  using foreshock::adapter::scalar_on_cpu;
  auto* impl = static_cast<c10::TensorImpl*>(const_cast<void*>(tensor));
  const at::Tensor held(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
  return scalar_on_cpu(held).value_or(std::nan(""));
}

// Calls foreshock_step_end. For the Python helper, because setting the fields of a ctypes structure is slow.
FORESHOCK_EXPORT void foreshock_adapter_end_step(int64_t number, uint32_t source, double learning_rate,
                                                 uint64_t batch_id, uint32_t given, uint64_t prepare_ns) {
  foreshock_step step{};
  step.size = sizeof(step);
  step.version = FORESHOCK_ABI_VERSION;
  step.step = number;
  step.step_source = source;
  step.learning_rate = learning_rate;
  step.batch_id = batch_id;
  step.given = given;
  step.prepare_ns = prepare_ns;
  foreshock_step_end(&step);
}

// Shows the tensors that foreshock_weights_due has returned. `when`: as in foreshock_observe_weights. Returns
// the nanoseconds spent inside the core.
FORESHOCK_EXPORT uint64_t foreshock_adapter_observe_weights(const foreshock_adapter_weight* rows,
                                                            size_t count, uint32_t when) {
  try {
    return foreshock::adapter::observe_weights(rows, count, when);
  } catch (...) {
    foreshock_off("adapter_weights");
    return 0;
  }
}

// Call it after foreshock_step_end. Clears what the adapter has collected for the step.
FORESHOCK_EXPORT void foreshock_adapter_step_ended(void) { foreshock::adapter::forget_step(); }

// Calls `function` with the dead weak reference (both PyObjects). No exception is lost: see interpreter.h.
FORESHOCK_EXPORT void foreshock_adapter_call_back(void* function, void* reference) {
  foreshock::adapter::call_back(function, reference);
}

// Calls of foreshock::tap on real data since the process started.
FORESHOCK_EXPORT uint64_t foreshock_adapter_taps(void) { return foreshock::adapter::taps.load(); }

}  // extern "C"
