// Which rows of a projection's weight make the queries and the keys of one attention head, understood from
// its name, its shape, and the heads that the sampled calls of attention had. Pure functions: no heap, no
// statics.
#ifndef FORESHOCK_LIBMONITOR_HEAD_ROWS_H_
#define FORESHOCK_LIBMONITOR_HEAD_ROWS_H_

#include <cstdint>

namespace foreshock {

// Of the calls of attention. Query heads are a multiple of kv-heads.
struct HeadGeometry {
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool operator==(const HeadGeometry&) const = default;
};

enum class ProjectionKind : uint32_t {
  kNone = 0,     // neither queries nor keys, or not understood
  kQuery = 1,    // q_proj and its like: heads * head_dim rows
  kKey = 2,      // kv_heads * head_dim rows
  kFused = 3,    // both: all queries, then all keys, then all values
  kGrouped = 4,  // both, by kv-head: its queries, its key, its value (Megatron, GPT-NeoX, Falcon)
};

// By the last words of a parameter's name, "layers.0.attention.q_proj.weight" or "attn.in_proj_weight".
ProjectionKind projection_kind(const char* name);

// A weight of `outputs` x `width`, or its transpose (Conv1D of GPT-2).
struct Projection {
  ProjectionKind kind = ProjectionKind::kNone;
  bool is_transposed = false;  // outputs are columns
  uint64_t outputs = 0, width = 0;
};

// kind kNone when the shape is not the one that name and heads ask for, or the name leaves open which rows
// are whose.
Projection projection_of(const char* name, const int64_t* shape, uint32_t dims, const HeadGeometry& heads);

// The outputs of the projections of keys, and of fused ones, where all of them have as many; 0: none, or they
// differ.
struct ProjectionOutputs {
  uint64_t key = 0, fused = 0;

  void see(const char* name, const int64_t* shape, uint32_t dims);

 private:
  bool key_differs_ = false, fused_differs_ = false;
};

// Where model code repeats the keys of grouped queries before it calls attention, the calls have a kv-head
// for each query head: then the projections tell how many there are.
HeadGeometry with_own_keys(const HeadGeometry& called, const ProjectionOutputs& outputs);

// First output of a kv-head's key, and of the first query head that reads it. Each has head_dim outputs. The
// projection must have it (kQuery: no key, kKey: no query).
uint64_t first_query_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head);
uint64_t first_key_output(const Projection& projection, const HeadGeometry& heads, uint32_t kv_head);

inline bool has_queries(ProjectionKind kind) {
  return kind != ProjectionKind::kNone && kind != ProjectionKind::kKey;
}
inline bool has_keys(ProjectionKind kind) {
  return kind != ProjectionKind::kNone && kind != ProjectionKind::kQuery;
}

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_HEAD_ROWS_H_
