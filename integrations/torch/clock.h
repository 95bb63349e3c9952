// Detects backward passes, losses, gradient scalers and steps of a training with hooks on torch's operations,
// and reports them to the core (libforeshock.so).
//
// A value on a device cannot be read without waiting. Instead foreshock_fetch lets the core copy the value
// later and returns a number (0: the core does not copy it), which identifies the value in further calls. If
// the training itself reads the value (`.item()`), the hook of this read passes the value to the core.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_CLOCK_H_
#define FORESHOCK_INTEGRATIONS_TORCH_CLOCK_H_

#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "gradient_looks.h"
#include "tensor_view.h"

namespace foreshock::adapter {

inline bool is_scalar_on_device(const at::Tensor& tensor) noexcept {
  return has_data(tensor) && tensor.is_cuda() && tensor.numel() == 1 && tensor.is_floating_point();
}

// Lets the core copy the values of `tensors`, which must be on one device and computed on one stream, and
// sets their numbers. `purpose`: FORESHOCK_FETCH_.... Returns false if the values will not be copied.
template <size_t N>
bool fetch(const at::Tensor* const (&tensors)[N], uint32_t purpose, uint64_t (&numbers)[N]) noexcept try {
  foreshock_tensor values[N];
  for (size_t n = 0; n < N; ++n) {
    if (!is_scalar_on_device(*tensors[n]) || tensors[n]->dim() > FORESHOCK_TENSOR_DIMS) return false;
    values[n] = view_of(*tensors[n]);
    if (!values[n].data) return false;
  }
  void* stream = stream_of(*tensors[0]);
  return stream && foreshock_fetch(values, N, stream, purpose, numbers);
} catch (...) {
  return false;
}

// Lets the core copy one value and returns its number; 0 if the value will not be copied.
inline uint64_t fetch_number(const at::Tensor& tensor, uint32_t purpose) noexcept {
  uint64_t numbers[1] = {};
  return fetch({&tensor}, purpose, numbers) ? numbers[0] : 0;
}

// Lets the core copy a list of values on one device and returns their numbers; all are 0 if it copies none.
inline std::vector<uint64_t> fetch_numbers(const c10::List<at::Tensor>& list, uint32_t purpose) {
  std::vector<uint64_t> numbers(list.size());
  std::vector<foreshock_tensor> values;
  for (size_t i = 0; i < list.size(); ++i) {
    const at::Tensor& tensor = list.get(i);
    if (!is_scalar_on_device(tensor) || tensor.dim() > FORESHOCK_TENSOR_DIMS) return numbers;
    values.push_back(view_of(tensor));
    if (!values.back().data) return numbers;
  }
  void* stream = values.empty() ? nullptr : stream_of(list.get(0));
  if (stream && !foreshock_fetch(values.data(), values.size(), stream, purpose, numbers.data()))
    std::fill(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Remembers the last 16 losses and results of gradient scalers on a device, in order to recognize them when
// the training reads their values. Any thread; a call has no effect while another thread holds the object.
class WatchedScalars {
 public:
  enum class Kind { kLoss, kFoundInf };  // kFoundInf: whether a gradient scaler has found an overflow

  // Remembers `tensor`. `number`: the core's number of a loss; 0 for a scaler's result.
  void watch(const at::Tensor& tensor, Kind kind, uint64_t number) noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    Watched& oldest = watched_[next_ % watched_.size()];
    ++next_;
    WeakStorage storage(tensor.storage().getWeakStorageImpl());
    oldest = {std::move(storage), tensor.storage_offset(), version_of(tensor), kind, number, std::nullopt};
    has_watched_.store(true, std::memory_order_relaxed);
  }

  // Called when the training has read `value` from any tensor on a device. If the tensor is a watched loss,
  // the value is passed to the core; if it is a watched scaler result, the value is kept for value_of().
  void on_read(const at::Tensor& tensor, double value) noexcept {
    if (!has_watched_.load(std::memory_order_relaxed) || !has_data(tensor)) return;
    uint64_t number = 0;
    {  // releases busy_ before the core is called
      const TryGuard turn(busy_);
      Watched* seen = turn.is_mine ? find(tensor) : nullptr;
      if (!seen) return;
      if (seen->kind == Kind::kFoundInf) {
        seen->version = version_of(tensor);  // of this value; the scaler may have written it after watch()
        seen->value = value;
      } else if (is_unchanged(*seen, tensor)) {
        number = seen->number;
      }
    }
    if (number != 0) foreshock_fetched(number, value);
  }

  // The core's number of the loss in this tensor; 0: not watched, or the tensor has changed.
  uint64_t number_of(const at::Tensor& tensor) noexcept {
    const TryGuard turn(busy_);
    const Watched* seen = turn.is_mine ? find(tensor) : nullptr;
    return seen && seen->kind == Kind::kLoss && is_unchanged(*seen, tensor) ? seen->number : 0;
  }

  // The value that the training has read from this result of a gradient scaler; empty if it has not read it.
  std::optional<double> value_of(const at::Tensor& tensor) noexcept {
    const TryGuard turn(busy_);
    const Watched* seen = turn.is_mine && has_data(tensor) ? find(tensor) : nullptr;
    const bool is_known = seen && seen->kind == Kind::kFoundInf && seen->version == version_of(tensor);
    return is_known ? seen->value : std::nullopt;
  }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // A tensor, identified by storage and offset. The weak reference keeps the storage's address reserved.
  struct Watched {
    WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};
    int64_t offset = 0;
    int64_t version = -1;  // torch's count of in-place writes, when `number` or `value` was valid
    Kind kind = Kind::kLoss;
    uint64_t number = 0;          // of a loss
    std::optional<double> value;  // of a scaler's result
  };

  // An inference tensor has no version; 0 stands for it.
  static int64_t version_of(const at::Tensor& tensor) noexcept {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->is_inference() ? 0 : static_cast<int64_t>(impl->version_counter().current_version());
  }
  // Version 0 counts as unchanged: a tensor made by `.data` shares the memory, but its version begins at 0.
  static bool is_unchanged(const Watched& watched, const at::Tensor& tensor) noexcept {
    return version_of(tensor) == watched.version || version_of(tensor) == 0;
  }
  // The latest entry of a tensor with the same memory, or null.
  Watched* find(const at::Tensor& tensor) noexcept {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    for (uint32_t n = 1; n <= watched_.size(); ++n) {
      Watched& entry = watched_[(next_ - n) % watched_.size()];
      if (entry.storage._unsafe_get_target() == storage && entry.offset == tensor.storage_offset())
        return &entry;
    }
    return nullptr;
  }

  std::array<Watched, 16> watched_;
  uint32_t next_ = 0;                     // number of calls of watch(); modulo 16 the entry to overwrite next
  std::atomic<bool> has_watched_{false};  // watch() has been called
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline WatchedScalars& watched_scalars() {
  static Lasting<WatchedScalars> watching;  // never destroyed (dispatch.h)
  return watching.get();
}

// Hooks _local_scalar_dense, the operation in which `.item()` waits for a device. Numbers on the CPU are
// ignored, but programs read them very often. So this hook is not boxed (dispatch.h): it costs less per call.
// Like each hook it calls torch's own operation with the dispatch keys below the hook (kBelow).
inline at::Scalar local_scalar(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto below = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::_local_scalar_dense", "")
                                .typed<at::Scalar(const at::Tensor&)>();
  const at::Scalar value = below.redispatch(keys & kBelow, self);
  if (self.is_cuda() && value.isFloatingPoint()) watched_scalars().on_read(self, value.toDouble());
  return value;
}

// Collects the cross-entropies with reduction "sum" of a forward pass. Several may be pieces of one loss, so
// they are reported together when the backward pass begins. An evaluation has no backward pass: its sums are
// never reported. One object per thread, since one thread calls both passes. No lock, allocation or wait.
class SummedLoss {
 public:
  // `weight`: the total weight of the targets in `sum`.
  void add(const at::Tensor& sum, const at::Tensor& weight) noexcept {
    const auto host_sum = scalar_on_cpu(sum), host_weight = scalar_on_cpu(weight);
    if (host_sum && host_weight) {
      sum_ += *host_sum;
      weight_ += *host_weight;
      is_on_host_ = true;
      return;
    }
    uint64_t numbers[2] = {};
    if (!fetch({&sum, &weight}, FORESHOCK_FETCH_LOSS, numbers)) return;
    watched_scalars().watch(sum, WatchedScalars::Kind::kLoss, numbers[0]);
    if (fetched_count_ < kMostFetched) on_device_[fetched_count_] = {numbers[0], numbers[1]};
    ++fetched_count_;
  }

  // Reports the collected sums and drops them. Returns false if nothing was reported: there were no sums, or
  // more sums than on_device_ can hold, and the mean of a part of them would be wrong.
  bool report() noexcept {
    const bool all_fit = fetched_count_ <= kMostFetched;
    if (is_on_host_ && all_fit) foreshock_observe_loss_sum(sum_, weight_);
    for (uint32_t n = 0; n < fetched_count_ && all_fit; ++n)
      foreshock_observe_fetched_loss_sum(on_device_[n].sum, on_device_[n].weight);
    const bool had_some = forget();
    return had_some && all_fit;
  }

  // Drops the collected sums. False: there were none.
  bool forget() noexcept {
    const bool had_some = is_on_host_ || fetched_count_ > 0;
    sum_ = weight_ = 0;
    is_on_host_ = false;
    fetched_count_ = 0;
    return had_some;
  }

 private:
  static constexpr uint32_t kMostFetched = 64;  // limits the memory
  struct Numbers {
    uint64_t sum, weight;  // numbers of foreshock_fetch
  };

  double sum_ = 0, weight_ = 0;  // totals of the sums in host memory
  bool is_on_host_ = false;      // at least one sum was in host memory
  uint32_t fetched_count_ = 0;   // number of sums on a device; may exceed kMostFetched
  Numbers on_device_[kMostFetched] = {};
};

inline thread_local constinit SummedLoss pending_sums;

// The last mean cross-entropy, reported when the backward pass begins: its value, or on a device its number.
inline thread_local std::optional<double> pending_loss;
inline thread_local uint64_t pending_loss_number = 0;

// Detects the beginning of a backward pass, and finds its loss. Any thread; no lock, no allocation.
class TrainingClock {
 public:
  // Called when backward() begins at its root, the tensor whose backward() was called. Reports the root's
  // value `loss`, but not if there is a gradient scaler, which multiplies the root. A scaler shows itself
  // after the first backward pass, when it divides the gradients or updates its scale. Until the first step
  // has ended, a root that is a product (`is_product`) may therefore be scaled. Such a root is reported only
  // beside a mean cross-entropy, which the core prefers. Summed cross-entropies are then dropped, since the
  // root may be any multiple of them. `divisor`: the number that has divided the loss; 0: none. Only a
  // product may be scaled, so another root that is not finite is the loss.
  void on_root(double loss, bool is_product, double divisor) noexcept {
    root_count_.fetch_add(1, std::memory_order_relaxed);
    const bool maybe_scaled = may_be_scaled(is_product);
    if (maybe_scaled) pending_sums.forget();
    const bool has_cross_entropy = begin_backward();
    if ((maybe_scaled && !has_cross_entropy) || has_scaler_.load(std::memory_order_relaxed)) return;
    if (divisor != 0) foreshock_observe_root_divisor(divisor);
    if (!is_product && !std::isfinite(loss)) foreshock_observe_root_divisor(1);
    foreshock_observe_loss(loss, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // As on_root(), for a root on a device. A root that is or may be scaled is kept until the scaler divides
  // the gradients by the scale (on_unscale()), but not if there are cross-entropies, even dropped ones.
  void on_root_on_device(const at::Tensor& loss, bool is_product, double divisor) noexcept {
    root_count_.fetch_add(1, std::memory_order_relaxed);
    uint64_t number = watched_scalars().number_of(loss);
    const bool maybe_scaled = may_be_scaled(is_product);
    bool has_dropped_sums = false;
    if (maybe_scaled) has_dropped_sums = pending_sums.forget();
    const bool has_cross_entropy = begin_backward();
    const bool is_fetched = number != 0;  // the core copies this loss already
    // A cross-entropy replaces a scaled root. Beside dropped sums, the root may be any multiple of them.
    if (has_cross_entropy ? has_scaler_.load(std::memory_order_relaxed) : has_dropped_sums) return;
    if (!is_fetched) number = fetch_number(loss, FORESHOCK_FETCH_LOSS);
    if (number == 0) return;
    if (divisor != 0) foreshock_observe_root_divisor(divisor);
    if (has_scaler_.load(std::memory_order_relaxed) || (maybe_scaled && !has_cross_entropy)) {
      const uint32_t n = scaled_count_.load(std::memory_order_relaxed);
      if (n < kMostScaled) scaled_root_[n] = number;
      scaled_count_.store(n + 1, std::memory_order_relaxed);
      return;
    }
    if (!is_fetched) watched_scalars().watch(loss, WatchedScalars::Kind::kLoss, number);
    if (!is_product && !has_stepped_.load(std::memory_order_relaxed)) foreshock_observe_root_divisor(1);
    foreshock_observe_fetched_loss(number, 0, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // Called when the scaler divides the gradients by its scale. `inverse`: 1 / scale, on a device. Reports the
  // kept roots of this step, multiplied by `inverse`. If there were more than kMostScaled, reports no root.
  void on_unscale(const at::Tensor& inverse) noexcept {
    const uint32_t count = scaled_count_.exchange(0, std::memory_order_relaxed);
    if (count == 0 || count > kMostScaled) return;
    const uint64_t factor = fetch_number(inverse, FORESHOCK_FETCH_OTHER);
    for (uint32_t n = 0; n < count && factor != 0; ++n)
      foreshock_observe_fetched_loss(scaled_root_[n], factor, FORESHOCK_LOSS_BACKWARD_ROOT);
  }

  // Called by every attention operation of a backward pass. Detects passes for which on_root() is not called:
  // the trainer has passed the first gradient to backward(). A new graph task of autograd is a new pass.
  void on_attention_backward() noexcept {
    const int task = torch::autograd::get_current_graph_task_id();
    if (last_task_.load(std::memory_order_relaxed) == task) return;
    last_task_.store(task, std::memory_order_relaxed);
    begin_backward();
  }

  void on_scaler() noexcept { has_scaler_.store(true, std::memory_order_relaxed); }  // a gradient scaler runs

  // Reports an optimizer step that ParameterClock has detected; its number is unknown.
  void count_step() noexcept {
    foreshock_step step{};
    step.size = sizeof(step);
    step.version = FORESHOCK_ABI_VERSION;
    step.step = -1;
    step.step_source = FORESHOCK_STEP_COUNTED;
    foreshock_step_end(&step);
    on_step_end();
  }

  void on_step_end() noexcept {  // starts the counts of the next step
    has_stepped_.store(true, std::memory_order_relaxed);
    root_count_.store(0, std::memory_order_relaxed);
    scaled_count_.store(0, std::memory_order_relaxed);
    backward_count_.store(0, std::memory_order_relaxed);
  }

  uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_relaxed); }
  uint64_t backward_count() const noexcept { return backward_count_.load(std::memory_order_relaxed); }
  uint32_t root_count() const noexcept { return root_count_.load(std::memory_order_relaxed); }

 private:
  // Whether a gradient scaler may have multiplied this root although no hook has seen a scaler yet.
  bool may_be_scaled(bool is_product) const noexcept {
    return is_product && !has_stepped_.load(std::memory_order_relaxed) &&
           !has_scaler_.load(std::memory_order_relaxed);
  }

  // Notes a backward pass; reports the cross-entropies of its forward pass. Returns whether there were any.
  bool begin_backward() noexcept {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    backward_count_.fetch_add(1, std::memory_order_relaxed);
    const bool has_sums = pending_sums.report();
    if (const uint64_t number = std::exchange(pending_loss_number, 0)) {
      foreshock_observe_fetched_loss(number, 0, FORESHOCK_LOSS_NLL);
      return true;
    }
    if (!pending_loss) return has_sums;
    foreshock_observe_loss(*pending_loss, FORESHOCK_LOSS_NLL);
    pending_loss.reset();
    return true;
  }

  std::atomic<uint64_t> epoch_{1};           // changes whenever a backward pass begins; never 0
  std::atomic<uint64_t> backward_count_{0};  // backward passes since the last step; may count one pass twice
  std::atomic<uint32_t> root_count_{0};      // backward passes since the last step that began at a scalar
  std::atomic<int> last_task_{-1};        // the graph task of the last attention operation in a backward pass
  std::atomic<bool> has_scaler_{false};   // there is a gradient scaler
  std::atomic<bool> has_stepped_{false};  // a step has ended
  std::atomic<uint32_t> scaled_count_{0};       // number of kept roots of this step; may exceed kMostScaled
  static constexpr uint32_t kMostScaled = 256;  // limits the memory
  // The core's numbers of these roots. Written by the thread that calls backward().
  uint64_t scaled_root_[kMostScaled] = {};
};

inline constinit TrainingClock the_training_clock;
inline TrainingClock& training_clock() { return the_training_clock; }

// Hooks nll_loss_forward and its 2-D variant. The input shows whether the loss needs gradients, since below
// autograd an output never needs them. The second output is the total weight of the targets that count.
class LossHook final : public c10::OperatorKernel {
 public:
  explicit LossHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        returns_(static_cast<int>(schema.returns().size())),
        self_(argument_index(schema, "self")),
        reduction_(argument_index(schema, "reduction")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const at::Tensor& self = tensor_or_undefined(peek(*stack, arguments_, self_));
    const c10::IValue& argument = peek(*stack, arguments_, reduction_);
    const int64_t reduction = argument.isInt() ? argument.toInt() : 0;
    const bool is_loss = reaches_kernel(below) && has_data(self) && self.requires_grad() &&
                         c10::GradMode::is_enabled() && !in_backward_pass() &&
                         (reduction == kMean || reduction == kSum);
    op.redispatchBoxed(below, stack);
    if (!is_loss) return;
    const at::Tensor& result = tensor_or_undefined(peek(*stack, returns_, 0));
    if (reduction == kSum) return pending_sums.add(result, tensor_or_undefined(peek(*stack, returns_, 1)));
    if (const auto loss = scalar_on_cpu(result)) {
      pending_loss = loss;
    } else if (const uint64_t number = fetch_number(result, FORESHOCK_FETCH_LOSS)) {
      pending_loss_number = number;
      watched_scalars().watch(result, WatchedScalars::Kind::kLoss, number);
    }
  }

 private:
  static constexpr int64_t kMean = 1, kSum = 2;  // of at::Reduction
  const int arguments_, returns_, self_, reduction_;
};

// Returns the number by which an autograd node divides, if it is a whole Python number of at least 2; else 0.
// Trainings that accumulate gradients over n backward passes divide the loss by n. Reads the node's saved
// tensor without running the user's saved-tensor hooks; returns 0 if torch has no function for this.
inline double divisor_of(const torch::autograd::Node* node) noexcept try {
  const auto* division = dynamic_cast<const torch::autograd::generated::DivBackward0*>(node);
  if (!division) return 0;
  // A generic lambda: outside a template, a missing function would be an error and not `false`.
  const auto saved_divisor = [](const auto& node) -> std::optional<at::Tensor> {
    if constexpr (requires { node.other_.get_raw_data(); })
      return node.other_.get_raw_data();
    else
      return std::nullopt;
  };
  const std::optional<at::Tensor> other = saved_divisor(*division);
  if (!other || !other->defined() || !other->unsafeGetTensorImpl()->is_wrapped_number()) return 0;
  const bool is_integer = other->scalar_type() == at::kLong && is_in_memory(*other);
  const double value = is_integer ? static_cast<double>(*static_cast<const int64_t*>(other->const_data_ptr()))
                                  : scalar_on_cpu(*other).value_or(0);
  return value >= 2 && value == std::floor(value) ? value : 0;
} catch (...) {
  return 0;
}

// Hooks ones_like, with which backward() begins; the argument is the root. Ignored are calls inside a
// backward pass, and arguments that have several elements or were not computed from a tensor with gradients.
class RootHook final : public c10::OperatorKernel {
 public:
  explicit RootHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const at::Tensor& self = tensor_or_undefined(peek(*stack, arguments_, 0));
    if (self.defined() && self.numel() == 1 && reaches_kernel(below)) observe(self);
    op.redispatchBoxed(below, stack);
  }

 private:
  static void observe(const at::Tensor& self) noexcept {
    const auto* meta = torch::autograd::impl::get_autograd_meta(self);
    if (!meta || !meta->grad_fn_ || in_backward_pass()) return;
    const torch::autograd::Node& node = *meta->grad_fn_;
    const bool is_product = std::strstr(typeid(node).name(), "MulBackward") != nullptr;
    // A scaler multiplies after the division (loss / n * scale): the division is the node before the product.
    const bool has_node_before = is_product && node.num_outputs() > 0;
    const double divisor = divisor_of(has_node_before ? node.next_edge(0).function.get() : &node);
    if (const auto loss = scalar_on_cpu(self)) return training_clock().on_root(*loss, is_product, divisor);
    if (is_scalar_on_device(self)) training_clock().on_root_on_device(self, is_product, divisor);
  }

  const int arguments_;
};

// Hooks _amp_update_scale_, whose argument found_inf is above 0 if the gradient scaler has skipped the step.
class ScalerHook final : public c10::OperatorKernel {
 public:
  explicit ScalerHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        found_inf_(argument_index(schema, "found_inf")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (reaches_kernel(below)) observe(tensor_or_undefined(peek(*stack, arguments_, found_inf_)));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void observe(const at::Tensor& found_inf) noexcept {
    training_clock().on_scaler();
    GradientLooks::instance().on_scaler_update();
    auto value = scalar_on_cpu(found_inf);
    if (!value) value = watched_scalars().value_of(found_inf);  // GradScaler.step may have read this tensor
    if (value) {
      if (*value > 0) foreshock_step_skipped();
    } else if (const uint64_t number = fetch_number(found_inf, FORESHOCK_FETCH_OTHER)) {
      foreshock_step_skipped_if(number);
    } else {
      foreshock_skips_unseen();
    }
  }

  const int arguments_, found_inf_;
};

// Detects steps for which no optimizer hook of the Python helper runs: in C++ trainers, without the helper
// (python -I), and without an optimizer. Any thread; a call is dropped if another thread holds the clock.
//
// Optimizers write their parameters in place, which changes the version of the tensor. So the clock follows
// the weight from which the first attention query was computed. A step has ended if, after a backward pass,
// this weight has another version at the next forward call of attention or at the end of the process. The C++
// SGD writes through data(), which changes no version; so some values of a weight on the CPU are compared
// too. A step that changes neither version nor values is missed. The absolute number of a step is unknown.
//
// The clock has a weak reference to the weight's storage and shares its version counter, to detect the last
// step after the model was destroyed. torch.utils.swap_tensors forbids weak references to the weight itself.
class ParameterClock {
 public:
  // Starts the detection, which is off at first. Call it once.
  void enable() noexcept {
    enabled_.store(true, std::memory_order_relaxed);
    std::atexit([] { instance().observe_at_exit(); });
  }
  void disable() noexcept { enabled_.store(false, std::memory_order_relaxed); }

  // Called before a forward call of attention outside backward passes.
  void observe(const at::Tensor& query) noexcept {
    if (!enabled_.load(std::memory_order_relaxed) || busy_.test_and_set(std::memory_order_acquire)) return;
    if (storage_.expired()) {
      compare();  // counts the last step of the destroyed weight, whose version counter still exists
      const auto [leaf, values] = std::pair(leaf_, values_);
      follow(query);
      // `p.data = ...` gives the same weight another storage: its values are compared with those before.
      if (leaf_ == leaf && values != 0 && values_ != 0) values_ = values;
    }
    if (!storage_.expired()) compare();
    busy_.clear(std::memory_order_release);
  }

  static ParameterClock& instance();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  void observe_at_exit() noexcept {
    if (!enabled_.load(std::memory_order_relaxed) || busy_.test_and_set(std::memory_order_acquire)) return;
    compare();
    busy_.clear(std::memory_order_release);
  }

  // Follows the weight from which `query` was computed, if it can be found.
  void follow(const at::Tensor& query) noexcept {
    if (!c10::GradMode::is_enabled() || !query.requires_grad()) return;
    // layer_of() identifies a layer by the address of this weight.
    auto* leaf = static_cast<c10::TensorImpl*>(const_cast<void*>(layer_of(query)));
    if (!leaf || leaf->is_inference()) return;
    const at::Tensor weight(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(leaf));
    if (!weight.has_storage()) return;
    leaf_ = leaf;
    storage_ = weight.storage().getWeakStorageImpl();
    is_readable_ = weight.is_cpu() && has_data(weight) && weight.is_non_overlapping_and_dense();
    element_bytes_ = weight.element_size();
    first_byte_ = static_cast<size_t>(weight.storage_offset()) * element_bytes_;
    elements_ = static_cast<size_t>(weight.numel());
    counter_ = leaf->version_counter();
    version_ = counter_.current_version();
    values_ = weight_digest();
  }

  // Counts a step if the weight has changed after a backward pass. While its version is unchanged, its values
  // are read only once after each backward pass, because reading them costs more than reading the version.
  void compare() noexcept {
    if (!counter_.enabled() || training_clock().backward_count() == 0) return;
    const uint32_t version = counter_.current_version();
    const uint64_t epoch = training_clock().epoch();
    const bool is_first_after_backward = epoch_ != epoch;
    if (version == version_ && !is_first_after_backward) return;
    const uint64_t values = weight_digest();
    if (values != 0) epoch_ = epoch;
    const bool has_same_values = values == values_ || values == 0;  // 0: the values cannot be read
    if (version == version_ && has_same_values) return;             // another micro-batch of the same step
    version_ = version;
    values_ = values;
    training_clock().count_step();
  }

  // A digest (FNV-1a) of at most 127 elements, spread over the weight. 0 if the weight cannot be read: it no
  // longer exists or is on a device. Other digests are never 0.
  uint64_t weight_digest() const noexcept {
    if (!is_readable_) return 0;
    const auto storage = storage_.lock();
    if (!storage || storage->nbytes() < first_byte_ + elements_ * element_bytes_) return 0;
    const auto* bytes = static_cast<const uint8_t*>(storage->data());
    if (bytes == nullptr) return 0;
    uint64_t digest = 14695981039346656037ull;
    for (size_t n = 0; n < elements_; n += std::max<size_t>(1, elements_ / 64))
      for (size_t b = 0; b < element_bytes_; ++b)
        digest = (digest ^ bytes[first_byte_ + n * element_bytes_ + b]) * 1099511628211ull;
    return digest | 1;
  }

  std::atomic<bool> enabled_{false};
  std::atomic_flag busy_;
  const void* leaf_ = nullptr;  // the address of the followed weight, which may not exist any more
  WeakStorage storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  bool is_readable_ = false;
  // Element size in bytes, number of elements, and byte offset of the weight in storage_.
  size_t element_bytes_ = 0, elements_ = 0, first_byte_ = 0;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  uint32_t version_ = 0;  // of the weight at the last counted step; before the first one, at follow()
  uint64_t values_ = 0;   // weight_digest() at the same time as version_
  uint64_t epoch_ = 0;    // TrainingClock's epoch at the last comparison
};

inline ParameterClock& ParameterClock::instance() {
  static Lasting<ParameterClock> clock;
  return clock.get();
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_CLOCK_H_
