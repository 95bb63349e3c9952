// The device code of the kernel kKeyGather, for a slice of sampled key positions of a backward call. It
// copies the slice, sums the gradients dK and dV over all keys of the kv-head (key_sums.h), and counts NaN
// and Inf in dQ. Block is the interface of block.h: the threads of one device block.
#ifndef FORESHOCK_KERNELS_KEY_GATHER_BODY_H_
#define FORESHOCK_KERNELS_KEY_GATHER_BODY_H_

#include "kernels/gather_body.h"
#include "kernels/sums_body.h"

namespace foreshock {

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

// Sums the columns of one tile over all rows of head 0, the only head of a view of dK or dV. Neighbouring
// threads read neighbouring columns, and each thread reads every `stripes`-th row. The sums of the threads
// are then added pairwise, always in the same order.
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

// Adds the number of NaN and Inf in a tile of dQ to `count`. Only they give NaN when multiplied by 0.
template <class Block>
FORESHOCK_DEVICE void add_nonfinite(const DeviceView& view, DType type, uint32_t tile, uint32_t* count,
                                    Block& block) {
  const uint32_t head = tile / row_tiles(view), first = tile % row_tiles(view) * kRowsOfATile;
  const uint32_t rows = view.rows - first < kRowsOfATile ? view.rows - first : kRowsOfATile;
  block.each([&](uint32_t thread) {
    uint32_t found = 0;
    for (uint32_t n = thread; n < rows * view.width; n += block.threads())
      found += load_element(view, type, head, first + n / view.width, n % view.width, block) * 0 != 0;
    if (found > 0) block.add(count, found);
  });
}

template <class Block>
FORESHOCK_DEVICE void key_gather_body(const KeyGatherJob& job, Block& block) {
  begin_gather(job.gather, block);
  gather_pieces(job.gather, JobRows(job.gather), block);
  if (job.sums == 0) return end_gather(job.gather, block, [] {});  // only a slice's first slot has sums

  const DType type = static_cast<DType>(job.dtype);
  GatherClock* clock = reinterpret_cast<GatherClock*>(job.gather.clock);  // scratch memory, 0 at first
  ColumnSum* of_key = reinterpret_cast<ColumnSum*>(job.sums);
  ColumnSum* of_value = of_key + job.grad_key.width;
  // The tiles of dK, dV and dQ are numbered one after the other and distributed over the blocks.
  const uint32_t key_tiles = column_tiles(job.grad_key);
  const uint32_t sum_tiles = key_tiles + column_tiles(job.grad_value);
  const uint32_t all_tiles = sum_tiles + job.grad_query.heads * row_tiles(job.grad_query);
  for (uint32_t n = block.index(); n < all_tiles; n += block.blocks()) {
    if (n < key_tiles) {
      sum_tile(job.grad_key, type, n, of_key, block);
    } else if (n < sum_tiles) {
      sum_tile(job.grad_value, type, n - key_tiles, of_value, block);
    } else {
      add_nonfinite(job.grad_query, type, n - sum_tiles, &clock->nonfinite, block);
    }
  }
  end_gather(job.gather, block, [&] {  // runs once, in the block that ends last
    // The count of dQ is stored after the sums of dV. Adding 0 reads the counter atomically.
    ColumnSum of_query;
    of_query.nonfinite = block.add(&clock->nonfinite, 0u);
    of_value[job.grad_value.width] = of_query;
    clock->nonfinite = 0;  // for the next launch
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_KEY_GATHER_BODY_H_
