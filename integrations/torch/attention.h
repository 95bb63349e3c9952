// Hooks attention operations of torch and other packages: finds the arguments of a call, describes the call
// in the form of foreshock_attention_call (hook.h), and passes it to the core (libforeshock.so). Arguments
// are found by name, since positions change between versions; several names are tried, since packages differ.
// A training calls our operation foreshock::tap to report attention that no hook sees.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_H_
#define FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_H_

#include <c10/core/GradMode.h>
#include <foreshock/hook.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "clock.h"
#include "dispatch.h"
#include "tensor_view.h"

namespace foreshock::adapter {

// The order of dimensions of query, key, value, output and their gradients. The first three have the numbers
// of the argument `layout` of our own operations (tap.py).
enum class Order {
  kHeadsFirst = 0,            // (batch, head, position, d)
  kPositionsFirst = 1,        // (batch, position, head, d)
  kPositionsBeforeBatch = 2,  // (position, batch, head, d)
  kByArgument                 // given by an argument of the operation, which is one of our own
};

// A causal mask that may be aligned at the top left or at the bottom right of the queries x keys matrix. Such
// a call is described only if it has as many queries as keys, because both alignments are then the same.
inline constexpr int32_t kSquareOnly = -1;

// Returned by describe_call() on success. Differs from all FORESHOCK_SKIP_ reasons, since it is their count.
inline constexpr uint32_t kDescribed = FORESHOCK_SKIP_REASONS;

// The meaning of an operation's arguments and results that their names do not show. For all operations:
// - the default scale is 1 / sqrt(d), with d of the query that the operation gets. A caller that pads d with
//   zeros to a multiple of 8 passes the scale of the unpadded d;
// - log-sum-exp is the natural logarithm, over scaled and masked scores before dropout, in fp32, with shape
//   (batch, head, query). It may be absent, or have one more dimension of size 1 (cuDNN), or have rows padded
//   to a multiple of 32 (torch's memory-efficient kernel) or more (flash-attn before 2.7). For packed
//   sequences it has shape (head, all queries), or (sequence, head, query) with rows as long as the longest
//   sequence (memory-efficient kernel, flash-attn before 2.7);
// - a mask or bias is added to the scaled scores, whatever its strides;
// - query head h reads kv-head h / (query heads / kv-heads).
struct Semantics {
  Order order;
  int32_t causal;            // meaning of `is_causal` = true: FORESHOCK_CAUSAL_... or kSquareOnly
  bool packs = false;        // accepts offsets of packed sequences; tensors are then (all positions, head, d)
  bool in_function = false;  // called inside an autograd.Function, which switches gradient mode off
  bool fills_out = false;    // the output is an argument, and the first result is the log-sum-exp
  bool flat_bias = false;    // a bias of three dimensions is (batch x head, query, key)
};

// With a causal mask, query i sees key j <= i in the CPU kernel, in the math path (tril() of a queries x keys
// matrix), and in the documentation of scaled_dot_product_attention.
inline constexpr Semantics kHeadsFirstTopLeft{Order::kHeadsFirst, FORESHOCK_CAUSAL_TOP_LEFT};

// The arguments of one call that its description needs. Copied before the operation runs, because the
// operation removes its arguments from the stack. Absent tensors are undefined.
struct AttentionInputs {
  at::Tensor query, key, value, out, log_sum_exp, mask, kept, grad_out, grad_query, grad_key, grad_value;
  at::Tensor weights;                    // after dropout; only of operations that return them
  at::Tensor offsets_q, offsets_k;       // of packed sequences
  int64_t longest_q = 0, longest_k = 0;  // maximum lengths of packed sequences; 0: not given
  c10::IValue layer;                     // name of the layer, only from foreshock::tap
  std::optional<double> scale;           // 0 is a valid scale; empty: the operation's default
  double dropout = 0;
  double soft_cap = 0;                          // as in hook.h
  int64_t causal = 0;                           // FORESHOCK_CAUSAL_... or kSquareOnly
  int64_t window_left = -1, window_right = -1;  // keys seen on each side of the query; -1: all
  Order order = Order::kHeadsFirst;
  bool masked_otherwise = false;  // an argument that hook.h cannot describe (slopes, sinks) changes scores
  bool stored_otherwise = false;  // keys are paged, appended or rotated, or tensors are scaled
  uint64_t keeping_ns = 0;        // time spent in AttentionArguments::keep()
};

// The positions of an attention operation's arguments, found by name in its schema; -1: no such argument.
class AttentionArguments {
 public:
  AttentionArguments(const c10::FunctionSchema& schema, const Semantics& semantics, bool backward)
      : schema_(&schema),
        semantics_(semantics),
        backward_(backward),
        arguments_(static_cast<int>(schema.arguments().size())),
        returns_(static_cast<int>(schema.returns().size())),
        query_(index_of({"query", "q"})),
        key_(index_of({"key", "k"})),
        value_(index_of({"value", "v"})),
        out_(index_of({"out"})),
        log_sum_exp_(index_of({"logsumexp", "softmax_lse", "lse"})),
        mask_(index_of({"attn_mask", "attn_bias", "bias"})),
        kept_(index_of({"kept"})),
        grad_out_(index_of({"grad_out", "grad_out_", "dout", "grad"})),
        grad_query_(index_of({"dq", "grad_query"})),
        grad_key_(index_of({"dk", "grad_key"})),
        grad_value_(index_of({"dv", "grad_value"})),
        scale_(index_of({"scale", "softmax_scale"})),
        dropout_(index_of({"dropout_p", "p"})),
        soft_cap_(index_of({"soft_cap", "softcap"})),
        causal_(index_of({"is_causal", "causal", "custom_mask_type"})),
        window_left_(index_of({"window_size_left", "window_left"})),
        window_right_(index_of({"window_size_right", "window_right"})),
        layout_(index_of({"layout"})),
        entered_(index_of({"entered"})),
        reason_(index_of({"reason"})),
        layer_(index_of({"layer"})),
        offsets_q_(index_of({"cum_seq_q", "cu_seqlens_q"})),
        offsets_k_(index_of({"cum_seq_k", "cu_seqlens_k"})),
        longest_q_(index_of({"max_q", "max_seqlen_q"})),
        longest_k_(index_of({"max_k", "max_seqlen_k"})),
        masked_(indices_of({"alibi_slopes", "attention_chunk", "window_size", "causal_diagonal",
                            "learnable_sink", "s_aux"})),
        stored_(
            indices_of({"block_table", "block_tables", "page_table", "leftpad_k", "seqused_k", "seqused_q",
                        "seqlen_k",    "sequed_k",     "sequed_q",   "k_new",     "q_v",       "v_new",
                        "qv",          "kv_batch_idx", "rotary_cos", "q_descale", "k_descale", "v_descale",
                        "descale_q",   "descale_k",    "descale_v"})) {}

