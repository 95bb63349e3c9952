// The body of kConservation.
#ifndef FORESHOCK_KERNELS_CONSERVATION_BODY_H_
#define FORESHOCK_KERNELS_CONSERVATION_BODY_H_

#include "kernels/conservation.h"
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

// Chunk number `chunk` of one of the three tensors, for one batch and kv-head: a lane for each column.
template <class Block>
FORESHOCK_DEVICE void sum_columns(const DeviceView& view, DType type, uint64_t batch, uint64_t first_head,
                                  uint64_t heads, uint64_t rows, uint64_t chunk, uint32_t columns,
                                  ColumnSum* to, Block& block) {
  const Format format = format_of(type);
  const uint64_t all = heads * rows, begin = chunk * kColumnChunk;
  const uint64_t end = all - begin < kColumnChunk ? all : begin + kColumnChunk;
  block.each([&](uint32_t thread) {
    for (uint32_t column = thread; column < columns; column += kColumnLanes) {
      ColumnSum sum;
      uint64_t head = first_head + begin / rows, row = begin % rows;
      for (uint64_t n = begin; n < end; ++n) {
        const int64_t element = static_cast<int64_t>(batch) * view.stride[0] +
                                static_cast<int64_t>(head) * view.stride[1] +
                                static_cast<int64_t>(row) * view.stride[2] + int64_t{column} * view.stride[3];
        const int64_t byte = element * static_cast<int64_t>(size_of(type));
        sum.add(load_value(type, view.data + static_cast<uint64_t>(byte), block), format);
        if (++row == rows) row = 0, ++head;
      }
      to[column] = sum;
    }
  });
}

// The chunks of one column, in order.
template <class Block>
FORESHOCK_DEVICE ColumnSum add_chunks(const ColumnSum* partial, uint64_t chunks, uint32_t columns,
                                      uint32_t column, const Block& block) {
  ColumnSum total;
  for (uint64_t n = 0; n < chunks; ++n) total.add(block.fresh(&partial[n * columns + column]));
  return total;
}

// Chunks of a pair of batch and kv-head are those of dO, of dV, then of dK; each has its columns' sums in the
// pair's part of the scratch. Of a launch of kColumnLanes threads.
template <class Block>
FORESHOCK_DEVICE void conservation_body(const ConservationJob& job, Block& block) {
  const ConservationShape shape = shape_of(job);
  const DType type = static_cast<DType>(job.dtype);
  uint32_t* is_last = block.template shared<uint32_t>(0);
  Conservation* lane = block.template shared<Conservation>(sizeof(Bytes16), kColumnLanes);
  const uint64_t pairs = uint64_t{job.batches} * job.kv_heads;
  for (uint64_t item = block.index(); item < pairs * shape.chunks; item += block.blocks()) {
    const uint64_t pair = item / shape.chunks, chunk = item % shape.chunks;
    const uint64_t batch = pair / job.kv_heads, kv_head = pair % job.kv_heads;
    ColumnSum* out = reinterpret_cast<ColumnSum*>(job.partials) + pair * shape.sums;
    ColumnSum* value = out + shape.out_chunks * job.value_dim;
    ColumnSum* key = value + shape.key_chunks * job.value_dim;
    if (chunk < shape.out_chunks) {
      sum_columns(job.grad_out, type, batch, kv_head * shape.group, shape.group, job.queries, chunk,
                  job.value_dim, out + chunk * job.value_dim, block);
    } else if (const uint64_t of_value = chunk - shape.out_chunks; of_value < shape.key_chunks) {
      sum_columns(job.grad_value, type, batch, kv_head, 1, job.keys, of_value, job.value_dim,
                  value + of_value * job.value_dim, block);
    } else {
      const uint64_t of_key = of_value - shape.key_chunks;
      sum_columns(job.grad_key, type, batch, kv_head, 1, job.keys, of_key, job.head_dim,
                  key + of_key * job.head_dim, block);
    }
    block.each([&](uint32_t thread) {
      if (thread == 0)
        *is_last =
            block.last(reinterpret_cast<uint32_t*>(job.arrived) + pair, static_cast<uint32_t>(shape.chunks));
    });
    if (!*is_last) continue;
    block.each([&](uint32_t thread) {
      Conservation own;
      for (uint32_t c = thread; c < job.value_dim; c += kColumnLanes)
        own.add_value(add_chunks(out, shape.out_chunks, job.value_dim, c, block),
                      add_chunks(value, shape.key_chunks, job.value_dim, c, block));
      for (uint32_t c = thread; c < job.head_dim; c += kColumnLanes)
        own.add_key(add_chunks(key, shape.key_chunks, job.head_dim, c, block));
      lane[thread] = own;
    });
    for (uint32_t half = kColumnLanes / 2; half > 0; half /= 2) {
      block.each([&](uint32_t thread) {
        if (thread < half) lane[thread].add(lane[thread + half]);
      });
    }
    block.each([&](uint32_t thread) {
      if (thread == 0) reinterpret_cast<Conservation*>(job.results)[pair] = lane[0];
    });
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_CONSERVATION_BODY_H_
