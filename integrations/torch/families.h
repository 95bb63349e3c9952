// Recognizes attention operations of other packages by their schema, whatever their namespace: packages of
// the Hugging Face hub register flash-attn's operations as _<name>_<hash>::<operation>. An operation belongs
// to a family if its name without the namespace is that of the family, and if its arguments are those of the
// family, by name and type. The order of the arguments and default values do not matter.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_FAMILIES_H_
#define FORESHOCK_INTEGRATIONS_TORCH_FAMILIES_H_

#include <foreshock/hook.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "attention.h"
#include "dispatch.h"

namespace foreshock::adapter {

// flash-attention aligns causal masks at the bottom right since 2.1 (its README).
inline constexpr Semantics kFlash{Order::kPositionsFirst, FORESHOCK_CAUSAL_BOTTOM_RIGHT, /*packs=*/true,
                                  /*in_function=*/true};

// The operations of the namespace foreshock report attention that no hook sees: foreshock::tap is called by
// the training, the others by wrapped Python functions (seams.py). Those whose names end in "_backward"
// report a backward pass. Their arguments give the order of dimensions and the alignment.
inline constexpr Semantics kTap{Order::kByArgument, kSquareOnly};
inline constexpr std::string_view kOwnNamespace = "foreshock::";

// The operations of this namespace report calls of compiled graphs (flex_graph.py).
inline constexpr std::string_view kGraphNamespace = "foreshock_graph::";

// Arguments are written "name:type", with a space between them: t a tensor, i an integer, f a floating-point
// number, b a boolean. Optional arguments have the same letters.
struct Family {
  std::string_view operation;
  uint32_t pass;
  std::string_view required;  // all of them are in the schema
  std::string_view optional;  // not all releases have these
};

#define FORESHOCK_QKV "q:t k:t v:t "
#define FORESHOCK_BACKWARD_QKV "dout:t q:t k:t v:t out:t softmax_lse:t dq:t dk:t dv:t "
#define FORESHOCK_PACKED "cu_seqlens_q:t cu_seqlens_k:t max_seqlen_q:i max_seqlen_k:i "
#define FORESHOCK_WINDOW "window_size_left:i window_size_right:i softcap:f "
#define FORESHOCK_FLASH2 "dropout_p:f softmax_scale:f causal:b " FORESHOCK_WINDOW "alibi_slopes:t "
#define FORESHOCK_FLASH3                                                                                    \
  FORESHOCK_QKV FORESHOCK_PACKED FORESHOCK_WINDOW                                                           \
      "k_new:t v_new:t cu_seqlens_k_new:t seqused_q:t seqused_k:t page_table:t kv_batch_idx:t leftpad_k:t " \
      "rotary_cos:t rotary_sin:t seqlens_rotary:t q_descale:t k_descale:t v_descale:t softmax_scale:f "     \
      "scheduler_metadata:t num_splits:i pack_gqa:b sm_margin:i "
#define FORESHOCK_XFORMERS "max_seqlen_q:i max_seqlen_k:i p:f softmax_scale:f is_causal:b "

inline constexpr Family kFamilies[] = {
    // flash-attn 2, from 2.7 on
    {"_flash_attn_forward", FORESHOCK_FORWARD, FORESHOCK_QKV FORESHOCK_FLASH2 "return_softmax:b", ""},
    {"_flash_attn_backward", FORESHOCK_BACKWARD, FORESHOCK_BACKWARD_QKV FORESHOCK_FLASH2 "deterministic:b",
     "rng_state:t"},
    {"_flash_attn_varlen_forward", FORESHOCK_FORWARD, FORESHOCK_QKV FORESHOCK_PACKED FORESHOCK_FLASH2,
     "return_softmax:b block_table:t leftpad_k:t seqused_k:t zero_tensors:b num_splits:i"},
    {"_flash_attn_varlen_backward", FORESHOCK_BACKWARD,
     FORESHOCK_BACKWARD_QKV FORESHOCK_PACKED FORESHOCK_FLASH2 "deterministic:b",
     "rng_state:t zero_tensors:b"},
    // flash-attn 3: the operations of its Python file, which call those of its compiled part
    {"_flash_attn_forward", FORESHOCK_FORWARD, FORESHOCK_FLASH3 "qv:t causal:b rotary_interleaved:b",
     "out_:t attention_chunk:i s_aux:t"},
    {"_flash_attn_backward", FORESHOCK_BACKWARD,
     FORESHOCK_BACKWARD_QKV FORESHOCK_PACKED FORESHOCK_WINDOW
     "softmax_scale:f is_causal:b deterministic:b sm_margin:i",
     "sequed_q:t sequed_k:t seqused_q:t seqused_k:t"},
    // flash-attn 3: the compiled part, which some packages call directly
    {"fwd", FORESHOCK_FORWARD, FORESHOCK_FLASH3 "q_v:t is_causal:b is_rotary_interleaved:b",
     "out:t attention_chunk:i s_aux:t"},
    {"bwd", FORESHOCK_BACKWARD,
     FORESHOCK_BACKWARD_QKV FORESHOCK_PACKED FORESHOCK_WINDOW
     "seqused_q:t seqused_k:t softmax_scale:f is_causal:b deterministic:b sm_margin:i",
     ""},
    // xformers, and mslk, which took its kernels over
    {"flash_fwd", FORESHOCK_FORWARD,
     "query:t key:t value:t cu_seqlens_q:t cu_seqlens_k:t seqused_k:t " FORESHOCK_XFORMERS
     "window_left:i window_right:i return_softmax:b block_tables:t",
     ""},
    {"flash_bwd", FORESHOCK_BACKWARD,
     "grad:t query:t key:t value:t out:t lse:t cu_seqlens_q:t cu_seqlens_k:t " FORESHOCK_XFORMERS
     "window_left:i window_right:i rng_state:t",
     "grads_share_storage:b"},
};

#undef FORESHOCK_QKV
#undef FORESHOCK_BACKWARD_QKV
#undef FORESHOCK_PACKED
#undef FORESHOCK_WINDOW
#undef FORESHOCK_FLASH2
#undef FORESHOCK_FLASH3
#undef FORESHOCK_XFORMERS

// Whether the operation reports a call: its first argument is the list of the call's tensors, query first.
inline bool reports_graph_call(const c10::FunctionSchema& schema) {
  return schema.name().rfind(kGraphNamespace, 0) == 0 && argument_index(schema, "tensors") == 0;
}

inline bool is_backward_name(std::string_view name) {
  constexpr std::string_view kEnd = "_backward";
  return name.size() > kEnd.size() && name.substr(name.size() - kEnd.size()) == kEnd;
}

// Whether this thread runs the kernel of a GraphReportHook, which has counted the call.
inline thread_local bool is_entered_graph_call = false;

// The letter of a type in Family; '?' for all other types.
inline char letter_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return letter_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return 't';
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return 'i';
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return 'f';
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return 'b';
    default:
      return '?';
  }
}