  bool is_of(const c10::FunctionSchema& schema) const { return schema_ == &schema; }
  int arguments() const { return arguments_; }
  const Semantics& semantics() const { return semantics_; }
  const at::Tensor& query(const Stack& stack) const {
    return tensor_or_undefined(argument_at(stack, query_));
  }
  // Whether a backward operation can return the gradients of query, key and value. If not, it writes them
  // into its arguments.
  bool returns_gradients() const { return returns_ >= 3; }
  const at::Tensor& result(const Stack& stack, int index) const {
    return tensor_or_undefined(peek(stack, returns_, index < returns_ ? index : -1));
  }

  // Whether the helper has already reported to the core that this call of our own operation is about to
  // happen. Other operations have no such argument.
  bool is_entered(const Stack& stack) const {
    const c10::IValue& entered = argument_at(stack, entered_);
    return entered.isBool() && entered.toBool();
  }
  // FORESHOCK_SKIP_... if the caller of our own operation cannot describe the call; else kDescribed.
  uint32_t reason(const Stack& stack) const {
    const int64_t reason = integer_or(argument_at(stack, reason_), -1);
    return reason >= 0 && reason < FORESHOCK_SKIP_REASONS ? static_cast<uint32_t>(reason) : kDescribed;
  }

  // Copies references to the arguments from the stack, before the operation removes them.
  AttentionInputs keep(const Stack& stack) const {
    const auto tensor = [&](int index) { return tensor_or_undefined(argument_at(stack, index)); };
    AttentionInputs in{tensor(query_), tensor(key_), tensor(value_)};
    in.mask = tensor(mask_);
    in.kept = tensor(kept_);
    in.grad_out = tensor(grad_out_);
    in.grad_query = tensor(grad_query_);
    in.grad_key = tensor(grad_key_);
    in.grad_value = tensor(grad_value_);
    // Some releases pass an empty tensor of offsets to a call that is not packed. It counts as absent.
    const auto offsets = [&](int index) {
      return tensor(index).defined() && tensor(index).numel() ? tensor(index) : at::Tensor();
    };
    in.offsets_q = offsets(offsets_q_);
    in.offsets_k = offsets(offsets_k_);
    in.longest_q = integer_or(argument_at(stack, longest_q_), 0);
    in.longest_k = integer_or(argument_at(stack, longest_k_), 0);
    // foreshock::tap reports a call that has already happened, so its arguments include the results.
    const bool is_tap = semantics_.order == Order::kByArgument;
    if (backward_ || is_tap || semantics_.fills_out) in.out = tensor(out_);
    if (backward_ || is_tap) in.log_sum_exp = tensor(log_sum_exp_);
    if (const c10::IValue& scale = argument_at(stack, scale_); !scale.isNone()) in.scale = real_or(scale, 0);
    in.dropout = real_or(argument_at(stack, dropout_), 0);
    in.soft_cap = real_or(argument_at(stack, soft_cap_), 0);
    in.causal = causal_of(argument_at(stack, causal_));
    in.window_left = integer_or(argument_at(stack, window_left_), -1);
    in.window_right = integer_or(argument_at(stack, window_right_), -1);
    in.order = is_tap ? static_cast<Order>(integer_or(argument_at(stack, layout_), 0)) : semantics_.order;
    in.layer = argument_at(stack, layer_);
    for (const int index : masked_) in.masked_otherwise |= is_given(argument_at(stack, index));
    for (const int index : stored_) in.stored_otherwise |= is_given(argument_at(stack, index));
    return in;
  }

