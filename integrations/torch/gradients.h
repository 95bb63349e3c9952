// The norms of gradients before clipping. Trainers that clip compute every gradient's norm themselves,
// through _foreach_norm or linalg_vector_norm; the results are a few scalars, noted here with the tensor they
// belong to. When the optimizer steps, those that belong to its parameters' gradients are published. Values
// after clipping never are: what was clipped by value is noted, too, as a tensor whose norm is not known.
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

class GradientNorms {
 public:
  // Notes one norm. Within one backward pass the first of a tensor counts: a later one may follow the
  // clipping.
  // `number`: of a norm on a device, what the core knows it by; 0: it does not.
  void note(const at::Tensor& tensor, const std::optional<double>& value, uint64_t number = 0) noexcept {
    const bool is_known = value.has_value() || number != 0;
    add(tensor, {.is_known = is_known, .value = value.value_or(0), .number = number});
  }

  // Norms of this one that are taken from now on do not count.
  void note_clipped(const at::Tensor& tensor) noexcept { add(tensor, {.is_norm = false}); }

  // The scaler divides these gradients after their norms were taken. By what, on a device, is not asked.
  void unscale(const c10::List<at::Tensor>& tensors, const std::optional<double>& inverse_scale) noexcept {
    const TryGuard turn(busy_);
    if (!has(turn)) return;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors.get(i);
      Row* row = has_data(tensor) ? find(*tensor.unsafeGetTensorImpl()) : nullptr;
      if (!row) continue;
      row->seen.is_known &= inverse_scale && row->seen.number == 0;
      row->seen.value *= inverse_scale.value_or(0);
    }
  }

  enum class Found { kNone, kSome, kAll };

  // Fills `squares[i]` for tensor i from the norms noted in this backward pass, times inverse_scale; or
  // numbers[i], where the core has the norm.
  Found match(const std::vector<const c10::TensorImpl*>& tensors, double inverse_scale,
              std::vector<double>* squares, std::vector<uint64_t>* numbers) noexcept {
    const TryGuard turn(busy_);
    if (!has(turn)) return Found::kSome;
    if (epoch_ != training_clock().epoch()) clear();
    size_t found = 0, unusable = full_ ? 1 : 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Row* row = find(*tensors[i]);
      if (!row) continue;
      found += 1;
      unusable += !row->seen.is_known || (row->seen.number != 0 && inverse_scale != 1);
      (*numbers)[i] = row->seen.number;
      const double value = row->seen.value * inverse_scale;
      (*squares)[i] = value * value;
    }
    if (found == 0 && unusable == 0) return Found::kNone;
    return found == tensors.size() && unusable == 0 ? Found::kAll : Found::kSome;
  }

  // Whether, in this backward pass, norms were taken of tensors as large as one of the gradients or as all of
  // them together, which are neither they nor the parameters (sorted). They may be copies, made by who clips.
  bool may_be_of_copies(const std::vector<const c10::TensorImpl*>& gradients,
                        const std::vector<StorageRange>& parameters) {
    const TryGuard turn(busy_);
    if (!has(turn)) return true;
    if (epoch_ != training_clock().epoch() || rows_.empty()) return false;
    std::vector<int64_t> sizes(1);
    for (const c10::TensorImpl* gradient : gradients) sizes.push_back(gradient->numel());
    sizes[0] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    std::ranges::sort(sizes);
    return std::ranges::any_of(rows_, [&](const Row& row) {
      const StorageRange& place = row.mark.place();
      return row.seen.is_norm && std::ranges::binary_search(sizes, place.elements) &&
             !std::ranges::binary_search(parameters, place);
    });
  }

  // There was no room for all of them.
  bool is_full() const noexcept { return has_no_room_.load(std::memory_order_relaxed); }

  // Whether nothing was noted since the last backward pass began.
  bool is_empty() noexcept {
    const TryGuard turn(busy_);
    return has(turn) && !is_full() && !full_ && (rows_.empty() || epoch_ != training_clock().epoch());
  }

  void forget() noexcept {
    const TryGuard turn(busy_);
    if (has(turn)) clear();
  }

 private:
  struct Seen {
    bool is_norm = true;    // false: the tensor was clipped
    bool is_known = false;  // false: a norm was taken that we could not read
    double value = 0;
    uint64_t number = 0;
  };
  struct Row {
    StorageMark mark;
    uint32_t index;
    Seen seen;
  };

  void add(const at::Tensor& tensor, const Seen& seen) noexcept try {
    const TryGuard turn(busy_);
    if (!has(turn)) return;
    if (epoch_ != training_clock().epoch()) clear();
    if (rows_.capacity() == 0) rows_.reserve(kMostMarks);
    if (rows_.size() == kMostMarks) full_ = has_no_room_ = true;
    if (rows_.size() < kMostMarks) {
      const auto index = static_cast<uint32_t>(rows_.size());
      rows_.push_back({StorageMark(*tensor.unsafeGetTensorImpl()), index, seen});
      sorted_ = false;
    }
  } catch (...) {
    full_ = true;  // no memory for them
  }

  // What was seen first of this tensor.
  Row* find(const c10::TensorImpl& tensor) noexcept {
    const auto before = [](const Row& a, const Row& b) {
      return std::tie(a.mark.place(), a.index) < std::tie(b.mark.place(), b.index);
    };
    if (!sorted_) std::ranges::sort(rows_, before);
    sorted_ = true;
    const StorageRange place = storage_range_of(tensor);
    const auto at =
        std::ranges::lower_bound(rows_, place, {}, [](const Row& row) { return row.mark.place(); });
    return at != rows_.end() && at->mark.place() == place ? &*at : nullptr;
  }

  void clear() noexcept {
    rows_.clear();
    sorted_ = true;
    full_ = has_no_room_ = false;
    epoch_ = training_clock().epoch();
  }

  // Whoever finds it taken drops its norms, and an incomplete list is not published.
  bool has(const TryGuard& turn) noexcept {
    if (!turn.is_mine) full_ = true;
    return turn.is_mine;
  }

  std::vector<Row> rows_;
  bool sorted_ = true;
  uint64_t epoch_ = 0;
  std::atomic<bool> full_{false}, has_no_room_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline GradientNorms& gradient_norms() {
  static GradientNorms* norms = new GradientNorms;  // never destroyed: hooks outlive static destructors
  return *norms;
}

