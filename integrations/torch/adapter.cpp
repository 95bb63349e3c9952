// The PyTorch adapter, a shared library that build_adapter.py builds for one exact version of torch. Its
// hooks on torch's operations report attention calls, losses and gradients to the core, that is, to the
// foreshock_ functions (hook.h) of the libforeshock.so that the process has already loaded. This file has the
// table of the hooked attention operations, sets up all hooks, and exports functions to core and helper.
#include <foreshock/hook.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "attention.h"
#include "attention_paths.h"
#include "dispatch.h"
#include "families.h"
#include "gradient_looks.h"
#include "gradients.h"
#include "interpreter.h"
#include "older_runtime.h"
#include "quiet_functions.h"
#include "weight_report.h"

namespace foreshock::adapter {
namespace {

using namespace std::string_view_literals;

// -- the attention operations --
//
// kAttentionOps lists the operations of torch that get a hook as soon as their schema is registered. Our own
// operations, and those of other packages, which may be imported later or never, are recognized by their
// namespace or their schema (families.h). Composite operations (scaled_dot_product_attention itself, the math
// path) are not listed: they never reach BackendSelect, the dispatch key of our hooks, and a hook at an
// autograd key removes gradients of compiled graphs. A Semantics (attention.h) describes the arguments of an
// operation: the order of the dimensions (heads or positions first), then which keys a query sees under a
// causal mask. kHeadsFirstTopLeft: heads first, query i sees the keys up to key i. packs: it accepts packed
// sequences. in_function: it is called inside an autograd.Function, where gradient mode is off. fills_out:
// the output is an argument. flat_bias: a bias of three dimensions is (batch x head, query, key).

// The causal mask is "lower right" according to torch/nn/attention/bias.py, which calls this operation.
constexpr Semantics kSdpaFlash{Order::kHeadsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT};

// is_causal becomes CausalFromTopLeft: aten/src/ATen/native/transformers/cuda/attention.cu.
constexpr Semantics kSdpaEfficient = kHeadsFirstTopLeft;

// aten/src/ATen/native/cudnn/MHA.cpp calls SDPA_attributes::set_causal_mask, which aligns at the top left
// (documentation of cudnn-frontend). Packed calls are not described: their log-sum-exp has another layout.
constexpr Semantics kCudnn = kHeadsFirstTopLeft;

// For devices of other vendors. The causal mask has an unknown alignment, so it must be square.
constexpr Semantics kOverrideable{Order::kHeadsFirst, kSquareOnly};

// As kFlash (families.h): torch.nn.attention.varlen, nested tensors, and xformers with torch's kernels call
// aten's own operations.
constexpr Semantics kFlashInplace{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT,
                                  /*packs=*/true, /*in_function=*/true, /*fills_out=*/true};

// The argument custom_mask_type gives the alignment (CustomMaskType in sdp_utils_cpp.h), in the numbers of
// FORESHOCK_CAUSAL_.... A bias has the layout of get_bias_4d_view() in mem_eff_attention/pytorch_utils.h.
constexpr Semantics kEfficient{Order::kPositionsFirst, FORESHOCK_CAUSAL_TOP_LEFT, /*packs=*/true,
                               /*in_function=*/true,   /*fills_out=*/false,       /*flat_bias=*/true};
static_assert(FORESHOCK_CAUSAL_NONE == 0 && FORESHOCK_CAUSAL_TOP_LEFT == 1 &&
              FORESHOCK_CAUSAL_BOTTOM_RIGHT == 2);

constexpr uint32_t kForward = FORESHOCK_FORWARD, kBackward = FORESHOCK_BACKWARD;
constexpr std::string_view kAten = "aten::";

// An operation of aten that is hooked: name and overload of its schema ("": the overload without a name).
struct AttentionOp {
  const char* name;
  const char* overload;
  uint32_t pass;  // FORESHOCK_FORWARD or _BACKWARD
  const Semantics* semantics;
};

// The most important operations come first, since the core's table of operations may become full.
constexpr AttentionOp kAttentionOps[] = {
    {"_scaled_dot_product_flash_attention_for_cpu", "", kForward, &kHeadsFirstTopLeft},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", "", kBackward, &kHeadsFirstTopLeft},
    {"_scaled_dot_product_flash_attention", "", kForward, &kSdpaFlash},
    {"_scaled_dot_product_flash_attention", "quantized", kForward, &kSdpaFlash},
    {"_scaled_dot_product_flash_attention_backward", "", kBackward, &kSdpaFlash},
    {"_scaled_dot_product_efficient_attention", "", kForward, &kSdpaEfficient},
    {"_scaled_dot_product_efficient_attention_backward", "", kBackward, &kSdpaEfficient},
    {"_scaled_dot_product_cudnn_attention", "", kForward, &kCudnn},
    {"_scaled_dot_product_cudnn_attention_backward", "", kBackward, &kCudnn},
    {"_scaled_dot_product_fused_attention_overrideable", "", kForward, &kOverrideable},
    {"_scaled_dot_product_fused_attention_overrideable_backward", "", kBackward, &kOverrideable},
    {"_flash_attention_forward", "", kForward, &kFlash},
    {"_flash_attention_forward", "quantized", kForward, &kFlash},
    {"_flash_attention_forward_no_dropout_inplace", "", kForward, &kFlashInplace},
    {"_flash_attention_backward", "", kBackward, &kFlash},
    {"_efficient_attention_forward", "", kForward, &kEfficient},
    {"_efficient_attention_backward", "", kBackward, &kEfficient},
    {"_cudnn_attention_forward", "", kForward, &kCudnn},
    {"_cudnn_attention_backward", "", kBackward, &kCudnn},
};

// Puts an AttentionHook, a kernel that reports the call and runs it, on an operation. Returns false if the
// schema is missing or the core's table is full. Leaks the Library, since its destructor removes the kernel.
bool hook_attention_op(const AttentionOp& op) {
  if (!c10::Dispatcher::singleton().findSchema({std::string(kAten) + op.name, op.overload})) return false;
  const int32_t number = foreshock_register_op(op.name, op.pass);
  if (number < 0) return false;
  auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const std::string name = *op.overload ? std::string(op.name) + "." + op.overload : op.name;
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AttentionHook>(
                                  *op.semantics, op.pass == kBackward, number)));
  return true;
}