 private:
  const c10::IValue& argument_at(const Stack& stack, int index) const {
    return peek(stack, arguments_, index);
  }

  int index_of(std::initializer_list<const char*> names) const {
    const std::vector<int> found = indices_of(names);
    return found.empty() ? -1 : found.front();
  }

  std::vector<int> indices_of(std::initializer_list<const char*> names) const {
    std::vector<int> found;
    for (const char* name : names)
      if (const int index = argument_index(*schema_, name); index >= 0) found.push_back(index);
    return found;
  }

  // Whether an argument is in use. A tensor is in use if it is defined, a number if it is not 0. None is not
  // in use. A value of any other type (a list, a string, a boolean) is assumed to be in use.
  static bool is_given(const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined();
    return real_or(value, value.isNone() ? 0 : 1) != 0;
  }

  static double real_or(const c10::IValue& value, double otherwise) {
    if (value.isDouble()) return value.toDouble();
    return value.isInt() ? static_cast<double>(value.toInt()) : otherwise;
  }

  static int64_t integer_or(const c10::IValue& value, int64_t otherwise) {
    return value.isInt() ? value.toInt() : otherwise;
  }

  int64_t causal_of(const c10::IValue& value) const {
    // An integer is custom_mask_type or tap's `causal`. Both use the numbers of FORESHOCK_CAUSAL_....
    if (value.isInt()) return value.toInt();
    return value.isBool() && value.toBool() ? semantics_.causal : FORESHOCK_CAUSAL_NONE;
  }

  const c10::FunctionSchema* schema_;
  const Semantics& semantics_;
  const bool backward_;
  const int arguments_, returns_;
  const int query_, key_, value_, out_, log_sum_exp_, mask_, kept_, grad_out_, grad_query_, grad_key_,
      grad_value_, scale_, dropout_, soft_cap_, causal_;
  const int window_left_, window_right_, layout_, entered_, reason_, layer_, offsets_q_, offsets_k_,
      longest_q_, longest_k_;
  const std::vector<int> masked_, stored_;
};

// The AttentionArguments of an operation, made at the first call and when its schema is replaced. Any thread.
class LazyArguments {
 public:
  LazyArguments(const Semantics& semantics, bool backward) : semantics_(semantics), backward_(backward) {}

  const AttentionArguments& arguments_of(const c10::OperatorHandle& op) {
    const c10::FunctionSchema& schema = op.schema();
    const AttentionArguments* known = known_.load(std::memory_order_acquire);
    if (known && known->is_of(schema)) return *known;
    known = new AttentionArguments(schema, semantics_, backward_);  // never freed: other threads may read it
    known_.store(known, std::memory_order_release);
    return *known;
  }

