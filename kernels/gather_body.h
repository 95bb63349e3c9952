// The device code of the kernels kGather and kPackedGather, which copy sampled rows of attention tensors into
// one dense slice, and the functions that kKeyGather shares with them. A piece is one tensor of a slice
// (GatherPiece in device_jobs.h). Block is the interface of block.h: the threads of one device block.
#ifndef FORESHOCK_KERNELS_GATHER_BODY_H_
#define FORESHOCK_KERNELS_GATHER_BODY_H_

#include "kernels/block.h"
#include "kernels/device_jobs.h"

namespace foreshock {

inline constexpr uint32_t kWarp = 32;  // threads of a warp

// Returns the number of bytes to copy at a time: the largest power of two to which all rows are aligned. It
// is at most 16, and at most the size of an element if the columns are not adjacent. A power of two divides
// several numbers if it divides their bitwise or. `to`: the address to which the piece is copied.
constexpr uint32_t gather_unit(const GatherPiece& piece, uint64_t to) {
  const bool is_dense = piece.column_stride == 1 || piece.width <= 1;
  const uint64_t strides = static_cast<uint64_t>(piece.head_stride) | static_cast<uint64_t>(piece.row_stride);
  const uint64_t row = uint64_t{piece.width} * piece.element;
  return power_dividing(piece.from | to | strides * piece.element | row | piece.head_bytes,
                        is_dense ? 16 : piece.element);
}

// Address of row 0 of a piece (the copy begins at its first_row), and how many rows per head are copied.
struct PieceRows {
  uint64_t from;
  uint32_t rows;
};

// The rows to copy from a batch of equal sequences. They are the rows of the job, the same for every thread.
// A piece with listed rows (is_listed) has rows at sampled positions: position(n), here and in SequenceRows,
// returns the position of the n-th row. The rows of other pieces are consecutive.
class JobRows {
 public:
  explicit FORESHOCK_DEVICE JobRows(const GatherJob& job) : job_(job) {}
  FORESHOCK_DEVICE PieceRows piece_rows(uint32_t number, uint32_t /*thread*/) const {
    return {job_.piece[number].from, job_.piece[number].rows};
  }
  FORESHOCK_DEVICE int64_t position(uint32_t n, uint32_t /*thread*/) const { return job_.position[n]; }

 private:
  const GatherJob& job_;
};

// The rows to copy from one sequence of a packed batch, which each thread has found with find_sequence(). The
// queries are divided into equal parts, and one position is sampled in each part. If the slots have no room
// for all of them, the host has set job.positions below job.parts, and the last parts have no position.
template <class Block>
class SequenceRows {
 public:
  using Places = typename Block::template PerThread<SequencePlace>;

  FORESHOCK_DEVICE SequenceRows(const PackedGatherJob& job, Places& place) : job_(job), place_(place) {}

  FORESHOCK_DEVICE PieceRows piece_rows(uint32_t number, uint32_t thread) const {
    const GatherPiece& piece = job_.gather.piece[number];
    const SequencePlace& place = place_[thread];
    // Offset in elements of the sequence's first row. Pieces with listed rows hold queries, the others keys.
    // Piece lse_piece is a log_sum_exp [sequence][head][position]; its sequences are lse_stride apart.
    const int64_t first = number == job_.lse_piece ? place.number * job_.lse_stride
                          : piece.is_listed != 0   ? place.query * piece.row_stride
                                                   : place.key * piece.row_stride;
    const uint32_t keys_left = place.keys > piece.first_row ? place.keys - piece.first_row : 0;
    const uint32_t available = piece.is_listed != 0 ? positions(thread) : keys_left;
    return {piece.from + static_cast<uint64_t>(first * piece.element),
            available < piece.rows ? available : piece.rows};
  }
  FORESHOCK_DEVICE int64_t position(uint32_t n, uint32_t thread) const {
    const uint32_t fraction = job_.gather.position[n];  // for a packed batch, the place in part n, over 2^32
    return static_cast<int64_t>(position_in_part(place_[thread].queries, n, parts(thread), fraction));
  }
  // Number of positions to sample.
  FORESHOCK_DEVICE uint32_t positions(uint32_t thread) const {
    return parts(thread) < job_.positions ? parts(thread) : job_.positions;
  }

 private:
  // Number of parts; fewer than job_.parts if the sequence has fewer queries.
  FORESHOCK_DEVICE uint32_t parts(uint32_t thread) const {
    const uint32_t queries = place_[thread].queries;
    return queries < job_.parts ? queries : job_.parts;
  }

