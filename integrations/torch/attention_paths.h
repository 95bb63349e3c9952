// Hooks attention that bypasses torch's fused operations: the math path.
//
// scaled_dot_product_attention takes the math path if no fused kernel supports the call (dropout on a CPU,
// masks that need gradients, values of another head size, fp64 on a GPU). The path consists of ordinary
// operations and _safe_softmax, which only this path calls, once per forward pass. So a hook of _safe_softmax
// counts forward passes without cost for other operations. Backward passes are counted in sampled steps.
// Graphs of torch.compile are counted with the backend aot_eager only, and not sampled.
//
// A sample needs query, key, value and output together, which only torch's RecordFunction sees. Its callbacks
// cost every operation 0.25 to 0.4 us, so they are active only during sampled steps, and only in a training
// that takes the path. The backward pass is not one operation either: hooks of the autograd nodes that
// compute the gradients of query, key and value collect them.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_

#include <ATen/record_function.h>
#include <foreshock/hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention.h"

namespace foreshock::adapter {

inline constexpr const char* kMathPath = "_scaled_dot_product_attention_math";

// The backward pass of one call of the math path. Hooks of autograd nodes share it. It takes the gradients of
// output, query, key and value, and reports them together if the core samples this backward pass.
//
// Nodes hold their hooks, and the hooks hold the tensors of the call. So no tensor here may lead to the nodes
// of the call itself, or none of them would ever be freed: of output and weights, only the data is kept. The
// tensors are let go at the report. Only the first backward pass over a graph is reported. torch may run the
// nodes on several threads; if two of them get here at once, the pass is not reported.
class MathPathBackward {
 public:
  // Follows the call with these inputs, whose output must have its history. Does nothing if no gradient is
  // needed, if two of query, key and value are one tensor (whose gradient is a sum), or if the nodes are not
  // found. `number`: of the backward pass, from foreshock_register_op.
  static void follow(const AttentionInputs& inputs, int32_t number) noexcept try {
    if (!c10::GradMode::is_enabled() || !inputs.out.requires_grad() || !inputs.query.requires_grad()) return;
    std::array<Place, kParts> places = {};
    if (!find(inputs, &places)) return;
    const auto call = std::make_shared<MathPathBackward>(inputs, number);
    for (uint32_t part = 0; part < kParts; ++part) {
      if (!places[part].node) continue;
      call->missing_ |= 1u << part;
      places[part].node->add_post_hook(
          std::make_unique<Hook>(call, static_cast<Part>(part), places[part].index));
    }
  } catch (...) {  // out of memory, or a tensor without versions: the backward pass is not followed
  }

  MathPathBackward(const AttentionInputs& inputs, int32_t number) : number_(number), inputs_(inputs) {
    const at::Tensor* tensors[kParts] = {&inputs.out, &inputs.query, &inputs.key, &inputs.value};
    for (uint32_t part = 0; part < kParts; ++part) {
      versions_[part] = tensors[part]->unsafeGetTensorImpl()->version_counter();
      version_[part] = versions_[part].current_version();
    }
    inputs_.out = inputs.out.variable_data();
    if (inputs.weights.defined()) inputs_.weights = inputs_.kept = inputs.weights.variable_data();
  }

 private:
  using Node = torch::autograd::Node;
  using Edge = torch::autograd::Edge;
  using Gradients = torch::autograd::variable_list;
  enum Part : uint32_t { kOut, kQuery, kKey, kValue, kParts };

  // The place of a gradient: the number of an argument that `node` gets (of the output), or of a result that
  // it gives (of the others). Null: there is no gradient.
  struct Place {
    Node* node = nullptr;
    uint32_t index = 0;
  };

  // Shows a gradient to the call, and changes nothing.
  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(std::shared_ptr<MathPathBackward> call, Part part, uint32_t index)
        : call_(std::move(call)), part_(part), index_(index) {}
    Gradients operator()(const Gradients& results, const Gradients& given) override {
      const Gradients& gradients = part_ == kOut ? given : results;
      call_->take(part_, index_ < gradients.size() ? gradients[index_] : at::Tensor());
      return results;
    }
    // Compiled autograd leaves the hook out of its graph. Releases of torch differ in the `const`: one of the
    // two overrides.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {}

   private:
    const std::shared_ptr<MathPathBackward> call_;
    const Part part_;
    const uint32_t index_;
  };