// Whether the name has one of these namespaces. Attention in them calls the operations of kAttentionOps.
bool is_of_torch(std::string_view name) {
  for (const std::string_view prefix : {kAten, "prims::"sv, "torch_attn::"sv, "inductor::"sv, "onnx::"sv})
    if (name.substr(0, prefix.size()) == prefix) return true;
  return false;
}

// Called for each of the thousands of operations that torch has, so it allocates nothing.
bool is_listed(const c10::OperatorName& name) {
  const std::string_view qualified = name.name;
  if (qualified.substr(0, kAten.size()) != kAten) return false;
  for (const AttentionOp& known : kAttentionOps)
    if (qualified.substr(kAten.size()) == known.name && name.overload_name == known.overload) return true;
  return false;
}

// Hooks attention operations when their schemas are registered: those of kAttentionOps, those of a family
// (families.h), and others that look like attention (ArrivedHook has all but the first). Thread-safe. Never
// destroyed.
//
// A kernel is not registered before the schema, since torch would list it as dangling
// (torch._C._dispatch_find_dangling_impls). The dispatcher reports a new schema while it holds its own mutex,
// so the kernel cannot be registered in that callback. With Python, a pending call of the interpreter
// registers the kernel, before the import that registered the operation returns. Without Python, the next
// call of hook_arrived() registers the kernel.
class LateOps final : public c10::OpRegistrationListener {
 public:
  // Hooks the operations that are registered already, including torch's own, and listens for later ones. Call
  // it once. Returns the number of torch's operations that are hooked.
  static int start() {
    LateOps& ops = instance();
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
        std::unique_ptr<c10::OpRegistrationListener>(&ops)));
    ops.hook_new();
    return ops.hooked_of_torch_;
  }

  // Hooks operations that were registered since the last call. Costs one atomic load if there are none.
  static void hook_arrived() noexcept {
    if (instance().has_arrived_.load(std::memory_order_relaxed)) instance().hook_new();
  }

  void onOperatorRegistered(const c10::OperatorHandle& op) override try {
    const c10::OperatorName& name = op.operator_name();
    if (!is_listed(name)) {
      if (is_of_torch(name.name) ||
          (!family_of(op.schema()) && !looks_like_attention(op.schema()) && !reports_graph_call(op.schema())))
        return;
      const std::lock_guard<std::mutex> lock(arrived_lock_);
      arrived_.push_back(name);
    }
    if (!has_arrived_.exchange(true, std::memory_order_relaxed)) hook_in_pending_call();
  } catch (...) {  // must not disturb the import that registers the operation
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

 private:
  static constexpr size_t kOpCount = std::size(kAttentionOps);

  static LateOps& instance() {
    static LateOps* ops = new LateOps;
    return *ops;
  }

  void hook_new() noexcept try {
    const TryGuard guard(busy_);
    if (!guard.is_mine) return;  // another thread is in this function
    // Cleared before the loops, so that an operation that is registered during them sets the flag again.
    has_arrived_.store(false, std::memory_order_relaxed);
    for (size_t n = 0; n < kOpCount; ++n) {
      if (is_hooked_[n] || !hook_attention_op(kAttentionOps[n])) continue;
      is_hooked_[n] = true;
      ++hooked_of_torch_;
    }
    std::vector<c10::OperatorName> arrived;
    {
      const std::lock_guard<std::mutex> lock(arrived_lock_);
      arrived.swap(arrived_);
    }
    for (const c10::OperatorName& name : arrived) hook_other(name);
  } catch (...) {
    foreshock_off("adapter_late_ops");
  }

  // Hooks an operation that is not in kAttentionOps. One that is registered again, after its library was
  // unloaded, still has its hook.
  void hook_other(const c10::OperatorName& name) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !hooked_others_.insert(name.name + "." + name.overload_name).second) return;
    const size_t colons = name.name.find("::");
    auto* library = new torch::Library(torch::Library::IMPL, name.name.substr(0, colons),
                                       c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    std::string local = name.name.substr(colons + 2);
    if (!name.overload_name.empty()) local += "." + name.overload_name;
    library->impl(
        local.c_str(),
        reports_graph_call(op->schema())
            ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<GraphReportHook>(op->schema()))
            : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ArrivedHook>()));
  }

  // Does nothing without Python. Py_AddPendingCall may be called without the interpreter lock.
  static void hook_in_pending_call() noexcept {
    const auto add_pending = Python::get().add_pending;  // Py_AddPendingCall, null without Python
    const auto hook_and_succeed = [](void*) {
      hook_arrived();
      return 0;
    };
    if (add_pending) add_pending(hook_and_succeed, nullptr);
  }

  std::array<bool, kOpCount> is_hooked_{};
  int hooked_of_torch_ = 0;
  std::set<std::string> hooked_others_;     // operations that are not in kAttentionOps
  std::mutex arrived_lock_;                 // held for the next member only
  std::vector<c10::OperatorName> arrived_;  // such operations that have no hook yet
  std::atomic<bool> has_arrived_{true};  // an operation may wait for its hook; at first the existing ones do
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// -- the start of the adapter --

