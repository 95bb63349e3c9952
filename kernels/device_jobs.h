// The parameters of the device kernels ("jobs") and the shapes of their launches. A job is a plain struct
// with the same layout on host and device. Addresses are in device memory. The device checks nothing, and a
// wrong address destroys the trainer's context, so the host must validate every job. `reserved`: padding.
#ifndef FORESHOCK_KERNELS_DEVICE_JOBS_H_
#define FORESHOCK_KERNELS_DEVICE_JOBS_H_

#include <cstdint>

#include "kernels/histogram.h"
#include "kernels/key_sums.h"
#include "kernels/packed.h"
#include "kernels/sums.h"

namespace foreshock {

// The shape of a launch. Results do not depend on `blocks`, since blocks share units of work of fixed size.
struct LaunchShape {
  uint32_t blocks, threads, shared_bytes;
};

// Number of multiprocessors of the device, and bytes of shared memory that a block may use.
struct DeviceLimits {
  uint32_t processors, shared_bytes;
};

inline constexpr uint32_t kMostJobBytes = 4096;  // limit for the parameters of a kernel, on every device

// Returns the number of blocks for `work` units with `per_block` units per block, clamped to [1, most].
constexpr uint32_t blocks_of(uint64_t work, uint64_t per_block, uint32_t most) {
  const uint64_t blocks = work / per_block + (work % per_block != 0);
  return blocks < 1 ? 1 : blocks < most ? static_cast<uint32_t>(blocks) : most;
}

// -- gather: copies the sampled rows of an attention call, densely as kernels/gather.h does on the host --

// The rows of one tensor to copy. Row n of a head has `width` elements, column_stride apart, and begins at
// `from` + head * head_stride + row(n) * row_stride; is_listed defines row(n). Strides are in elements and
// may be 0 or negative. The copies of the rows are dense, head by head; with head_bytes, those of each head
// begin head_bytes after those of the head before. Of a mask's lines for sampled keys, the "heads" are keys.
struct GatherPiece {
  uint64_t from;  // address of the element (first head, row 0, first column)
  uint64_t to;    // where the copies begin: offset in bytes from the job's `to`
  int64_t head_stride, row_stride, column_stride;
  uint32_t heads, rows, width;
  uint32_t element;  // size of an element in bytes: 1, 2, 4 or 8
  // 1: row(n) = the job's position[n]; 0: row(n) = first_row + n. 2: the same as 0, and position[head] takes
  // the place of the head.
  uint32_t is_listed;
  uint32_t first_row;
  uint64_t head_bytes = 0;  // from the copy of a head to that of the next one; 0: dense
};
static_assert(sizeof(GatherPiece) == 72);

inline constexpr uint32_t kMostPieces = 22;     // per job
inline constexpr uint32_t kMostPositions = 16;  // sampled rows of each head

// Scratch memory of a launch. Only one launch at a time may use it. It must be all zero before the first
// launch, and every launch leaves it all zero. Times are ns of the device's clock.
struct GatherClock {
  // Largest ~begin of the blocks so far, and latest end of a block so far. ~ is the bitwise complement: the
  // largest ~begin is that of the earliest begin, and the search for it can start at 0.
  uint64_t not_begin, end;
  uint32_t arrived;    // blocks that have ended
  uint32_t nonfinite;  // used by the key gather only: NaN and Inf in the query's gradient so far
};
static_assert(sizeof(GatherClock) == 24);

struct GatherJob {
  uint64_t to;     // address to which the slice is copied
  uint64_t times;  // address of uint64_t[2]: when the first block began and the last one ended (device clock)
  uint64_t clock;  // address of a GatherClock
  uint32_t pieces;
  uint32_t reserved;
  uint32_t position[kMostPositions];  // the sampled rows, for pieces with is_listed; see also PackedGatherJob
  GatherPiece piece[kMostPieces];
};
static_assert(sizeof(GatherJob) == 96 + kMostPieces * sizeof(GatherPiece));
static_assert(sizeof(GatherJob) <= kMostJobBytes);

// A packed batch joins sequences of different lengths along one dimension. The kernel reports the sequence
// that it gathered: its number in the batch, its size, and the sampled query positions in it.
struct GatheredSequence {
  uint32_t number, queries, keys;
  uint32_t positions;  // sampled positions of each head; 0: the offsets were invalid and nothing was copied
  uint32_t position[kMostPositions];
};
static_assert(sizeof(GatheredSequence) == 80);

// Gathers from one sequence of a packed batch, which find_sequence() chooses (packed.h) on the device, where
// the lengths are. `gather` describes a sequence of the longest length that begins at position 0; the kernel
// adds the begin of the chosen sequence and does not copy rows beyond its end. The kernel divides the
// sequence into `parts` parts and samples one position in each of the first `positions` parts: in part n the
// position at gather.position[n] / 2^32 of the part's length.
struct PackedGatherJob {
  GatherJob gather;
  PackedSequences sequences;
  uint64_t gathered;  // address of a GatheredSequence
  // lse_piece: index of the piece with the log_sum_exp if that tensor is [sequence][head][position];
  // kMostPieces if it is [head][position in the batch]. lse_stride: elements from one sequence to the next.
  int64_t lse_stride;
  uint32_t lse_piece;
  uint32_t parts;      // a sequence with fewer positions has a part for each position
  uint32_t positions;  // limit of the sampled positions of each head
  uint32_t reserved;
};
static_assert(sizeof(PackedGatherJob) == sizeof(GatherJob) + 72);
static_assert(sizeof(PackedGatherJob) <= kMostJobBytes);

// At most 128 blocks, which leave most threads of the device to trainer kernels that run at the same time.
constexpr LaunchShape launch_of(const GatherJob& job) {
  constexpr uint32_t kThreads = 256, kPerThread = 16, kMostBlocks = 128;
  uint64_t elements = 0;
  for (uint32_t n = 0; n < job.pieces; ++n)
    elements += uint64_t{job.piece[n].heads} * job.piece[n].rows * job.piece[n].width;
  return {.blocks = blocks_of(elements, kThreads * kPerThread, kMostBlocks),
          .threads = kThreads,
          .shared_bytes = 0};
}

constexpr LaunchShape launch_of(const PackedGatherJob& job) { return launch_of(job.gather); }

// -- key gather: copies sampled key positions of a backward call; sums dK and dV over all keys of the head --

// Rows of consecutive heads: element (head, row, column) is at `data` + head * stride[0] + row * stride[1] +
// column * stride[2], strides in elements.
struct DeviceView {
  uint64_t data;
  int64_t stride[3];
  uint32_t heads, rows, width;
  uint32_t reserved;
};
static_assert(sizeof(DeviceView) == 48);

struct KeyGatherJob {
  GatherJob gather;
  uint64_t sums;          // address of ColumnSum[key_sum_count()] (key_sums.h), overwritten; 0: no sums
  DeviceView grad_query;  // of the query heads that share the kv-head
  DeviceView grad_key, grad_value;
  uint32_t dtype;  // floating format of grad_query, grad_key and grad_value
  uint32_t reserved;
};
static_assert(sizeof(KeyGatherJob) == sizeof(GatherJob) + 160 && sizeof(ColumnSum) == 24);
static_assert(sizeof(KeyGatherJob) <= kMostJobBytes);

// A block sums dK and dV in tiles of kColumnsOfATile neighbouring columns of these tensors (not key columns).
// It searches dQ for NaN and Inf in tiles of kRowsOfATile rows.
inline constexpr uint32_t kColumnsOfATile = 16, kRowsOfATile = 64;

constexpr uint32_t column_tiles(const DeviceView& view) {
  return (view.width + kColumnsOfATile - 1) / kColumnsOfATile;
}
constexpr uint32_t row_tiles(const DeviceView& view) { return (view.rows + kRowsOfATile - 1) / kRowsOfATile; }

// As many blocks as the copy alone. The sums need a power of two of threads, at least kColumnsOfATile.
constexpr LaunchShape launch_of(const KeyGatherJob& job) {
  LaunchShape shape = launch_of(job.gather);
  shape.shared_bytes = shape.threads * static_cast<uint32_t>(sizeof(ColumnSum));
  return shape;
}

// -- scalars: copies values of the trainer (loss, norms) into cells in host memory --

// A value that has arrived. Values are numbered in the order in which they are sent. `number` is stored after
// `value`, so the value has arrived when the host reads the expected number.
struct ScalarCell {
  double value;
  uint64_t number;
};
static_assert(sizeof(ScalarCell) == 16);

inline constexpr uint32_t kScalarCells = 16384;  // a power of two, so that cell_of() needs no division
inline constexpr uint32_t kMostScalars = 256;    // per launch

constexpr uint32_t cell_of(uint64_t number) { return static_cast<uint32_t>(number % kScalarCells); }

// Value of ScalarsJob::dtype if the sources are GradientSums (sums.h). The kernel then copies the member
// `squares`, or NaN if not all elements of the gradient were finite.
inline constexpr uint32_t kSumOfSquares = 0;

struct ScalarsJob {
  uint64_t cells;  // device address of ScalarCell[kScalarCells] in host memory
  uint64_t first;  // number of the first value; value n has the number first + n
  uint32_t count;
  uint32_t dtype;               // the floating DType of all values, or kSumOfSquares
  uint64_t from[kMostScalars];  // addresses, aligned to the size of a value
};
static_assert(sizeof(ScalarsJob) == 24 + 8 * kMostScalars);
static_assert(sizeof(ScalarsJob) <= kMostJobBytes);

constexpr LaunchShape launch_of(const ScalarsJob& job) {  // a single value needs one thread
  return {.blocks = 1, .threads = job.count == 1 ? 1u : 128u, .shared_bytes = 0};
}

// -- histogram: counts the values of a dense tensor, as kernels/histogram.h does on the host --

// The kernel kCountPatterns counts 16-bit values, by bit pattern, in kPatterns words of uint32_t. The kernel
// kCountBins counts fp32 values, by bin, in kBinWords words of uint64_t. Both add to the words. All launches
// on the same words together may count at most kMostPatterns or kMostBinned values, or a counter overflows.
struct HistogramJob {
  uint64_t from;   // address of the values, aligned to their size
  uint64_t count;  // of values
  uint64_t words;  // address of the counters
};
static_assert(sizeof(HistogramJob) == 24);

// Shared memory for a 16-bit counter per pattern. If a device has less, the kernel counts in the job's words.
inline constexpr uint32_t kPatternSharedBytes = kPatterns * sizeof(uint16_t);

// At most one block per multiprocessor, since a block takes most of the multiprocessor's shared memory. At
// its end a block adds its 65,536 counters to those of the job, so it should count at least that many values.
constexpr LaunchShape launch_of_patterns(const HistogramJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 1024, kPerThread = 64;
  const bool fits = limits.shared_bytes >= kPatternSharedBytes;
  return {.blocks = blocks_of(job.count, kThreads * kPerThread, limits.processors),
          .threads = kThreads,
          .shared_bytes = fits ? kPatternSharedBytes : 0};
}

// At most four blocks of 256 threads per multiprocessor.
constexpr LaunchShape launch_of_bins(const HistogramJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 256, kPerThread = 64;
  return {.blocks = blocks_of(job.count, kThreads * kPerThread, 4 * limits.processors),
          .threads = kThreads,
          .shared_bytes = 0};
}

// -- sums of squares and optimizer statistics (sums.h) over many tensors at a time --

// A tensor is summed in chunks of kSumChunk elements, each by a block of kSumLanes threads. The block that
// ends last adds the sums of the chunks. The order of additions does not depend on the launch (sums_body.h).
inline constexpr uint32_t kSumChunk = 65536;
inline constexpr uint32_t kSumLanes = 256;

constexpr uint64_t sum_chunks(uint64_t count) { return (count + kSumChunk - 1) / kSumChunk; }

static_assert(sizeof(GradientSums) == 24);

struct GradientTensor {  // must be dense, with its dimensions in any order
  uint64_t data;
  uint64_t count;
  uint64_t first_chunk;  // number of chunks of the job's tensors before this one
  uint32_t dtype;        // a floating DType
  uint32_t reserved;
};
static_assert(sizeof(GradientTensor) == 32);

inline constexpr uint32_t kMostSumTensors = 96;  // per job, which must fit in kMostJobBytes

struct GradientSumsJob {
  uint64_t results;   // GradientSums[tensors]; overwritten
  uint64_t partials;  // GradientSums[chunks]; scratch
  uint64_t arrived;   // uint32_t: blocks that have ended; zero before the first launch and after every launch
  uint64_t chunks;    // number of chunks of all tensors
  uint32_t tensors;
  uint32_t reserved;
  GradientTensor tensor[kMostSumTensors];
};
static_assert(sizeof(GradientSumsJob) == 40 + kMostSumTensors * sizeof(GradientTensor));
static_assert(sizeof(GradientSumsJob) <= kMostJobBytes);

static_assert(sizeof(AdamConstants) == 40);

struct AdamTensor {  // gradient and second moment must be dense, with their dimensions in the same order
  uint64_t gradient, moment;
  uint64_t count;
  uint64_t first_chunk;
  uint32_t gradient_dtype, moment_dtype;
  AdamConstants constants;
};
static_assert(sizeof(AdamTensor) == 80);

inline constexpr uint32_t kMostAdamTensors = 48;  // as kMostSumTensors

// Results and partials are AdamSums (sums.h).
static_assert(sizeof(AdamSums) == 64);
struct AdamSumsJob {
  uint64_t results, partials, arrived, chunks;  // as in GradientSumsJob
  uint32_t tensors;
  uint32_t reserved;
  AdamTensor tensor[kMostAdamTensors];
};
static_assert(sizeof(AdamSumsJob) == 40 + kMostAdamTensors * sizeof(AdamTensor));
static_assert(sizeof(AdamSumsJob) <= kMostJobBytes);

// The launch of GradientSumsJob or AdamSumsJob. Shared memory holds a flag (16 bytes) and a Sums per thread.
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

// -- checksum of a dense tensor, as kernels/sums.h defines it --

struct ChecksumJob {
  uint64_t from;  // any alignment
  uint64_t bytes;
  uint64_t to;  // address of a uint64_t, to which the checksum is added
};
static_assert(sizeof(ChecksumJob) == 24);

constexpr LaunchShape launch_of(const ChecksumJob& job, const DeviceLimits& limits) {
  constexpr uint32_t kThreads = 256, kPerThread = 64;
  return {.blocks = blocks_of(job.bytes, kThreads * kPerThread, 4 * limits.processors),
          .threads = kThreads,
          .shared_bytes = sizeof(uint64_t)};
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DEVICE_JOBS_H_
