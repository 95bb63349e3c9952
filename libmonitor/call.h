// Validates an attention call that the trainer has described. A packed batch concatenates sequences of
// different lengths. ObservedHeads remembers the numbers of heads of the sampled calls.
#ifndef FORESHOCK_LIBMONITOR_CALL_H_
#define FORESHOCK_LIBMONITOR_CALL_H_

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "kernels/dtype.h"

namespace foreshock {

struct CallShape {
  int64_t batch, heads, kv_heads, queries, keys;  // heads / kv_heads query heads share a kv-head
};

// foreshock_attention_call of hook.h with checked fields; absent tensors have data null.
struct ValidatedCall {
  CallShape shape;
  int64_t head_dim, value_dim;
  uint32_t pass;   // FORESHOCK_FORWARD or FORESHOCK_BACKWARD
  DType dtype;     // of all tensors but log_sum_exp and mask
  int32_t causal;  // FORESHOCK_CAUSAL_...
  double scale;
  int32_t device_type, device_index;  // the device of all tensors
  void* stream;                       // on a device: the stream of the operation, or null if unknown
  TensorView query, key, value, out, log_sum_exp, mask, grad_out, grad_query;
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

// Numbers of query heads (a multiple of `kv_heads`) and of kv-heads in attention calls, and the dimension of
// a head. All 0: unknown.
struct HeadGeometry {
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool operator==(const HeadGeometry&) const = default;
};

// Remembers the numbers of heads of the sampled attention calls as long as all calls have the same numbers.
// Any thread: if two threads store at once, one value is lost, but a later call that differs still stores
// kMixed.
class ObservedHeads {
 public:
  void reset() { seen_.store(0, std::memory_order_relaxed); }
  void add(const ValidatedCall& call);
  bool has_seen() const { return seen_.load(std::memory_order_relaxed) != 0; }
  // Returns zeros before the first call, and if calls differ, since the heads of a layer are then unknown.
  HeadGeometry get() const {
    const uint64_t seen = seen_.load(std::memory_order_relaxed);
    if (seen == kMixed) return {};
    return {static_cast<uint32_t>(seen >> 40), static_cast<uint32_t>(seen >> 20 & kMostSize),
            static_cast<uint32_t>(seen & kMostSize)};
  }

 private:
  // `seen_` packs heads, kv_heads, head_dim, 20 bits each. 0: no call. kMixed: calls differ or do not fit.
  static constexpr uint64_t kMostSize = (1u << 20) - 1, kMixed = ~uint64_t{0};
  std::atomic<uint64_t> seen_{0};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_CALL_H_
