// The device code of the kernel kKeyGather, for a slice of sampled key positions of a backward call. It
// copies the slice, sums each column of the gradients dK and dV over all keys of the kv-head (key_sums.h),
// and counts NaN and Inf in dQ. Block is the interface of block.h: the threads of one device block.
// block.each(f) calls f(thread) for each of them, then waits for all. DeviceView describes a tensor in device
// memory: address, sizes, strides in elements. A tile is the part of a tensor that a block processes at once:
// adjacent columns, or adjacent rows. begin_gather() and end_gather() measure the time of the launch.
#ifndef FORESHOCK_KERNELS_KEY_GATHER_BODY_H_
#define FORESHOCK_KERNELS_KEY_GATHER_BODY_H_

#include "kernels/gather_body.h"
#include "kernels/sums_body.h"

namespace foreshock {

// Loads the number at `address` and converts it to fp64.
template <class Block>
FORESHOCK_DEVICE double load_value(DType type, uint64_t address, const Block& block) {
  switch (type) {
    case DType::kFp64:
      return std::bit_cast<double>(block.template load<uint64_t>(address));
    case DType::kFp32:
      return std::bit_cast<float>(block.template load<uint32_t>(address));
    case DType::kBf16:
      return bf16_to_float(block.template load<uint16_t>(address));
    case DType::kFp16:
      return fp16_to_float(block.template load<uint16_t>(address));
    default:
      return 0;
  }
}

template <class Block>
FORESHOCK_DEVICE double load_element(const DeviceView& view, DType type, int64_t head, int64_t row,
                                     int64_t column, const Block& block) {
  const int64_t element = head * view.stride[0] + row * view.stride[1] + column * view.stride[2];
  return load_value(type, view.data + static_cast<uint64_t>(element * static_cast<int64_t>(size_of(type))),
                    block);
}

// Sums the columns of one tile of dK or dV over all rows, and writes the sums to `results`, which is indexed
// by column. `view` has one head. Neighbouring threads read neighbouring columns, and each thread reads every
// `stripes`-th row of one column. Then the threads' sums are added pairwise, always in the same order.
template <class Block>
FORESHOCK_DEVICE void sum_tile(const DeviceView& view, DType type, uint32_t tile, ColumnSum* results,
                               Block& block) {
  const Format format = format_of(type);
  const uint32_t stripes = block.threads() / kColumnsOfATile;
  ColumnSum* sums = block.template shared<ColumnSum>(0, block.threads());
  block.each([&](uint32_t thread) {
    const uint32_t column = tile * kColumnsOfATile + thread % kColumnsOfATile;
    ColumnSum sum;
    if (column < view.width)
      for (uint32_t row = thread / kColumnsOfATile; row < view.rows; row += stripes)
        sum.add(load_element(view, type, 0, row, column, block), format);
    sums[thread] = sum;
  });
  for (uint32_t half = stripes / 2; half > 0; half /= 2) {
    block.each([&](uint32_t thread) {
      if (thread / kColumnsOfATile < half) sums[thread].add(sums[thread + half * kColumnsOfATile]);
    });
  }
  block.each([&](uint32_t thread) {
    const uint32_t column = tile * kColumnsOfATile + thread;
    if (thread < kColumnsOfATile && column < view.width) results[column] = sums[thread];
  });
}

// Adds the number of NaN and Inf in a tile of dQ to *count. x * 0 is NaN, so not 0, only if x is NaN or Inf.
template <class Block>
FORESHOCK_DEVICE void add_nonfinite(const DeviceView& view, DType type, uint32_t tile, uint32_t* count,
                                    Block& block) {
  const uint32_t head = tile / row_tiles(view), first = tile % row_tiles(view) * kRowsOfATile;
  const uint32_t rows = view.rows - first < kRowsOfATile ? view.rows - first : kRowsOfATile;
  block.each([&](uint32_t thread) {
    uint32_t thread_count = 0;
    for (uint32_t n = thread; n < rows * view.width; n += block.threads())
      thread_count += load_element(view, type, head, first + n / view.width, n % view.width, block) * 0 != 0;
    if (thread_count > 0) block.add(count, thread_count);
  });
}

template <class Block>
FORESHOCK_DEVICE void key_gather_body(const KeyGatherJob& job, Block& block) {
  begin_gather(job.gather, block);
  gather_pieces(job.gather, JobRows(job.gather), block);
  // `sums` is an address, or 0: a slice may fill several slots, and only the first has sums.
  if (job.sums == 0) return end_gather(job.gather, block, [] {});

  const DType type = static_cast<DType>(job.dtype);
  GatherClock* clock = reinterpret_cast<GatherClock*>(job.gather.clock);  // scratch memory, 0 at first
  ColumnSum* key_sums = reinterpret_cast<ColumnSum*>(job.sums);
  ColumnSum* value_sums = key_sums + job.grad_key.width;
  // The tiles of dK, dV and dQ are numbered one after the other and distributed over the blocks.
  const uint32_t key_tiles = column_tiles(job.grad_key);
  const uint32_t sum_tiles = key_tiles + column_tiles(job.grad_value);
  const uint32_t all_tiles = sum_tiles + job.grad_query.heads * row_tiles(job.grad_query);
  for (uint32_t n = block.index(); n < all_tiles; n += block.blocks()) {
    if (n < key_tiles) {
      sum_tile(job.grad_key, type, n, key_sums, block);
    } else if (n < sum_tiles) {
      sum_tile(job.grad_value, type, n - key_tiles, value_sums, block);
    } else {
      add_nonfinite(job.grad_query, type, n - sum_tiles, &clock->nonfinite, block);
    }
  }
  end_gather(job.gather, block, [&] {  // runs once, in the block that ends last
    // The count of dQ is stored after the sums of dV. Adding 0 reads the counter atomically.
    ColumnSum query_sum;
    query_sum.nonfinite = block.add(&clock->nonfinite, 0u);
    value_sums[job.grad_value.width] = query_sum;
    clock->nonfinite = 0;  // for the next launch
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_KEY_GATHER_BODY_H_
