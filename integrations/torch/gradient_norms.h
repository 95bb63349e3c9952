// The norms of gradients before clipping. Trainers that clip compute every gradient's norm themselves,
// through _foreach_norm or linalg_vector_norm; the results are a few scalars, noted here with the tensor they
// belong to. When the optimizer steps, those that belong to its parameters' gradients are published. Values
// after clipping never are: what was clipped by value is noted, too, as a tensor whose norm is not known.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_NORMS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_NORMS_H_

#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>
#include <vector>

#include "dispatch.h"
#include "memory_mark.h"
#include "training_clock.h"
#include "turn.h"

namespace foreshock::adapter {

class GradientNorms {
 public:
  // Notes one norm. Within one backward pass the first of a tensor counts: a later one may follow the
  // clipping.
  // `number`: of a norm on a device, what the core knows it by; 0: it does not.
  void Note(const at::Tensor& tensor, const std::optional<double>& value, uint64_t number = 0) noexcept {
    const bool is_known = value.has_value() || number != 0;
    Add(tensor, {.is_known = is_known, .value = value.value_or(0), .number = number});
  }

  // Norms of this one that are taken from now on do not count.
  void NoteClipped(const at::Tensor& tensor) noexcept { Add(tensor, {.is_norm = false}); }

  // The scaler divides these gradients after their norms were taken. By what, on a device, is not asked.
  void Unscale(const c10::List<at::Tensor>& tensors, const std::optional<double>& inverse_scale) noexcept {
    const Turn turn(busy_);
    if (!Has(turn)) return;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors.get(i);
      Row* row = HasData(tensor) ? Find(*tensor.unsafeGetTensorImpl()) : nullptr;
      if (!row) continue;
      row->seen.is_known &= inverse_scale && row->seen.number == 0;
      row->seen.value *= inverse_scale.value_or(0);
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
      const Row* row = Find(*tensors[i]);
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
  bool MayBeOfCopies(const std::vector<const c10::TensorImpl*>& gradients,
                     const std::vector<MemoryPlace>& parameters) {
    const Turn turn(busy_);
    if (!Has(turn)) return true;
    if (epoch_ != Clock().epoch() || rows_.empty()) return false;
    std::vector<int64_t> sizes(1);
    for (const c10::TensorImpl* gradient : gradients) sizes.push_back(gradient->numel());
    sizes[0] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    std::ranges::sort(sizes);
    return std::ranges::any_of(rows_, [&](const Row& row) {
      const MemoryPlace& place = row.mark.place();
      return row.seen.is_norm && std::ranges::binary_search(sizes, place.elements) &&
             !std::ranges::binary_search(parameters, place);
    });
  }

  // There was no room for all of them.
  bool IsFull() const noexcept { return has_no_room_.load(std::memory_order_relaxed); }

  void Forget() noexcept {
    const Turn turn(busy_);
    if (Has(turn)) Clear();
  }

 private:
  struct Seen {
    bool is_norm = true;    // false: the tensor was clipped
    bool is_known = false;  // false: a norm was taken that we could not read
    double value = 0;
    uint64_t number = 0;
  };
  struct Row {
    MemoryMark mark;
    uint32_t index;
    Seen seen;
  };

  void Add(const at::Tensor& tensor, const Seen& seen) noexcept try {
    const Turn turn(busy_);
    if (!Has(turn)) return;
    if (epoch_ != Clock().epoch()) Clear();
    if (rows_.capacity() == 0) rows_.reserve(kMostMarks);
    if (rows_.size() == kMostMarks) full_ = has_no_room_ = true;
    if (rows_.size() < kMostMarks) {
      const auto index = static_cast<uint32_t>(rows_.size());
      rows_.push_back({MemoryMark(*tensor.unsafeGetTensorImpl()), index, seen});
      sorted_ = false;
    }
  } catch (...) {
    full_ = true;  // no memory for them
  }

  // What was seen first of this tensor.
  Row* Find(const c10::TensorImpl& tensor) noexcept {
    const auto before = [](const Row& a, const Row& b) {
      return std::tie(a.mark.place(), a.index) < std::tie(b.mark.place(), b.index);
    };
    if (!sorted_) std::ranges::sort(rows_, before);
    sorted_ = true;
    const MemoryPlace place = PlaceOf(tensor);
    const auto at =
        std::ranges::lower_bound(rows_, place, {}, [](const Row& row) { return row.mark.place(); });
    return at != rows_.end() && at->mark.place() == place ? &*at : nullptr;
  }

  void Clear() noexcept {
    rows_.clear();
    sorted_ = true;
    full_ = has_no_room_ = false;
    epoch_ = Clock().epoch();
  }

  // Whoever finds it taken drops its norms, and an incomplete list is not published.
  bool Has(const Turn& turn) noexcept {
    if (!turn.is_mine) full_ = true;
    return turn.is_mine;
  }

  std::vector<Row> rows_;
  bool sorted_ = true;
  uint64_t epoch_ = 0;
  std::atomic<bool> full_{false}, has_no_room_{false};
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
