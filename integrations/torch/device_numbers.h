// Single numbers on a device that the clock of a training wants: the core is asked to have them copied behind
// the work that makes them, and nobody waits. What the training itself waits for (`.item()`) has passed
// through the host by then, and is told from here.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_DEVICE_NUMBERS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_DEVICE_NUMBERS_H_

#include <array>
#include <atomic>
#include <vector>

#include "attention_call.h"
#include "dispatch.h"
#include "turn.h"

namespace foreshock::adapter {

inline bool IsNumberOnDevice(const at::Tensor& tensor) noexcept {
  return HasData(tensor) && tensor.is_cuda() && tensor.numel() == 1 && tensor.is_floating_point();
}

// What they are known by from now on; false: not to be had. They lie on one device, and were made on one
// stream.
template <size_t N>
bool Fetch(const at::Tensor* const (&tensors)[N], uint32_t what, uint64_t (&numbers)[N]) noexcept try {
  foreshock_tensor values[N];
  for (size_t n = 0; n < N; ++n) {
    if (!IsNumberOnDevice(*tensors[n]) || tensors[n]->dim() > FORESHOCK_TENSOR_DIMS) return false;
    values[n] = View(*tensors[n]);
    if (!values[n].data) return false;
  }
  void* stream = StreamOf(*tensors[0]);
  return stream && foreshock_fetch(values, N, stream, what, numbers);
} catch (...) {
  return false;
}

// The same of one; 0: not to be had.
inline uint64_t FetchNumber(const at::Tensor& tensor, uint32_t what) noexcept {
  uint64_t numbers[1] = {};
  return Fetch({&tensor}, what, numbers) ? numbers[0] : 0;
}

// Of a list that lies on one device; zeros where they are not to be had.
inline std::vector<uint64_t> FetchNumbers(const c10::List<at::Tensor>& list, uint32_t what) {
  std::vector<uint64_t> numbers(list.size());
  std::vector<foreshock_tensor> values;
  for (size_t i = 0; i < list.size(); ++i) {
    const at::Tensor& each = list.get(i);
    if (!IsNumberOnDevice(each) || each.dim() > FORESHOCK_TENSOR_DIMS) return numbers;
    values.push_back(View(each));
    if (!values.back().data) return numbers;
  }
  void* stream = values.empty() ? nullptr : StreamOf(list.get(0));
  if (stream && !foreshock_fetch(values.data(), values.size(), stream, what, numbers.data()))
    std::fill(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// The last few numbers that a training may wait for by itself. Any thread; who finds it busy goes without.
class WatchedNumbers {
 public:
  enum class Kind { kLoss, kFound };

  // `number`: what the core knows a loss by; 0 for a scaler's answer.
  void Watch(const at::Tensor& tensor, Kind kind, uint64_t number) noexcept {
    const Turn turn(busy_);
    if (!turn.is_mine) return;
    Watched& place = watched_[next_++ % watched_.size()];
    place = {WeakStorage(tensor.storage().getWeakStorageImpl()),
             tensor.storage_offset(),
             Version(tensor),
             kind,
             number,
             std::nullopt};
    any_.store(true, std::memory_order_relaxed);
  }

  // The training has waited for `value` of this tensor, or of another one with the same memory.
  void Saw(const at::Tensor& tensor, double value) noexcept {
    if (!any_.load(std::memory_order_relaxed) || !HasData(tensor)) return;
    uint64_t number = 0;
    {
      const Turn turn(busy_);
      Watched* seen = turn.is_mine ? Find(tensor) : nullptr;
      if (!seen) return;
      if (seen->kind == Kind::kFound) {
        seen->version = Version(tensor);
        seen->value = value;
      } else if (IsUnchanged(*seen, tensor)) {
        number = seen->number;
      }
    }
    if (number != 0) foreshock_fetched(number, value);
  }

  // What the core knows this loss by already, 0: not at all.
  uint64_t NumberOf(const at::Tensor& tensor) noexcept {
    const Turn turn(busy_);
    const Watched* seen = turn.is_mine ? Find(tensor) : nullptr;
    return seen && seen->kind == Kind::kLoss && IsUnchanged(*seen, tensor) ? seen->number : 0;
  }

  // What the training has read of a scaler's answer since it was watched.
  std::optional<double> ValueOf(const at::Tensor& tensor) noexcept {
    const Turn turn(busy_);
    const Watched* seen = turn.is_mine && HasData(tensor) ? Find(tensor) : nullptr;
    return seen && seen->kind == Kind::kFound && seen->version == Version(tensor) ? seen->value
                                                                                  : std::nullopt;
  }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // A weak storage keeps its address from being given to another one.
  struct Watched {
    WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};
    int64_t offset = 0;
    int64_t version = -1;
    Kind kind = Kind::kLoss;
    uint64_t number = 0;
    std::optional<double> value;
  };

  static int64_t Version(const at::Tensor& tensor) noexcept {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->is_inference() ? 0 : static_cast<int64_t>(impl->version_counter().current_version());
  }
  // A tensor made by `.data` counts for itself, from 0 on.
  static bool IsUnchanged(const Watched& watched, const at::Tensor& tensor) noexcept {
    return Version(tensor) == watched.version || Version(tensor) == 0;
  }
  // The one watched last.
  Watched* Find(const at::Tensor& tensor) noexcept {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    for (uint32_t n = 1; n <= watched_.size(); ++n) {
      Watched& each = watched_[(next_ - n) % watched_.size()];
      if (each.storage._unsafe_get_target() == storage && each.offset == tensor.storage_offset())
        return &each;
    }
    return nullptr;
  }

  std::array<Watched, 16> watched_;
  uint32_t next_ = 0;
  std::atomic<bool> any_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline WatchedNumbers& Watching() {
  static auto* watching = new WatchedNumbers;  // never destroyed: hooks outlive static destructors
  return *watching;
}

// _local_scalar_dense, which is what waits in `.item()`. Not boxed: it is called for numbers of the CPU all
// the time, of which nothing is asked.
inline at::Scalar LocalScalar(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto below = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::_local_scalar_dense", "")
                                .typed<at::Scalar(const at::Tensor&)>();
  const at::Scalar value = below.redispatch(keys & kBelow, self);
  if (self.is_cuda() && value.isFloatingPoint()) Watching().Saw(self, value.toDouble());
  return value;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_DEVICE_NUMBERS_H_
