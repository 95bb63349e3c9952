// Parses bytes that a trainer has written into its segment (segment/layout.h). The bytes may be torn (changed
// while they were read), truncated or hostile. Functions that return const char* return null on success, else
// the reason as a static sentence. A fuzzer tests all functions of this header.
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

// Parses the header in `bytes`, the first page of a file of `file_size` bytes. On success every region is
// inside the file, its number of records is in range (0 for an unused region), and its records have the size
// of their struct. Only records of the slots and of the ring of tensors may be larger, up to a limit.
const char* parse_header(Bytes bytes, uint64_t file_size, Header* header);

// Returns the text of a field up to the first NUL or the end of its array.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return std::string(field, length);
}

// Returns record `index` of a region of Ts, or zeros if the region has no such record.
template <class T>
T record_at(Bytes region, uint64_t index) {
  T value = {};
  if (index < region.size() / sizeof(T)) std::memcpy(&value, region.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Sums of the counters in the ThreadBlocks of all threads.
struct Totals {
  uint64_t calls[kMaxOps] = {};      // attention calls, by registered operation
  uint64_t unsampled[kPasses] = {};  // calls by pass: 0 forward, 1 backward
  uint64_t sampled[kPasses] = {};
  uint64_t skipped[kPasses][kSkipReasons] = {};
  uint64_t hook_ns = 0;  // the monitor's time in sampled calls
  uint64_t step_ns = 0;  // the monitor's time at step ends and on gradients
  bool operator==(const Totals&) const = default;
};
Totals parse_threads(Bytes region);

// Returns the completely written step records after number `cursor`, the last one already read, oldest first.
// Sets *lost to the number of records between `cursor` and the newest one returned that were overwritten.
std::vector<StepRecord> parse_steps(Bytes region, uint64_t cursor, uint64_t* lost);

struct SlotView {
  Slot header;
  Bytes payload[kPayloads];
};
// Computes the bytes that each payload of a slot must have for its dimensions; 0 if the payload is absent.
void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]);

// Parses a slot. On success header and payloads agree: every offset and size fits, and dimensions, limits and
// indices are in range. If the slice is stored in several slots, the view has one part; JoinedSlice joins the
// parts. The payloads of the view point into `bytes`.
const char* parse_slot(Bytes bytes, SlotView* view);

// Limit of the steps between two snapshots of a tensor. A record with more is invalid.
inline constexpr uint64_t kMostTensorInterval = uint64_t{1} << 32;

struct TensorView {
  TensorRecord record;
  Bytes payload[kTensorPayloads];
};

// Parses the first 16 bytes of a record in the ring of tensors: its length, and whether it is a filler, which
// takes the space before the ring's end that is too small for the next record. `left` is the number of bytes
// written from the record's start on, `to_end` the number of bytes from the record's start to the ring's end.
const char* parse_tensor_length(Bytes bytes, uint64_t left, uint64_t to_end, uint64_t* length,
                                bool* is_filler);

// Parses a whole tensor record. On success its shapes agree with each other and with the number of elements,
// and the payloads are inside the record. The form of the histogram is possible for the storage format. The
// histogram's size is checked for the forms kNone (absent) and kValues (the values themselves). The content
// of payloads is not checked. The payloads of the view point into `bytes`.
const char* parse_tensor(Bytes bytes, TensorView* view);

// Joins the parts of a slice that is stored in several slots, as if one slot had held it. Call begin(), then
// add() until is_whole(), then take(). An object is reused for many slices; its memory grows until
// keep_at_most() is called. One thread.
class JoinedSlice {
 public:
  // Starts a slice with its part 0. `most_bytes` limits the payloads. After an error, begin() must come next.
  const char* begin(const SlotView& first, uint64_t most_bytes);

  const char* add(const SlotView& part);  // adds the next part, which is borrowed for the call only

  // Frees the memory if it exceeds `bytes`. An earlier result of take() must not be used afterwards.
  void keep_at_most(size_t bytes) {
    if (bytes_.capacity() > bytes) bytes_ = {};
  }

  bool is_whole() const { return next_ == whole_.header.parts; }

  // Returns the joined slice; its `parts` is 0. Its payloads point into this object until the next begin().
  SlotView take();

 private:
  std::vector<std::byte> bytes_;
  SlotView whole_;
  uint32_t next_ = 0;  // number of the next part
  uint64_t keys_ = 0;  // keys copied so far
};

// Converts a slice of a packed batch, which concatenates sequences, into the slice that a call with only the
// sampled sequence would have given. Dimensions, limits and positions then follow from Slot::told, the real
// extent of that sequence, and the payloads are cut to them. The result has no rows if the device copied
// none, or if a row may see no key, for which kernels define no result. Other slices stay unchanged.
const char* settle_packed(SlotView* view);

inline constexpr uint64_t kMostTensorHeadsBytes = uint64_t{64} << 20;  // a larger payload is invalid

// The rows of some heads of a layer's query or key projection (a weight tensor).
struct TensorHeadsView {
  TensorHeads head = {};
  std::vector<uint32_t> numbers;             // numbers of the kv-heads, ascending
  std::span<const std::byte> queries, keys;  // inside the payload; empty: absent
};

// Parses the payload kTensorHeadRows. `element_bytes` is the size of an element in the tensor's format.
const char* parse_tensor_heads(std::span<const std::byte> payload, uint64_t element_bytes,
                               TensorHeadsView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_PARSER_H_
