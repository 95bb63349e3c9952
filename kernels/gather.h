// Copies rows of a strided tensor into a packed buffer. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_GATHER_H_
#define FORESHOCK_KERNELS_GATHER_H_

#include "kernels/tensor.h"

namespace foreshock {

// Copies elements (i, j, first .. first + count - 1, 0 .. shape[3] - 1) to `to`, row-major and packed; `to` holds
// count * shape[3] elements. Indices must lie inside the shape. Returns the bytes written.
uint64_t gather_rows(const TensorView& from, int64_t i, int64_t j, int64_t first, int64_t count, char* to);

// The same, but only the first `width` elements of each row.
uint64_t gather_row_heads(const TensorView& from, int64_t i, int64_t j, int64_t first, int64_t count,
                          int64_t width, char* to);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GATHER_H_
