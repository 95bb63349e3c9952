// An attention call as the trainer described it, once found consistent.
#ifndef FORESHOCK_LIBMONITOR_CALL_H_
#define FORESHOCK_LIBMONITOR_CALL_H_

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "kernels/dtype.h"
#include "kernels/gather.h"
#include "libmonitor/sampling.h"
#include "segment/layout.h"

namespace foreshock {

struct ValidatedCall {
  CallShape shape;
  int64_t head_dim, value_dim;
  uint32_t pass;
  DType dtype;
  int32_t causal;
  double scale;
  int32_t device_type, device_index;  // of every tensor
  void* stream;                       // of a device: what the operation was given to; null: unknown
  TensorView query, key, value, out, log_sum_exp, mask, grad_out, grad_query;
  TensorView grad_key, grad_value;  // both or neither; without them key positions are not sampled
  // Of a packed batch, whose tensors have all positions, while the shape is that of a sequence as long as the
  // longest (find_sequence). The sums are then (1, head, position of all), or (sequence, head, position).
  PackedSequences packed;
  bool sums_by_sequence;
  int64_t sequence;  // that one has been taken of a packed batch: which; else 0
};

// Reads the raw struct (the only place that does). Returns -1 and fills *checked, or the FORESHOCK_SKIP_
// reason.
int validate_call(const foreshock_attention_call& call, uint32_t pass, ValidatedCall* checked);

// The part of a call's description that tells of sequences packed one after the other, and how one of them
// becomes a call of its own.

// As far as the caller's struct goes.
bool is_packed_call(const foreshock_attention_call& call);

// The three steps of validate_call: a batch of one for all tensors that have none, and what is to be true of
// a packed call besides (-1, or the FORESHOCK_SKIP_ reason). The offsets are not read.
void add_batch(const foreshock_attention_call& call, ValidatedCall* checked);
int check_packed(const foreshock_attention_call& call, ValidatedCall* checked);

// Of a packed call whose offsets lie on the host: *checked becomes the call of the one sequence that holds
// `place` (choose_place in sampling.h). Returns -1, or the FORESHOCK_SKIP_ reason.
int take_sequence(uint32_t place, ValidatedCall* checked);

// Where the slice of a call goes: into one slot, or into several that hold a range of its keys each.

struct SlicePlan {
  segment::Slot all = {};  // what every slot of the slice says: dimensions, rows, limits
  uint32_t slots = 1;
  uint32_t first_keys = 0, other_keys = 0;  // that the first slot holds, and every other but the last
};

// Bytes a slot needs to hold any slice of a call of this shape whole (forward and backward, with a mask of 4
// bytes an entry).
uint64_t slot_bytes_for(const ValidatedCall& call);

// Plans for slots of `capacity` bytes, of which a slice may take `most_slots`. A slice that needs more loses
// the rows that see the most keys, as far as a mask that is causal makes that help: *slice is what is left.
// False when not even one position fits.
bool plan_slice(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, Slice* slice,
                SlicePlan* plan);

// Whether key positions of the call can be sampled: a backward pass on the host, without a mask, whose
// grad_key, grad_value and log_sum_exp are there.
bool has_columns(const ValidatedCall& call);

// Plans a slice of key positions (choose_columns). False when it is larger than the slots or than a slice may
// be.
bool plan_columns(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, const Slice& slice,
                  SlicePlan* plan);

// Segment::Slot::nonfinite_out of a slice of rows. 0 where a sound kernel may give NaN too: with a mask, rows
// without keys, or inputs that are not finite.
uint32_t count_nonfinite_out(const ValidatedCall& call, const Slice& slice);

// The header of slot number `part` of the slice, with its payload table; all but tickets, step, time and
// layer.
segment::Slot slot_of(const SlicePlan& plan, uint32_t part);

// From the tensors of an attention call to the bytes of a slot. No state, no heap.

// Copies the payloads that slot_of placed. `base` is the start of the slot.
void copy_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot, char* base);

// What one gather on a device is to copy for a slot. Pure; the twin of copy_slot.

// Where the payloads of a slot begin and end, from the start of the slot.
struct PayloadRange {
  uint64_t begin, end;
};
PayloadRange payloads_of(const segment::Slot& slot);

// Copies the payloads that slot_of placed to device memory as they will lie in the slot: the
// first one at `to`. Times and clock are left to the caller.
GatherJob gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                          uint64_t to);

// The same of a slice of key positions, with the sums over all keys if it is the first part.
KeyGatherJob key_gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                                 uint64_t to);

// As gather_for_slot for the sequence of a packed call that holds call.packed.place: what there is of it.
// The caller sets `told` too.
PackedGatherJob packed_gather_for_slot(const ValidatedCall& call, const Slice& slice,
                                       const segment::Slot& slot, uint64_t to);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CALL_H_