 private:
  const Semantics& semantics_;
  const bool backward_;
  std::atomic<const AttentionArguments*> known_{nullptr};
};

// The functions from here to describe_call() describe a call in the form of hook.h, from the arguments and
// results of its operation. They make views only: no tensor is created, and no values are read.

// Expands a mask to all dimensions of the call, with stride 0 where it is broadcast. Returns false if the
// mask does not fit the call. `is_flat`: a mask of three dimensions is (batch x head, query, key).
inline bool view_mask(const at::Tensor& mask, const foreshock_attention_call& call, foreshock_tensor* view,
                      bool is_flat = false) {
  if (!mask.defined()) return true;  // the view stays absent
  // batch, heads, queries, keys
  const int64_t shape[] = {call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2]};
  *view = view_of(mask);
  if (!view->data || view->dtype == FORESHOCK_DTYPE_NONE) return false;
  if (is_flat && mask.dim() == 3) {
    const int64_t stride[] = {shape[1] * mask.stride(0), mask.stride(0), mask.stride(1), mask.stride(2)};
    if (mask.size(0) != shape[0] * shape[1] || mask.size(1) != shape[2] || mask.size(2) != shape[3])
      return false;
    std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view->shape);
    std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view->stride);
    view->dims = FORESHOCK_TENSOR_DIMS;
    return true;
  }
  const int64_t missing = FORESHOCK_TENSOR_DIMS - mask.dim();
  for (int64_t d = 0; d < FORESHOCK_TENSOR_DIMS; ++d) {
    const int64_t size = d < missing ? 1 : mask.size(d - missing);
    if (size != 1 && size != shape[d]) return false;
    view->shape[d] = shape[d];
    view->stride[d] = size == 1 ? 0 : mask.stride(d - missing);
  }
  view->dims = FORESHOCK_TENSOR_DIMS;
  return true;
}

// Whether the tensor can hold packed sequences: (total, head, d), or (1, total, head, d).
inline bool is_packed_layout(const at::Tensor& tensor) {
  return tensor.dim() == 3 || (tensor.dim() == 4 && tensor.size(0) == 1);
}

// A view of packed sequences as (head, total, d); absent if the tensor has another layout.
inline foreshock_tensor packed_view(const at::Tensor& packed) {
  foreshock_tensor view = packed.defined() && is_packed_layout(packed) ? view_of(packed) : foreshock_tensor{};
  if (!view.data) return {};
  const int64_t shape[] = {packed.size(-2), packed.size(-3), packed.size(-1), 1};
  const int64_t stride[] = {packed.stride(-2), packed.stride(-3), packed.stride(-1), 0};
  std::copy_n(shape, FORESHOCK_TENSOR_DIMS, view.shape);
  std::copy_n(stride, FORESHOCK_TENSOR_DIMS, view.stride);
  view.dims = 3;
  return view;
}

// Sets the offsets of a packed call whose query and key are set: sequence s has the positions from offset s
// to just before offset s + 1. Returns false if the offsets are invalid or not on the device of the tensors.
inline bool describe_offsets(const AttentionInputs& in, foreshock_attention_call* call) {
  const at::Tensor &q = in.offsets_q, &k = in.offsets_k.defined() ? in.offsets_k : in.offsets_q;
  for (const at::Tensor& offsets : {q, k}) {
    if (!has_data(offsets) || offsets.device() != in.query.device() || offsets.scalar_type() != at::kInt ||
        offsets.dim() != 1 || !offsets.is_contiguous() || !is_in_memory(offsets))
      return false;
  }
  if (q.numel() < 2 || k.numel() != q.numel()) return false;
  call->query_offsets = q.const_data_ptr<int32_t>();
  call->key_offsets = k.const_data_ptr<int32_t>();
  call->sequences = q.numel() - 1;
  // Without a given maximum length, the total length is the bound. If queries and keys have the same offsets,
  // the bound of the queries is also used for the keys.
  call->longest_query = in.longest_q > 0 ? in.longest_q : call->query.shape[1];
  call->longest_key = in.longest_k > 0                           ? in.longest_k
                      : call->query_offsets == call->key_offsets ? call->longest_query
                                                                 : call->key.shape[1];
  return true;
}

