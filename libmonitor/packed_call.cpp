#include "libmonitor/packed_call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/gather.h"

namespace foreshock {
namespace {

constexpr int64_t kMostPositions = std::numeric_limits<int32_t>::max();  // that offsets can tell

bool is_aligned(const int32_t* offsets) {
  return offsets != nullptr && reinterpret_cast<uint64_t>(offsets) % alignof(int32_t) == 0;
}

void add_batch(TensorView* view) {
  for (int n = 3; n > 0; --n) {
    view->shape[n] = view->shape[n - 1];
    view->stride[n] = view->stride[n - 1];
  }
  view->shape[0] = 1;
  view->stride[0] = 0;
}

// Whether the sums fit one of the two ways that they may lie in.
bool check_sums(const foreshock_attention_call& call, CheckedCall* checked) {
  const TensorView& sums = checked->log_sum_exp;
  if (sums.data == nullptr) return true;
  checked->sums_by_sequence = call.log_sum_exp.dims == 3;
  const int64_t rows = checked->sums_by_sequence ? checked->shape.queries : checked->query.shape[2];
  const int64_t batch = checked->sums_by_sequence ? call.sequences : 1;
  return is_floating(sums.dtype) && sums.shape[0] == batch && sums.shape[1] == checked->shape.heads &&
         sums.shape[2] >= rows && sums.shape[3] == 1;
}

// The same rows, from position `first` on.
void begin_at(int64_t first, int64_t length, TensorView* view) {
  if (view->data == nullptr) return;
  view->data = view->row(0, 0, first);
  view->shape[2] = length;
}

}  // namespace

bool is_packed_call(const foreshock_attention_call& call) {
  return call.size >= offsetof(foreshock_attention_call, longest_key) + sizeof call.longest_key &&
         call.query_offsets != nullptr;
}

void add_batch(const foreshock_attention_call& call, CheckedCall* checked) {
  for (TensorView* view : {&checked->query, &checked->key, &checked->value, &checked->out, &checked->grad_out,
                           &checked->grad_query})
    add_batch(view);
  if (call.log_sum_exp.dims == 2) add_batch(&checked->log_sum_exp);
}

int check_packed(const foreshock_attention_call& call, CheckedCall* checked) {
  CallShape& shape = checked->shape;
  const int64_t queries = shape.queries, keys = shape.keys;
  if (call.mask.data != nullptr) return FORESHOCK_SKIP_MASK;
  if (!is_aligned(call.query_offsets) || !is_aligned(call.key_offsets) || call.sequences < 1 ||
      call.sequences > kMostPositions || queries > kMostPositions || keys > kMostPositions ||
      call.longest_query < 1 || call.longest_key < 1)
    return FORESHOCK_SKIP_LAYOUT;
  shape.queries = std::min(queries, call.longest_query);
  shape.keys = std::min(keys, call.longest_key);
  if (!check_sums(call, checked)) return FORESHOCK_SKIP_LAYOUT;
  // With the same offsets a sequence has as many keys as queries, and both corners are one.
  if (call.query_offsets == call.key_offsets && checked->causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT)
    checked->causal = FORESHOCK_CAUSAL_TOP_LEFT;
  checked->packed = {.query_offsets = reinterpret_cast<uint64_t>(call.query_offsets),
                     .key_offsets = reinterpret_cast<uint64_t>(call.key_offsets),
                     .count = static_cast<uint32_t>(call.sequences),
                     .queries = static_cast<uint32_t>(queries),
                     .keys = static_cast<uint32_t>(keys),
                     .longest_query = static_cast<uint32_t>(shape.queries),
                     .longest_key = static_cast<uint32_t>(shape.keys),
                     .place = 0};
  return -1;
}

int take_sequence(uint32_t place, CheckedCall* checked) {
  CheckedCall& c = *checked;
  c.packed.place = place;
  const SequencePlace one = find_sequence(c.packed, HostMemory());
  c.packed = {};
  if (one.queries == 0) return FORESHOCK_SKIP_LAYOUT;
  // The first queries see no key at all; what a kernel leaves there is its own affair.
  if (c.causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT && one.queries > one.keys) return FORESHOCK_SKIP_MASK;
  c.sequence = one.number;
  c.shape.queries = one.queries;
  c.shape.keys = one.keys;
  for (TensorView* view : {&c.query, &c.out, &c.grad_out, &c.grad_query})
    begin_at(one.query, one.queries, view);
  for (TensorView* view : {&c.key, &c.value}) begin_at(one.key, one.keys, view);
  if (c.sums_by_sequence && c.log_sum_exp.data != nullptr)
    c.log_sum_exp.data = c.log_sum_exp.row(one.number, 0, 0);
  else
    begin_at(one.query, one.queries, &c.log_sum_exp);
  return -1;
}

}  // namespace foreshock
