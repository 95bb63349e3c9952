// Where the arguments of an attention operation are, found by their names: names outlive versions, positions
// do not. Packages name the same thing differently, so each has several.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_ARGUMENTS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_ARGUMENTS_H_

#include <atomic>
#include <initializer_list>
#include <optional>
#include <vector>

#include "attention_ops.h"
#include "dispatch.h"

namespace foreshock::adapter {

// The arguments of one call that a description needs. References, not copies: an operation takes its
// arguments off the stack.
struct AttentionInputs {
  at::Tensor query, key, value, out, log_sum_exp, mask, grad_out, grad_query, sequences_q, sequences_k;
  int64_t longest_q = 0, longest_k = 0;  // of packed sequences; 0: not given
  c10::IValue layer;
  std::optional<double> scale;  // zero is one too; none: the default of the operation
  double dropout = 0;
  int64_t causal = 0;  // FORESHOCK_CAUSAL_..., kSquareOnly
  int64_t window_left = -1, window_right = -1;
  bool positions_first = false;   // (batch, position, head, d)
  bool masked_otherwise = false;  // slopes, a soft cap, chunks: scores that we could not recompute
  bool stored_otherwise = false;  // pages, appended or rotated keys, descaling
  uint64_t keeping_ns = 0;
};

class AttentionArguments {
 public:
  AttentionArguments(const c10::FunctionSchema& schema, const Semantics& semantics, bool backward)
      : schema_(&schema),
        semantics_(semantics),
        backward_(backward),
        arguments_(static_cast<int>(schema.arguments().size())),
        returns_(static_cast<int>(schema.returns().size())),
        query_(Index({"query", "q"})),
        key_(Index({"key", "k"})),
        value_(Index({"value", "v"})),
        out_(Index({"out"})),
        log_sum_exp_(Index({"logsumexp", "softmax_lse", "lse"})),
        mask_(Index({"attn_mask", "attn_bias", "bias"})),
        grad_out_(Index({"grad_out", "grad_out_", "dout", "grad"})),
        grad_query_(Index({"dq", "grad_query"})),
        scale_(Index({"scale", "softmax_scale"})),
        dropout_(Index({"dropout_p", "p"})),
        causal_(Index({"is_causal", "causal", "custom_mask_type"})),
        window_left_(Index({"window_size_left", "window_left"})),
        window_right_(Index({"window_size_right", "window_right"})),
        positions_first_(Index({"positions_first"})),
        layer_(Index({"layer"})),
        sequences_q_(Index({"cum_seq_q", "cu_seqlens_q"})),
        sequences_k_(Index({"cum_seq_k", "cu_seqlens_k"})),
        longest_q_(Index({"max_q", "max_seqlen_q"})),
        longest_k_(Index({"max_k", "max_seqlen_k"})),
        masked_(Indices({"alibi_slopes", "softcap", "attention_chunk", "window_size", "causal_diagonal",
                         "learnable_sink", "s_aux"})),
        stored_(Indices({"block_table", "block_tables", "page_table",   "leftpad_k",  "seqused_k",
                         "seqused_q",   "seqlen_k",     "sequed_k",     "sequed_q",   "k_new",
                         "v_new",       "qv",           "kv_batch_idx", "rotary_cos", "q_descale",
                         "k_descale",   "v_descale",    "descale_q",    "descale_k",  "descale_v"})) {}

  bool is_of(const c10::FunctionSchema& schema) const { return schema_ == &schema; }
  int arguments() const { return arguments_; }
  const Semantics& semantics() const { return semantics_; }
  const at::Tensor& query(const Stack& stack) const { return TensorOrUndefined(At(stack, query_)); }
  // The gradient of the query is a result, not an argument that the operation fills.
  bool returns_gradient() const { return grad_query_ < 0; }
  const at::Tensor& result(const Stack& stack, int index) const {
    return TensorOrUndefined(Peek(stack, returns_, index < returns_ ? index : -1));
  }

