// Rows of some heads of a query or key projection, as a payload of a tensor's record: how they lie there, and
// how they are read back. Nothing in them is trusted.
#ifndef FORESHOCK_SEGMENT_TENSOR_HEADS_H_
#define FORESHOCK_SEGMENT_TENSOR_HEADS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace foreshock::segment {

enum TensorSides : uint32_t { kQuerySide = 1, kKeySide = 2 };

// Followed by the numbers of the kv-heads (uint32, up to a multiple of 8 bytes), then, of each side that is
// there, queries first, count x head_dim x width values in the format of the tensor. Of the query heads that
// read a kv-head the first one is there.
struct TensorHeads {
  uint32_t sides;  // of TensorSides
  uint32_t head_dim, width;
  uint32_t kv_heads;  // of the layer
  uint32_t count;     // of them here
  uint32_t reserved;
};
static_assert(sizeof(TensorHeads) == 24);

inline constexpr uint64_t kMostTensorHeadsBytes = uint64_t{64} << 20;  // that are believed

// Where the values begin.
constexpr uint64_t values_offset(uint32_t count) { return sizeof(TensorHeads) + (count + 1) / 2 * 8; }

struct TensorHeadsView {
  TensorHeads head = {};
  std::vector<uint32_t> numbers;             // of the kv-heads, ascending
  std::span<const std::byte> queries, keys;  // empty: not there; borrowed
};

// Null, or why the payload cannot be used. `element_bytes`: of the tensor's format.
const char* parse_tensor_heads(std::span<const std::byte> payload, uint64_t element_bytes,
                               TensorHeadsView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_TENSOR_HEADS_H_
