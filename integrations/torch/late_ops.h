// Hooks the attention operations of other packages once their schemas are registered.
//
// A kernel could be registered before the schema, but torch lists such kernels as dangling
// (torch._C._dispatch_find_dangling_impls). The dispatcher reports a new schema while it holds its own mutex,
// so the kernel cannot be registered in that callback. With Python a pending call of the interpreter
// registers it, which runs before the import that registered the operation returns. Without Python the next
// call of hook_arrived() registers it.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_LATE_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_LATE_OPS_H_

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "attention.h"
#include "attention_ops.h"
#include "dispatch.h"
#include "interpreter.h"

namespace foreshock::adapter {

// Puts an AttentionHook on an operation whose schema is registered. Returns false if there is no schema or
// the core's table of operations is full. Leaks the library, since destroying it would remove its kernels.
inline bool hook_attention_op(const AttentionOp& op) {
  const std::string qualified = std::string(op.space) + "::" + op.name;
  if (!c10::Dispatcher::singleton().findSchema({qualified, op.overload})) return false;
  const bool is_torch = !std::strcmp(op.space, "aten");
  const int32_t number = foreshock_register_op((is_torch ? op.name : qualified).c_str(), op.pass);
  if (number < 0) return false;
  auto* library =
      new torch::Library(torch::Library::IMPL, op.space, c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  const std::string name = *op.overload ? std::string(op.name) + "." + op.overload : op.name;
  library->impl(name.c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AttentionHook>(op, number)));
  return true;
}

// Thread-safe. Never destroyed.
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

  // Hooks operations that were registered since. Costs one atomic load if there are none.
  static void hook_arrived() noexcept {
    if (instance().has_arrived_.load(std::memory_order_relaxed)) instance().hook_new();
  }

  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const c10::OperatorName& name = op.operator_name();
    for (const AttentionOp& known : kAttentionOps) {
      if (name.overload_name != known.overload || name.name != std::string(known.space) + "::" + known.name)
        continue;
      if (!has_arrived_.exchange(true, std::memory_order_relaxed)) ask_interpreter();
    }
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

 private:
  static constexpr size_t kOps = std::size(kAttentionOps);

  static LateOps& instance() {
    static LateOps* ops = new LateOps;
    return *ops;
  }

  // Hooks in the order of the table, which has the most important operations first: the core's table of
  // operations may become full.
  void hook_new() noexcept try {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    has_arrived_.store(false, std::memory_order_relaxed);
    for (size_t n = 0; n < kOps; ++n) {
      if (is_hooked_[n] || !hook_attention_op(kAttentionOps[n])) continue;
      is_hooked_[n] = true;
      hooked_of_torch_ += !std::strcmp(kAttentionOps[n].space, "aten");
    }
  } catch (...) {
    foreshock_off("adapter_late_ops");
  }

  // Py_AddPendingCall may be called without the interpreter lock.
  static void ask_interpreter() noexcept {
    const auto add = Python::get().add_pending;
    if (add) add([](void*) { return hook_arrived(), 0; }, nullptr);
  }

  std::array<bool, kOps> is_hooked_{};
  int hooked_of_torch_ = 0;
  std::atomic<bool> has_arrived_{true};  // true at first, so that start() hooks the existing operations
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_LATE_OPS_H_