// The view with the order of dimensions of hook.h: (batch, head, position, d).
inline foreshock_tensor heads_first(foreshock_tensor view, Order order) {
  if (order == Order::kHeadsFirst || view.dims != FORESHOCK_TENSOR_DIMS) return view;
  const auto swap = [&view](int a, int b) {
    std::swap(view.shape[a], view.shape[b]);
    std::swap(view.stride[a], view.stride[b]);
  };
  if (order == Order::kPositionsBeforeBatch) swap(0, 1);
  swap(1, 2);
  return view;
}

// Removes the padding from the rows of a view of log-sum-exp: only the first `queries` elements are valid.
inline foreshock_tensor without_padding(foreshock_tensor log_sum_exp, int64_t queries) {
  if (log_sum_exp.dims == 3 && log_sum_exp.shape[2] > queries) log_sum_exp.shape[2] = queries;
  return log_sum_exp;
}

// Sets causal mask and window of the call. The tensors and offsets must be set. Returns kDescribed or
// FORESHOCK_SKIP_MASK.
inline uint32_t describe_causal(const AttentionInputs& in, foreshock_attention_call* call) {
  // `queries` and `keys` of packed sequences: upper bounds of the lengths of one sequence.
  const bool is_packed = call->query_offsets != nullptr;
  const int64_t queries = is_packed ? call->longest_query : call->query.shape[2];
  const int64_t keys = is_packed ? call->longest_key : call->key.shape[2];
  call->causal = static_cast<int32_t>(in.causal);
  if (in.causal == kSquareOnly && queries == keys) call->causal = FORESHOCK_CAUSAL_TOP_LEFT;
  if (call->causal < FORESHOCK_CAUSAL_NONE || call->causal > FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    return FORESHOCK_SKIP_MASK;
  // A causal mask hides all keys on the right side already. A window is aligned as the causal mask is.
  // Without one, it is aligned at the bottom right, as by flash-attn, whose kernels have arguments for
  // windows.
  const bool is_causal = call->causal != FORESHOCK_CAUSAL_NONE;
  const int64_t right = is_causal ? 0 : in.window_right;
  const int32_t alignment = is_causal ? call->causal : FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  // A window that is wider than the sequences has no effect. One that ends at the own key is a causal mask.
  const bool hides_left = in.window_left >= 0 && in.window_left < keys;
  const bool hides_right = right > 0 && right < std::max(queries, keys);
  if (right == 0) call->causal = alignment;
  // With fewer keys than queries the first queries see no key, and kernels leave their result undefined. For
  // packed sequences with a causal mask alone, the core checks each sequence itself. flash-attn replaces one
  // side of a window by the number of keys, which limits the other side too if there are more queries.
  if ((hides_left || hides_right) && queries > keys) return FORESHOCK_SKIP_MASK;
  if (call->causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && queries > keys && !is_packed)
    return FORESHOCK_SKIP_MASK;
  if (!hides_left && !hides_right) return kDescribed;
  call->window = alignment;
  call->window_left = hides_left ? in.window_left : -1;
  call->window_right = hides_right || right == 0 ? right : -1;
  return kDescribed;
}

// Sets the tensors and offsets of a call on packed sequences. Returns false if they are not supported.
inline bool describe_packed(const AttentionInputs& in, bool backward, foreshock_attention_call* call) {
  call->query = packed_view(in.query);
  call->key = packed_view(in.key);
  call->value = packed_view(in.value);
  call->out = packed_view(in.out);
  if (!call->query.data || !call->key.data || !describe_offsets(in, call)) return false;
  // log_sum_exp is (head, total) or (sequence, head, position). If every sequence has one query and several
  // heads share a kv-head, flash-attn swaps the heads with the queries (mha_varlen_fwd in
  // csrc/flash_attn/flash_api.cpp). log_sum_exp then has another order and is left out.
  const bool is_swapped = call->longest_query == 1 && call->query.shape[0] != call->key.shape[0];
  if (in.log_sum_exp.defined() && (in.log_sum_exp.dim() == 2 || in.log_sum_exp.dim() == 3) && !is_swapped)
    call->log_sum_exp = view_of(in.log_sum_exp);
  if (backward) {
    call->grad_out = packed_view(in.grad_out);
    call->grad_query = packed_view(in.grad_query);
    call->grad_key = packed_view(in.grad_key);
    call->grad_value = packed_view(in.grad_value);
  }
  return true;
}

// Sets the tensors of a call. Returns false if their dimensions or offsets are not supported.
inline bool describe_tensors(const AttentionInputs& in, bool backward, foreshock_attention_call* call) {
  if (in.offsets_q.defined()) return describe_packed(in, backward, call);
  if (in.query.dim() != 4 || in.key.dim() != 4 || in.value.dim() != 4) return false;
  const auto view = [&](const at::Tensor& tensor) { return heads_first(view_of(tensor), in.order); };
  call->query = view(in.query);
  call->key = view(in.key);
  call->value = view(in.value);
  call->out = view(in.out);
  call->weights = view_of(in.weights);
  call->log_sum_exp = without_padding(view_of(in.log_sum_exp), call->query.shape[2]);
  if (backward) {
    call->grad_out = view(in.grad_out);
    call->grad_query = view(in.grad_query);
    call->grad_key = view(in.grad_key);
    call->grad_value = view(in.grad_value);
  }
  return true;
}

// Describes a call. `in` must also have the operation's results. Returns kDescribed or a FORESHOCK_SKIP_....
inline uint32_t describe_call(const AttentionInputs& in, const Semantics& semantics, bool backward,
                              foreshock_attention_call* call) {
  if (!in.query.defined()) return FORESHOCK_SKIP_LAYOUT;
  if (is_fp8(in.query)) return FORESHOCK_SKIP_FP8;
  if (in.stored_otherwise || (in.offsets_q.defined() && !semantics.packs)) return FORESHOCK_SKIP_LAYOUT;
  // The layout of a bias over packed sequences is not documented anywhere.
  if (in.masked_otherwise || (in.offsets_q.defined() && in.mask.defined())) return FORESHOCK_SKIP_MASK;
  call->size = sizeof(*call);
  call->version = FORESHOCK_ABI_VERSION;
  if (!describe_tensors(in, backward, call)) return FORESHOCK_SKIP_LAYOUT;
  if (!call->query.data || !call->key.data || !call->value.data) return FORESHOCK_SKIP_LAYOUT;
  if (!view_mask(in.mask, *call, &call->mask, semantics.flat_bias)) return FORESHOCK_SKIP_LAYOUT;
  if (!view_mask(in.kept, *call, &call->kept)) return FORESHOCK_SKIP_LAYOUT;
  call->scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(in.query.size(-1))));
  call->dropout = in.dropout;
  call->soft_cap = in.soft_cap;
  call->layer_identity = layer_of(in.query);  // the parameter from which the query was computed
  if (!call->layer_identity && backward) call->layer_identity = layer_of_input(query_place, in.query);
  call->stream = stream_of(in.query);
  if (in.layer.isString()) call->layer_name = in.layer.toStringRef().c_str();
  return describe_causal(in, call);
}

