// The PyTorch adapter: kernels of ours at the dispatcher's BackendSelect key tell the core about attention
// calls, the loss and the gradients. Built for one exact version of torch by build_adapter.py; the foreshock_
// functions it calls are those of the libforeshock.so that is in the process already. The reading order is
// attention_hook.h first.
#include <atomic>
#include <memory>

#include "aoti_shims.h"
#include "attention_hook.h"
#include "gradient_report.h"

// What shared_ptr asks for to spare atomics, new in glibc 2.32. With one of our own ("there are threads",
// always right) an adapter that is built here also loads on older systems.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

namespace foreshock::adapter {
namespace {

int HookAttention(torch::Library& library) {
  int hooked = 0;
  for (const AttentionOp& op : kAttentionOps) {
    if (!c10::Dispatcher::singleton().findSchema({std::string("aten::") + op.name, op.overload})) continue;
    const int32_t number = foreshock_register_op(op.name, op.pass);
    if (number < 0) break;  // no room left: the most common operations come first
    hooked += Hook<AttentionHook>(library, op.name, op.overload, op, number);
  }
  return hooked;
}

int HookAll() {
  // Leaked on purpose: a library that is destroyed takes its kernels out.
  auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const int hooked = HookAttention(*library);
  RegisterShims();
  ParameterClock::Instance().Enable();
  Hook<LossHook>(*library, "nll_loss_forward", "");
  Hook<LossHook>(*library, "nll_loss2d_forward", "");
  Hook<RootHook>(*library, "ones_like", "");
  Hook<ScalerHook>(*library, "_amp_update_scale_", "");
  Hook<UnscaleHook>(*library, "_amp_foreach_non_finite_check_and_unscale_", "");
  Hook<NormHook>(*library, "_foreach_norm", "Scalar");
  Hook<NormHook>(*library, "linalg_vector_norm", "");
  return hooked;
}

int StartOnce() noexcept {
  try {
    return HookAll();
  } catch (...) {
    foreshock_off("adapter_failed");
    return 0;
  }
}

}  // namespace
}  // namespace foreshock::adapter

extern "C" {

// Hooks the operations; later calls only repeat the answer. Returns how many attention operations are hooked.
FORESHOCK_EXPORT int foreshock_adapter_start(void) {
  static const int hooked = foreshock::adapter::StartOnce();
  return hooked;
}

// Attention calls on real data that the hooks have seen, forward (0) or backward (1).
FORESHOCK_EXPORT uint64_t foreshock_adapter_calls(int backward) {
  return foreshock::adapter::attention_calls[backward != 0].load();
}

// See foreshock/adapter.h.
FORESHOCK_EXPORT int foreshock_adapter_shim_begins(const foreshock_shim_call* call) {
  return foreshock::adapter::ShimBegins(*call);
}

FORESHOCK_EXPORT void foreshock_adapter_shim_ended(const foreshock_shim_call* call, int wanted) {
  foreshock::adapter::ShimEnded(*call, wanted != 0);
}

// The functions below are the Python helper's. They hold no lock and may be called with the interpreter lock
// held.

// The helper is here and tells every step: none is taken from the versions of the weights any more.
FORESHOCK_EXPORT void foreshock_adapter_steps_are_told(void) {
  foreshock::adapter::ParameterClock::Instance().Disable();
}

// Backward passes begun since the last foreshock_adapter_step_ended; zero means none, more than one is not
// exact.
FORESHOCK_EXPORT uint64_t foreshock_adapter_backwards(void) {
  return foreshock::adapter::Clock().backwards();
}

// Before the optimizer's work. `parameters` holds `count` TensorImpl addresses (parameter._cdata) of
// everything that steps now; none: publish no gradients. See GradientReport::Publish for the rest. Returns
// the nanoseconds spent inside the core, which accounts for them.
FORESHOCK_EXPORT uint64_t foreshock_adapter_step_begins(const void* const* parameters, size_t count,
                                                        double inverse_scale, uint32_t copies) {
  auto& gradients = foreshock::adapter::Gradients();
  const uint64_t before = gradients.core_ns();
  try {
    gradients.Publish(parameters, count, inverse_scale, copies);
  } catch (...) {
    foreshock_off("adapter_gradients");
  }
  return gradients.core_ns() - before;
}

// After foreshock_step_end.
FORESHOCK_EXPORT void foreshock_adapter_step_ended(void) {
  foreshock::adapter::Clock().StepEnded();
  foreshock::adapter::Gradients().StepEnded();
  foreshock::adapter::Norms().Forget();
}

}  // extern "C"
