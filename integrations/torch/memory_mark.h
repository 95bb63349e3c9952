// Tells by its memory whether a tensor is one that was seen before: `.data`, `.detach()` and a view of all of
// it are other objects with the same values.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_MEMORY_MARK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_MEMORY_MARK_H_

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <compare>
#include <cstdint>

namespace foreshock::adapter {

// What is kept of one step's gradients has room for so many marks. A page of it costs memory once it is used.
inline constexpr size_t kMostMarks = 65536;

// Which elements of which storage. Of a tensor with data (HasData).
struct MemoryPlace {
  const void* storage = nullptr;
  int64_t offset = 0, elements = 0;
  const void* tensor = nullptr;  // where its elements do not lie side by side, the tensor itself

  auto operator<=>(const MemoryPlace&) const = default;
};

inline MemoryPlace PlaceOf(const c10::TensorImpl& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.numel(),
          tensor.is_non_overlapping_and_dense() ? nullptr : &tensor};
}

// Holds the storage weakly: its values are freed as ever, and its address is given to nobody else. Not a weak
// reference to the tensor: with one, torch.utils.swap_tensors (Module.to, load_state_dict) refuses it.
class MemoryMark {
 public:
  explicit MemoryMark(const c10::TensorImpl& tensor)
      : place_(PlaceOf(tensor)), storage_(tensor.storage().getWeakStorageImpl()) {}

  const MemoryPlace& place() const noexcept { return place_; }

 private:
  MemoryPlace place_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_MEMORY_MARK_H_
