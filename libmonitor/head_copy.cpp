#include "libmonitor/head_copy.h"

#include <algorithm>
#include <cstring>

#include "kernels/dtype.h"

namespace foreshock {
namespace {

using segment::TensorHeads;

uint64_t sides_of(ProjectionKind kind) { return uint64_t{has_queries(kind)} + uint64_t{has_keys(kind)}; }

uint64_t head_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  return heads.head_dim * projection.width * size_of(static_cast<DType>(dtype));
}

uint32_t count_of(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  const uint64_t one = sides_of(projection.kind) * head_bytes(projection, heads, dtype);
  if (one == 0) return 0;
  return static_cast<uint32_t>(std::clamp<uint64_t>(kMostHeadBytes / one, 1, heads.kv_heads));
}

// Outputs first .. first + head_dim - 1, packed row by row. Returns the end.
char* copy_outputs(const Projection& projection, const foreshock_tensor& values, uint64_t first,
                   uint32_t count, char* to) {
  const size_t bytes = size_of(static_cast<DType>(values.dtype));
  const int64_t step = static_cast<int64_t>(bytes);
  const int64_t of_output = step * values.stride[projection.is_transposed ? 1 : 0],
                of_input = step * values.stride[projection.is_transposed ? 0 : 1];
  for (uint32_t output = 0; output < count; ++output) {
    const char* row =
        static_cast<const char*>(values.data) + static_cast<int64_t>(first + output) * of_output;
    if (of_input == step) {
      std::memcpy(to, row, projection.width * bytes);
      to += projection.width * bytes;
      continue;
    }
    for (uint64_t n = 0; n < projection.width; ++n, to += bytes)
      std::memcpy(to, row + static_cast<int64_t>(n) * of_input, bytes);
  }
  return to;
}

}  // namespace

size_t head_payload_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype) {
  const uint32_t count = count_of(projection, heads, dtype);
  if (count == 0) return 0;
  return segment::values_offset(count) +
         count * sides_of(projection.kind) * head_bytes(projection, heads, dtype);
}

void copy_heads(const Projection& projection, const HeadGeometry& heads, const foreshock_tensor& values,
                char* to) {
  const uint32_t count = count_of(projection, heads, values.dtype);
  const auto kv_head = [&](uint32_t n) {
    return static_cast<uint32_t>(uint64_t{n} * heads.kv_heads / count);
  };
  const TensorHeads head = {.sides = (has_queries(projection.kind) ? segment::kQuerySide : 0u) |
                                     (has_keys(projection.kind) ? segment::kKeySide : 0u),
                            .head_dim = heads.head_dim,
                            .width = static_cast<uint32_t>(projection.width),
                            .kv_heads = heads.kv_heads,
                            .count = count,
                            .reserved = 0};
  std::memset(to, 0, segment::values_offset(count));
  std::memcpy(to, &head, sizeof head);
  for (uint32_t n = 0; n < count; ++n) {
    const uint32_t number = kv_head(n);
    std::memcpy(to + sizeof head + n * sizeof number, &number, sizeof number);
  }
  char* at = to + segment::values_offset(count);
  for (uint32_t n = 0; n < count && has_queries(projection.kind); ++n)
    at = copy_outputs(projection, values, first_query_output(projection, heads, kv_head(n)), heads.head_dim,
                      at);
  for (uint32_t n = 0; n < count && has_keys(projection.kind); ++n)
    at =
        copy_outputs(projection, values, first_key_output(projection, heads, kv_head(n)), heads.head_dim, at);
}

}  // namespace foreshock
