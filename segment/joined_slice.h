// A slice that lies in several slots, put together again: what comes out is as if one slot had held it, so
// that nothing computed from it can depend on the split.
#ifndef FORESHOCK_SEGMENT_JOINED_SLICE_H_
#define FORESHOCK_SEGMENT_JOINED_SLICE_H_

#include <cstddef>
#include <vector>

#include "segment/parser.h"

namespace foreshock::segment {

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

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_JOINED_SLICE_H_
