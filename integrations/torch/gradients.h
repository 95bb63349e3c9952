// Reports the norms of gradients before clipping. A training that clips computes the norm of every gradient
// itself, by _foreach_norm or linalg_vector_norm. Hooks of these two note each tensor and its norm. When the
// optimizer steps, the norms of its parameters' gradients are reported to the core (libforeshock.so). Norms
// after clipping are never reported. If a tensor is clipped by value, its later norms are not used.
//
// If the training computes no norms, the core computes the norms from the values of the gradients in sampled
// steps, provided that only backward passes and the averaging over ranks have written the gradients.
//
// Terms of dispatch.h: a boxed hook has the arguments on a stack, from which peek() reads one. With the keys
// kBelow it calls the hooked operation. reaches_kernel(): the operation works on real data. A TryGuard is a
// lock that never waits (is_mine: this thread has it).
#ifndef FORESHOCK_INTEGRATIONS_TORCH_GRADIENTS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_GRADIENTS_H_

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "clock.h"
#include "dispatch.h"

namespace foreshock::adapter {

// Maximum number of gradients, and of norms, that are remembered in one step. A vector of this capacity takes
// physical memory only for the pages in use.
inline constexpr size_t kMostMarks = 65536;

// Notes the norms that the training has computed since the last backward pass began. (The beginning of each
// backward pass changes TrainingClock::epoch().) Any thread. If another thread holds the object, a call is
// dropped, and match() returns kSome until the next backward pass.
class GradientNorms {
 public:
  // Notes one norm. Only the first norm of a tensor after a backward pass is used, since later ones may be
  // taken after clipping. A norm on a device has no `value`. The core copies the norm to the host later and
  // refers to it by `number` (foreshock_fetch() in hook.h). Number 0: not copied, so the norm is unknown.
  void note(const at::Tensor& tensor, const std::optional<double>& value, uint64_t number = 0) noexcept {
    const bool is_known = value.has_value() || number != 0;
    add(tensor, {.is_known = is_known, .value = value.value_or(0), .number = number});
  }

  // Norms of this tensor that are computed later are not used, since find() returns the first note.
  void note_clipped(const at::Tensor& tensor) noexcept { add(tensor, {.is_norm = false}); }

  // A gradient scaler multiplies these gradients by `inverse_scale` after their norms were computed, so the
  // norms are multiplied too. A norm on a device becomes unknown. If `inverse_scale` is empty, because the
  // scale is on a device, all norms become unknown.
  void unscale(const c10::List<at::Tensor>& tensors, const std::optional<double>& inverse_scale) noexcept {
    const TryGuard turn(busy_);
    if (!owns(turn)) return;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors.get(i);
      Row* row = has_data(tensor) ? find(*tensor.unsafeGetTensorImpl()) : nullptr;
      if (!row) continue;
      row->norm.is_known &= inverse_scale && row->norm.number == 0;
      row->norm.value *= inverse_scale.value_or(0);
    }
  }

  // kNone: no norm of the tensors was noted. kAll: a usable norm of each was noted. kSome: all other cases.
  enum class Found { kNone, kSome, kAll };