// Common to the two operations that take norms: only real tensors without a history, outside backward passes.
class NormHook final : public c10::OperatorKernel {
 public:
  explicit NormHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(argument_index(schema, "self")),
        order_(argument_index(schema, "ord")),
        dimension_(argument_index(schema, "dim")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (!goes_to_device(below) || in_backward_pass() || in_list ||
        !peek(*stack, arguments_, dimension_).isNone()) {
      return op.redispatchBoxed(below, stack);
    }
    const c10::IValue self = peek(*stack, arguments_, self_);
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
  // Where a list has no kernel of its own, torch takes the norms one by one: they are noted with the list.
  static inline thread_local bool in_list = false;
  struct ListScope {
    explicit ListScope(bool is_list) { in_list = is_list; }
    ~ListScope() { in_list = false; }
  };

  static void observe(const c10::IValue& self, const c10::IValue& result, bool euclidean) {
    if (self.isTensor()) return observe_norm(self.toTensor(), result.toTensor(), euclidean);
    if (!self.isTensorList() || !result.isTensorList()) return;
    const auto tensors = self.toTensorList(), norms = result.toTensorList();
    // All at once; one by one, as where they are clipped without foreach, a kernel for each would cost too
    // much.
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

  const int arguments_, self_, order_, dimension_;
};

// _amp_foreach_non_finite_check_and_unscale_: gradients are divided by the scale in place.
class UnscaleHook final : public c10::OperatorKernel {
 public:
  explicit UnscaleHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(argument_index(schema, "self")),
        found_(argument_index(schema, "found_inf")),
        inverse_(argument_index(schema, "inv_scale")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (goes_to_device(below))
      observe(peek(*stack, arguments_, self_), tensor_or_undefined(peek(*stack, arguments_, found_)),
              tensor_or_undefined(peek(*stack, arguments_, inverse_)));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void observe(const c10::IValue& tensors, const at::Tensor& found,
                      const at::Tensor& inverse) noexcept {
    training_clock().on_scaler();
    if (is_number_on_device(found)) watched_numbers().watch(found, WatchedNumbers::Kind::kFound, 0);
    if (is_number_on_device(inverse)) training_clock().on_unscale(inverse);
    if (tensors.isTensorList()) gradient_norms().unscale(tensors.toTensorList(), scalar_on_cpu(inverse));
  }

  const int arguments_, self_, found_, inverse_;
};

// The gradients that backward passes have left in the parameters since the last step. One that somebody made
// and put there (`p.grad = f(p.grad)`) is as new as one of theirs: no version tells them apart.

// Any thread; who finds it busy goes without, and that gradient is nobody's.
class EngineGradients {
 public:
  void note(const at::Tensor& gradient) noexcept try {
    const TryGuard turn(busy_);
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

  bool has(const c10::TensorImpl& gradient) noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return false;
    if (!sorted_) std::ranges::sort(marks_, {}, &StorageMark::place);
    sorted_ = true;
    return std::ranges::binary_search(marks_, storage_range_of(gradient), {}, &StorageMark::place);
  }

  // There was no room for all of them.
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
  static EngineGradients* gradients =
      new EngineGradients;  // never destroyed: hooks outlive static destructors
  return *gradients;
}

// The node that ends a backward pass at a parameter.
inline bool in_accumulate_grad() {
  const auto node = torch::autograd::get_current_node();  // the pointer's kind differs between versions
  return node && std::strstr(typeid(*node).name(), "AccumulateGrad") != nullptr;
}

// detach: with it a parameter's first gradient of a step is put into place. (One that others hold is copied
// instead, and the copying moves its version.) Not boxed: it is called all the time, nearly always outside
// backward passes. Only sampled steps ask for values.
inline at::Tensor hooked_detach(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto below = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::detach", "")
                                .typed<at::Tensor(const at::Tensor&)>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (in_backward_pass() && foreshock_step_is_sampled() && goes_to_device(rest) && has_data(self) &&
      in_accumulate_grad())
    engine_gradients().note(self);
  return below.redispatch(rest, self);
}

// Clipping by value: the norms of what was clipped are not told, whoever takes them later and in whatever way
// the values were written.

inline void note_clipped(const at::Tensor& tensor) noexcept {
  if (has_data(tensor) && !tensor.requires_grad()) gradient_norms().note_clipped(tensor);
}

// The operations that clip_grad_value_ and its like call for a list of gradients, or hardly anybody.
class ClipHook final : public c10::OperatorKernel {
 public:
  explicit ClipHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())), self_(argument_index(schema, "self")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (goes_to_device(below)) observe(peek(*stack, arguments_, self_));
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

// clamp_. Not boxed: models call it, too.
inline at::Tensor& hooked_clamp(c10::DispatchKeySet keys, at::Tensor& self,
                                const std::optional<at::Scalar>& least,
                                const std::optional<at::Scalar>& most) {
  using Signature =
      at::Tensor&(at::Tensor&, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&);
  static const auto below =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::clamp_", "").typed<Signature>();
  const c10::DispatchKeySet rest = keys & kBelow;
  if (goes_to_device(rest)) note_clipped(self);
  return below.redispatch(rest, self, least, most);
}

inline void hook_clipping(torch::Library& aten) {
  aten.impl("clamp_", torch::CppFunction(TORCH_FN(hooked_clamp)));
  hook_op<ClipHook>(aten, "clamp_", "Tensor");
  for (const char* name : {"clamp_min_", "clamp_max_"})
    for (const char* overload : {"", "Tensor"}) hook_op<ClipHook>(aten, name, overload);
  for (const char* name : {"_foreach_clamp_min_", "_foreach_clamp_max_"})
    for (const char* overload : {"Scalar", "ScalarList", "List"}) hook_op<ClipHook>(aten, name, overload);
}

// The gradients of one step, just before the optimizer uses them, from the parameters it was given.

// Any thread; who finds it busy goes without. (The helper holds the interpreter lock, where there is one.)
class GradientReport {
 public:
  // `parameters`: TensorImpl addresses, alive. `inverse_scale`: what the optimizer itself multiplies
  // gradients by. `copies`: in-place writes per step of those who average them over ranks.
  // `may_be_written_untold`: by kernels that move no version, so that nothing tells whether somebody clipped.
  void publish(const void* const* parameters, size_t count, double inverse_scale, uint32_t copies,
               bool may_be_written_untold) {
    const TryGuard turn(busy_);
    if (!turn.is_mine || !collect(parameters, count) || gradients_.empty()) return;
    const auto found = gradient_norms().match(tensors_, inverse_scale, &squares_, &numbers_);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i].sum_of_squares = squares_[i];
      gradients_[i].norm_fetched = numbers_[i];
    }
    if (found == GradientNorms::Found::kAll) return send();
    const bool none = found == GradientNorms::Found::kNone;
    if (gradient_norms().is_full() || (none && engine_gradients().is_full()))
      return foreshock_gradients_too_many();
    const bool untouched = none && !may_be_written_untold && is_untouched(copies) &&
                           !gradient_norms().may_be_of_copies(tensors_, parameter_ranges());
    if (!untouched || inverse_scale != 1 || !foreshock_step_is_sampled()) return;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const bool is_of_pass = was_in_graph(*static_cast<const c10::TensorImpl*>(gradients_[i].identity));
      if (!is_of_pass || !describe_values(*tensors_[i], &gradients_[i])) return;
    }
    send();
  }