  const PackedGatherJob& job_;
  Places& place_;
};

// Copies one piece in units of Unit. A group of neighbouring threads copies a row. The group has a thread for
// each unit of the row, rounded up to a power of two, but at most a warp or the block.
template <class Unit, class Block, class Rows>
FORESHOCK_DEVICE void gather_piece(const GatherJob& job, uint32_t number, const Rows& rows, Block& block) {
  const GatherPiece& piece = job.piece[number];
  const uint64_t row_bytes = uint64_t{piece.width} * piece.element;
  const uint64_t units = row_bytes / sizeof(Unit);
  const int64_t element = piece.element;
  const bool is_dense = piece.column_stride == 1 || piece.width <= 1;
  uint32_t group = 1;  // threads per row
  while (group < units && group < kWarp && 2 * group <= block.threads()) group *= 2;
  const uint32_t groups = block.threads() / group;
  block.each([&](uint32_t thread) {
    if (thread / group >= groups) return;  // the last threads of the block, too few for a group
    const PieceRows copied = rows.piece_rows(number, thread);
    const uint64_t all_rows = uint64_t{piece.heads} * copied.rows;
    const uint64_t first = uint64_t{block.index()} * groups + thread / group;
    for (uint64_t row = first; row < all_rows; row += uint64_t{block.blocks()} * groups) {
      const uint32_t head = static_cast<uint32_t>(row / copied.rows);
      const uint32_t n = static_cast<uint32_t>(row % copied.rows);
      const int64_t position = piece.is_listed == 1 ? rows.position(n, thread) : int64_t{piece.first_row} + n;
      const int64_t from_head = piece.is_listed == 2 ? rows.position(head, thread) : int64_t{head};
      const uint64_t from =
          copied.from +
          static_cast<uint64_t>((from_head * piece.head_stride + position * piece.row_stride) * element);
      const uint64_t offset_in_piece =
          piece.head_bytes == 0 ? row * row_bytes : head * piece.head_bytes + n * row_bytes;
      const uint64_t to = job.to + piece.to + offset_in_piece;
      for (uint64_t unit = thread % group; unit < units; unit += group) {
        const uint64_t byte = unit * sizeof(Unit);
        const uint64_t offset =
            is_dense ? byte
                     : byte / element * static_cast<uint64_t>(piece.column_stride * element) + byte % element;
        block.store(to + byte, block.template load<Unit>(from + offset));
      }
    }
  });
}

// Records the time at which this block begins, as ~time: the largest ~time is that of the earliest block.
template <class Block>
FORESHOCK_DEVICE void begin_gather(const GatherJob& job, Block& block) {
  GatherClock* clock = reinterpret_cast<GatherClock*>(job.clock);
  block.each([&](uint32_t thread) {
    if (thread == 0) block.max(&clock->not_begin, ~block.now());
  });
}

template <class Block, class Rows>
FORESHOCK_DEVICE void gather_pieces(const GatherJob& job, const Rows& rows, Block& block) {
  for (uint32_t n = 0; n < job.pieces; ++n) {
    const GatherPiece& piece = job.piece[n];
    switch (gather_unit(piece, job.to + piece.to)) {
      case 16:
        gather_piece<Bytes16>(job, n, rows, block);
        break;
      case 8:
        gather_piece<uint64_t>(job, n, rows, block);
        break;
      case 4:
        gather_piece<uint32_t>(job, n, rows, block);
        break;
      case 2:
        gather_piece<uint16_t>(job, n, rows, block);
        break;
      default:
        gather_piece<uint8_t>(job, n, rows, block);
    }
  }
}

// Records the end of this block. In the last block that ends, one thread stores the times of the launch,
// resets the clock for the next launch, and calls at_end().
template <class Block, class AtEnd>
FORESHOCK_DEVICE void end_gather(const GatherJob& job, Block& block, const AtEnd& at_end) {
  GatherClock* clock = reinterpret_cast<GatherClock*>(job.clock);
  block.each([&](uint32_t thread) {
    if (thread != 0) return;
    block.max(&clock->end, block.now());
    if (!block.last(&clock->arrived, block.blocks())) return;
    uint64_t* times = reinterpret_cast<uint64_t*>(job.times);
    times[0] = ~block.fresh(&clock->not_begin);
    times[1] = block.fresh(&clock->end);
    clock->not_begin = clock->end = 0;
    at_end();
  });
}

template <class Block>  // the kernel kGather
FORESHOCK_DEVICE void gather_body(const GatherJob& job, Block& block) {
  begin_gather(job, block);
  gather_pieces(job, JobRows(job), block);
  end_gather(job, block, [] {});
}

template <class Block>  // the kernel kPackedGather; also stores which sequence and positions it has copied
FORESHOCK_DEVICE void packed_gather_body(const PackedGatherJob& job, Block& block) {
  begin_gather(job.gather, block);
  // Every thread finds the sequence itself. All threads of a warp read the same addresses at the same time,
  // so this is as fast as one search that is then shared.
  typename SequenceRows<Block>::Places place;
  block.each([&](uint32_t thread) { place[thread] = find_sequence(job.sequences, block); });
  const SequenceRows<Block> rows(job, place);
  gather_pieces(job.gather, rows, block);
  block.each([&](uint32_t thread) {
    if (block.index() != 0 || thread != 0) return;
    GatheredSequence* gathered = reinterpret_cast<GatheredSequence*>(job.gathered);
    const uint32_t positions = rows.positions(thread);
    *gathered = {place[thread].number, place[thread].queries, place[thread].keys, positions, {}};
    for (uint32_t n = 0; n < positions; ++n)
      gathered->position[n] = static_cast<uint32_t>(rows.position(n, thread));
  });
  end_gather(job.gather, block, [] {});
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_GATHER_BODY_H_