  // Finds the nodes that pass gradients on to query, key and value, among those between output and inputs.
  static bool find(const AttentionInputs& inputs, std::array<Place, kParts>* places) {
    const Edge ends[] = {edge_of(inputs.query), edge_of(inputs.key), edge_of(inputs.value)};
    const Edge mask = edge_of(inputs.mask);
    for (size_t a = 0; a < std::size(ends); ++a)
      for (size_t b = 0; b < a; ++b)
        if (ends[a].is_valid() && ends[a] == ends[b]) return false;
    const auto last = inputs.out.grad_fn();
    (*places)[kOut] = {last.get(), static_cast<uint32_t>(inputs.out.output_nr())};
    HistoryWalk walk(last.get());
    while (const Node* node = walk.next()) {
      for (uint32_t n = 0; n < node->num_outputs(); ++n) {
        const Edge& edge = node->next_edge(n);
        if (!edge.is_valid() || edge == mask) continue;
        const auto* end = std::find(std::begin(ends), std::end(ends), edge);
        if (end == std::end(ends)) {
          walk.add(edge.function.get());
          continue;
        }
        Place& place = (*places)[kQuery + static_cast<size_t>(end - ends)];
        if (place.node) return false;  // the gradient is a sum
        place = {const_cast<Node*>(node), n};
      }
    }
    for (size_t n = 0; n < std::size(ends); ++n)
      if (ends[n].is_valid() && !(*places)[kQuery + n].node) return false;
    return true;
  }

  static Edge edge_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : Edge();
  }

  void take(Part part, const at::Tensor& gradient) noexcept {
    const TryGuard turn(busy_);
    if (!turn.is_mine) is_lost_.store(true, std::memory_order_relaxed);
    if (!turn.is_mine || missing_ == 0) return;
    if (!gradient.defined()) is_lost_.store(true, std::memory_order_relaxed);
    gradients_[part] = gradient;
    missing_ &= ~(1u << part);
    if (missing_ != 0) return;
    if (!is_lost_.load(std::memory_order_relaxed)) report();
    gradients_ = {};
    inputs_ = {};
  }

  // Whether the training has written into a tensor of the call since the forward pass.
  bool is_changed() const {
    for (uint32_t part = 0; part < kParts; ++part)
      if (versions_[part].current_version() != version_[part]) return true;
    return false;
  }

  void report() noexcept {
    if (!enter_attention(number_, /*backward=*/true, inputs_.query)) return;
    end_attention(number_, /*backward=*/true, kHeadsFirstTopLeft, &inputs_, [this] {
      inputs_.grad_out = gradients_[kOut];
      inputs_.grad_query = gradients_[kQuery];
      inputs_.grad_key = gradients_[kKey];
      inputs_.grad_value = gradients_[kValue];
      return !is_changed();
    });
  }

  const int32_t number_;
  AttentionInputs inputs_;
  std::array<c10::VariableVersion, kParts> versions_;  // shared with the tensors
  std::array<uint32_t, kParts> version_ = {};          // in the forward pass
  std::array<at::Tensor, kParts> gradients_;
  uint32_t missing_ = 0;  // bits of parts
  std::atomic<bool> is_lost_{false};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// Samples the math path with RecordFunction's callbacks, which it enables during sampled steps.
class MathPathSampler {
 public:
  // Call it once, at set-up. Adds the callbacks, unless the option --math-path is off. They are never
  // removed, only disabled, since removal is unsafe while other threads run. The numbers of the two passes
  // are from foreshock_register_op. In calls of the math path, heads come first and causal masks are aligned
  // at the top left.
  static void prepare(int32_t forward, int32_t backward) {
    const char* setting = std::getenv("FORESHOCK_MATH_PATH");
    for (const char* off : {"off", "0", "false", "no"})
      if (setting && !std::strcmp(setting, off)) return;
    const auto found = c10::Dispatcher::singleton().findSchema({std::string("aten::") + kMathPath, ""});
    if (!found) return;
    forward_ = forward;
    backward_ = backward;
    arguments_ = new AttentionArguments(found->schema(), kHeadsFirstTopLeft, /*backward=*/false);
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
    at::disableCallback(handle_);
  }

  // SafeSoftmaxHook has counted a call, so this training takes the math path. Returns why the call is not
  // sampled. While the callbacks are enabled, they see each call but those of compiled graphs, which have the
  // operations of the path without the path itself.
  static uint32_t on_call() {
    is_wanted_.store(true, std::memory_order_relaxed);
    if (!arguments_) return FORESHOCK_SKIP_OFF;
    return is_enabled_.load(std::memory_order_relaxed) ? FORESHOCK_SKIP_UNKNOWN : FORESHOCK_SKIP_SET_UP;
  }