// The hook of torch's detach. Since programs call detach often, this hook also hooks attention operations
// that were registered late, which processes without Python need.
at::Tensor detach_and_hook_arrived(c10::DispatchKeySet keys, const at::Tensor& self) {
  LateOps::hook_arrived();
  return hooked_detach(keys, self);
}

// Hooks the unfused implementation of attention (the math path) at its softmax.
void hook_math_path(torch::Library& aten) {
  const int32_t forward = foreshock_register_op(kMathPath, FORESHOCK_FORWARD);
  if (forward < 0 || !hook_op<SafeSoftmaxHook>(aten, "_safe_softmax", "", forward)) return;
  const std::string name = std::string(kMathPath) + "_backward";
  const int32_t backward = foreshock_register_op(name.c_str(), FORESHOCK_BACKWARD);
  if (backward >= 0) MathPathSampler::prepare(forward, backward);
}

// Sets up the hooks of attention, and of operations that show losses, backward roots (the tensors on which
// backward() is called), gradient scaling and norms. Starts to count steps by the versions of weights
// (ParameterClock). Returns the number of torch's attention operations that are hooked.
int hook_all() {
  // Leaked, since destroying a torch::Library removes its kernels.
  auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const int hooked = LateOps::start();
  hook_math_path(aten);
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

// Number of attention calls on real data (not fake, meta or traced tensors) that the hooks have seen.
// `backward`: 0 selects the forward calls, 1 the backward calls.
FORESHOCK_EXPORT uint64_t foreshock_adapter_calls(int backward) {
  return foreshock::adapter::attention_calls[backward != 0].load();
}

// The Python helper calls the functions below with the interpreter lock held. They never wait for a lock.

// Call it once the helper reports steps. From then on the adapter counts no steps from versions of weights.
FORESHOCK_EXPORT void foreshock_adapter_steps_are_told(void) {
  foreshock::adapter::ParameterClock::instance().disable();
}

// Backward passes started since the last foreshock_adapter_step_ended. Exact if 0, else possibly too high.
FORESHOCK_EXPORT uint64_t foreshock_adapter_backwards(void) {
  return foreshock::adapter::training_clock().backward_count();
}

// Reports the gradients; call it before the optimizer's work. `parameters`: `count` TensorImpl addresses
// (parameter._cdata) of all tensors that the optimizer steps; count 0: no gradients. `inverse_scale`: factor
// by which the optimizer itself multiplies gradients. `averaging_writes`: how often per step the averaging
// over ranks writes into each gradient. `may_be_written_untracked`: whether kernels that do not change a
// tensor's version may have written gradients. Returns the nanoseconds spent inside the core, which counts
// them itself.
FORESHOCK_EXPORT uint64_t foreshock_adapter_step_begins(const void* const* parameters, size_t count,
                                                        double inverse_scale, uint32_t averaging_writes,
                                                        uint32_t may_be_written_untracked) {
  auto& gradients = foreshock::adapter::gradient_report();
  const uint64_t before = gradients.core_ns();
  try {
    gradients.publish(parameters, count, inverse_scale, averaging_writes, may_be_written_untracked != 0);
  } catch (...) {
    foreshock_off("adapter_gradients");
  }
  return gradients.core_ns() - before;
}

// A new reference to the n-th function of quiet_functions.h; nullptr after the last one.
FORESHOCK_EXPORT void* foreshock_adapter_quiet_function(uint32_t n) {
  return foreshock::adapter::quiet_function(n);
}

// The value of a tensor, by the address of its TensorImpl; NaN unless the tensor is one floating-point number
// in host memory. Reads the memory directly, since a call through the dispatcher costs several times as much.
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
  step.prepare_ns = prepare_ns + foreshock::adapter::MathPathSampler::take_ns();
  foreshock_step_end(&step);
}

