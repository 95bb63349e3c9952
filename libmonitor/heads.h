// Finds and copies the rows of a projection's weight that belong to the queries and keys of an attention
// head. A projection is a linear layer that computes the queries, keys or values of attention; each output of
// the layer has a row of the weight. The rows are found by the weight's name and shape and the numbers of
// heads in the sampled attention calls. A kv-head is a key/value head. Allocates no memory.
#ifndef FORESHOCK_LIBMONITOR_HEADS_H_
#define FORESHOCK_LIBMONITOR_HEADS_H_

#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/call.h"
#include "segment/layout.h"

namespace foreshock {

enum class ProjectionKind : uint32_t {
  kNone = 0,     // neither queries nor keys, or unknown
  kQuery = 1,    // q_proj and similar names: heads * head_dim rows
  kKey = 2,      // kv_heads * head_dim rows
  kFused = 3,    // queries and keys: all queries, then all keys, then all values
  kGrouped = 4,  // for each kv-head in turn, its queries, key and value (Megatron, GPT-NeoX, Falcon)
};

// Recognizes a projection by the end of its parameter's name: "attention.q_proj.weight", "in_proj_weight".
ProjectionKind projection_kind(const char* name);

// The weight of a projection: an `outputs` x `width` matrix, or the transpose of such a matrix.
struct Projection {
  ProjectionKind kind = ProjectionKind::kNone;
  bool is_transposed = false;  // outputs are columns of the weight (Conv1D of GPT-2)
  uint64_t outputs = 0, width = 0;
};

// Describes the projection of a weight. Its kind is kNone if the shape does not match name and heads, or if
// the name does not determine which rows belong to which head.
Projection projection_of(const char* name, const int64_t* shape, uint32_t dims, const HeadGeometry& heads);

// Numbers of outputs of the model's key projections (`key`), and of its fused or grouped projections
// (`fused`), collected by one add() per weight. 0: the model has none, or two with different numbers.
struct ProjectionOutputs {
  uint64_t key = 0, fused = 0;
  void add(const char* name, const int64_t* shape, uint32_t dims);

 private:
  bool key_differs_ = false, fused_differs_ = false;
};

// Returns `called`, the heads of attention calls, with the model's own number of kv-heads, derived from
// `outputs`: models with fewer kv-heads than query heads may repeat the keys before they call attention.
HeadGeometry with_kv_heads_of_model(const HeadGeometry& called, const ProjectionOutputs& outputs);

// Return the index of a projection's output; each head has head_dim consecutive outputs.
// first_query_output(): the first output of the first query head that reads this kv-head; the projection must
// compute queries. first_key_output(): the first output of the key of this kv-head; the projection must
// compute keys.
uint64_t first_query_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head);
uint64_t first_key_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head);

inline bool has_queries(ProjectionKind kind) {
  return kind != ProjectionKind::kNone && kind != ProjectionKind::kKey;
}
inline bool has_keys(ProjectionKind kind) {
  return kind != ProjectionKind::kNone && kind != ProjectionKind::kQuery;
}

inline constexpr uint64_t kMostHeadBytes = 512 << 10;  // of the rows of one weight, unless one head is larger

// Returns the bytes of the payload that copy_heads() writes, or 0 for no payload. The payload has as many
// evenly spaced kv-heads as fit into kMostHeadBytes, but at least one. `dtype`: format of the weight.
size_t head_payload_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype);

// Writes a payload to `target`, which is aligned to 8 bytes: a segment::TensorHeads, the indices of the
// kv-heads, and their rows. `values`: the whole weight, with any strides and 2 or 4 bytes per element.
void copy_heads(const Projection& projection, const HeadGeometry& heads, const foreshock_tensor& values,
                char* target);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_HEADS_H_