// The rest of this file is the hook of every attention operation: a kernel at the dispatch key BackendSelect
// (dispatch.h). It passes a call on to torch's own kernel and reports it. A call that is not sampled costs a
// few loads and one call into the core. The hook never throws; exceptions of the operation pass through.

// Nesting depth of attention operations. Only the outermost one is counted; those inside are parts of it.
inline thread_local int attention_depth = 0;

// Calls on real data since the process started, forward and backward.
inline constinit std::atomic<uint64_t> attention_calls[2];

// Calls of foreshock::tap on real data since the process started.
inline constinit std::atomic<uint64_t> taps{0};

struct AttentionDepth {
  AttentionDepth() { ++attention_depth; }
  ~AttentionDepth() { --attention_depth; }
};

// Reports a call that is about to happen. Returns true if the call is sampled; the caller must then end it
// with foreshock_attention_leave or _skip. `operation`: its number from foreshock_register_op. `in_function`:
// the call is inside an autograd.Function, where gradient mode is always off, so only requires_grad counts.
inline bool enter_attention(int32_t operation, bool backward, const at::Tensor& query,
                            bool in_function = false) noexcept {
  attention_calls[backward].fetch_add(1, std::memory_order_relaxed);
  const bool in_backward = in_backward_pass();
  uint32_t flags = in_backward ? FORESHOCK_IN_BACKWARD : 0;
  if (backward) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
    training_clock().on_attention_backward();
  } else if (query.requires_grad() && (in_function || c10::GradMode::is_enabled())) {
    flags |= FORESHOCK_NEEDS_GRADIENT;
  }
  // observe() may report that a step has ended (clock.h). It comes before the report of this call, which then
  // belongs to the next step.
  if (!in_backward) ParameterClock::instance().observe(query);
  return foreshock_attention_enter(operation, flags) != 0;
}