// Passes the tensors that foreshock_weights_due has returned to the core. `when`: as in
// foreshock_observe_weights. Returns the nanoseconds spent inside the core.
FORESHOCK_EXPORT uint64_t foreshock_adapter_observe_weights(const foreshock_adapter_weight* rows,
                                                            size_t count, uint32_t when) {
  try {
    return foreshock::adapter::observe_weights(rows, count, when);
  } catch (...) {
    foreshock_off("adapter_weights");
    return 0;
  }
}

// Begins a look at the gradients of these parameters in the step that ends next (gradient_looks.h). Returns
// how many of them are looked at.
FORESHOCK_EXPORT size_t foreshock_adapter_begin_look(const foreshock_adapter_watched* watched, size_t count) {
  try {
    return foreshock::adapter::GradientLooks::instance().begin(watched, count);
  } catch (...) {
    foreshock::adapter::GradientLooks::instance().cancel();
    return 0;
  }
}

// Ends the look and reports it; call it before the optimizer's work. `distributed`: the distributed tensors
// of the look, with their gradients. Returns the nanoseconds that the look took in backward passes.
FORESHOCK_EXPORT uint64_t foreshock_adapter_end_look(const foreshock_adapter_watched* distributed,
                                                     size_t count) {
  try {
    return foreshock::adapter::GradientLooks::instance().end(distributed, count);
  } catch (...) {
    foreshock::adapter::GradientLooks::instance().cancel();
    return 0;
  }
}

