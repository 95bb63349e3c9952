// How a kernel of ours stands in torch's dispatcher: at BackendSelect, which is tried for every operation
// below autograd and above the devices, and calls on below itself. Registering is done once and never undone:
// taking a kernel out while another thread calls it makes that call fail.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_
#define FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <foreshock/hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace foreshock::adapter {

using Stack = torch::jit::Stack;

inline constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);

// True when the call goes to a device with real data. Fake, meta and traced calls show another key here.
inline bool goes_to_device(c10::DispatchKeySet below) {
  const c10::DispatchKey next = below.highestPriorityTypeId();
  return next == c10::DispatchKey::CPU || next == c10::DispatchKey::CUDA;
}

// A tensor subclass whose mode is switched off for this call (a fake tensor inside its own mode) has no data
// either.
inline bool has_data(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return tensor.defined() && !tensor.key_set().has_any(kWrapped) && tensor.has_storage();
}

// Whether all that the shape and strides of a tensor with data reach is memory that is there. Not so once its
// storage was freed or shrunk under it (`resize_(0)`, as those who shard do): then the address is a null
// pointer and an offset.
inline bool is_in_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  uint64_t end = 1 + static_cast<uint64_t>(tensor.storage_offset());
  for (int64_t d = 0; d < tensor.dim(); ++d)
    end += static_cast<uint64_t>(tensor.size(d) - 1) * static_cast<uint64_t>(tensor.stride(d));
  const c10::Storage& storage = tensor.storage();
  return end * tensor.element_size() <= storage.nbytes() && tensor.const_data_ptr() != nullptr;
}

inline bool in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

// Only where a clock may be read: sampled calls and the ends of steps.
inline uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Value of a one-element floating tensor; empty for anything on a device (reading it would wait for the
// device), for a tensor whose storage was taken away, and for one that torch refuses to look into.
inline std::optional<double> scalar_on_cpu(const at::Tensor& tensor) noexcept try {
  if (!has_data(tensor) || !tensor.is_cpu() || tensor.numel() != 1 || !is_in_memory(tensor))
    return std::nullopt;
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kFloat:
      return *static_cast<const float*>(data);
    case at::kBFloat16:
      return static_cast<float>(*static_cast<const at::BFloat16*>(data));
    case at::kHalf:
      return static_cast<float>(*static_cast<const at::Half*>(data));
    default:
      return std::nullopt;
  }
} catch (...) {
  return std::nullopt;
}

// Positions of arguments by name: names outlive versions, positions do not.
inline int argument_index(const c10::FunctionSchema& schema, std::string_view name) {
  const auto index = schema.argumentIndexWithName(name);
  return index ? *index : -1;
}

// `index` counts from the first of the topmost `count` values; a negative one gives None.
inline const c10::IValue& peek(const Stack& stack, int count, int index) {
  static const c10::IValue* none = new c10::IValue();
  return index < 0 ? *none : stack[stack.size() - count + index];
}

inline const at::Tensor& tensor_or_undefined(const c10::IValue& value) {
  static const at::Tensor* undefined = new at::Tensor();
  return value.isTensor() ? value.toTensor() : *undefined;
}

// Puts `Kernel(schema, extra...)` at BackendSelect of one aten operation. False when this torch has no such
// one.
template <typename Kernel, typename... Extra>
bool hook_op(torch::Library& library, const std::string& name, const std::string& overload,
             Extra&&... extra) {
  const auto found = c10::Dispatcher::singleton().findSchema({"aten::" + name, overload});
  if (!found) return false;
  library.impl((overload.empty() ? name : name + "." + overload).c_str(),
               torch::CppFunction::makeFromBoxedFunctor(
                   std::make_unique<Kernel>(found->schema(), std::forward<Extra>(extra)...)));
  return true;
}

// What the hooks keep is used by one thread at a time, and none waits for another.

// Who finds `busy` set has no turn, and goes without.
class TryGuard {
 public:
  explicit TryGuard(std::atomic_flag& busy) noexcept
      : is_mine(!busy.test_and_set(std::memory_order_acquire)), busy_(busy) {}
  ~TryGuard() {
    if (is_mine) busy_.clear(std::memory_order_release);
  }
  TryGuard(const TryGuard&) = delete;
  TryGuard& operator=(const TryGuard&) = delete;

  const bool is_mine;

 private:
  std::atomic_flag& busy_;
};

// Tells by its memory whether a tensor is one that was seen before: `.data`, `.detach()` and a view of all of
// it are other objects with the same values.

// What is kept of one step's gradients has room for so many marks. A page of it costs memory once it is used.
inline constexpr size_t kMostMarks = 65536;

// Which elements of which storage. Of a tensor with data (HasData).
struct StorageRange {
  const void* storage = nullptr;
  int64_t offset = 0, elements = 0;
  const void* tensor = nullptr;  // where its elements do not lie side by side, the tensor itself

  auto operator<=>(const StorageRange&) const = default;
};

inline StorageRange storage_range_of(const c10::TensorImpl& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.numel(),
          tensor.is_non_overlapping_and_dense() ? nullptr : &tensor};
}

// Holds the storage weakly: its values are freed as ever, and its address is given to nobody else. Not a weak
// reference to the tensor: with one, torch.utils.swap_tensors (Module.to, load_state_dict) refuses it.
class StorageMark {
 public:
  explicit StorageMark(const c10::TensorImpl& tensor)
      : place_(storage_range_of(tensor)), storage_(tensor.storage().getWeakStorageImpl()) {}

  const StorageRange& place() const noexcept { return place_; }

 private:
  StorageRange place_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_
