#include "kernels/conservation.h"

namespace foreshock {
namespace {

// Column `column` of rows [0, rows) of `heads` heads, one after the other.
ColumnSum column_sum(const TensorView& view, int64_t batch, int64_t first_head, int64_t heads,
                     int64_t column) {
  const Format format = format_of(view.dtype);
  const int64_t rows = view.shape[2], all = heads * rows;
  ColumnSum total;
  for (int64_t begin = 0; begin < all; begin += kColumnChunk) {
    ColumnSum chunk;
    for (int64_t n = begin; n < all && n < begin + kColumnChunk; ++n) {
      const char* row = view.row(batch, first_head + n / rows, n % rows);
      chunk.add(load_as_double(row + column * view.stride[3] * static_cast<int64_t>(size_of(view.dtype)),
                               view.dtype, 0),
                format);
    }
    total.add(chunk);
  }
  return total;
}

}  // namespace

Conservation conservation(const TensorView& grad_out, const TensorView& grad_key,
                          const TensorView& grad_value, int64_t batch, int64_t kv_head) {
  const int64_t group = grad_out.shape[1] / grad_key.shape[1];
  const int64_t value_dim = grad_value.shape[3], head_dim = grad_key.shape[3];
  Conservation lane[kColumnLanes];
  for (int64_t c = 0; c < value_dim; ++c) {
    const ColumnSum out = column_sum(grad_out, batch, kv_head * group, group, c);
    const ColumnSum value = column_sum(grad_value, batch, kv_head, 1, c);
    lane[c % kColumnLanes].add_value(out, value);
  }
  for (int64_t c = 0; c < head_dim; ++c)
    lane[c % kColumnLanes].add_key(column_sum(grad_key, batch, kv_head, 1, c));
  for (uint32_t half = kColumnLanes / 2; half > 0; half /= 2)
    for (uint32_t l = 0; l < half; ++l) lane[l].add(lane[l + half]);
  return lane[0];
}

}  // namespace foreshock
