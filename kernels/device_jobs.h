// What a kernel on the device is asked to do: plain structs of one layout on host and device, each the single
// parameter of its kernel. Addresses are of device memory. Nothing here is checked on the device: an address
// that is wrong ends the trainer's context, so the host must know its tensors.
#ifndef FORESHOCK_KERNELS_DEVICE_JOBS_H_
#define FORESHOCK_KERNELS_DEVICE_JOBS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/gather.h"
#include "kernels/histogram.h"
#include "kernels/key_sums.h"
#include "kernels/sums.h"

namespace foreshock {

// How to launch it. More blocks than there is work are idle, fewer take turns: the result is the same.
struct LaunchShape {
  uint32_t blocks, threads, shared_bytes;
};

// Of the device: multiprocessors, and the shared memory that a block of it may ask for.
struct DeviceLimits {
  uint32_t processors, shared_bytes;
};

inline constexpr uint32_t kMostJobBytes = 4096;  // of the parameters of a kernel, on every device

// Blocks for so much work at so much each, one at least.
constexpr uint32_t blocks_of(uint64_t work, uint64_t of_a_block, uint32_t most) {
  const uint64_t blocks = work / of_a_block + (work % of_a_block != 0);
  return blocks < 1 ? 1 : blocks < most ? static_cast<uint32_t>(blocks) : most;
}

// -- gather: a slice of an attention call, packed as kernels/gather.h packs it --

// Row (head, n) of a payload: `width` elements from `from` + head * head_stride + row(n) * row_stride on,
// column_stride apart; strides are in elements, 0 and negative ones included. Rows lie packed and head-major
// from `to` on.
struct GatherPiece {
  uint64_t from;  // of the element (first head, row 0, first column)
  uint64_t to;    // bytes from the job's `to`
  int64_t head_stride, row_stride, column_stride;
  uint32_t heads, rows, width;
  uint32_t element;    // bytes: 1, 2, 4 or 8
  uint32_t is_listed;  // 1: row(n) = the job's position[n]; 0: row(n) = first_row + n
  uint32_t first_row;
};
static_assert(sizeof(GatherPiece) == 64);

inline constexpr uint32_t kMostPieces = 16;
inline constexpr uint32_t kMostPositions = 16;

// Of one launch at a time: all zero before the first, and left so by each.
struct GatherClock {
  uint64_t not_begin, end;  // the greatest so far of ~(begin of a block) and of its end
  uint32_t arrived;         // blocks that have ended
  uint32_t nonfinite;       // of the query's gradient, so far; of kKeyGather
};
static_assert(sizeof(GatherClock) == 24);

struct GatherJob {
  uint64_t to;     // of the packed slice
  uint64_t times;  // two uint64_t: globaltimer, in ns, when the first block began and the last one ended
  uint64_t clock;  // a GatherClock
  uint32_t pieces;
  uint32_t reserved;
  uint32_t position[kMostPositions];
  GatherPiece piece[kMostPieces];
};
static_assert(sizeof(GatherJob) == 96 + kMostPieces * sizeof(GatherPiece));
static_assert(sizeof(GatherJob) <= kMostJobBytes);

// What the gather of one sequence of a packed batch has looked at.
struct SequenceTold {
  uint32_t number, queries, keys;
  uint32_t positions;  // of each head; 0: the offsets made no sense, and nothing was copied
  uint32_t position[kMostPositions];
};
static_assert(sizeof(SequenceTold) == 80);

// The same for one sequence of a packed batch, whichever holds the place (packed_sequence.h). The job inside
// is that of a sequence as long as the longest which begins at position 0: what the sequence does not have is
// not copied, and its listed rows lie packed by so many positions as it has. Its positions are fractions of
// 2^32, one for each part.
struct PackedGatherJob {
  GatherJob gather;
  PackedSequences sequences;
  uint64_t told;       // a SequenceTold
  int64_t sum_stride;  // elements from one sequence to the next, of the piece below
  uint32_t sum_piece;  // whose rows are those of (sequence, head, position); kMostPieces: none
  uint32_t parts;      // of a sequence, as far as it has positions
  uint32_t positions;  // at most: of so many parts, the first ones
  uint32_t reserved;
};
static_assert(sizeof(PackedGatherJob) == sizeof(GatherJob) + 72);
static_assert(sizeof(PackedGatherJob) <= kMostJobBytes);

// So many threads copy so many elements each, and a launch is small: what runs beside it keeps its
// processors.
constexpr LaunchShape launch_of(const GatherJob& job) {
  constexpr uint32_t kThreads = 256, kOfAThread = 16, kMostBlocks = 128;
  uint64_t elements = 0;
  for (uint32_t n = 0; n < job.pieces; ++n)
    elements += uint64_t{job.piece[n].heads} * job.piece[n].rows * job.piece[n].width;
  return {.blocks = blocks_of(elements, kThreads * kOfAThread, kMostBlocks),
          .threads = kThreads,
          .shared_bytes = 0};
}

constexpr LaunchShape launch_of(const PackedGatherJob& job) { return launch_of(job.gather); }

// -- key gather: a slice of key positions, and the sums over all keys of its kv-head --

// Rows of one head, or of several that follow each other: element (head, row, column) is `data` +
// head * stride[0] + row * stride[1] + column * stride[2], strides in elements.
struct DeviceView {
  uint64_t data;
  int64_t stride[3];
  uint32_t heads, rows, width;
  uint32_t reserved;
};
static_assert(sizeof(DeviceView) == 48);

struct KeyGatherJob {
  GatherJob gather;
  uint64_t sums;          // ColumnSum[key_sum_count()], overwritten; 0: no sums
  DeviceView grad_query;  // of the query heads that share the kv-head
  DeviceView grad_key, grad_value;
  uint32_t dtype;  // of the three; floating
  uint32_t reserved;
};
static_assert(sizeof(KeyGatherJob) == sizeof(GatherJob) + 160 && sizeof(ColumnSum) == 24);
static_assert(sizeof(KeyGatherJob) <= kMostJobBytes);

// So many columns side by side are summed by one block, and so many rows are looked through for NaN.
inline constexpr uint32_t kColumnsOfATile = 16, kRowsOfATile = 64;

constexpr uint32_t column_tiles(const DeviceView& view) {
  return (view.width + kColumnsOfATile - 1) / kColumnsOfATile;
}
constexpr uint32_t row_tiles(const DeviceView& view) { return (view.rows + kRowsOfATile - 1) / kRowsOfATile; }

// A block's threads are a power of two, at least kColumnsOfATile.
constexpr LaunchShape launch_of(const KeyGatherJob& job) {
  LaunchShape shape = launch_of(job.gather);
  shape.shared_bytes = shape.threads * static_cast<uint32_t>(sizeof(ColumnSum));
  return shape;
}

// -- scalars: numbers of the trainer's, each for a cell of the host's memory --

// Read by the host while a kernel may still write it: the number is stored after the value.
struct ScalarCell {
  double value;
  uint64_t number;  // of the fetch that the value is of
};
static_assert(sizeof(ScalarCell) == 16);

inline constexpr uint32_t kScalarCells = 16384;  // a power of two
inline constexpr uint32_t kMostScalars = 256;    // of one launch

constexpr uint32_t cell_of(uint64_t number) { return static_cast<uint32_t>(number % kScalarCells); }

// Instead of a DType: each is a GradientSums, of which the number is its squares, or NaN where an element was
// not finite.
inline constexpr uint32_t kSquaresOfSums = 0;

struct ScalarsJob {
  uint64_t cells;  // ScalarCell[kScalarCells], of the host, as the device sees them
  uint64_t first;  // the number of the first one; the others follow
  uint32_t count;
  uint32_t dtype;               // a DType that is floating, of all of them, or kSquaresOfSums
  uint64_t from[kMostScalars];  // aligned to the size of a value
};
static_assert(sizeof(ScalarsJob) == 24 + 8 * kMostScalars);
static_assert(sizeof(ScalarsJob) <= kMostJobBytes);

constexpr LaunchShape launch_of(const ScalarsJob& job) {
  return {.blocks = 1, .threads = job.count == 1 ? 1u : 128u, .shared_bytes = 0};
}

// -- histogram: a packed tensor, as kernels/histogram.h counts it --

// kCountPatterns: values of 16 bits into kPatterns words of uint32_t, one set, at most kMostPatterns values
// over all calls. kCountBins: fp32 into kBinWords words of uint64_t, at most kMostBinned. Words are added to.
struct HistogramJob {
  uint64_t from;  // aligned to the size of a value, no more
  uint64_t count;
  uint64_t words;
};
static_assert(sizeof(HistogramJob) == 24);

// Counters of 16 bits for all patterns; a launch that gives no shared memory counts in the words themselves.
inline constexpr uint32_t kPatternSharedBytes = kPatterns * sizeof(uint16_t);

// A block of its own for each processor, with work for all its threads that is worth the emptying of its
// counters.
constexpr LaunchShape launch_of_patterns(const HistogramJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 1024, kOfAThread = 64;
  const bool fits = limits.shared_bytes >= kPatternSharedBytes;
  return {.blocks = blocks_of(job.count, kThreads * kOfAThread, limits.processors),
          .threads = kThreads,
          .shared_bytes = fits ? kPatternSharedBytes : 0};
}

constexpr LaunchShape launch_of_bins(const HistogramJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 256, kOfAThread = 64;
  return {.blocks = blocks_of(job.count, kThreads * kOfAThread, 4 * limits.processors),
          .threads = kThreads,
          .shared_bytes = 0};
}

// -- sums over many tensors at a time --

// A tensor is summed in chunks of so many elements, one block of kSumLanes threads each, and the chunks of a
// tensor after them, by the block that ended last. The order is fixed (block_sums.h), whatever the launch.
inline constexpr uint32_t kSumChunk = 65536;
inline constexpr uint32_t kSumLanes = 256;

constexpr uint64_t sum_chunks(uint64_t count) { return (count + kSumChunk - 1) / kSumChunk; }

static_assert(sizeof(GradientSums) == 24);

struct GradientTensor {  // dense, in any order of its dimensions
  uint64_t data;
  uint64_t count;
  uint64_t first_chunk;  // the chunks of the tensors before it
  uint32_t dtype;        // a DType that is floating
  uint32_t reserved;
};
static_assert(sizeof(GradientTensor) == 32);

inline constexpr uint32_t kMostSumTensors = 96;

struct GradientSumsJob {
  uint64_t results;   // GradientSums[tensors], overwritten
  uint64_t partials;  // GradientSums[chunks of all tensors]: scratch
  uint64_t arrived;   // uint32_t, zero before the first launch and left so by each
  uint64_t chunks;    // of all tensors
  uint32_t tensors;
  uint32_t reserved;
  GradientTensor tensor[kMostSumTensors];
};
static_assert(sizeof(GradientSumsJob) == 40 + kMostSumTensors * sizeof(GradientTensor));
static_assert(sizeof(GradientSumsJob) <= kMostJobBytes);

static_assert(sizeof(AdamConstants) == 40);

struct AdamTensor {  // gradient and second moment dense in one and the same order
  uint64_t gradient, moment;
  uint64_t count;
  uint64_t first_chunk;
  uint32_t gradient_dtype, moment_dtype;
  AdamConstants constants;
};
static_assert(sizeof(AdamTensor) == 80);

inline constexpr uint32_t kMostAdamTensors = 48;

// Results and partials are AdamSums of adam_sums.h.
static_assert(sizeof(AdamSums) == 64);
struct AdamSumsJob {
  uint64_t results, partials, arrived, chunks;  // as in GradientSumsJob
  uint32_t tensors;
  uint32_t reserved;
  AdamTensor tensor[kMostAdamTensors];
};
static_assert(sizeof(AdamSumsJob) == 40 + kMostAdamTensors * sizeof(AdamTensor));
static_assert(sizeof(AdamSumsJob) <= kMostJobBytes);

// Of either.
template <class Job, class Sums>
constexpr LaunchShape launch_of_sums(const Job& job, const DeviceLimits& limits) {
  return {.blocks = blocks_of(job.chunks, 1, 4 * limits.processors),
          .threads = kSumLanes,
          .shared_bytes = 16 + kSumLanes * static_cast<uint32_t>(sizeof(Sums))};
}
constexpr LaunchShape launch_of(const GradientSumsJob& job, const DeviceLimits& limits) {
  return launch_of_sums<GradientSumsJob, GradientSums>(job, limits);
}
constexpr LaunchShape launch_of(const AdamSumsJob& job, const DeviceLimits& limits) {
  return launch_of_sums<AdamSumsJob, AdamSums>(job, limits);
}

// -- checksum: of a packed tensor, as kernels/sums.h has it --

struct ChecksumJob {
  uint64_t from;  // any alignment
  uint64_t bytes;
  uint64_t to;  // uint64_t, added to
};
static_assert(sizeof(ChecksumJob) == 24);

constexpr LaunchShape launch_of(const ChecksumJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 256, kOfAThread = 64;
  return {.blocks = blocks_of(job.bytes, kThreads * kOfAThread, 4 * limits.processors),
          .threads = kThreads,
          .shared_bytes = sizeof(uint64_t)};
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DEVICE_JOBS_H_