// Ends a call that enter_attention() has sampled: describes it, or skips it with the reason. complete() adds
// the results of the call to *inputs, and returns false if the call cannot be described; it may throw.
template <class Complete>
inline void end_attention(int32_t operation, bool backward, const Semantics& semantics,
                          AttentionInputs* inputs, const Complete& complete) noexcept {
  const uint64_t begin = now_ns();
  foreshock_attention_call call{};
  call.op = operation;
  uint32_t reason = FORESHOCK_SKIP_UNKNOWN;
  try {
    if (complete()) reason = describe_call(*inputs, semantics, backward, &call);
  } catch (...) {  // `reason` stays FORESHOCK_SKIP_UNKNOWN
  }
  call.prepare_ns = inputs->keeping_ns + now_ns() - begin;
  if (reason == kDescribed) return foreshock_attention_leave(&call);
  foreshock_attention_skip(operation, reason);
}

// The hook of one operation. `number`: the operation's number from foreshock_register_op.
class AttentionHook final : public c10::OperatorKernel {
 public:
  AttentionHook(const Semantics& semantics, bool backward, int32_t number)
      : number_(number),
        backward_(backward),
        is_tap_(semantics.order == Order::kByArgument),
        in_function_(semantics.in_function),
        arguments_(semantics, backward) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const AttentionArguments& arguments = arguments_.arguments_of(op);
    const at::Tensor& query = arguments.query(*stack);
    // Not counted: parts of another attention operation, and calls without real data (fake, meta, traced).
    const bool is_counted = attention_depth == 0 && reaches_kernel(below) && has_data(query);
    const AttentionDepth depth;
    if (!is_counted) return op.redispatchBoxed(below, stack);
    if (is_tap_) taps.fetch_add(1, std::memory_order_relaxed);
    if (!arguments.is_entered(*stack) && !enter_attention(number_, backward_, query, in_function_))
      return run(op, below, stack, arguments);
    const uint32_t reason = arguments.reason(*stack);
    if (reason != kDescribed) {
      foreshock_attention_skip(number_, reason);
      return run(op, below, stack, arguments);
    }
    AttentionInputs inputs = keep(arguments, *stack);
    try {
      run(op, below, stack, arguments);
    } catch (...) {
      foreshock_attention_skip(number_, FORESHOCK_SKIP_UNKNOWN);
      throw;
    }
    report(&inputs, arguments, *stack);
  }

 private:
  // A tap has nothing to compute: its arguments are only removed from the stack.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, Stack* stack,
           const AttentionArguments& arguments) const {
    if (!is_tap_) return op.redispatchBoxed(below, stack);
    torch::jit::drop(*stack, static_cast<size_t>(arguments.arguments()));
  }

  static AttentionInputs keep(const AttentionArguments& arguments, const Stack& stack) {
    const uint64_t begin = now_ns();
    AttentionInputs inputs = arguments.keep(stack);
    inputs.keeping_ns = now_ns() - begin;
    return inputs;
  }

  // Ends a sampled call. `stack` has the results of the operation.
  void report(AttentionInputs* inputs, const AttentionArguments& arguments,
              const Stack& stack) const noexcept {
    end_attention(number_, backward_, arguments.semantics(), inputs, [&] {
      if (!is_tap_) take_results(inputs, arguments, stack);
      return true;
    });
  }

  void take_results(AttentionInputs* inputs, const AttentionArguments& arguments, const Stack& stack) const {
    if (arguments.semantics().fills_out) {
      inputs->log_sum_exp = arguments.result(stack, 0);
    } else if (!backward_) {
      inputs->out = arguments.result(stack, 0);
      inputs->log_sum_exp = arguments.result(stack, 1);
    } else if (arguments.returns_gradients() && !inputs->grad_query.defined()) {
      // aten's backward operations all return the gradients in this order, and so does flash-attn 3.
      inputs->grad_query = arguments.result(stack, 0);
      inputs->grad_key = arguments.result(stack, 1);
      inputs->grad_value = arguments.result(stack, 2);
    }
  }

  const int32_t number_;
  const bool backward_, is_tap_, in_function_;
  LazyArguments arguments_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_ATTENTION_H_
