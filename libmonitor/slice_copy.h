// From a described attention call to the bytes of a slot: validation, plan, copy. No state, no heap.
#ifndef FORESHOCK_LIBMONITOR_SLICE_COPY_H_
#define FORESHOCK_LIBMONITOR_SLICE_COPY_H_

#include "foreshock/hook.h"
#include "kernels/tensor.h"
#include "libmonitor/sampler.h"
#include "segment/layout.h"

namespace foreshock {

// A call whose tensors were found consistent.
struct CheckedCall {
  CallShape shape;
  int64_t head_dim, value_dim;
  uint32_t pass;
  DType dtype;
  int32_t causal;
  double scale;
  TensorView query, key, value, out, log_sum_exp, mask, grad_out, grad_query;
};

// Reads the raw struct (the only place that does). Returns -1 and fills *checked, or the FORESHOCK_SKIP_
// reason.
int check_call(const foreshock_attention_call& call, uint32_t pass, CheckedCall* checked);

// Bytes a slot needs for any slice of a call of this shape (forward and backward, with a mask of 4 bytes an
// entry).
uint64_t slot_bytes_for(const CheckedCall& call);

// Fills everything of a slot that follows from call and slice: dimensions, limits, the payload table. Returns
// false when `capacity` bytes are too few.
bool plan_slot(const CheckedCall& call, const Slice& slice, uint64_t capacity, segment::Slot* slot);

// Copies the payloads that plan_slot placed. `base` is the start of the slot.
void copy_slot(const CheckedCall& call, const Slice& slice, const segment::Slot& slot, char* base);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SLICE_COPY_H_