  AttentionInputs Keep(const Stack& stack) const {
    const auto tensor = [&](int index) { return TensorOrUndefined(At(stack, index)); };
    AttentionInputs in{tensor(query_), tensor(key_), tensor(value_)};
    in.mask = tensor(mask_);
    in.grad_out = tensor(grad_out_);
    in.grad_query = tensor(grad_query_);
    // Some releases give a dense call offsets of no sequences.
    const auto offsets = [&](int index) {
      return tensor(index).defined() && tensor(index).numel() ? tensor(index) : at::Tensor();
    };
    in.sequences_q = offsets(sequences_q_);
    in.sequences_k = offsets(sequences_k_);
    in.longest_q = Whole(At(stack, longest_q_), 0);
    in.longest_k = Whole(At(stack, longest_k_), 0);
    const bool is_tap = semantics_.order == Order::kAsSaid;
    if (backward_ || is_tap || semantics_.fills_out) in.out = tensor(out_);
    if (backward_ || is_tap) in.log_sum_exp = tensor(log_sum_exp_);
    if (const c10::IValue& scale = At(stack, scale_); !scale.isNone()) in.scale = Real(scale, 0);
    in.dropout = Real(At(stack, dropout_), 0);
    in.causal = Causal(At(stack, causal_));
    in.window_left = Whole(At(stack, window_left_), -1);
    in.window_right = Whole(At(stack, window_right_), -1);
    in.positions_first = semantics_.order == Order::kPositionsFirst ||
                         (positions_first_ >= 0 && At(stack, positions_first_).toBool());
    in.layer = At(stack, layer_);
    for (const int index : masked_) in.masked_otherwise |= IsGiven(At(stack, index));
    for (const int index : stored_) in.stored_otherwise |= IsGiven(At(stack, index));
    return in;
  }

 private:
  const c10::IValue& At(const Stack& stack, int index) const { return Peek(stack, arguments_, index); }

  int Index(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (const int index = ArgumentIndex(*schema_, name); index >= 0) return index;
    }
    return -1;
  }

  std::vector<int> Indices(std::initializer_list<const char*> names) const {
    std::vector<int> found;
    for (const char* name : names) {
      if (const int index = ArgumentIndex(*schema_, name); index >= 0) found.push_back(index);
    }
    return found;
  }

  // A value that is not at rest: a tensor, or a number other than 0.
  static bool IsGiven(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined();
    return Real(value, value.isNone() ? 0 : 1) != 0;
  }

  static double Real(const c10::IValue& value, double otherwise) {
    if (value.isDouble()) return value.toDouble();
    return value.isInt() ? static_cast<double>(value.toInt()) : otherwise;
  }

  static int64_t Whole(const c10::IValue& value, int64_t otherwise) {
    return value.isInt() ? value.toInt() : otherwise;
  }

  int64_t Causal(const c10::IValue& value) const {
    if (value.isInt()) return value.toInt();  // said in our terms
    return value.isBool() && value.toBool() ? semantics_.causal : FORESHOCK_CAUSAL_NONE;
  }

  const c10::FunctionSchema* schema_;
  const Semantics& semantics_;
  const bool backward_;
  const int arguments_, returns_;
  const int query_, key_, value_, out_, log_sum_exp_, mask_, grad_out_, grad_query_, scale_, dropout_,
      causal_;
  const int window_left_, window_right_, positions_first_, layer_, sequences_q_, sequences_k_, longest_q_,
      longest_k_;
  const std::vector<int> masked_, stored_;
};

// The arguments of an operation whose schema may come later than its kernel. Any thread; never waits.
class LateArguments {
 public:
  LateArguments(const Semantics& semantics, bool backward) : semantics_(semantics), backward_(backward) {}

  const AttentionArguments& of(const c10::OperatorHandle& op) {
    const c10::FunctionSchema& schema = op.schema();
    const AttentionArguments* known = known_.load(std::memory_order_acquire);
    if (known && known->is_of(schema)) return *known;
    // Set-up, once: never freed, since another thread may be reading it.
    const auto* fresh = new AttentionArguments(schema, semantics_, backward_);
    known_.store(fresh, std::memory_order_release);
    return *fresh;
  }

 private:
  const Semantics& semantics_;
  const bool backward_;
  std::atomic<const AttentionArguments*> known_{nullptr};
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_ARGUMENTS_H_