  // For each tensor i with a norm noted since the last backward pass began, sets squares[i] to the square of
  // (norm * inverse_scale), or numbers[i] if the norm is on a device. A norm on a device cannot be multiplied
  // here, so it is usable only if inverse_scale is 1.
  Found match(const std::vector<const c10::TensorImpl*>& tensors, double inverse_scale,
              std::vector<double>* squares, std::vector<uint64_t>* numbers) noexcept {
    const TryGuard turn(busy_);
    if (!owns(turn)) return Found::kSome;
    if (epoch_ != training_clock().epoch()) clear();
    size_t found = 0, unusable = is_incomplete_ ? 1 : 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Row* row = find(*tensors[i]);
      if (!row) continue;
      found += 1;
      unusable += !row->norm.is_known || (row->norm.number != 0 && inverse_scale != 1);
      (*numbers)[i] = row->norm.number;
      const double value = row->norm.value * inverse_scale;
      (*squares)[i] = value * value;
    }
    if (found == 0 && unusable == 0) return Found::kNone;
    return found == tensors.size() && unusable == 0 ? Found::kAll : Found::kSome;
  }

  // Whether the training may have clipped copies of the gradients. It may if a norm was noted for a tensor
  // that is not a parameter and has as many elements as one gradient, or as all gradients together.
  // `parameters` must be sorted. Call it if match() found no norm of the gradients themselves. Also true if
  // another thread holds the object.
  bool may_have_clipped_copies(const std::vector<const c10::TensorImpl*>& gradients,
                               const std::vector<StorageRange>& parameters) {
    const TryGuard turn(busy_);
    if (!owns(turn)) return true;
    if (epoch_ != training_clock().epoch() || rows_.empty()) return false;
    std::vector<int64_t> sizes;
    for (const c10::TensorImpl* gradient : gradients) sizes.push_back(gradient->numel());
    sizes.push_back(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    std::ranges::sort(sizes);
    return std::ranges::any_of(rows_, [&](const Row& row) {
      const StorageRange& range = row.mark.range();
      return row.norm.is_norm && std::ranges::binary_search(sizes, range.elements) &&
             !std::ranges::binary_search(parameters, range);
    });
  }

  // Whether there were more norms than the table can hold.
  bool is_full() const noexcept { return is_table_full_.load(std::memory_order_relaxed); }

  // Whether nothing was noted since the last backward pass began.
  bool is_empty() noexcept {
    const TryGuard turn(busy_);
    return owns(turn) && !is_full() && !is_incomplete_ &&
           (rows_.empty() || epoch_ != training_clock().epoch());
  }

  void forget() noexcept {
    const TryGuard turn(busy_);
    if (owns(turn)) clear();
  }

 private:
  struct Norm {
    bool is_norm = true;    // false: the tensor was clipped
    bool is_known = false;  // false: a norm was computed, but it could not be read
    double value = 0;       // 0 also if the norm is unknown or on a device
    uint64_t number = 0;    // from foreshock_fetch(); 0: not copied from a device
  };
  struct Row {         // a note
    StorageMark mark;  // identifies the tensor by its memory
    uint32_t index;    // the number of the note: rows_ is sorted by tensor, then by index
    Norm norm;
  };

  void add(const at::Tensor& tensor, const Norm& norm) noexcept try {
    const TryGuard turn(busy_);
    if (!owns(turn)) return;
    if (epoch_ != training_clock().epoch()) clear();
    if (rows_.capacity() == 0) rows_.reserve(kMostMarks);  // once, so that later notes allocate nothing
    if (rows_.size() == kMostMarks) is_incomplete_ = is_table_full_ = true;
    if (rows_.size() < kMostMarks) {
      const auto index = static_cast<uint32_t>(rows_.size());
      rows_.push_back({StorageMark(*tensor.unsafeGetTensorImpl()), index, norm});
      sorted_ = false;
    }
  } catch (...) {
    is_incomplete_ = true;  // out of memory
  }

  // The first note of this tensor; null if it has no note.
  Row* find(const c10::TensorImpl& tensor) noexcept {
    const auto comes_before = [](const Row& a, const Row& b) {
      return std::tie(a.mark.range(), a.index) < std::tie(b.mark.range(), b.index);
    };
    if (!sorted_) std::ranges::sort(rows_, comes_before);
    sorted_ = true;
    const StorageRange range = storage_range_of(tensor);
    const auto first =
        std::ranges::lower_bound(rows_, range, {}, [](const Row& row) { return row.mark.range(); });
    return first != rows_.end() && first->mark.range() == range ? &*first : nullptr;
  }

  void clear() noexcept {
    rows_.clear();
    sorted_ = true;
    is_incomplete_ = is_table_full_ = false;
    epoch_ = training_clock().epoch();
  }

  // Whether this thread holds the object. If not, the caller must return, and the norms become incomplete.
  bool owns(const TryGuard& turn) noexcept {
    if (!turn.is_mine) is_incomplete_ = true;
    return turn.is_mine;
  }

  std::vector<Row> rows_;
  bool sorted_ = true;
  uint64_t epoch_ = 0;                                             // TrainingClock::epoch() of the rows
  std::atomic<bool> is_incomplete_{false}, is_table_full_{false};  // a note is missing; because of kMostMarks
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline GradientNorms& gradient_norms() {
  static Lasting<GradientNorms> norms;
  return norms.get();
}

// Hooks _foreach_norm and linalg_vector_norm. Notes only norms of whole tensors (without `dim`) that have
// data and need no gradient, computed outside backward passes. Calls inside _foreach_norm are ignored.
class NormHook final : public c10::OperatorKernel {
 public:
  explicit NormHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(argument_index(schema, "self")),
        order_(argument_index(schema, "ord")),
        dimension_(argument_index(schema, "dim")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (!reaches_kernel(below) || in_backward_pass() || in_list ||
        !peek(*stack, arguments_, dimension_).isNone())
      return op.redispatchBoxed(below, stack);
    const c10::IValue self = peek(*stack, arguments_, self_);  // a copy: the operation pops its arguments
    const c10::IValue& order = peek(*stack, arguments_, order_);
    const bool euclidean =
        (order.isInt() && order.toInt() == 2) || (order.isDouble() && order.toDouble() == 2);
    {
      const ListScope inside(self.isTensorList());
      op.redispatchBoxed(below, stack);
    }
    observe(self, stack->back(), euclidean);
  }

 private:
  // True during _foreach_norm of a list. Without a kernel for lists torch calls linalg_vector_norm for each
  // tensor; these calls are ignored, since the list's own hook notes the results.
  static inline thread_local bool in_list = false;
  struct ListScope {
    explicit ListScope(bool is_list) { in_list = is_list; }
    ~ListScope() { in_list = false; }
  };

  static void observe(const c10::IValue& self, const c10::IValue& result, bool euclidean) {
    if (self.isTensor()) return observe_norm(self.toTensor(), result.toTensor(), euclidean);
    if (!self.isTensorList() || !result.isTensorList()) return;
    const auto tensors = self.toTensorList(), norms = result.toTensorList();
    // On a device the core copies the norms of a list by one kernel. Single norms (clipping without foreach)
    // are not copied, because a kernel for each would cost too much.
    std::vector<uint64_t> numbers(norms.size());
    if (euclidean && norms.size() > 0 && norms.get(0).is_cuda())
      numbers = fetch_numbers(norms, FORESHOCK_FETCH_NORM);
    for (size_t i = 0; i < tensors.size() && i < norms.size(); ++i)
      observe_norm(tensors[i], norms[i], euclidean, numbers[i]);
  }

  static void observe_norm(const at::Tensor& tensor, const at::Tensor& norm, bool euclidean,
                           uint64_t number = 0) noexcept {
    if (!has_data(tensor) || tensor.requires_grad()) return;
    gradient_norms().note(tensor, euclidean ? scalar_on_cpu(norm) : std::nullopt, number);
  }

  const int arguments_, self_, order_, dimension_;  // number of arguments; positions of three of them
};

// Hooks _amp_foreach_non_finite_check_and_unscale_: a gradient scaler divides the gradients by its scale.
class UnscaleHook final : public c10::OperatorKernel {
 public:
  explicit UnscaleHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(argument_index(schema, "self")),
        found_inf_(argument_index(schema, "found_inf")),
        inverse_scale_(argument_index(schema, "inv_scale")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (reaches_kernel(below))
      observe(peek(*stack, arguments_, self_), tensor_or_undefined(peek(*stack, arguments_, found_inf_)),
              tensor_or_undefined(peek(*stack, arguments_, inverse_scale_)));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void observe(const c10::IValue& tensors, const at::Tensor& found_inf,
                      const at::Tensor& inverse) noexcept {
    training_clock().on_scaler();
    // found_inf is the scaler's result: whether a gradient was not finite. If the training reads it on the
    // host, that value is used, and the core need not copy it from the device.
    if (is_scalar_on_device(found_inf))
      watched_scalars().watch(found_inf, WatchedScalars::Kind::kFoundInf, 0);
    // The same factor also unscales the losses that the clock has kept.
    if (is_scalar_on_device(inverse)) training_clock().on_unscale(inverse);
    if (tensors.isTensorList()) gradient_norms().unscale(tensors.toTensorList(), scalar_on_cpu(inverse));
  }

  const int arguments_, self_, found_inf_, inverse_scale_;
};

// Remembers the gradients that backward passes (autograd's engine) have left in the parameters since the last
// step. A gradient that the training has assigned (`p.grad = f(p.grad)`) is not among them, though its
// version (torch's count of in-place writes) may be the same. Any thread; a call is dropped if another thread
// holds the object.
class EngineGradients {
 public:
  void note(const at::Tensor& gradient) noexcept try {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    if (marks_.capacity() == 0) marks_.reserve(kMostMarks);  // once, so that later notes allocate nothing
    if (marks_.size() == kMostMarks) {
      is_full_.store(true, std::memory_order_relaxed);
      return;
    }
    marks_.emplace_back(*gradient.unsafeGetTensorImpl());
    sorted_ = false;
  } catch (...) {  // out of memory: the gradient counts as assigned, so its values are not read
  }

  bool has(const c10::TensorImpl& gradient) noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return false;
    if (!sorted_) std::ranges::sort(marks_, {}, &StorageMark::range);
    sorted_ = true;
    return std::ranges::binary_search(marks_, storage_range_of(gradient), {}, &StorageMark::range);
  }

  // Whether there were more gradients than the table can hold.
  bool is_full() const noexcept { return is_full_.load(std::memory_order_relaxed); }

  void forget() noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    marks_.clear();
    is_full_.store(false, std::memory_order_relaxed);
  }

 private:
  std::vector<StorageMark> marks_;
  bool sorted_ = true;
  std::atomic<bool> is_full_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline EngineGradients& engine_gradients() {
  static Lasting<EngineGradients> gradients;
  return gradients.get();
}

// Whether this thread runs the node of autograd that stores the gradient of a parameter.
inline bool in_accumulate_grad() {
  const auto node = torch::autograd::get_current_node();  // its pointer type differs between torch versions
  return node && std::strstr(typeid(*node).name(), "AccumulateGrad") != nullptr;
}

// Hooks detach, by which autograd stores the first gradient of a parameter in a step. (If the gradient has
// other references, autograd copies it instead, which increments its version.) Not boxed, since detach is
// called very often, mostly outside backward passes, and an unboxed hook costs less. Gradients are remembered
// only in sampled steps, since their values are read only there.
inline at::Tensor hooked_detach(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto below = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::detach", "")
                                .typed<at::Tensor(const at::Tensor&)>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (in_backward_pass() && foreshock_step_is_sampled() && reaches_kernel(rest) && has_data(self) &&
      in_accumulate_grad())
    engine_gradients().note(self);
  return below.redispatch(rest, self);
}

// Marks a tensor that was clipped by value, so that later norms of it are not reported.
inline void note_clipped(const at::Tensor& tensor) noexcept {
  if (has_data(tensor) && !tensor.requires_grad()) gradient_norms().note_clipped(tensor);
}

// Hooks the clamping operations of clip_grad_value_ and similar functions, except clamp_ with numbers.
class ClipHook final : public c10::OperatorKernel {
 public:
  explicit ClipHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())), self_(argument_index(schema, "self")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (reaches_kernel(below)) observe(peek(*stack, arguments_, self_));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void observe(const c10::IValue& self) {
    if (self.isTensor()) return note_clipped(self.toTensor());
    if (!self.isTensorList()) return;
    for (const at::Tensor& tensor : self.toTensorList()) note_clipped(tensor);
  }

  const int arguments_, self_;
};

