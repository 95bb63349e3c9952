#include "kernels/gather.h"

#include <cstring>

namespace foreshock {
namespace {

void copy_strided(const char* from, int64_t step, int64_t count, size_t element, char* to) {
  for (int64_t n = 0; n < count; ++n) std::memcpy(to + n * element, from + n * step, element);
}

}  // namespace

uint64_t gather_row_heads(const TensorView& from, int64_t i, int64_t j, int64_t first, int64_t count,
                          int64_t width, char* to) {
  const size_t element = size_of(from.dtype);
  const uint64_t row_bytes = static_cast<uint64_t>(width) * element;
  const bool dense_rows = from.stride[3] == 1 || width <= 1;
  if (dense_rows && from.stride[2] == width && count > 0) {  // the rows are contiguous
    std::memcpy(to, from.row(i, j, first), row_bytes * count);
    return row_bytes * count;
  }
  for (int64_t n = 0; n < count; ++n) {
    const char* row = from.row(i, j, first + n);
    if (n + kRowsAhead < count)
      prefetch_row(from.row(i, j, first + n + kRowsAhead), static_cast<int64_t>(row_bytes));
    if (dense_rows) {
      std::memcpy(to + n * row_bytes, row, row_bytes);
    } else {
      copy_strided(row, from.stride[3] * static_cast<int64_t>(element), width, element, to + n * row_bytes);
    }
  }
  return row_bytes * count;
}

uint64_t gather_rows(const TensorView& from, int64_t i, int64_t j, int64_t first, int64_t count, char* to) {
  return gather_row_heads(from, i, j, first, count, from.shape[3], to);
}

}  // namespace foreshock
