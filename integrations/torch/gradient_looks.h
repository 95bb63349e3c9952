// Looks at what backward passes add to the gradients of some parameters in one step, and at what the
// optimizer then uses. Reports a linear sketch of each to the core (libforeshock.so), for the agent to
// compare.
//
// A look begins with the end of a step, and ends when the next step of the optimizer begins. For this time,
// the AccumulateGrad node of each parameter has a hook, which sees each contribution before autograd adds it
// and before DistributedDataParallel sums it over the ranks. The nodes are kept alive, since autograd would
// otherwise destroy them, and the hooks, with each graph. Nothing else is changed: no attribute, no graph.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_LOOKS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_LOOKS_H_

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "weight_report.h"

extern "C" {

// A parameter of a look, as the Python helper passes it. Pointers are addresses of live TensorImpls or NULL.
// Of a distributed tensor, `parameter` and `gradient` are this rank's parts.
typedef struct foreshock_adapter_watched {
  uint64_t number;  // index in the array given to foreshock_name_weights
  uint64_t seed;    // the same on all ranks
  const void* parameter;
  const void* leaf;      // to which autograd adds the contributions; NULL: they cannot be seen
  const void* gradient;  // of a distributed tensor: its gradient at this time
  int64_t first, whole;  // a part with this first element of a tensor of `whole` elements; 0, 0: not a part
  uint64_t mesh;         // ranks with the same number, other than 0, hold copies of equal parts; 1: all ranks
} foreshock_adapter_watched;

}  // extern "C"

namespace foreshock::adapter {

// The parameters of the look in progress, if any. Any thread; if another thread holds the object, a call is
// dropped, and the look counts as incomplete.
class GradientLooks {
 public:
  static GradientLooks& instance() {
    static Lasting<GradientLooks> looks;
    return looks.get();
  }

  // Begins a look, after ending one that is in progress without a report. Parameters on devices, in fp64, and
  // those without a gradient are left out. Returns the number of those that are looked at.
  size_t begin(const foreshock_adapter_watched* watched, size_t count) {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return 0;
    drop();
    rows_.reserve(count);
    for (size_t n = 0; n < count; ++n) add(watched[n]);
    for (size_t n = 0; n < rows_.size(); ++n)
      if (rows_[n].node) rows_[n].node->add_pre_hook(std::make_unique<Contribution>(this, n));
    is_incomplete_.store(false, std::memory_order_relaxed);
    own_ns_ = 0;  // the caller counts the time of begin() and end()
    return rows_.size();
  }

  // Ends the look, and reports it to the core. Call it before the optimizer's work, with the distributed
  // tensors of begin() in the same order, and their gradients at this time. Returns the ns that the look took
  // in the backward passes.
  uint64_t end(const foreshock_adapter_watched* distributed, size_t count) {
    const TryGuard turn(busy_);
    if (!turn.is_mine || rows_.empty()) return 0;
    size_t n = 0;  // the rows are some of these tensors, in the same order
    for (Row& row : rows_) {
      if (!is_distributed(row)) continue;
      while (n < count && distributed[n].number != row.number) ++n;
      if (n < count && distributed[n].gradient != nullptr) row.gradient = tensor_at(distributed[n].gradient);
    }
    looks_.clear();
    for (Row& row : rows_) looks_.push_back(look_of(row));
    const uint64_t in_passes = std::exchange(own_ns_, 0);
    drop();
    foreshock_observe_gradient_looks(looks_.data(), looks_.size());
    return in_passes;
  }

  // Ends the look without a report.
  void cancel() noexcept {
    const TryGuard turn(busy_);
    if (turn.is_mine) drop();
  }

