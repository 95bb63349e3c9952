// Reads rows of a strided tensor: copies them into a dense buffer, counts their NaN and Inf, and chooses the
// rows of one sequence in a batch of sequences without padding. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_GATHER_H_
#define FORESHOCK_KERNELS_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block.h"
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

// A packed batch (sequences stored one after the other without padding) and the choice of the sequence to
// sample: the one that contains the query position at the fraction (`place` / 2^32) of all query positions.
// The offsets may be readable only on the device, so find_sequence() is compiled for host and device.
//
// Sequence n has the query positions from query offset n up to, but not including, query offset n + 1. Its
// key positions follow from the key offsets in the same way.
struct PackedSequences {
  uint64_t query_offsets, key_offsets;  // addresses of int32_t[count + 1]
  uint32_t count;                       // 0: not packed
  uint32_t queries, keys;               // numbers of positions of all sequences together, at most 2^31
  uint32_t longest_query, longest_key;  // positions; a longer sequence is not sampled
  uint32_t place;
};
static_assert(sizeof(PackedSequences) == 40);

// The chosen sequence: its index in the batch, and where its query and key positions are.
struct SequencePlace {
  uint32_t number = 0;              // the index
  uint32_t query = 0, queries = 0;  // first query position, number of them (0: no sequence was chosen)
  uint32_t key = 0, keys = 0;       // first key position, number of them
};

// Finds the sequence that batch.place chooses, by bisection. If `place` is uniform, every query position is
// equally likely and an empty sequence is never chosen. `memory` reads the offsets, which may be invalid. The
// result lies within batch.queries and batch.keys. It has no positions if the first and last query offsets,
// or those of the sequence, are negative, do not increase or are too large, or if the sequence is too long.
template <class Memory>
FORESHOCK_DEVICE SequencePlace find_sequence(const PackedSequences& batch, const Memory& memory) {
  const auto offset = [&memory](uint64_t offsets, uint32_t n) {
    return int64_t{memory.template load<int32_t>(offsets + sizeof(int32_t) * uint64_t{n})};
  };
  int64_t begin = offset(batch.query_offsets, 0), end = offset(batch.query_offsets, batch.count);
  if (begin < 0 || end <= begin || end > batch.queries) return {};
  const int64_t wanted = begin + static_cast<int64_t>(static_cast<uint64_t>(end - begin) * batch.place >> 32);
  // Invariant: sequence `low` begins at `begin` <= wanted; sequence `high` - 1 ends at `end` > wanted.
  uint32_t low = 0, high = batch.count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t middle_begin = offset(batch.query_offsets, middle);
    if (middle_begin <= wanted) {
      low = middle;
      begin = middle_begin;
    } else {
      high = middle;
      end = middle_begin;
    }
  }
  const int64_t key = offset(batch.key_offsets, low), key_end = offset(batch.key_offsets, low + 1);
  if (begin < 0 || end > batch.queries || end - begin > batch.longest_query || key < 0 || key_end <= key ||
      key_end > batch.keys || key_end - key > batch.longest_key)
    return {};
  return {.number = low,
          .query = static_cast<uint32_t>(begin),
          .queries = static_cast<uint32_t>(end - begin),
          .key = static_cast<uint32_t>(key),
          .keys = static_cast<uint32_t>(key_end - key)};
}

// Divides a sequence of `length` positions into `parts` equal parts and returns the position at `fraction` /
// 2^32 of part n. `parts` must not exceed `length`. A smaller `length` never gives a larger position, so a
// slot that is planned for the longest sequence fits every other sequence.
constexpr uint64_t position_in_part(uint64_t length, uint32_t n, uint32_t parts, uint32_t fraction) {
  const uint64_t begin = length * n / parts, end = length * (n + 1) / parts;
  return begin + ((end - begin) * fraction >> 32);
}

// Host memory as find_sequence() reads it: any address, aligned or not.
struct HostMemory {
  template <class T>
  T load(uint64_t address) const {
    return load_unaligned<T>(reinterpret_cast<const void*>(address));
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GATHER_H_