  // Called at the end of a step. Enables the callbacks if the next step is sampled, else disables them.
  static void on_step_end() {
    const bool wanted =
        arguments_ && is_wanted_.load(std::memory_order_relaxed) && foreshock_step_is_sampled() != 0;
    const bool was_enabled = is_enabled_.exchange(wanted);
    if (was_enabled == wanted) return;
    wanted ? at::reenableCallback(handle_) : at::disableCallback(handle_);
  }

  // Time that the callbacks have taken since the last call, estimated from the number of operations.
  static uint64_t take_ns() {
    constexpr uint64_t kOperationNs = 400;
    if (operations_.load(std::memory_order_relaxed) == 0) return 0;
    return operations_.exchange(0, std::memory_order_relaxed) * kOperationNs;
  }

 private:
  // A call of the math path that is running. While it exists, SafeSoftmaxHook does not count the call again.
  struct Call final : at::ObserverContext {
    AttentionDepth depth;  // raises attention_depth while the call runs
    bool sampled = false;
    AttentionInputs inputs;
  };

  // torch calls this function before every operation and passes the result to on_end(). Null: the operation
  // is not an outermost call of the math path.
  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) noexcept try {
    operations_.fetch_add(1, std::memory_order_relaxed);
    // The first comparison, of 13 characters, is cheap and excludes most operations.
    if (attention_depth != 0 || std::strncmp(function.name(), "aten::_scaled", 13) != 0 ||
        std::strcmp(function.name() + std::strlen("aten::"), kMathPath) != 0)
      return nullptr;
    const auto given = function.inputs();
    const Stack stack(given.begin(), given.end());
    if (stack.size() != static_cast<size_t>(arguments_->arguments())) return nullptr;
    const at::Tensor& query = arguments_->query(stack);
    if (!has_data(query) || query.is_meta()) return nullptr;
    const uint64_t begin = now_ns();
    auto call = std::make_unique<Call>();
    call->sampled = enter_attention(forward_, /*backward=*/false, query);
    call->inputs = arguments_->keep(stack);
    call->inputs.keeping_ns = now_ns() - begin;
    return call;
  } catch (...) {
    return nullptr;
  }

  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) noexcept {
    auto* call = static_cast<Call*>(context);
    if (!call) return;
    AttentionInputs& inputs = call->inputs;
    const auto& results = function.outputs();
    if (!results.empty()) inputs.out = tensor_or_undefined(results[0]);
    if (results.size() > 1) inputs.weights = inputs.kept = tensor_or_undefined(results[1]);
    const auto follow = [&] {
      if (inputs.out.defined()) MathPathBackward::follow(inputs, backward_);
      return inputs.out.defined();
    };
    if (call->sampled)
      end_attention(forward_, /*backward=*/false, kHeadsFirstTopLeft, &inputs, follow);
    else
      follow();
  }

  static inline int32_t forward_ = -1, backward_ = -1;
  static inline const AttentionArguments* arguments_ = nullptr;  // null: --math-path is off
  static inline at::CallbackHandle handle_ = 0;
  static inline std::atomic<bool> is_wanted_{false}, is_enabled_{false};
  static inline std::atomic<uint64_t> operations_{0};  // seen by on_begin()
};

// Counts forward passes of the math path with enter_attention(). The hook samples none of them, since it has
// no query and no key. While MathPathSampler is on, MathPathSampler counts them instead. It raises
// attention_depth (attention.h), the number of attention calls in which this thread is, above 0.
class SafeSoftmaxHook final : public c10::OperatorKernel {
 public:
  SafeSoftmaxHook(const c10::FunctionSchema& schema, int32_t number)
      : number_(number), arguments_(static_cast<int>(schema.arguments().size())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;  // for what torch calls after this hook
    const at::Tensor& scores = tensor_or_undefined(peek(*stack, arguments_, 0));
    const bool is_counted = attention_depth == 0 && reaches_kernel(below) && has_data(scores);
    if (is_counted) {
      const uint32_t reason = MathPathSampler::on_call();
      if (enter_attention(number_, /*backward=*/false, scores)) foreshock_attention_skip(number_, reason);
    }
    op.redispatchBoxed(below, stack);
  }

 private:
  const int32_t number_;  // of the operation, from foreshock_register_op
  const int arguments_;   // number of arguments of _safe_softmax
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_PATHS_H_