// Ends the look without a report.
FORESHOCK_EXPORT void foreshock_adapter_cancel_look(void) {
  foreshock::adapter::GradientLooks::instance().cancel();
}

// Call it after foreshock_step_end. Clears what the adapter has collected for the step.
FORESHOCK_EXPORT void foreshock_adapter_step_ended(void) { foreshock::adapter::forget_step(); }

// Calls `function` with the dead weak reference (both PyObjects). No exception is lost: see interpreter.h.
FORESHOCK_EXPORT void foreshock_adapter_call_back(void* function, void* reference) {
  foreshock::adapter::call_back(function, reference);
}

// For attention that a Python function computes (seams.py). Counts a call, unless a GraphReportHook of this
// thread has counted it. Returns the sum of 1 if it is
// sampled, and 2 if the step is. A caller that gets 1 must then call the operation, with `entered`, or
// foreshock_attention_skip. `query`: TensorImpl address; a tensor without data (fake, meta, traced) is not
// counted. `operation`: from foreshock_register_op. `in_function`: as in enter_attention().
FORESHOCK_EXPORT int foreshock_adapter_enter(const void* query, int32_t operation, uint32_t backward,
                                             uint32_t in_function) {
  using namespace foreshock::adapter;
  if (std::exchange(is_entered_graph_call, false)) return 1 | (foreshock_step_is_sampled() != 0 ? 2 : 0);
  auto* impl = static_cast<c10::TensorImpl*>(const_cast<void*>(query));
  const at::Tensor held(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
  if (attention_depth != 0 || !reaches_kernel(held.key_set() & kBelow) || !has_data(held)) return 0;
  const bool is_sampled = enter_attention(operation, backward != 0, held, in_function != 0);
  return (is_sampled ? 1 : 0) | (foreshock_step_is_sampled() != 0 ? 2 : 0);
}

// Begins (`change` 1) or ends (-1) a call of a function that seams.py counts, in this thread. Attention
// operations that it calls are not counted.
FORESHOCK_EXPORT void foreshock_adapter_nest(int32_t change) {
  foreshock::adapter::attention_depth += change;
}

// The query of backward calls that this thread reports is the tensor input `place` of the `inputs` tensors
// with which the running node of the backward pass was called in the forward pass. -1: unknown.
FORESHOCK_EXPORT void foreshock_adapter_set_place(int32_t place, int32_t inputs) {
  foreshock::adapter::query_place = {place, inputs};
}

// Calls of foreshock::tap on real data since the process started.
FORESHOCK_EXPORT uint64_t foreshock_adapter_taps(void) { return foreshock::adapter::taps.load(); }

}  // extern "C"
