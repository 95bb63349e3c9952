// An attention call that the trainer has described, and its slice, the sampled part of it.
// monitor_samples.cpp validates the call; slice.cpp chooses its slice, plans the slots that hold it (fixed
// pieces of memory shared with the agent), and copies it. A slice is part of one batch element and of one
// key/value head (kv-head). A slice of rows has at most 16 query rows with all keys; a slice of columns has
// at most 16 key positions (columns) with all query rows. A packed batch concatenates sequences of different
// lengths. The functions that choose are pure: equal arguments give equal results on every rank and in every
// rerun.
#ifndef FORESHOCK_LIBMONITOR_CALL_H_
#define FORESHOCK_LIBMONITOR_CALL_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "kernels/dtype.h"
#include "kernels/packed.h"
#include "segment/key_window.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

inline constexpr int kRowsPerSample = 16;  // most query rows, or key positions, of a slice

struct CallShape {
  int64_t batch, heads, kv_heads, queries, keys;  // heads / kv_heads query heads share a kv-head
};

// foreshock_attention_call of hook.h with checked fields; absent tensors have data null.
struct ValidatedCall {
  CallShape shape;
  int64_t head_dim, value_dim;
  uint32_t pass;              // FORESHOCK_FORWARD or FORESHOCK_BACKWARD
  DType dtype;                // of all tensors but log_sum_exp, mask and kept
  segment::KeyWindow window;  // which keys a query sees, also with a causal mask
  double scale;
  double soft_cap;                    // 0: none
  double dropout;                     // 0 without `kept`
  int32_t device_type, device_index;  // the device of all tensors
  void* stream;                       // on a device: the stream of the operation, or null if unknown
  TensorView query, key, value, out, log_sum_exp, mask, grad_out, grad_query;
  TensorView kept;     // what dropout has kept
  TensorView weights;  // attention weights after dropout, in place of log_sum_exp; only without a soft cap
  TensorView grad_key, grad_value;  // both or neither; required for sampling key positions
  // Packed batches only. The tensors hold the positions of all sequences, and `shape` is that of the longest
  // possible sequence, until take_sequence() reduces both to one sequence. log_sum_exp is (1, head, position
  // in the batch), or, if lse_by_sequence, (sequence, head, position in the sequence).
  PackedSequences packed;  // packed.count 0: not packed
  bool lse_by_sequence;
  int64_t sequence;  // index of the sampled sequence in the batch, set by take_sequence(); else 0
};

// Checks the raw struct of hook.h. Returns -1 and fills *checked, or returns a FORESHOCK_SKIP_ reason.
int validate_call(const foreshock_attention_call& call, uint32_t pass, ValidatedCall* checked);

// Reduces a packed call whose offsets are on the host to a single sequence: the one that holds the position
// place / 2^32 * (number of positions in the batch). Returns -1, or the FORESHOCK_SKIP_ reason.
int take_sequence(uint32_t place, ValidatedCall* checked);

// The sampled part of one call. It has `heads` query heads of one batch element and kv-head, and `positions`
// positions, of queries if choose_slice() chose it, of keys if choose_columns() did.
struct Slice {
  int64_t batch = 0, kv_head = 0;  // indices
  int heads = 0, positions = 0;    // numbers; heads * positions <= 16 if the positions are of queries
  int64_t first_head = 0;          // the heads are first_head .. first_head + heads - 1
  int64_t position[kRowsPerSample] = {};
  // Position n is chosen in the n-th of `parts` equal parts of the sequence, at fraction[n] / 2^32 of the
  // part. A device repeats this choice for a sequence whose length only the device can read.
  int parts = 0;
  uint32_t fraction[kRowsPerSample] = {};
  // Whether NaN and Inf in the output of first_head are to be counted. True, by a random bit, in half of the
  // slices of rows, since the count takes at least half as long as the copy of the slice.
  bool counts_nonfinite = false;
  int rows() const { return heads * positions; }
};

// Chooses a batch element, a kv-head, and min(G, 16) of the G query heads that share it. A row is one
// position of one head, and as many positions are chosen as fit into 16 rows: one in each of that many equal
// parts of the sequence. All sizes must be positive, and kv_heads must divide heads.
Slice choose_slice(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank);

// Chooses a key position in each of up to 16 equal parts of the keys, for all query heads of one kv-head.
Slice choose_columns(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank);

// Whether a sampled backward call gives a slice of key positions (to check dK and dV) beside its slice of
// rows (to check dQ). `is_affordable`: the budget holds several times the cost of all slices of rows. Then
// half of the calls give such a slice; fewer, if a slice of key positions copies more than twice as much as
// one of rows. If it is not affordable, so few calls give one that the mean cost is at most 1.3 times that of
// rows alone (docs/attention-error.md, Cost). The first call of a layer gives one in any case (FirstColumns).
bool takes_columns(const ValidatedCall& call, bool is_affordable, uint64_t seed, int64_t step,
                   uint64_t number);

// Remembers which layers have given a slice of key positions. The first sampled backward call of a layer
// gives one whatever it costs, so that a short run judges dK and dV in all layers. A layer is the number in
// Slot::layer; numbers beyond kMaxLayers share the places. Any thread.
class FirstColumns {
 public:
  void reset() {
    for (auto& word : taken_) word.store(0, std::memory_order_relaxed);
  }
  bool is_missing(int32_t layer) const {
    return layer >= 0 && (word_of(layer).load(std::memory_order_relaxed) & bit_of(layer)) == 0;
  }
  void add(int32_t layer) {
    if (layer >= 0) const_cast<std::atomic<uint64_t>&>(word_of(layer)).fetch_or(bit_of(layer));
  }

