// An attention call as the trainer described it, once found consistent.
#ifndef FORESHOCK_LIBMONITOR_CHECKED_CALL_H_
#define FORESHOCK_LIBMONITOR_CHECKED_CALL_H_

#include "foreshock/hook.h"
#include "kernels/dtype.h"
#include "kernels/gather.h"
#include "libmonitor/sampler.h"

namespace foreshock {

struct CheckedCall {
  CallShape shape;
  int64_t head_dim, value_dim;
  uint32_t pass;
  DType dtype;
  int32_t causal;
  double scale;
  int32_t device_type, device_index;  // of every tensor
  void* stream;                       // of a device: what the operation was given to; null: unknown
  TensorView query, key, value, out, log_sum_exp, mask, grad_out, grad_query;
  // Of a packed batch, whose tensors have all positions, while the shape is that of a sequence as long as the
  // longest (packed_call.h). The sums are then (1, head, position of all), or (sequence, head, position).
  PackedSequences packed;
  bool sums_by_sequence;
  int64_t sequence;  // that one has been taken of a packed batch: which; else 0
};

// Reads the raw struct (the only place that does). Returns -1 and fills *checked, or the FORESHOCK_SKIP_
// reason.
int check_call(const foreshock_attention_call& call, uint32_t pass, CheckedCall* checked);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CHECKED_CALL_H_