// Hooks clamp_ with numbers. Not boxed, because models call it often and an unboxed hook costs less.
inline at::Tensor& hooked_clamp(c10::DispatchKeySet keys, at::Tensor& self,
                                const std::optional<at::Scalar>& min, const std::optional<at::Scalar>& max) {
  using Signature =
      at::Tensor&(at::Tensor&, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&);
  static const auto below =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::clamp_", "").typed<Signature>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (reaches_kernel(rest)) note_clipped(self);
  return below.redispatch(rest, self, min, max);
}

inline void hook_clipping(torch::Library& aten) {
  aten.impl("clamp_", torch::CppFunction(TORCH_FN(hooked_clamp)));
  hook_op<ClipHook>(aten, "clamp_", "Tensor");
  for (const char* name : {"clamp_min_", "clamp_max_"})
    for (const char* overload : {"", "Tensor"}) hook_op<ClipHook>(aten, name, overload);
  for (const char* name : {"_foreach_clamp_min_", "_foreach_clamp_max_"})
    for (const char* overload : {"Scalar", "ScalarList", "List"}) hook_op<ClipHook>(aten, name, overload);
}

// Reports the gradients of one step just before the optimizer uses them. Any thread; a call is dropped if
// another thread holds the object. The version of a tensor, which torch increments at every in-place write,
// shows whether anything but backward passes and the averaging over ranks has written the gradients.
class GradientReport {
 public:
  // Reports the norms if the training has computed all of them. If it has computed none, reports the values
  // of the gradients in a sampled step if is_untouched() and `inverse_scale` is 1.
  //
  // `parameters`: addresses of live TensorImpls. `inverse_scale`: the factor by which the optimizer itself
  // multiplies gradients. `averaging_writes`: how often per step the averaging over ranks writes into each
  // gradient. `may_be_written_untracked`: whether kernels that increment no version may have written the
  // gradients.
  void publish(const void* const* parameters, size_t count, double inverse_scale, uint32_t averaging_writes,
               bool may_be_written_untracked) {
    const TryGuard turn(busy_);
    if (!turn.is_mine || !collect(parameters, count) || gradients_.empty()) return;
    const auto found = gradient_norms().match(tensors_, inverse_scale, &squares_, &numbers_);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i].sum_of_squares = squares_[i];
      gradients_[i].norm_fetched = numbers_[i];
    }
    if (found == GradientNorms::Found::kAll) return send();
    const bool has_no_norm = found == GradientNorms::Found::kNone;
    if (gradient_norms().is_full() || (has_no_norm && engine_gradients().is_full()))
      return foreshock_gradients_too_many();
    const bool untouched = has_no_norm && !may_be_written_untracked && is_untouched(averaging_writes) &&
                           !gradient_norms().may_have_clipped_copies(tensors_, parameter_ranges());
    if (!untouched || inverse_scale != 1 || !foreshock_step_is_sampled()) return;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const auto& parameter = *static_cast<const c10::TensorImpl*>(gradients_[i].identity);
      if (!was_in_graph(parameter) || !describe_values(*tensors_[i], &gradients_[i])) return;
    }
    send();
  }

  // Replaces publish() in a step that is not sampled, if no norm was computed: publish() would then report
  // nothing. Assumes that the gradient with the lowest version in the last step has the lowest again, and
  // reads its present version. Returns false, and does nothing, if publish() must be called.
  bool skip_without_norms() noexcept {
    if (!gradient_norms().is_empty()) return false;
    const TryGuard turn(busy_);
    if (!turn.is_mine) return false;
    least_changed_ = previous_;
    least_changed_counter_ = previous_counter_;
    least_changed_version_ = previous_counter_.enabled() ? previous_counter_.current_version() : 0;
    return true;
  }

  // Time spent inside the core so far, in ns. Callers subtract it from their time: the core itself counts it.
  uint64_t core_ns() const noexcept { return core_ns_.load(std::memory_order_relaxed); }

  // Call it after the step. Remembers the version with which a gradient that is kept over steps (zeroed, not
  // dropped) enters the next step; is_untouched() then compares with it.
  void on_step_end() noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    previous_ = least_changed_;
    previous_version_ = least_changed_version_;
    previous_counter_ = least_changed_counter_;
    least_changed_ = nullptr;
  }

 private:
  void send() noexcept {
    const uint64_t begin = now_ns();
    foreshock_observe_gradients(gradients_.data(), gradients_.size());
    core_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  }

  // Fills gradients_ and tensors_ with the gradients that exist. False if one of them is not a plain strided
  // tensor, for example a distributed tensor: local values must not be reported as global ones.
  bool collect(const void* const* parameters, size_t count) {
    gradients_.clear();
    tensors_.clear();
    least_changed_ = nullptr;
    for (size_t i = 0; i < count; ++i) {
      auto* impl = static_cast<c10::TensorImpl*>(const_cast<void*>(parameters[i]));
      const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
      if (!meta || !meta->grad_.defined()) continue;
      const at::Tensor& gradient = meta->grad_;
      if (!has_data(gradient) || gradient.layout() != at::kStrided) return false;
      foreshock_gradient entry{};
      entry.size = sizeof(entry);
      entry.version = FORESHOCK_ABI_VERSION;
      entry.identity = impl;
      gradients_.push_back(entry);
      tensors_.push_back(gradient.unsafeGetTensorImpl());
      const uint32_t version = gradient.unsafeGetTensorImpl()->version_counter().current_version();
      if (!least_changed_ || version < least_changed_version_) {
        least_changed_ = tensors_.back();
        least_changed_version_ = version;
        least_changed_counter_ = least_changed_->version_counter();
      }
    }
    squares_.assign(tensors_.size(), 0);
    numbers_.assign(tensors_.size(), 0);
    return true;
  }

  // Whether only backward passes, and the averaging over ranks (w = `averaging_writes`), have written the
  // gradients since the last step. If so, n passes give a new gradient (created by the first of them) the
  // version n - 1 + w; the version of a gradient kept over the step grows by 1 (zeroing) + n + w. If the
  // gradient with the lowest version has neither of these versions, the training has clipped in a way that no
  // hook saw. A gradient with the version of a new one must also have been left by a backward pass, not
  // assigned by the training. The unscaling by a gradient scaler does not count, since torch increments no
  // version for it (gen_inplace_or_view_type.py). Writes through `.data` or NumPy increment no version, so
  // they stay undetected if no hook sees them.
  bool is_untouched(uint32_t averaging_writes) const noexcept {
    const uint32_t passes = training_clock().root_count();
    if (passes == 0) return false;
    if (passes > 1 && averaging_writes == 0 && are_new()) return true;  // each pass has created new gradients
    const uint32_t version_of_new = passes - 1 + averaging_writes;
    const uint32_t version_of_kept = previous_version_ + 1 + passes + averaging_writes;
    if (least_changed_version_ != version_of_new)
      return least_changed_ == previous_ && least_changed_version_ == version_of_kept;
    return std::ranges::all_of(tensors_, [&](const c10::TensorImpl* gradient) {
      const bool is_new = gradient->version_counter().current_version() == version_of_new;
      return !is_new || engine_gradients().has(*gradient);
    });
  }

  // Whether the last backward pass alone has left all gradients and nothing has written them since. After
  // several passes this is so if the optimizer calls a closure that first drops the gradients (LBFGS).
  bool are_new() const noexcept {
    return std::ranges::all_of(tensors_, [](const c10::TensorImpl* gradient) {
      return gradient->version_counter().current_version() == 0 && engine_gradients().has(*gradient);
    });
  }

  // The memory of the parameters in gradients_, sorted.
  std::vector<StorageRange> parameter_ranges() const {
    std::vector<StorageRange> ranges;
    for (const foreshock_gradient& row : gradients_) {
      const auto& parameter = *static_cast<const c10::TensorImpl*>(row.identity);
      if (parameter.has_storage()) ranges.push_back(storage_range_of(parameter));
    }
    std::ranges::sort(ranges);
    return ranges;
  }

  // Whether a backward pass can have ended at this parameter, because autograd has made a node for it. If
  // not, the parameter is a copy in higher precision of a model parameter (DeepSpeed, Megatron-LM, Apex). The
  // framework has then assigned its gradient and may have clipped it.
  static bool was_in_graph(const c10::TensorImpl& parameter) {
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(parameter.autograd_meta());
    const std::unique_lock<std::mutex> lock(meta->mutex_, std::try_to_lock);
    return lock.owns_lock() && was_set(meta->grad_accumulator_);
  }

  // Whether a weak pointer was ever set. It is std::weak_ptr, or c10's own type in later versions of torch.
  template <class T>
  static bool was_set(const std::weak_ptr<T>& pointer) {
    const std::weak_ptr<T> never;
    return pointer.owner_before(never) || never.owner_before(pointer);
  }
  template <class Pointer>
  static auto was_set(const Pointer& pointer) -> decltype(pointer.weak_use_count() != 0) {
    return pointer.weak_use_count() != 0;
  }

  // Fills in the view of a gradient's values. On a device, the core reads them on the current stream, after
  // the work that computes them. False if they cannot be described.
  static bool describe_values(const c10::TensorImpl& gradient, foreshock_gradient* entry) {
    const auto tensor =
        at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
            const_cast<c10::TensorImpl*>(&gradient)));
    const uint32_t dtype = dtype_of(tensor);  // NONE: the core cannot square the values (complex numbers)
    entry->stream = stream_of(tensor);
    if ((!tensor.is_cpu() && !entry->stream) || !tensor.is_non_overlapping_and_dense() ||
        dtype == FORESHOCK_DTYPE_NONE || !is_in_memory(tensor))
      return false;
    foreshock_tensor* values = &entry->values;
    *values = {};
    values->data = tensor.const_data_ptr();
    values->dims = 1;
    values->dtype = dtype;
    values->device_type = device_type_of(tensor);
    values->device_index = tensor.get_device();
    std::fill(values->shape, values->shape + FORESHOCK_TENSOR_DIMS, 1);
    values->shape[0] = tensor.numel();
    values->stride[0] = 1;
    return true;
  }

  // Entry i of each of these four vectors belongs to the same parameter.
  std::vector<foreshock_gradient> gradients_;    // sent to the core
  std::vector<const c10::TensorImpl*> tensors_;  // the gradients
  std::vector<double> squares_;    // squares of the norms; 0: the norm is on a device or unknown
  std::vector<uint64_t> numbers_;  // from foreshock_fetch(), for norms on a device; 0: not on a device
  std::atomic_flag busy_;
  std::atomic<uint64_t> core_ns_{0};
  // The gradient with the lowest version in this step, and that of the step before (previous_...). The
  // tensors may be destroyed: their addresses are only compared.
  const c10::TensorImpl* least_changed_ = nullptr;
  const c10::TensorImpl* previous_ = nullptr;
  uint32_t least_changed_version_ = 0, previous_version_ = 0;
  // The version counters of the two tensors. They stay readable after the tensors are destroyed.
  c10::VariableVersion least_changed_counter_{c10::VariableVersion::DISABLED};
  c10::VariableVersion previous_counter_{c10::VariableVersion::DISABLED};
};

inline GradientReport& gradient_report() {
  static Lasting<GradientReport> report;
  return report.get();
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_GRADIENTS_H_
