// The step clock where no Python helper tells it: C++ trainers, and a Python that keeps the helper out
// (python -I). Optimizers write their parameters in place, and such a write moves the tensor's version. So a
// step has ended when, after a backward pass, the weight that made the first query has another version at the
// next forward call. The C++ SGD writes through data(), which moves no version: there, on a CPU, a look at
// some of the values tells (a step that changes none of them is missed, and the last one of a run, too).
// Such steps are counted from the start of the process, never absolute.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_PARAMETER_CLOCK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_PARAMETER_CLOCK_H_

#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "layer_walk.h"
#include "training_clock.h"

namespace foreshock::adapter {

// Any thread; who finds it busy goes on. The weight's storage is held weakly, its version counter (a few
// bytes that outlive it) is shared, so that the last step can be seen after the model has gone. Not the
// weight itself: tensors with weak references cannot be swapped (torch.utils.swap_tensors).
class ParameterClock {
 public:
  void Enable() noexcept {
    enabled_.store(true, std::memory_order_relaxed);
    std::atexit([] { Instance().LookOnce(); });
  }
  void Disable() noexcept { enabled_.store(false, std::memory_order_relaxed); }

  // Before a forward call, outside backward passes.
  void Look(const at::Tensor& query) noexcept {
    if (!enabled_.load(std::memory_order_relaxed) || busy_.test_and_set(std::memory_order_acquire)) return;
    if (storage_.expired()) Compare(), Follow(query);
    if (!storage_.expired()) Compare();
    busy_.clear(std::memory_order_release);
  }

  static ParameterClock& Instance();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void LookOnce() noexcept {
    if (!enabled_.load(std::memory_order_relaxed) || busy_.test_and_set(std::memory_order_acquire)) return;
    Compare();
    busy_.clear(std::memory_order_release);
  }

  void Follow(const at::Tensor& query) noexcept {
    if (!c10::GradMode::is_enabled() || !query.requires_grad()) return;
    auto* leaf = static_cast<c10::TensorImpl*>(const_cast<void*>(LayerOf(query)));
    if (!leaf || leaf->is_inference()) return;
    const at::Tensor weight(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(leaf));
    if (!weight.has_storage()) return;
    storage_ = weight.storage().getWeakStorageImpl();
    is_readable_ = weight.is_cpu() && HasData(weight) && weight.is_non_overlapping_and_dense();
    element_ = weight.element_size();
    first_byte_ = static_cast<size_t>(weight.storage_offset()) * element_;
    elements_ = static_cast<size_t>(weight.numel());
    counter_ = leaf->version_counter();
    version_ = counter_.current_version();
    values_ = Values();
  }

  void Compare() noexcept {
    if (!counter_.enabled() || Clock().backwards() == 0) return;
    const uint32_t version = counter_.current_version();
    const bool is_first_look = std::exchange(epoch_, Clock().epoch()) != Clock().epoch();
    if (version == version_ && !is_first_look) return;
    const uint64_t values = Values();
    if (version == version_ && (values == values_ || values == 0)) return;  // another micro-batch of a step
    version_ = version;
    values_ = values;
    Clock().StepSeen();
  }

  // A digest of up to 64 elements, spread; 0 for a weight that is gone, or that would have to be waited for.
  uint64_t Values() const noexcept {
    const auto storage = storage_.lock();
    if (!is_readable_ || !storage || storage->nbytes() < first_byte_ + elements_ * element_) return 0;
    const auto* bytes = static_cast<const uint8_t*>(storage->data());
    if (bytes == nullptr) return 0;
    uint64_t digest = 14695981039346656037ull;
    for (size_t n = 0; n < elements_; n += std::max<size_t>(1, elements_ / 64))
      for (size_t b = 0; b < element_; ++b)
        digest = (digest ^ bytes[first_byte_ + n * element_ + b]) * 1099511628211ull;
    return digest | 1;
  }

  std::atomic<bool> enabled_{false};
  std::atomic_flag busy_;
  WeakStorage storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  bool is_readable_ = false;
  size_t element_ = 0, elements_ = 0, first_byte_ = 0;  // of the weight within it
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  uint32_t version_ = 0;
  uint64_t values_ = 0;
  uint64_t epoch_ = 0;  // the backward pass after which was looked
};

// Leaked on purpose: threads may still call while the process ends.
inline ParameterClock& ParameterClock::Instance() {
  static auto* clock = new ParameterClock;
  return *clock;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_PARAMETER_CLOCK_H_