 private:
  static constexpr uint32_t kWords = segment::kMaxLayers / 64;
  const std::atomic<uint64_t>& word_of(int32_t layer) const {
    return taken_[static_cast<uint32_t>(layer) / 64 % kWords];
  }
  static uint64_t bit_of(int32_t layer) { return uint64_t{1} << (static_cast<uint32_t>(layer) % 64); }

  std::atomic<uint64_t> taken_[kWords] = {};  // a bit for each layer
};

// Chooses a position in a packed batch (several sequences without padding), as a fraction of 2^32. The
// sequence that holds the position is sampled.
uint32_t choose_packed_position(uint64_t seed, int64_t step, uint64_t call, int rank);

// The slots of a slice. A large slice takes several slots, each with a range of its keys. A slice of columns
// is divided by query rows instead; for such a slice, the "keys" below are query rows.
struct SlicePlan {
  segment::Slot header = {};  // the fields that all slots share: dimensions, rows, limits
  uint32_t slots = 1;
  uint32_t first_keys = 0, other_keys = 0;  // keys in the first slot, and in every other one but the last
};

// Returns the bytes that a slot needs to hold any whole slice of rows of a call of this shape: forward or
// backward, with log_sum_exp in fp64, and with a mask in fp32 (fp64 if the tensors are). A slice of columns,
// one with an fp64 mask beside narrower tensors, or one with kept weights where this call has none, may be
// larger; it then takes several slots.
uint64_t slot_bytes_for(const ValidatedCall& call);

// Plans a slice of rows for at most `most_slots` slots of `capacity` bytes. If *slice is too large, removes
// its last positions, which see the furthest keys with a causal mask. Returns false if no position fits.
bool plan_slice(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, Slice* slice,
                SlicePlan* plan);

// Returns why key positions (columns) of a backward call cannot be sampled; kColumnsTaken if they can.
inline segment::ColumnsSkip why_no_columns(const ValidatedCall& call) {
  if (!call.grad_key.data || !call.grad_value.data) return segment::kColumnsGradients;
  if (!call.log_sum_exp.data && !call.weights.data) return segment::kColumnsLogSumExp;
  if (call.packed.count > 0) return segment::kColumnsPacked;
  return segment::kColumnsTaken;
}

// Plans a slice of key positions. Returns false if it exceeds the slots or the maximal size of a slice.
bool plan_columns(const ValidatedCall& call, uint64_t capacity, uint32_t most_slots, const Slice& slice,
                  SlicePlan* plan);

// Counts NaN and Inf in the output of the slice's first head, over all query positions. Returns 0 if a
// correct kernel may give NaN or Inf too: with a mask, with rows without keys, or with inputs that are not
// finite. Also returns 0 for backward calls and for calls on a device.
uint32_t count_nonfinite_out(const ValidatedCall& call, const Slice& slice);

// Returns the header of slot number `part` of the slice: plan.header, with the part's keys and payload table.
segment::Slot slot_of(const SlicePlan& plan, uint32_t part);

// Copies the payloads (parts of the tensors) of a call on the host into the slot at address `base`, to the
// offsets that slot_of() has stored in `slot`.
void copy_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot, char* base);

// Writes the log-sum-exp of query rows [first, first + count) of a slice of key positions, computed from the
// weights of the call. Rows are numbered head by head.
void log_sum_exp_of_weights(const ValidatedCall& call, const Slice& slice, int64_t first, int64_t count,
                            double* to);

// Whether the payloads of a slot lie between its header and its end at `slot_bytes`. plan_slice() and
// plan_columns() make only such slots; write_slice() checks it before host or device store into one.
bool fits(const segment::Slot& header, uint64_t slot_bytes);

// Claims plan.slots slots from `ticket` on, stores them in `slots`, and writes their headers and, if the call
// is on the host, their payloads. The caller must publish them or give them back. Returns the bytes of all
// payloads; 0: too few slots are free, and none is claimed.
uint64_t write_slice(const ValidatedCall& call, const Slice& slice, const SlicePlan& plan,
                     const segment::SegmentWriter& writer, uint64_t ticket, segment::Slot** slots);

// Offsets of the begin and end of the payloads of a slot, in bytes from the start of the slot.
struct PayloadRange {
  uint64_t begin, end;
};
PayloadRange payloads_of(const segment::Slot& slot);

// Returns the job of the device kernel that copies the payloads of a call to device memory, in the layout of
// the slot, from device address `to` on. The caller must set `times` and `clock` of the job.
GatherJob gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                          uint64_t to);

// Does the same as gather_for_slot() for a slice of key positions. The job of the first slot also computes
// sums over all keys.
KeyGatherJob key_gather_for_slot(const ValidatedCall& call, const Slice& slice, const segment::Slot& slot,
                                 uint64_t to);

// Does the same as gather_for_slot() for a packed call. The kernel itself finds the sequence at
// call.packed.place (see take_sequence()), and writes a GatheredSequence to the address `gathered` of the
// job, which the caller must set.
PackedGatherJob packed_gather_for_slot(const ValidatedCall& call, const Slice& slice,
                                       const segment::Slot& slot, uint64_t to);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CALL_H_
