// The norms of gradients before clipping. Trainers that clip compute every gradient's norm themselves,
// through _foreach_norm or linalg_vector_norm; the results are a few scalars, noted here with the tensor they
// belong to. When the optimizer steps, those that belong to its parameters' gradients are published. Values
// after clipping never are.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_NORMS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_NORMS_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "training_clock.h"
#include "turn.h"

namespace foreshock::adapter {

// Tells whether a tensor is still the one that had this address. Every tensor has a version counter that
// others share only if they share its values; held on to, its address is given to nobody else. Not a weak
// reference to the tensor: with one, torch.utils.swap_tensors (Module.to, load_state_dict) refuses it.
class TensorMark {
 public:
  explicit TensorMark(const c10::TensorImpl& tensor) : counter_(tensor.version_counter()) {}

  bool is_of(const c10::TensorImpl& tensor) const noexcept {
    const c10::VariableVersion& its = tensor.version_counter();  // has no comparison of its own
    static_assert(sizeof counter_ == sizeof(void*));             // one pointer to what is counted
    return counter_.enabled() && !std::memcmp(&counter_, &its, sizeof counter_);
  }

 private:
  c10::VariableVersion counter_;
};

class GradientNorms {
 public:
  static constexpr size_t kRoom = 16384;

  // Notes one norm. Within one backward pass the first of a tensor counts: a later one may follow the
  // clipping.
  // `number`: of a norm on a device, what the core knows it by; 0: it does not.
  void Note(const at::Tensor& tensor, const std::optional<double>& value, uint64_t number = 0) noexcept try {
    const Turn turn(busy_);
    if (!Has(turn)) return;
    if (epoch_ != Clock().epoch()) Clear();
    if (norms_.capacity() == 0) norms_.reserve(kRoom);
    if (norms_.size() == kRoom) full_ = true;
    if (norms_.size() < kRoom) {
      const auto index = static_cast<uint32_t>(norms_.size());
      const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      norms_.push_back(
          {TensorMark(*impl), impl, index, value.has_value() || number != 0, value.value_or(0), number});
      sorted_ = false;
    }
  } catch (...) {
    full_ = true;  // no memory for them
  }

  // The scaler divides these gradients after their norms were taken. By what, on a device, is not asked.
  void Unscale(const c10::List<at::Tensor>& tensors, const std::optional<double>& inverse_scale) noexcept {
    const Turn turn(busy_);
    if (!Has(turn)) return;
    for (size_t i = 0; i < tensors.size(); ++i) {
      Norm* norm = Find(tensors.get(i).unsafeGetTensorImpl());
      if (!norm) continue;
      norm->known &= inverse_scale && norm->number == 0;
      norm->value *= inverse_scale.value_or(0);
    }
  }

  enum class Found { kNone, kSome, kAll };

  // Fills `squares[i]` for tensor i from the norms noted in this backward pass, times inverse_scale; or
  // numbers[i], where the core has the norm.
  Found Match(const std::vector<const c10::TensorImpl*>& tensors, double inverse_scale,
              std::vector<double>* squares, std::vector<uint64_t>* numbers) noexcept {
    const Turn turn(busy_);
    if (!Has(turn)) return Found::kSome;
    if (epoch_ != Clock().epoch()) Clear();
    size_t found = 0, unusable = full_ ? 1 : 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Norm* norm = Find(tensors[i]);
      if (!norm) continue;
      found += 1;
      unusable += !norm->known || (norm->number != 0 && inverse_scale != 1);
      (*numbers)[i] = norm->number;
      const double value = norm->value * inverse_scale;
      (*squares)[i] = value * value;
    }
    if (found == 0 && unusable == 0) return Found::kNone;
    return found == tensors.size() && unusable == 0 ? Found::kAll : Found::kSome;
  }

  void Forget() noexcept {
    const Turn turn(busy_);
    if (Has(turn)) Clear();
  }

 private:
  struct Norm {
    TensorMark mark;
    const c10::TensorImpl* tensor;
    uint32_t index;
    bool known;  // false: a norm was taken that we could not read
    double value;
    uint64_t number;
  };

  // The first norm of a tensor that is alive.
  Norm* Find(const c10::TensorImpl* tensor) noexcept {
    const auto before = [](const Norm& a, const Norm& b) {
      return a.tensor != b.tensor ? a.tensor < b.tensor : a.index < b.index;
    };
    if (!sorted_) std::sort(norms_.begin(), norms_.end(), before);
    sorted_ = true;
    auto at = std::lower_bound(norms_.begin(), norms_.end(), tensor,
                               [](const Norm& norm, const c10::TensorImpl* t) { return norm.tensor < t; });
    for (; at != norms_.end() && at->tensor == tensor; ++at)
      if (at->mark.is_of(*tensor)) return &*at;
    return nullptr;
  }

