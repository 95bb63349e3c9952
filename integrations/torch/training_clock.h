// What the operations themselves tell about the course of training: that a backward pass has begun, the loss,
// and a step left out by a gradient scaler. Any thread; no lock, no allocation.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_TRAINING_CLOCK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_TRAINING_CLOCK_H_

#include <c10/core/GradMode.h>

#include <atomic>
#include <cstring>
#include <typeinfo>
#include <utility>

#include "device_numbers.h"
#include "dispatch.h"
#include "summed_loss.h"

namespace foreshock::adapter {

// The loss of a forward pass is published when its backward pass begins: an evaluation never has one.
inline thread_local std::optional<double> pending_loss;
inline thread_local uint64_t pending_number = 0;  // of foreshock_fetch, for one on a device

class TrainingClock {
 public:
  // The root of backward(): a gradient of one was made for `loss`. With a gradient scaler it is not the loss
  // but a multiple; until the first step has shown whether there is one, a product needs a cross-entropy
  // beside it. A summed one will not do, since a root may be any part of it: both are left out.
  void SawRoot(double loss, bool is_product) noexcept {
    roots_.fetch_add(1, std::memory_order_relaxed);
    const bool maybe_scaled = MaybeScaled(is_product);
    if (maybe_scaled) pending_sums.Forget();
    const bool beside_loss = BackwardBegins();
    if ((maybe_scaled && !beside_loss) || scaler_.load(std::memory_order_relaxed)) return;
    foreshock_observe_loss(loss, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // The same for one on a device. Of a gradient scaler's multiple it is told once the scaler divides by its
  // scale; with a cross-entropy beside it that one is the loss.
  void SawRootOnDevice(const at::Tensor& loss, bool is_product) noexcept {
    roots_.fetch_add(1, std::memory_order_relaxed);
    uint64_t number = Watching().NumberOf(loss);
    const bool maybe_scaled = MaybeScaled(is_product);
    const bool is_left_out = maybe_scaled && pending_sums.Forget();
    const bool beside_loss = BackwardBegins();
    const bool is_known = number != 0;
    if (beside_loss ? scaler_.load(std::memory_order_relaxed) : is_left_out) return;
    if (!is_known) number = FetchNumber(loss, FORESHOCK_FETCH_LOSS);
    if (number == 0) return;
    if (scaler_.load(std::memory_order_relaxed) || (maybe_scaled && !beside_loss)) {
      const uint32_t n = scaled_.load(std::memory_order_relaxed);
      if (n < kMostScaled) scaled_root_[n] = number;
      scaled_.store(n + 1, std::memory_order_relaxed);
      return;
    }
    if (!is_known) Watching().Watch(loss, WatchedNumbers::Kind::kLoss, number);
    foreshock_observe_fetched_loss(number, 0, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // The scaler divides by its scale: by so much the roots of this step are to be divided, too.
  void SawScale(const at::Tensor& inverse) noexcept {
    const uint32_t count = scaled_.exchange(0, std::memory_order_relaxed);
    if (count == 0 || count > kMostScaled) return;
    const uint64_t scale = FetchNumber(inverse, FORESHOCK_FETCH_OTHER);
    for (uint32_t n = 0; n < count && scale != 0; ++n)
      foreshock_observe_fetched_loss(scaled_root_[n], scale, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // For trainers that pass the gradient in themselves: another graph task is another backward pass.
  void SawAttentionBackward() noexcept {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task_.load(std::memory_order_relaxed) == task) return;
    task_.store(task, std::memory_order_relaxed);
    BackwardBegins();
  }

  void SawScaler() noexcept { scaler_.store(true, std::memory_order_relaxed); }

  // An optimizer step that nobody has told: its number is unknown.
  void StepSeen() noexcept {
    foreshock_step step{};
    step.size = sizeof(step);
    step.version = FORESHOCK_ABI_VERSION;
    step.step = -1;
    step.step_source = FORESHOCK_STEP_COUNTED;
    foreshock_step_end(&step);
    StepEnded();
  }

  void StepEnded() noexcept {
    stepped_.store(true, std::memory_order_relaxed);
    roots_.store(0, std::memory_order_relaxed);
    scaled_.store(0, std::memory_order_relaxed);
    backwards_.store(0, std::memory_order_relaxed);
  }

  uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_relaxed); }
  uint64_t backwards() const noexcept { return backwards_.load(std::memory_order_relaxed); }
  uint32_t roots() const noexcept { return roots_.load(std::memory_order_relaxed); }

 private:
  // Whether a root is the multiple of a gradient scaler that nobody has seen yet.
  bool MaybeScaled(bool is_product) const noexcept {
    return is_product && !stepped_.load(std::memory_order_relaxed) &&
           !scaler_.load(std::memory_order_relaxed);
  }

  // True when a cross-entropy belongs to this backward pass.
  bool BackwardBegins() noexcept {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    backwards_.fetch_add(1, std::memory_order_relaxed);
    const bool has_sums = pending_sums.Tell();
    if (const uint64_t number = std::exchange(pending_number, 0)) {
      foreshock_observe_fetched_loss(number, 0, FORESHOCK_LOSS_NLL);
      return true;
    }
    if (!pending_loss) return has_sums;
    foreshock_observe_loss(*pending_loss, FORESHOCK_LOSS_NLL);
    pending_loss.reset();
    return true;
  }

  std::atomic<uint64_t> epoch_{1};      // moves whenever a backward pass begins
  std::atomic<uint64_t> backwards_{0};  // since the last step; may count one pass twice
  std::atomic<uint32_t> roots_{
      0};  // since the last step; exact where the trainer calls backward() on a scalar
  std::atomic<int> task_{-1};
  static constexpr uint32_t kMostScaled = 256;
  uint64_t scaled_root_[kMostScaled] = {};  // by the thread that calls backward()
  std::atomic<uint32_t> scaled_{0};
  std::atomic<bool> scaler_{false};
  std::atomic<bool> stepped_{false};
};

inline constinit TrainingClock training_clock;
inline TrainingClock& Clock() { return training_clock; }

// nll_loss_forward and its 2-D twin. The input needs gradients; the output, below autograd, never does. Their
// second output is what the targets weigh that are not ignored.
class LossHook final : public c10::OperatorKernel {
 public:
  explicit LossHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        returns_(static_cast<int>(schema.returns().size())),
        self_(ArgumentIndex(schema, "self")),
        reduction_(ArgumentIndex(schema, "reduction")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const at::Tensor& self = TensorOrUndefined(Peek(*stack, arguments_, self_));
    const c10::IValue& reduction = Peek(*stack, arguments_, reduction_);
    const int64_t reduced = reduction.isInt() ? reduction.toInt() : 0;
    const bool is_loss = GoesToDevice(below) && HasData(self) && self.requires_grad() &&
                         c10::GradMode::is_enabled() && !InBackward() &&
                         (reduced == kMean || reduced == kSum);
    op.redispatchBoxed(below, stack);
    if (!is_loss) return;
    const at::Tensor& result = TensorOrUndefined(Peek(*stack, returns_, 0));
    if (reduced == kSum) return pending_sums.Add(result, TensorOrUndefined(Peek(*stack, returns_, 1)));
    if (const auto loss = ScalarOnCpu(result)) {
      pending_loss = loss;
    } else if (const uint64_t number = FetchNumber(result, FORESHOCK_FETCH_LOSS)) {
      pending_number = number;
      Watching().Watch(result, WatchedNumbers::Kind::kLoss, number);
    }
  }

 private:
  static constexpr int64_t kMean = 1, kSum = 2;  // of at::Reduction
  const int arguments_, returns_, self_, reduction_;
};

// ones_like of a scalar that has a history, outside any backward pass: backward() makes its first gradient.
class RootHook final : public c10::OperatorKernel {
 public:
  explicit RootHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const at::Tensor& self = TensorOrUndefined(Peek(*stack, arguments_, 0));
    if (self.defined() && self.numel() == 1 && GoesToDevice(below)) Look(self);
    op.redispatchBoxed(below, stack);
  }

 private:
  static void Look(const at::Tensor& self) noexcept {
    const auto* meta = torch::autograd::impl::get_autograd_meta(self);
    if (!meta || !meta->grad_fn_ || InBackward()) return;
    const bool is_product = std::strstr(typeid(*meta->grad_fn_).name(), "MulBackward") != nullptr;
    if (const auto loss = ScalarOnCpu(self)) return Clock().SawRoot(*loss, is_product);
    if (IsNumberOnDevice(self)) Clock().SawRootOnDevice(self, is_product);
  }

  const int arguments_;
};

// _amp_update_scale_: the one place where a step left out by a gradient scaler can be seen.
class ScalerHook final : public c10::OperatorKernel {
 public:
  explicit ScalerHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())), found_(ArgumentIndex(schema, "found_inf")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (GoesToDevice(below)) Look(TensorOrUndefined(Peek(*stack, arguments_, found_)));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void Look(const at::Tensor& found) noexcept {
    Clock().SawScaler();
    auto value = ScalarOnCpu(found);
    if (!value) value = Watching().ValueOf(found);  // GradScaler.step waits for it
    if (value) {
      if (*value > 0) foreshock_step_skipped();
    } else if (const uint64_t number = FetchNumber(found, FORESHOCK_FETCH_OTHER)) {
      foreshock_step_skipped_if(number);
    } else {
      foreshock_skips_unseen();
    }
  }

  const int arguments_, found_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_TRAINING_CLOCK_H_