  // A gradient scaler has updated its scale. If backward passes have contributed to the look, the optimizer's
  // step was skipped, and the gradients will be cleared.
  void on_scaler_update() noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) return;
    if (std::ranges::any_of(rows_, [](const Row& row) { return row.contributions > 0; })) drop();
  }

 private:
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  // The argument of FunctionPreHook::compiled_args(), whose namespace differs between versions of torch.
  template <class Arguments>
  static Arguments& argument_of(void (torch::autograd::FunctionPreHook::*)(Arguments&));
  template <class Arguments>
  static Arguments& argument_of(void (torch::autograd::FunctionPreHook::*)(Arguments&) const);
  using CompiledArguments = decltype(argument_of(&torch::autograd::FunctionPreHook::compiled_args));

  struct Row {
    foreshock_adapter_watched watched = {};
    uint32_t number = 0;
    at::Tensor parameter, leaf;
    at::Tensor gradient;  // that is used; of distributed tensors only
    NodePointer node;
    uint32_t dtype = 0;  // the coarsest format of the contributions
    foreshock_sketch local = {}, last = {}, before = {};
    uint32_t contributions = 0;
    uint32_t version = 0;  // of the parameter at the first contribution
    bool is_whole = true;
  };

  // The hook of the AccumulateGrad node of row `n`. Returns its argument unchanged.
  struct Contribution final : torch::autograd::FunctionPreHook {
    Contribution(GradientLooks* looks, size_t n) : looks(looks), n(n) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      looks->observe(n, gradients);
      return gradients;
    }
    // Compiled autograd asks each hook for its part of the graph. This one has none, and will not be called.
    // One of the two overrides torch's function, which is const in some versions.
    void compiled_args(CompiledArguments) const { looks->is_incomplete_.store(true); }
    void compiled_args(CompiledArguments) { looks->is_incomplete_.store(true); }
    GradientLooks* const looks;
    const size_t n;
  };

  // Whether the core can read the tensor now.
  static bool is_readable(const at::Tensor& tensor) {
    return has_data(tensor) && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
           !tensor.is_neg() && is_in_memory(tensor);
  }

  // Adds the sketch of a tensor, or of this rank's part of it; an undefined tensor counts as 0. False: the
  // tensor cannot be read.
  static bool add_sketch(const at::Tensor& tensor, const Row& row, bool is_part, foreshock_sketch* sketch) {
    if (!tensor.defined()) return true;
    if (!is_readable(tensor)) return false;
    const foreshock_tensor view = view_of_weight(tensor.unsafeGetTensorImpl());
    const foreshock_adapter_watched& of = row.watched;
    return foreshock_add_sketch(&view, of.seed, is_part ? of.first : 0, is_part ? of.whole : 0, sketch) != 0;
  }

  // Of formats in which the gradients of one parameter are rounded, the one with the largest errors counts.
  static uint32_t coarser(uint32_t a, uint32_t b) {
    const auto bits = [](uint32_t dtype) {  // of precision
      return dtype == FORESHOCK_BF16 ? 8 : dtype == FORESHOCK_FP16 ? 11 : dtype == FORESHOCK_FP32 ? 24 : 53;
    };
    return bits(a) < bits(b) ? a : b;
  }

  static bool is_distributed(const Row& row) { return row.watched.leaf != row.watched.parameter; }

  static const at::Tensor& gradient_of(const Row& row) {
    if (is_distributed(row)) return row.gradient;
    static const at::Tensor* undefined = new at::Tensor();
    const auto* meta = torch::autograd::impl::get_autograd_meta(row.parameter);
    return meta ? meta->grad_ : *undefined;
  }

  void add(const foreshock_adapter_watched& watched) {
    Row row;
    row.watched = watched;
    row.number = static_cast<uint32_t>(watched.number);
    row.parameter = tensor_at(watched.parameter);
    // The core has no records of gradients in fp64.
    if (!is_readable(row.parameter) || dtype_of(row.parameter) == FORESHOCK_FP64) return;
    row.dtype = dtype_of(row.parameter);
    if (watched.gradient != nullptr) row.gradient = tensor_at(watched.gradient);
    if (!add_sketch(gradient_of(row), row, true, &row.before)) row.is_whole = false;
    row.gradient.reset();
    if (watched.leaf != nullptr) {
      row.leaf = tensor_at(watched.leaf);
      if (!row.leaf.requires_grad() || !row.leaf.is_leaf()) return;
      row.node = torch::autograd::impl::grad_accumulator(row.leaf);
      if (!row.node) return;
    }
    row.is_whole &= row.node != nullptr;
    rows_.push_back(std::move(row));
  }

  void observe(size_t n, const torch::autograd::variable_list& gradients) noexcept try {
    const TryGuard turn(busy_);
    if (!turn.is_mine || n >= rows_.size() || gradients.size() != 1) {
      is_incomplete_.store(true, std::memory_order_relaxed);
      return;
    }
    Row& row = rows_[n];
    if (!gradients[0].defined()) return;  // autograd adds nothing
    const uint64_t begin_ns = now_ns();
    row.last = {};
    if (!add_sketch(gradients[0], row, /*is_part=*/false, &row.last)) row.is_whole = false;
    row.dtype = coarser(row.dtype, dtype_of(gradients[0]));
    for (size_t k = 0; k < std::size(row.last.products); ++k) row.local.products[k] += row.last.products[k];
    row.local.norm += row.last.norm;
    // A parameter that changes between two passes belongs to a training that uses only one of them, as
    // sharpness-aware minimization does.
    const uint32_t version = row.parameter.unsafeGetTensorImpl()->version_counter().current_version();
    if (row.contributions++ == 0) row.version = version;
    row.is_whole &= version == row.version;
    own_ns_ += now_ns() - begin_ns;
  } catch (...) {
    is_incomplete_.store(true, std::memory_order_relaxed);
  }

  foreshock_gradient_look look_of(const Row& row) const {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    foreshock_gradient_look look = {};
    look.size = sizeof look;
    look.version = FORESHOCK_ABI_VERSION;
    look.number = row.number;
    look.parameters = static_cast<uint32_t>(rows_.size());
    look.contributions = row.contributions;
    look.local = row.local;
    look.last = row.last;
    look.before = row.before;
    look.mesh = static_cast<uint32_t>(row.watched.mesh);
    const at::Tensor& gradient = gradient_of(row);
    look.dtype = gradient.defined() ? coarser(row.dtype, dtype_of(gradient)) : row.dtype;
    if (!gradient.defined() || !add_sketch(gradient, row, true, &look.used)) look.used.norm = kUnknown;
    if (!add_sketch(row.parameter, row, true, &look.value)) look.value.norm = kUnknown;
    // A parameter that got another node has contributions that no hook saw.
    const bool has_same_node =
        row.node && torch::autograd::impl::try_get_grad_accumulator(row.leaf) == row.node;
    look.is_whole = row.is_whole && has_same_node && !is_incomplete_.load(std::memory_order_relaxed);
    return look;
  }

  // Removes the hooks. No backward pass runs in this thread.
  void drop() noexcept {
    for (Row& row : rows_)
      if (row.node)
        std::erase_if(row.node->pre_hooks(), [this](const auto& hook) {
          const auto* ours = dynamic_cast<const Contribution*>(hook.get());
          return ours != nullptr && ours->looks == this;
        });
    rows_.clear();
  }

  std::vector<Row> rows_;
  std::vector<foreshock_gradient_look> looks_;
  uint64_t own_ns_ = 0;  // time of the look in backward passes
  std::atomic<bool> is_incomplete_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_GRADIENT_LOOKS_H_