  // Whether publish() would report nothing of a step that is not sampled, because no norm was taken. Then it
  // need not be called: a gradient that is kept is followed here.
  bool passes_over() noexcept {
    if (!gradient_norms().is_empty()) return false;
    const TryGuard turn(busy_);
    if (!turn.is_mine) return false;
    sentinel_ = kept_;
    sentinel_counter_ = kept_counter_;
    sentinel_version_ = kept_counter_.enabled() ? kept_counter_.current_version() : 0;
    return true;
  }

  // Time spent inside the core so far, which it accounts for itself.
  uint64_t core_ns() const noexcept { return core_ns_.load(std::memory_order_relaxed); }

  // After the step: what a gradient that is kept over the step (zeroed, not dropped) starts from.
  void on_step_end() noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    kept_ = sentinel_;
    kept_version_ = sentinel_version_;
    kept_counter_ = sentinel_counter_;
    sentinel_ = nullptr;
  }

 private:
  void send() noexcept {
    const uint64_t begin = now_ns();
    foreshock_observe_gradients(gradients_.data(), gradients_.size());
    core_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  }

  // False if any gradient is a part of a larger one, or is not dense: local values never pose as global ones.
  bool collect(const void* const* parameters, size_t count) {
    gradients_.clear();
    tensors_.clear();
    sentinel_ = nullptr;
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
      if (!sentinel_ || version < sentinel_version_) {
        sentinel_ = tensors_.back();
        sentinel_version_ = version;
        sentinel_counter_ = sentinel_->version_counter();
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
  bool is_untouched(uint32_t copies) const noexcept {
    const uint32_t passes = training_clock().roots();
    if (passes == 0) return false;
    if (passes > 1 && copies == 0 && are_new()) return true;
    const uint32_t fresh = passes - 1 + copies;
    if (sentinel_version_ != fresh)
      return sentinel_ == kept_ && sentinel_version_ == kept_version_ + 1 + passes + copies;
    return std::ranges::all_of(tensors_, [&](const c10::TensorImpl* gradient) {
      return gradient->version_counter().current_version() != fresh || engine_gradients().has(*gradient);
    });
  }

  // Whether all gradients are as one backward pass has left them: an optimizer that calls its closure several
  // times drops the gradients before each evaluation.
  bool are_new() const noexcept {
    return std::ranges::all_of(tensors_, [](const c10::TensorImpl* gradient) {
      return gradient->version_counter().current_version() == 0 && engine_gradients().has(*gradient);
    });
  }

  // Sorted.
  std::vector<StorageRange> parameter_ranges() const {
    std::vector<StorageRange> places;
    for (const foreshock_gradient& row : gradients_) {
      const auto& parameter = *static_cast<const c10::TensorImpl*>(row.identity);
      if (parameter.has_storage()) places.push_back(storage_range_of(parameter));
    }
    std::ranges::sort(places);
    return places;
  }

  // Whether any backward pass can have ended at this parameter. Else it is a copy in higher precision of what
  // the model computes with (DeepSpeed, Megatron-LM, Apex), and somebody has put its gradient there, clipped
  // or not.
  static bool was_in_graph(const c10::TensorImpl& parameter) {
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(parameter.autograd_meta());
    const std::unique_lock<std::mutex> lock(meta->mutex_, std::try_to_lock);
    return lock.owns_lock() && was_set(meta->grad_accumulator_);
  }

  // A weak pointer that has pointed at something: the standard one, or c10's own in later versions of torch.
  template <class T>
  static bool was_set(const std::weak_ptr<T>& pointer) {
    const std::weak_ptr<T> never;
    return pointer.owner_before(never) || never.owner_before(pointer);
  }
  template <class Pointer>
  static auto was_set(const Pointer& pointer) -> decltype(pointer.weak_use_count() != 0) {
    return pointer.weak_use_count() != 0;
  }

  // On a device too: the core has them read behind what has written them, on the stream that is current here.
  static bool describe_values(const c10::TensorImpl& gradient, foreshock_gradient* entry) {
    const auto tensor =
        at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
            const_cast<c10::TensorImpl*>(&gradient)));
    const uint32_t dtype = dtype_of(tensor);  // what the core cannot square (complex numbers) is not nothing
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

  std::vector<foreshock_gradient> gradients_;
  std::vector<const c10::TensorImpl*> tensors_;  // gradients of gradients_[i]
  std::vector<double> squares_;
  std::vector<uint64_t> numbers_;  // of norms on a device
  std::atomic_flag busy_;
  std::atomic<uint64_t> core_ns_{0};
  const c10::TensorImpl* sentinel_ = nullptr;
  const c10::TensorImpl* kept_ = nullptr;
  uint32_t sentinel_version_ = 0, kept_version_ = 0;
  // Shared with their tensors, which they outlive: the addresses above are only compared.
  c10::VariableVersion sentinel_counter_{c10::VariableVersion::DISABLED};
  c10::VariableVersion kept_counter_{c10::VariableVersion::DISABLED};
};

inline GradientReport& gradient_report() {
  static GradientReport* report = new GradientReport;
  return *report;
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_GRADIENTS_H_
