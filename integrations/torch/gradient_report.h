// The gradients of one step, just before the optimizer uses them, from the parameters it was given.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_REPORT_H_
#define FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_REPORT_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "attention_hook.h"
#include "engine_gradients.h"
#include "gradient_norms.h"
#include "turn.h"

namespace foreshock::adapter {

// Any thread; who finds it busy goes without. (The helper holds the interpreter lock, where there is one.)
class GradientReport {
 public:
  // `parameters`: TensorImpl addresses, alive. `inverse_scale`: what the optimizer itself multiplies
  // gradients by. `copies`: in-place writes per step of those who average them over ranks.
  // `may_be_written_untold`: by kernels that move no version, so that nothing tells whether somebody clipped.
  void Publish(const void* const* parameters, size_t count, double inverse_scale, uint32_t copies,
               bool may_be_written_untold) {
    const Turn turn(busy_);
    if (!turn.is_mine || !Collect(parameters, count) || gradients_.empty()) return;
    const auto found = Norms().Match(tensors_, inverse_scale, &squares_, &numbers_);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i].sum_of_squares = squares_[i];
      gradients_[i].norm_fetched = numbers_[i];
    }
    if (found == GradientNorms::Found::kAll) return Send();
    const bool none = found == GradientNorms::Found::kNone;
    if (Norms().IsFull() || (none && OfEngine().IsFull())) return foreshock_gradients_too_many();
    const bool untouched =
        none && !may_be_written_untold && Untouched(copies) && !Norms().MayBeOfCopies(tensors_, Parameters());
    if (!untouched || inverse_scale != 1 || !foreshock_step_is_sampled()) return;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const bool is_of_pass = WasInGraph(*static_cast<const c10::TensorImpl*>(gradients_[i].identity));
      if (!is_of_pass || !Values(*tensors_[i], &gradients_[i])) return;
    }
    Send();
  }

  // Time spent inside the core so far, which it accounts for itself.
  uint64_t core_ns() const noexcept { return core_ns_.load(std::memory_order_relaxed); }

  // After the step: what a gradient that is kept over the step (zeroed, not dropped) starts from.
  void StepEnded() noexcept {
    const Turn turn(busy_);
    if (!turn.is_mine) return;
    kept_ = sentinel_;
    kept_version_ = sentinel_version_;
    sentinel_ = nullptr;
  }

 private:
  void Send() noexcept {
    const uint64_t begin = NowNs();
    foreshock_observe_gradients(gradients_.data(), gradients_.size());
    core_ns_.fetch_add(NowNs() - begin, std::memory_order_relaxed);
  }

  // False if any gradient is a part of a larger one, or is not dense: local values never pose as global ones.
  bool Collect(const void* const* parameters, size_t count) {
    gradients_.clear();
    tensors_.clear();
    sentinel_ = nullptr;
    for (size_t i = 0; i < count; ++i) {
      auto* impl = static_cast<c10::TensorImpl*>(const_cast<void*>(parameters[i]));
      const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
      if (!meta || !meta->grad_.defined()) continue;
      const at::Tensor& gradient = meta->grad_;
      if (!HasData(gradient) || gradient.layout() != at::kStrided) return false;
      foreshock_gradient entry{};
      entry.size = sizeof(entry);
      entry.version = FORESHOCK_ABI_VERSION;
      entry.identity = impl;
      gradients_.push_back(entry);
      tensors_.push_back(gradient.unsafeGetTensorImpl());
      const uint32_t version = gradient.unsafeGetTensorImpl()->version_counter().current_version();
      if (!sentinel_ || version < sentinel_version_) {
        sentinel_ = tensors_.back();
        sentinel_version_ = version;
      }
    }
    squares_.assign(tensors_.size(), 0);
    numbers_.assign(tensors_.size(), 0);
    return true;
  }

  // Has nobody changed the gradients since the backward passes wrote them? Every in-place write moves a
  // version: n passes into a new gradient give n - 1, into a kept one 1 (zeroing) + n more. A gradient
  // scaler's operation returns nothing and is no _foreach_ one: for such torch's code generator moves none
  // (gen_inplace_or_view_type.py).
  // Anything else, for the least changed gradient, means that somebody clipped in a way we did not see; so
  // does a gradient as new as theirs that they have not left. (Not seen: a write through `.data` or NumPy
  // that is none of ClipHook's.)
  bool Untouched(uint32_t copies) const noexcept {
    const uint32_t passes = Clock().roots();
    if (passes == 0) return false;
    const uint32_t fresh = passes - 1 + copies;
    if (sentinel_version_ != fresh)
      return sentinel_ == kept_ && sentinel_version_ == kept_version_ + 1 + passes + copies;
    return std::ranges::all_of(tensors_, [&](const c10::TensorImpl* gradient) {
      return gradient->version_counter().current_version() != fresh || OfEngine().Has(*gradient);
    });
  }

  // Sorted.
  std::vector<MemoryPlace> Parameters() const {
    std::vector<MemoryPlace> places;
    for (const foreshock_gradient& row : gradients_) {
      const auto& parameter = *static_cast<const c10::TensorImpl*>(row.identity);
      if (parameter.has_storage()) places.push_back(PlaceOf(parameter));
    }
    std::ranges::sort(places);
    return places;
  }

  // Whether any backward pass can have ended at this parameter. Else it is a copy in higher precision of what
  // the model computes with (DeepSpeed, Megatron-LM, Apex), and somebody has put its gradient there, clipped
  // or not.
  static bool WasInGraph(const c10::TensorImpl& parameter) {
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(parameter.autograd_meta());
    const std::unique_lock<std::mutex> lock(meta->mutex_, std::try_to_lock);
    return lock.owns_lock() && WasSet(meta->grad_accumulator_);
  }

  // A weak pointer that has pointed at something: the standard one, or c10's own in later versions of torch.
  template <class T>
  static bool WasSet(const std::weak_ptr<T>& pointer) {
    const std::weak_ptr<T> never;
    return pointer.owner_before(never) || never.owner_before(pointer);
  }
  template <class Pointer>
  static auto WasSet(const Pointer& pointer) -> decltype(pointer.weak_use_count() != 0) {
    return pointer.weak_use_count() != 0;
  }

  // On a device too: the core has them read behind what has written them, on the stream that is current here.
  static bool Values(const c10::TensorImpl& gradient, foreshock_gradient* entry) {
    const auto tensor =
        at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
            const_cast<c10::TensorImpl*>(&gradient)));
    const uint32_t dtype = DtypeOf(tensor);  // what the core cannot square (complex numbers) is not nothing
    entry->stream = StreamOf(tensor);
    if ((!tensor.is_cpu() && !entry->stream) || !tensor.is_non_overlapping_and_dense() ||
        dtype == FORESHOCK_DTYPE_NONE || !IsInMemory(tensor))
      return false;
    foreshock_tensor* values = &entry->values;
    *values = {};
    values->data = tensor.const_data_ptr();
    values->dims = 1;
    values->dtype = dtype;
    values->device_type = DeviceOf(tensor);
    values->device_index = tensor.get_device();
    std::fill(values->shape, values->shape + FORESHOCK_TENSOR_DIMS, 1);
    values->shape[0] = tensor.numel();
    values->stride[0] = 1;
    return true;
  }

  std::vector<foreshock_gradient> gradients_;
  std::vector<const c10::TensorImpl*> tensors_;  // gradients of gradients_[i]
  std::vector<double> squares_;
  std::vector<uint64_t> numbers_;  // of norms on a device
  std::atomic_flag busy_;
  std::atomic<uint64_t> core_ns_{0};
  const c10::TensorImpl* sentinel_ = nullptr;
  const c10::TensorImpl* kept_ = nullptr;
  uint32_t sentinel_version_ = 0, kept_version_ = 0;
};

inline GradientReport& Gradients() {
  static GradientReport* report = new GradientReport;
  return *report;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_REPORT_H_
