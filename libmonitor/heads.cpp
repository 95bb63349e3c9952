// Recognizes query and key projections by their names and shapes, and copies the rows of their heads. A
// kv-head is a key head with its value head; one or more query heads share it. kFused projections compute all
// queries, then all keys, then all values. kGrouped projections compute, for each kv-head in turn, its
// queries, its key and its value.
#include <algorithm>
#include <cstring>

#include "kernels/dtype.h"
#include "libmonitor/weights.h"

namespace foreshock {
namespace {

struct NameWord {
  const char* text;
  ProjectionKind kind;
  // Some models with several query heads per kv-head use this name for kFused, others for kGrouped. Both
  // kinds have the same shape, so the shape cannot decide.
  bool is_ambiguous = false;
};
// clang-format off
// Names in Hugging Face, Megatron, torchtitan, nanoGPT, timm and torch.nn.MultiheadAttention.
constexpr NameWord kWords[] = {
    {"q_proj", ProjectionKind::kQuery}, {"k_proj", ProjectionKind::kKey},
    {"wq", ProjectionKind::kQuery}, {"wk", ProjectionKind::kKey},
    {"to_q", ProjectionKind::kQuery}, {"to_k", ProjectionKind::kKey},
    {"q_lin", ProjectionKind::kQuery}, {"k_lin", ProjectionKind::kKey},
    {"q", ProjectionKind::kQuery}, {"k", ProjectionKind::kKey},
    {"query", ProjectionKind::kQuery}, {"key", ProjectionKind::kKey},
    {"query_proj", ProjectionKind::kQuery}, {"key_proj", ProjectionKind::kKey},
    {"linear_q", ProjectionKind::kQuery}, {"linear_k", ProjectionKind::kKey},
    {"qkv", ProjectionKind::kFused}, {"qkv_proj", ProjectionKind::kFused},
    {"wqkv", ProjectionKind::kFused, true},  // InternLM2 groups it by kv-head
    {"to_qkv", ProjectionKind::kFused}, {"in_proj", ProjectionKind::kFused},
    {"in_proj_weight", ProjectionKind::kFused}, {"c_attn", ProjectionKind::kFused},
    {"att_proj", ProjectionKind::kFused}, {"linear_qkv", ProjectionKind::kGrouped},
    {"query_key_value", ProjectionKind::kGrouped, true},  // ChatGLM2 puts all queries first
};
// clang-format on

// The last component of a parameter's name without a final ".weight": "q_proj" of "attention.q_proj.weight".
struct Component {
  const char* begin;
  size_t length;
};
Component last_component(const char* name) {
  static constexpr char kWeight[] = ".weight";
  size_t length = std::strlen(name);
  const size_t tail = sizeof kWeight - 1;
  if (length > tail && std::memcmp(name + length - tail, kWeight, tail) == 0) length -= tail;
  size_t begin = length;
  while (begin > 0 && name[begin - 1] != '.') --begin;
  return {name + begin, length - begin};
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equals_ignoring_case(const Component& component, const char* word) {
  if (std::strlen(word) != component.length) return false;
  for (size_t n = 0; n < component.length; ++n)
    if (lower(component.begin[n]) != word[n]) return false;
  return true;
}

uint64_t outputs_of(ProjectionKind kind, const HeadGeometry& heads) {
  const uint64_t queries = uint64_t{heads.heads} * heads.head_dim,
                 keys = uint64_t{heads.kv_heads} * heads.head_dim;
  if (kind == ProjectionKind::kNone) return 0;
  if (kind == ProjectionKind::kQuery) return queries;
  return kind == ProjectionKind::kKey ? keys : queries + 2 * keys;
}

// Whether the kind behind an ambiguous name matters. False with one kv-head (both kinds have the same rows),
// and with as many kv-heads as query heads (then every known model has the kind in kWords).
bool has_several_groups(const HeadGeometry& heads) {
  return heads.kv_heads > 1 && heads.kv_heads < heads.heads;
}

const NameWord* word_of(const char* name) {
  const Component component = last_component(name);
  for (const NameWord& word : kWords)
    if (equals_ignoring_case(component, word.text)) return &word;
  return nullptr;
}

// Number of query heads that share a kv-head.
uint64_t group_size(const HeadGeometry& heads) { return heads.heads / heads.kv_heads; }

}  // namespace

ProjectionKind projection_kind(const char* name) {
  const NameWord* word = word_of(name);
  return word != nullptr ? word->kind : ProjectionKind::kNone;
}

Projection projection_of(const char* name, const int64_t* shape, uint32_t dims, const HeadGeometry& heads) {
  if (dims != 2 || shape[0] <= 0 || shape[1] <= 0 || heads.head_dim == 0 || heads.kv_heads == 0 ||
      heads.heads % heads.kv_heads != 0)
    return {};
  const NameWord* word = word_of(name);
  if (word == nullptr || (word->is_ambiguous && has_several_groups(heads))) return {};
  const ProjectionKind kind = word->kind;
  const uint64_t outputs = outputs_of(kind, heads), rows = static_cast<uint64_t>(shape[0]),
                 columns = static_cast<uint64_t>(shape[1]);
  if (outputs == 0) return {};
  if (rows == outputs) return {kind, /*is_transposed=*/false, outputs, columns};
  if (columns == outputs) return {kind, /*is_transposed=*/true, outputs, rows};
  return {};
}

void ProjectionOutputs::add(const char* name, const int64_t* shape, uint32_t dims) {
  if (dims != 2 || shape[0] <= 0) return;
  const auto store_rows = [shape](uint64_t* outputs, bool* differs) {
    const auto rows = static_cast<uint64_t>(shape[0]);
    *differs |= *outputs != 0 && *outputs != rows;
    *outputs = *differs ? 0 : rows;  // 0: unknown, since projections of the model differ
  };
  const ProjectionKind kind = projection_kind(name);
  if (kind == ProjectionKind::kKey) store_rows(&key, &key_differs_);
  if (kind == ProjectionKind::kFused || kind == ProjectionKind::kGrouped) store_rows(&fused, &fused_differs_);
}

// Some models copy each key to all its query heads before they call attention. The number of kv-heads then
// comes from the key projection, or from a fused one, which has the outputs of heads + 2 * kv_heads heads.
HeadGeometry with_kv_heads_of_model(const HeadGeometry& called, const ProjectionOutputs& outputs) {
  if (called.head_dim == 0 || called.kv_heads != called.heads) return called;
  const uint64_t key_heads = outputs.key / called.head_dim, fused_heads = outputs.fused / called.head_dim;
  const bool is_exact =
      key_heads * called.head_dim == outputs.key && fused_heads * called.head_dim == outputs.fused;
  uint64_t kv_heads = key_heads;
  if (kv_heads == 0 && fused_heads > called.heads && (fused_heads - called.heads) % 2 == 0)
    kv_heads = (fused_heads - called.heads) / 2;
  if (!is_exact || kv_heads == 0 || kv_heads > called.heads || called.heads % kv_heads != 0) return called;
  return {called.heads, static_cast<uint32_t>(kv_heads), called.head_dim};
}

// In a kGrouped projection a kv-head has the outputs of group_size() + 2 heads: its queries, its key, its
// value.
uint64_t first_query_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head) {
  if (projection.kind == ProjectionKind::kGrouped) return kv_head * (group_size(heads) + 2) * heads.head_dim;
  return kv_head * group_size(heads) * heads.head_dim;
}

uint64_t first_key_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head) {
  if (projection.kind == ProjectionKind::kGrouped)
    return (kv_head * (group_size(heads) + 2) + group_size(heads)) * heads.head_dim;
  const uint64_t queries = projection.kind == ProjectionKind::kFused ? heads.heads : 0;
  return (queries + kv_head) * heads.head_dim;
}

