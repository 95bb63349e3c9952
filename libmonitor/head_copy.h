// Copies the rows of a projection's heads into a record of the segment. No heap.
#ifndef FORESHOCK_LIBMONITOR_HEAD_COPY_H_
#define FORESHOCK_LIBMONITOR_HEAD_COPY_H_

#include <cstddef>

#include "foreshock/hook.h"
#include "libmonitor/head_rows.h"
#include "segment/layout.h"

namespace foreshock {

inline constexpr uint64_t kMostHeadBytes = 512 << 10;  // of one tensor, one head excepted

// Of the payload that copy_heads would write; 0: none. As many kv-heads as stay below kMostHeadBytes, evenly
// spaced, at least one.
size_t head_payload_bytes(const Projection& projection, const HeadGeometry& heads, uint32_t dtype);

// Writes it to `to`, which is aligned to 8 bytes. `values` is the whole weight, strided, of a format of 2 or
// 4 bytes.
void copy_heads(const Projection& projection, const HeadGeometry& heads, const foreshock_tensor& values,
                char* to);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_HEAD_COPY_H_
