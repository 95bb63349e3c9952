// Reads bytes that a trainer left: everything in them may be torn, truncated or hostile. Pure functions of
// spans; a refusal is a static sentence. This header is the whole target of the fuzzer.
#ifndef FORESHOCK_SEGMENT_PARSER_H_
#define FORESHOCK_SEGMENT_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock::segment {

using Bytes = std::span<const std::byte>;

// Null when `bytes` (the first page of a file of `file_size` bytes) is a header this program can follow, else
// why not. On success every region lies inside the file, has records of the size that layout.h gives them,
// and is small, except for slots and tensors. A region that the trainer has no use for has no records.
const char* parse_header(Bytes bytes, uint64_t file_size, Header* header);

// Text fields cut at the first NUL, never beyond their array.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return std::string(field, length);
}

// Record `index` of a region of Ts; all zero if it lies outside.
template <class T>
T record_at(Bytes region, uint64_t index) {
  T value = {};
  if (index < region.size() / sizeof(T)) std::memcpy(&value, region.data() + index * sizeof(T), sizeof(T));
  return value;
}

// The sums over all threads.
struct Totals {
  uint64_t calls[kMaxOps] = {};
  uint64_t unsampled[kPasses] = {};
  uint64_t sampled[kPasses] = {};
  uint64_t skipped[kPasses][kSkipReasons] = {};
  uint64_t hook_ns = 0;
  uint64_t step_ns = 0;
  bool operator==(const Totals&) const = default;
};
Totals parse_threads(Bytes region);

// Step records with numbers in (cursor, newest], oldest first, each whole; `*lost` counts those overwritten.
std::vector<StepRecord> parse_steps(Bytes region, uint64_t cursor, uint64_t* lost);

// A slot's header and its payload, checked against each other: every offset and size fits, dimensions are
// those of the sizes, limits and indices are in range. Of a slice in several slots it is one part, to be
// given to JoinedSlice. The spans borrow from `bytes`.
struct SlotView {
  Slot header;
  Bytes payload[kPayloads];
};
// Bytes that each payload of a slot has by its dimensions; 0: it is absent.
void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]);

const char* parse_slot(Bytes bytes, SlotView* view);

// Reads a record of a tensor that a trainer left: as segment/parser.h, nothing in it is trusted.

// Steps between two snapshots: more than this is no interval, but something that a trainer did not write.
inline constexpr uint64_t kMostTensorInterval = uint64_t{1} << 32;

struct TensorView {
  TensorRecord record;
  Bytes payload[kTensorPayloads];
};

// The first 16 bytes of what lies at the cursor: how long it is, and whether it is a filler. `left`: bytes
// that were written from there on; `to_end`: up to the end of the ring.
const char* parse_tensor_length(Bytes bytes, uint64_t left, uint64_t to_end, uint64_t* length,
                                bool* is_filler);

// A whole record. Shapes fit each other and the number of elements, payloads lie inside and have the sizes
// that the form asks for; what is in them is for whoever unpacks it. The spans borrow from `bytes`.
const char* parse_tensor(Bytes bytes, TensorView* view);

// A slice that lies in several slots, put together again: what comes out is as if one slot had held it, so
// that nothing computed from it can depend on the split.

// Reused from slice to slice: its memory grows until somebody says what to keep. One thread.
class JoinedSlice {
 public:
  // Begins with part 0. `most_bytes`: what the payloads may take at most, whatever the header says. Null, or
  // why these parts are no slice; then nothing more is to be added.
  const char* begin(const SlotView& first, uint64_t most_bytes);

  // The next part; borrowed for the call only.
  const char* add(const SlotView& part);

  // Gives its memory back when it is more: what was taken is gone.
  void keep_at_most(size_t bytes) {
    if (bytes_.capacity() > bytes) bytes_ = {};
  }

  bool is_whole() const { return next_ == whole_.header.parts; }

  // Borrows from this object until the next begin(). Its header says `parts` 0.
  SlotView take();

 private:
  std::vector<std::byte> bytes_;
  SlotView whole_;
  uint32_t next_ = 0;  // part
  uint64_t keys_ = 0;  // copied so far
};

// A slice of one sequence of a packed batch, whose extent its device has told beside its rows.

// *view, a whole slice as parse_slot or JoinedSlice gives it, becomes what would be there if the sequence had
// been a call of its own: dimensions, limits and positions of what its device has told, and payloads no
// longer than that. Without rows where there was nothing to bring, or rows that may see no key, of which
// nobody promises what a kernel makes. Null, or why what is told cannot be. Leaves every other slice as it
// is.
const char* settle_packed(SlotView* view);

// Rows of some heads of a query or key projection, as a payload of a tensor's record: how they lie there, and
// how they are read back. Nothing in them is trusted.

inline constexpr uint64_t kMostTensorHeadsBytes = uint64_t{64} << 20;  // that are believed

struct TensorHeadsView {
  TensorHeads head = {};
  std::vector<uint32_t> numbers;             // of the kv-heads, ascending
  std::span<const std::byte> queries, keys;  // empty: not there; borrowed
};

// Null, or why the payload cannot be used. `element_bytes`: of the tensor's format.
const char* parse_tensor_heads(std::span<const std::byte> payload, uint64_t element_bytes,
                               TensorHeadsView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_PARSER_H_