namespace {

using segment::TensorHeads;

// Returns for how many of the two sides, queries and keys, the projection has outputs: 0, 1 or 2.
uint64_t sides_of(ProjectionKind kind) { return uint64_t{has_queries(kind)} + uint64_t{has_keys(kind)}; }

uint64_t head_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  return heads.head_dim * projection.width * size_of(static_cast<DType>(dtype));
}

// Returns how many kv-heads are copied: as many as fit into kMostHeadBytes, at least one.
uint32_t kv_heads_in_payload(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  const uint64_t bytes = sides_of(projection.kind) * head_bytes(projection, heads, dtype);  // per kv-head
  if (bytes == 0) return 0;
  return static_cast<uint32_t>(std::clamp<uint64_t>(kMostHeadBytes / bytes, 1, heads.kv_heads));
}

// Copies outputs first .. first + count - 1 to `target`, each as a row of `width` values. Returns the end.
char* copy_outputs(const Projection& projection, const foreshock_tensor& values, uint64_t first,
                   uint32_t count, char* target) {
  const size_t bytes = size_of(static_cast<DType>(values.dtype));
  const int64_t step = static_cast<int64_t>(bytes);  // the strides below are in bytes
  const int64_t output_stride = step * values.stride[projection.is_transposed ? 1 : 0],
                input_stride = step * values.stride[projection.is_transposed ? 0 : 1];
  for (uint32_t output = 0; output < count; ++output) {
    const char* row =
        static_cast<const char*>(values.data) + static_cast<int64_t>(first + output) * output_stride;
    if (input_stride == step) {
      std::memcpy(target, row, projection.width * bytes);
      target += projection.width * bytes;
      continue;
    }
    for (uint64_t n = 0; n < projection.width; ++n, target += bytes)
      std::memcpy(target, row + static_cast<int64_t>(n) * input_stride, bytes);
  }
  return target;
}

}  // namespace

