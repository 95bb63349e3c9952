// The gradients that backward passes have left in the parameters since the last step. One that somebody made
// and put there (`p.grad = f(p.grad)`) is as new as one of theirs: no version tells them apart.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ENGINE_GRADIENTS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ENGINE_GRADIENTS_H_

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <typeinfo>
#include <vector>

#include "dispatch.h"
#include "memory_mark.h"
#include "turn.h"

namespace foreshock::adapter {

// Any thread; who finds it busy goes without, and that gradient is nobody's.
class EngineGradients {
 public:
  void Note(const at::Tensor& gradient) noexcept try {
    const Turn turn(busy_);
    if (!turn.is_mine) return;
    if (marks_.capacity() == 0) marks_.reserve(kMostMarks);
    if (marks_.size() == kMostMarks) {
      is_full_.store(true, std::memory_order_relaxed);
      return;
    }
    marks_.emplace_back(*gradient.unsafeGetTensorImpl());
    sorted_ = false;
  } catch (...) {
  }

  bool Has(const c10::TensorImpl& gradient) noexcept {
    const Turn turn(busy_);
    if (!turn.is_mine) return false;
    if (!sorted_) std::ranges::sort(marks_, {}, &MemoryMark::place);
    sorted_ = true;
    return std::ranges::binary_search(marks_, PlaceOf(gradient), {}, &MemoryMark::place);
  }

  // There was no room for all of them.
  bool IsFull() const noexcept { return is_full_.load(std::memory_order_relaxed); }

  void Forget() noexcept {
    const Turn turn(busy_);
    if (!turn.is_mine) return;
    marks_.clear();
    is_full_.store(false, std::memory_order_relaxed);
  }

 private:
  std::vector<MemoryMark> marks_;
  bool sorted_ = true;
  std::atomic<bool> is_full_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline EngineGradients& OfEngine() {
  static EngineGradients* gradients =
      new EngineGradients;  // never destroyed: hooks outlive static destructors
  return *gradients;
}

// The node that ends a backward pass at a parameter.
inline bool InAccumulateGrad() {
  const auto node = torch::autograd::get_current_node();  // the pointer's kind differs between versions
  return node && std::strstr(typeid(*node).name(), "AccumulateGrad") != nullptr;
}

// detach: with it a parameter's first gradient of a step is put into place. (One that others hold is copied
// instead, and the copying moves its version.) Not boxed: it is called all the time, nearly always outside
// backward passes. Only sampled steps ask for values.
inline at::Tensor Detach(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto below = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::detach", "")
                                .typed<at::Tensor(const at::Tensor&)>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (InBackward() && foreshock_step_is_sampled() && GoesToDevice(rest) && HasData(self) &&
      InAccumulateGrad())
    OfEngine().Note(self);
  return below.redispatch(rest, self);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ENGINE_GRADIENTS_H_
