// The body of kGather.
#ifndef FORESHOCK_KERNELS_GATHER_BODY_H_
#define FORESHOCK_KERNELS_GATHER_BODY_H_

#include "kernels/block.h"
#include "kernels/device_jobs.h"

namespace foreshock {

inline constexpr uint32_t kWarp = 32;

// Bytes to copy at a time: what every row and, where columns lie apart, every element is aligned to.
constexpr uint32_t gather_unit(const GatherPiece& piece, uint64_t to) {
  const bool is_dense = piece.column_stride == 1 || piece.width <= 1;
  const uint64_t strides = static_cast<uint64_t>(piece.head_stride) | static_cast<uint64_t>(piece.row_stride);
  const uint64_t row = uint64_t{piece.width} * piece.element;
  return power_dividing(piece.from | to | strides * piece.element | row, is_dense ? 16 : piece.element);
}

// As many neighbouring threads share a row as it has units, up to a warp.
template <class Unit, class Block>
FORESHOCK_DEVICE void gather_piece(const GatherJob& job, const GatherPiece& piece, Block& block) {
  const uint64_t row_bytes = uint64_t{piece.width} * piece.element;
  const uint64_t units = row_bytes / sizeof(Unit), rows = uint64_t{piece.heads} * piece.rows;
  const int64_t element = piece.element;
  const bool is_dense = piece.column_stride == 1 || piece.width <= 1;
  uint32_t sharing = 1;
  while (sharing < units && sharing < kWarp && 2 * sharing <= block.threads()) sharing *= 2;
  const uint32_t groups = block.threads() / sharing;
  block.each([&](uint32_t thread) {
    if (thread / sharing >= groups) return;
    const uint64_t first = uint64_t{block.index()} * groups + thread / sharing;
    for (uint64_t row = first; row < rows; row += uint64_t{block.blocks()} * groups) {
      const uint32_t head = static_cast<uint32_t>(row / piece.rows);
      const uint32_t n = static_cast<uint32_t>(row % piece.rows);
      const int64_t at = piece.is_listed ? job.position[n] : int64_t{piece.first_row} + n;
      const uint64_t from =
          piece.from + static_cast<uint64_t>((head * piece.head_stride + at * piece.row_stride) * element);
      const uint64_t to = job.to + piece.to + row * row_bytes;
      for (uint64_t unit = thread % sharing; unit < units; unit += sharing) {
        const uint64_t byte = unit * sizeof(Unit);
        const uint64_t offset =
            is_dense ? byte
                     : byte / element * static_cast<uint64_t>(piece.column_stride * element) + byte % element;
        block.store(to + byte, block.template load<Unit>(from + offset));
      }
    }
  });
}

template <class Block>
FORESHOCK_DEVICE void gather_body(const GatherJob& job, Block& block) {
  GatherClock* clock = reinterpret_cast<GatherClock*>(job.clock);
  block.each([&](uint32_t thread) {
    if (thread == 0) block.max(&clock->not_begin, ~block.now());
  });
  for (uint32_t n = 0; n < job.pieces; ++n) {
    const GatherPiece& piece = job.piece[n];
    switch (gather_unit(piece, job.to + piece.to)) {
      case 16:
        gather_piece<Bytes16>(job, piece, block);
        break;
      case 8:
        gather_piece<uint64_t>(job, piece, block);
        break;
      case 4:
        gather_piece<uint32_t>(job, piece, block);
        break;
      case 2:
        gather_piece<uint16_t>(job, piece, block);
        break;
      default:
        gather_piece<uint8_t>(job, piece, block);
    }
  }
  block.each([&](uint32_t thread) {
    if (thread != 0) return;
    block.max(&clock->end, block.now());
    if (!block.last(&clock->arrived, block.blocks())) return;
    uint64_t* times = reinterpret_cast<uint64_t*>(job.times);
    times[0] = ~block.fresh(&clock->not_begin);
    times[1] = block.fresh(&clock->end);
    clock->not_begin = clock->end = 0;
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GATHER_BODY_H_