size_t head_payload_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  const uint32_t count = kv_heads_in_payload(projection, heads, dtype);
  if (count == 0) return 0;
  return segment::values_offset(count) +
         count * sides_of(projection.kind) * head_bytes(projection, heads, dtype);
}

void copy_heads(const Projection& projection, const HeadGeometry& heads, const foreshock_tensor& values,
                char* target) {
  const uint32_t count = kv_heads_in_payload(projection, heads, values.dtype);
  // The n-th of `count` evenly spaced kv-heads.
  const auto kv_head = [&](uint32_t n) {
    return static_cast<uint32_t>(uint64_t{n} * heads.kv_heads / count);
  };
  const TensorHeads header = {.sides = (has_queries(projection.kind) ? segment::kQuerySide : 0u) |
                                       (has_keys(projection.kind) ? segment::kKeySide : 0u),
                              .head_dim = heads.head_dim,
                              .width = static_cast<uint32_t>(projection.width),
                              .kv_heads = heads.kv_heads,
                              .count = count,
                              .reserved = 0};
  // The payload: this header, the numbers of the copied kv-heads, then the rows of queries and of keys.
  std::memset(target, 0, segment::values_offset(count));
  std::memcpy(target, &header, sizeof header);
  for (uint32_t n = 0; n < count; ++n) {
    const uint32_t number = kv_head(n);
    std::memcpy(target + sizeof header + n * sizeof number, &number, sizeof number);
  }
  char* end = target + segment::values_offset(count);
  const auto copy = [&](uint64_t first) {
    end = copy_outputs(projection, values, first, heads.head_dim, end);
  };
  for (uint32_t n = 0; n < count && has_queries(projection.kind); ++n)
    copy(first_query_output(projection, heads, kv_head(n)));
  for (uint32_t n = 0; n < count && has_keys(projection.kind); ++n)
    copy(first_key_output(projection, heads, kv_head(n)));
}

}  // namespace foreshock