inline bool contains_word(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

inline bool belongs_to(const c10::FunctionSchema& schema, const Family& family) {
  const std::string_view name = schema.name();
  const size_t colons = name.find("::");
  if (colons == name.npos || name.substr(colons + 2) != family.operation) return false;
  size_t required = 0, needed = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string word = argument.name() + ":" + letter_of(argument.type());
    if (contains_word(family.required, word))
      ++required;
    else if (!contains_word(family.optional, word))
      return false;
  }
  for (const char letter : family.required) needed += letter == ':';
  return required == needed;
}

// The family of an operation; null: it belongs to none.
inline const Family* family_of(const c10::FunctionSchema& schema) {
  for (const Family& family : kFamilies)
    if (belongs_to(schema, family)) return &family;
  return nullptr;
}

// Whether the schema has tensors that are called query, key and value.
inline bool looks_like_attention(const c10::FunctionSchema& schema) {
  const auto has_tensor = [&schema](const char* name, const char* short_name) {
    for (const c10::Argument& argument : schema.arguments())
      if ((argument.name() == name || argument.name() == short_name) && letter_of(argument.type()) == 't')
        return true;
    return false;
  };
  return has_tensor("query", "q") && has_tensor("key", "k") && has_tensor("value", "v");
}

// The hook of an operation that is our own or in a family, or that looks like attention and is in none (a
// stranger). A call of a stranger on real data is reported by name, unless it is a part of another attention
// operation. The operation's number is registered at its first call, since the core's table of operations is
// small.
class ArrivedHook final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const Known& known = known_of(op);
    if (known.hook) return (*known.hook)(op, keys, stack);
    const c10::DispatchKeySet below = keys & kBelow;
    if (attention_depth == 0 && reaches_kernel(below) && !is_noted_.load(std::memory_order_relaxed) &&
        has_data(tensor_or_undefined(peek(*stack, known.arguments, known.query))) &&
        !is_noted_.exchange(true, std::memory_order_relaxed))
      foreshock_note_unseen(op.operator_name().name.c_str(), FORESHOCK_UNSEEN_USED);
    op.redispatchBoxed(below, stack);
  }

 private:
  // What is known of a schema. A library that is loaded again may bring another one.
  struct Known {
    const c10::FunctionSchema* schema;
    std::unique_ptr<AttentionHook> hook;  // null: a stranger
    int arguments, query;                 // of a stranger: number of arguments, position of the query
  };

  const Known& known_of(const c10::OperatorHandle& op) {
    const c10::FunctionSchema& schema = op.schema();
    const Known* known = known_.load(std::memory_order_acquire);
    if (known && known->schema == &schema) return *known;
    auto* fresh = new Known{&schema, nullptr, static_cast<int>(schema.arguments().size()),
                            std::max(argument_index(schema, "query"), argument_index(schema, "q"))};
    const std::string& name = schema.name();
    const Family* family = family_of(schema);
    const bool is_own = name.rfind(kOwnNamespace, 0) == 0;
    if (is_own || family) {
      const bool is_backward = is_own ? is_backward_name(name) : family->pass == FORESHOCK_BACKWARD;
      const int32_t number =
          foreshock_register_op(name.c_str(), is_backward ? FORESHOCK_BACKWARD : FORESHOCK_FORWARD);
      if (number >= 0)
        fresh->hook = std::make_unique<AttentionHook>(is_own ? kTap : kFlash, is_backward, number);
    }
    known_.store(fresh, std::memory_order_release);  // never freed: other threads may read it
    return *fresh;
  }

  std::atomic<const Known*> known_{nullptr};
  std::atomic<bool> is_noted_{false};
};

