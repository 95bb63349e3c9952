// Reads bytes that a trainer left: everything in them may be torn, truncated or hostile. Pure functions of
// spans; a refusal is a static sentence. This header is the whole target of the fuzzer.
#ifndef FORESHOCK_SEGMENT_PARSER_H_
#define FORESHOCK_SEGMENT_PARSER_H_

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock::segment {

using Bytes = std::span<const std::byte>;

// What one slice may be at most, whatever room a trainer has made: a million keys of 128 + 128 dimensions in
// two bytes, 4 million where they are smaller. A trainer needs --memory beyond 512 MiB to make a larger one;
// without a limit one slice of one user could take the memory and the time of an agent that serves others.
inline constexpr uint64_t kMostSliceBytes = uint64_t{1} << 29;
inline constexpr uint64_t kMostSliceKeys = uint64_t{1} << 22;

// Null when `bytes` (the first page of a file of `file_size` bytes) is a header this program can follow, else
// why not. On success *header is filled, as a writer of today would, every region lies inside the file, and
// all but the slots are small; a region that the writer did not know has no records.
const char* parse_header(Bytes bytes, uint64_t file_size, Header* header);

// Text fields cut at the first NUL, never beyond their array.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return std::string(field, length);
}

// One record of a region; zero-filled where the writer knew fewer fields.
template <class T>
T record_at(Bytes region, uint64_t record_size, uint64_t index) {
  T value = {};
  const uint64_t at = record_size * index;
  if (at + record_size > region.size()) return value;
  const size_t known = record_size < sizeof(T) ? record_size : sizeof(T);
  std::memcpy(&value, region.data() + at, known);
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
Totals parse_threads(Bytes region, const Region& shape);

// Step records with numbers in (cursor, newest], oldest first, each whole; `*lost` counts those overwritten.
std::vector<StepRecord> parse_steps(Bytes region, const Region& shape, uint64_t cursor, uint64_t* lost);

// A slot's header and its payload, checked against each other: every offset and size fits, dimensions are
// those of the sizes, limits and indices are in range. Of a slice in several slots it is one part, to be
// given to JoinedSlice. The spans borrow from `bytes`.
struct SlotView {
  Slot header;
  Bytes payload[kPayloads];
};
// Bytes that each payload of a slot has by its dimensions; 0: it is absent.
void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]);

// `header_size`: Header::slot_header_size.
const char* parse_slot(Bytes bytes, uint32_t header_size, SlotView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_PARSER_H_
