// Helpers of all hooks. A hook is a kernel in torch's dispatcher at the key BackendSelect. This key is below
// autograd and above the devices, and every operation passes it. A hook must pass the call on to the keys
// below ("redispatch"), which run torch's own kernel. A boxed hook gets its arguments on a stack and replaces
// them by the results. Hooks are never removed, since a call that is running in another thread would fail.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_
#define FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <foreshock/hook.h>
#include <time.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace foreshock::adapter {

using Stack = torch::jit::Stack;

// The keys below BackendSelect.
inline constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);

// Whether the dispatcher calls a CPU or CUDA kernel next, which reads real data. It calls another function
// for fake, meta and traced tensors. `below`: the keys of the call below BackendSelect.
inline bool reaches_kernel(c10::DispatchKeySet below) {
  const c10::DispatchKey next = below.highestPriorityTypeId();
  return next == c10::DispatchKey::CPU || next == c10::DispatchKey::CUDA;
}

// Whether the tensor has data. A fake tensor has none, even in a call that reaches a kernel.
inline bool has_data(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  return tensor.defined() && !tensor.key_set().has_any(kWrapped) && tensor.has_storage();
}

// Whether a tensor with data has elements, and all of them are in memory. False after its storage was freed
// or shrunk by resize_(0), as sharding frameworks do; const_data_ptr() is then a null pointer plus an offset.
inline bool is_in_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  uint64_t end = 1 + static_cast<uint64_t>(tensor.storage_offset());  // after the last element
  for (int64_t d = 0; d < tensor.dim(); ++d)
    end += static_cast<uint64_t>(tensor.size(d) - 1) * static_cast<uint64_t>(tensor.stride(d));
  const c10::Storage& storage = tensor.storage();
  return end * tensor.element_size() <= storage.nbytes() && tensor.const_data_ptr() != nullptr;
}

// Holds an object that is never destroyed, since threads may call hooks after static destructors have run.
// The objects lie close to each other, not in pages of the heap, since every step reads many of them.
template <typename T>
class Lasting {
 public:
  Lasting() { new (bytes_) T; }
  T& get() { return *std::launder(reinterpret_cast<T*>(bytes_)); }

 private:
  alignas(T) std::byte bytes_[sizeof(T)];
};

inline bool in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

// Time in ns since an arbitrary moment. Too slow for every attention call: only for sampled ones, and for
// work that is done once or twice a step.
inline uint64_t now_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// The value of a floating tensor with one element. Empty if the tensor is on a device (reading it would
// wait), if its storage was freed, or if torch throws when it is read.
inline std::optional<double> scalar_on_cpu(const at::Tensor& tensor) noexcept try {
  if (!has_data(tensor) || !tensor.is_cpu() || tensor.numel() != 1 || !is_in_memory(tensor))
    return std::nullopt;
  const void* data = tensor.const_data_ptr();
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kDouble) return *static_cast<const double*>(data);
  if (type == at::kFloat) return *static_cast<const float*>(data);
  if (type == at::kBFloat16) return static_cast<float>(*static_cast<const at::BFloat16*>(data));
  if (type == at::kHalf) return static_cast<float>(*static_cast<const at::Half*>(data));
  return std::nullopt;
} catch (...) {
  return std::nullopt;
}

// Position of an argument by its name (names are more stable than positions); -1: no such argument.
inline int argument_index(const c10::FunctionSchema& schema, std::string_view name) {
  const auto index = schema.argumentIndexWithName(name);
  return index ? *index : -1;
}

// Value `index` among the topmost `count` values of the stack; None if `index` is negative.
inline const c10::IValue& peek(const Stack& stack, int count, int index) {
  static const c10::IValue* none = new c10::IValue();
  return index < 0 ? *none : stack[stack.size() - count + index];
}

inline const at::Tensor& tensor_or_undefined(const c10::IValue& value) {
  static const at::Tensor* undefined = new at::Tensor();
  return value.isTensor() ? value.toTensor() : *undefined;
}

// Registers the hook `Kernel(schema, extra...)` for an aten operation. False: torch lacks the operation.
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

// A try-lock, since hooks never wait. If is_mine is false, another thread has the lock: skip the work.
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

// Identifies a tensor with data by its memory, because `.data`, `.detach()` and a view of the whole tensor
// are different objects with the same elements.
struct StorageRange {
  const void* storage = nullptr;
  int64_t offset = 0, elements = 0;
  const void* tensor = nullptr;  // the tensor itself, if its elements do not fill the range; else null

  auto operator<=>(const StorageRange&) const = default;
};

inline StorageRange storage_range_of(const c10::TensorImpl& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.numel(),
          tensor.is_non_overlapping_and_dense() ? nullptr : &tensor};
}

// Remembers a tensor by its storage. The weak reference to the storage does not keep the values in memory,
// but keeps the address from being reused. torch.utils.swap_tensors forbids weak references to the tensor.
class StorageMark {
 public:
  explicit StorageMark(const c10::TensorImpl& tensor)
      : range_(storage_range_of(tensor)), storage_(tensor.storage().getWeakStorageImpl()) {}

  const StorageRange& range() const noexcept { return range_; }

 private:
  StorageRange range_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_DISPATCH_H_