// The hook of an operation with reports_graph_call(), which returns nothing. It counts the call, so that the
// operation's kernel in Python runs for sampled calls only.
class GraphReportHook final : public c10::OperatorKernel {
 public:
  explicit GraphReportHook(const c10::FunctionSchema& schema)
      : arguments_(static_cast<int>(schema.arguments().size())),
        is_backward_(is_backward_name(schema.name())),
        number_(foreshock_register_op(
            (std::string(kOwnNamespace) + schema.name().substr(kGraphNamespace.size())).c_str(),
            is_backward_ ? FORESHOCK_BACKWARD : FORESHOCK_FORWARD)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys & kBelow;
    const auto tensors = peek(*stack, arguments_, 0).toListRef();
    if (number_ < 0 || tensors.empty() || !reaches_kernel(below) || !has_data(tensors[0].toTensor()))
      return op.redispatchBoxed(below, stack);
    // In a compiled graph the query needs no gradient, whatever the training does.
    if (attention_depth != 0 || !enter_attention(number_, is_backward_, tensors[0].toTensor(), true))
      return torch::jit::drop(*stack, static_cast<size_t>(arguments_));
    const Entered entered;
    op.redispatchBoxed(below, stack);
  }

 private:
  struct Entered {
    Entered() { is_entered_graph_call = true; }
    ~Entered() { is_entered_graph_call = false; }
  };

  int arguments_;
  bool is_backward_;
  int32_t number_;
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_FAMILIES_H_
