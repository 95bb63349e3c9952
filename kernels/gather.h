// Reads rows of a strided tensor: copies them into a dense buffer, and counts their NaN and Inf. No heap, no
// statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_GATHER_H_
#define FORESHOCK_KERNELS_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

namespace foreshock {

// Copies the first `width` elements of the rows (i, j, first) .. (i, j, first + count - 1) of a 4-d tensor,
// one row after the other, to `target`. A row runs along the last dimension. Indices must be inside the
// shape. Returns the bytes written. Unless all rows are adjacent, row n + kRowsAhead is prefetched before row
// n is copied.
inline uint64_t gather_row_starts(const TensorView& source, int64_t i, int64_t j, int64_t first,
                                  int64_t count, int64_t width, char* target) {
  const size_t element = size_of(source.dtype);  // bytes
  const uint64_t row_bytes = static_cast<uint64_t>(width) * element;
  const bool dense_rows = source.stride[3] == 1 || width <= 1;
  // No gap between two rows. Without rows there may be no data, from which memcpy() must not copy.
  if (dense_rows && source.stride[2] == width && count > 0) {
    std::memcpy(target, source.row(i, j, first), row_bytes * count);
    return row_bytes * count;
  }
  for (int64_t n = 0; n < count; ++n) {
    const char* row = source.row(i, j, first + n);
    if (n + kRowsAhead < count)
      prefetch_row(source.row(i, j, first + n + kRowsAhead), static_cast<int64_t>(row_bytes));
    if (dense_rows) {
      std::memcpy(target + n * row_bytes, row, row_bytes);
    } else {
      const int64_t step = source.stride[3] * static_cast<int64_t>(element);
      for (int64_t k = 0; k < width; ++k)
        std::memcpy(target + n * row_bytes + k * element, row + k * step, element);
    }
  }
  return row_bytes * count;
}

// Does the same as gather_row_starts() with whole rows.
inline uint64_t gather_rows(const TensorView& source, int64_t i, int64_t j, int64_t first, int64_t count,
                            char* target) {
  return gather_row_starts(source, i, j, first, count, source.shape[3], target);
}

// Counts NaN and Inf in a head: the elements in which all bits of the exponent (those set in `exponent`) are
// set. The loop for adjacent elements has a constant step, and its counter is as wide as an element, so that
// the compiler vectorizes this loop. A 16-bit counter is enough: a row is a head dimension, at most 4096.
template <class Bits>
uint64_t nonfinite_in(const TensorView& view, int64_t batch, int64_t head, Bits exponent) {
  const int64_t stride = view.stride[3] * static_cast<int64_t>(sizeof(Bits));
  uint64_t count = 0;
  for (int64_t n = 0; n < view.shape[2]; ++n) {
    const char* row = view.row(batch, head, n);
    Bits in_row = 0;
    // The address may be beyond the last row: a prefetch never faults.
    prefetch_row(row + kRowsAhead * view.stride[2] * static_cast<int64_t>(sizeof(Bits)),
                 view.shape[3] * stride);
    const auto add = [&](int64_t step) {
      for (int64_t c = 0; c < view.shape[3]; ++c)
        in_row = static_cast<Bits>(in_row + ((load_unaligned<Bits>(row + c * step) & exponent) == exponent));
    };
    if (view.stride[3] == 1)
      add(sizeof(Bits));
    else
      add(stride);
    count += in_row;
  }
  return count;
}

// Number of NaN and Inf in one head. The format must be floating.
inline uint64_t count_nonfinite(const TensorView& view, int64_t batch, int64_t head) {
  switch (view.dtype) {
    case DType::kFp64:
      return nonfinite_in(view, batch, head, uint64_t{0x7ff} << 52);
    case DType::kFp32:
      return nonfinite_in(view, batch, head, uint32_t{0xff} << 23);
    case DType::kBf16:
      return nonfinite_in(view, batch, head, uint16_t{0x7f80});
    case DType::kFp16:
      return nonfinite_in(view, batch, head, uint16_t{0x7c00});
    default:
      return 0;
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GATHER_H_