  void Clear() noexcept {
    norms_.clear();
    sorted_ = true;
    full_ = false;
    epoch_ = Clock().epoch();
  }

  // Whoever finds it taken drops its norms, and an incomplete list is not published.
  bool Has(const Turn& turn) noexcept {
    if (!turn.is_mine) full_ = true;
    return turn.is_mine;
  }

  std::vector<Norm> norms_;
  bool sorted_ = true;
  uint64_t epoch_ = 0;
  std::atomic<bool> full_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

inline GradientNorms& Norms() {
  static GradientNorms* norms = new GradientNorms;  // never destroyed: hooks outlive static destructors
  return *norms;
}

// Common to the two operations that take norms: only real tensors without a history, outside backward passes.
class NormHook final : public c10::OperatorKernel {
 public:
  explicit NormHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(ArgumentIndex(schema, "self")),
        order_(ArgumentIndex(schema, "ord")),
        dimension_(ArgumentIndex(schema, "dim")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (!GoesToDevice(below) || InBackward() || in_list || !Peek(*stack, arguments_, dimension_).isNone()) {
      return op.redispatchBoxed(below, stack);
    }
    const c10::IValue self = Peek(*stack, arguments_, self_);
    const c10::IValue& order = Peek(*stack, arguments_, order_);
    const bool euclidean =
        (order.isInt() && order.toInt() == 2) || (order.isDouble() && order.toDouble() == 2);
    {
      const InList inside(self.isTensorList());
      op.redispatchBoxed(below, stack);
    }
    Look(self, stack->back(), euclidean);
  }

 private:
  // Where a list has no kernel of its own, torch takes the norms one by one: they are noted with the list.
  static inline thread_local bool in_list = false;
  struct InList {
    explicit InList(bool is_list) { in_list = is_list; }
    ~InList() { in_list = false; }
  };

  static void Look(const c10::IValue& self, const c10::IValue& result, bool euclidean) {
    if (self.isTensor()) return LookAt(self.toTensor(), result.toTensor(), euclidean);
    if (!self.isTensorList() || !result.isTensorList()) return;
    const auto tensors = self.toTensorList(), norms = result.toTensorList();
    // All at once; one by one, as where they are clipped without foreach, a kernel for each would cost too
    // much.
    std::vector<uint64_t> numbers(norms.size());
    if (euclidean && norms.size() > 0 && norms.get(0).is_cuda())
      numbers = FetchNumbers(norms, FORESHOCK_FETCH_NORM);
    for (size_t i = 0; i < tensors.size() && i < norms.size(); ++i)
      LookAt(tensors[i], norms[i], euclidean, numbers[i]);
  }

  static void LookAt(const at::Tensor& tensor, const at::Tensor& norm, bool euclidean,
                     uint64_t number = 0) noexcept {
    if (!HasData(tensor) || tensor.requires_grad()) return;
    Norms().Note(tensor, euclidean ? ScalarOnCpu(norm) : std::nullopt, number);
  }

  const int arguments_, self_, order_, dimension_;
};

// _amp_foreach_non_finite_check_and_unscale_: gradients are divided by the scale in place.
class UnscaleHook final : public c10::OperatorKernel {
 public:
  explicit UnscaleHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        self_(ArgumentIndex(schema, "self")),
        found_(ArgumentIndex(schema, "found_inf")),
        inverse_(ArgumentIndex(schema, "inv_scale")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    if (GoesToDevice(below))
      Look(Peek(*stack, arguments_, self_), TensorOrUndefined(Peek(*stack, arguments_, found_)),
           TensorOrUndefined(Peek(*stack, arguments_, inverse_)));
    op.redispatchBoxed(below, stack);
  }

 private:
  static void Look(const c10::IValue& tensors, const at::Tensor& found, const at::Tensor& inverse) noexcept {
    Clock().SawScaler();
    if (IsNumberOnDevice(found)) Watching().Watch(found, WatchedNumbers::Kind::kFound, 0);
    if (IsNumberOnDevice(inverse)) Clock().SawScale(inverse);
    if (tensors.isTensorList()) Norms().Unscale(tensors.toTensorList(), ScalarOnCpu(inverse));
  }

  const int arguments_, self_, found_, inverse_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_NORMS_H_
