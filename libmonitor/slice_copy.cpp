#include "libmonitor/slice_copy.h"

#include "kernels/gather.h"

namespace foreshock {
namespace {

// One row of every chosen head and position, packed.
void copy_rows(const TensorView& from, const Slice& slice, int64_t width, char* to) {
  for (int head = 0; head < slice.heads; ++head)
    for (int n = 0; n < slice.positions; ++n)
      to += gather_row_heads(from, slice.batch, slice.first_head + head, slice.position[n], 1, width, to);
}

// The same view, beginning with column `first` of its rows.
TensorView from_column(TensorView view, int64_t first) {
  view.data = static_cast<const char*>(view.data) +
              first * view.stride[3] * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

}  // namespace

void copy_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot, char* base) {
  const auto at = [&](segment::PayloadId id) { return base + slot.payload[id].offset; };
  const int64_t first = slot.first_key, keys = slot.parts > 1 ? slot.part_keys : slot.keys;
  gather_rows(call.key, slice.batch, slice.kv_head, first, keys, at(segment::kKey));
  gather_rows(call.value, slice.batch, slice.kv_head, first, keys, at(segment::kValue));
  if (call.mask.data) copy_rows(from_column(call.mask, first), slice, keys, at(segment::kMask));
  if (slot.part > 0) return;
  copy_rows(call.query, slice, call.head_dim, at(segment::kQuery));
  if (call.out.data) copy_rows(call.out, slice, call.value_dim, at(segment::kOut));
  if (call.log_sum_exp.data) copy_rows(call.log_sum_exp, slice, 1, at(segment::kLogSumExp));
  if (call.pass == FORESHOCK_BACKWARD) {
    copy_rows(call.grad_out, slice, call.value_dim, at(segment::kGradOut));
    copy_rows(call.grad_query, slice, call.head_dim, at(segment::kGradQuery));
  }
}

}  // namespace foreshock
