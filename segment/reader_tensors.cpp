// The part of SegmentReader that takes records of tensors.
#include <algorithm>

#include "segment/pread.h"
#include "segment/reader.h"
#include "segment/tensor_parser.h"

namespace foreshock::segment {

TensorRing SegmentReader::tensor_ring() const {
  const Region& region = header_.regions[kTensors];
  TensorRing ring = {};
  if (region.count == 0 || !read_exactly(segment_, &ring, sizeof ring, region.offset)) return {};
  ring.interval = std::min(ring.interval, kMostTensorInterval);
  return ring;
}

void SegmentReader::move_tensor_cursor(uint64_t to) {
  control_.tensor_cursor = to;
  write_field(control_file_, to, offsetof(Control, tensor_cursor));
}

bool SegmentReader::next_tensor(ReadyTensor* ready) {
  const Region& region = header_.regions[kTensors];
  uint64_t written = 0;
  if (region.count == 0 || !read_exactly(segment_, &written, sizeof written, region.offset)) return false;
  const uint64_t room = (region.record_size - sizeof(TensorRing)) / kTensorAlign * kTensorAlign;
  const uint64_t first = region.offset + sizeof(TensorRing);
  *ready = {};
  while (control_.tensor_cursor != written) {
    const uint64_t cursor = control_.tensor_cursor, left = written - cursor, to_end = room - cursor % room;
    std::byte head[16];
    uint64_t length = 0;
    bool is_filler = false;
    if (left > room) {
      ready->why = "ring of tensors with more in it than fits";
    } else if (!read_exactly(segment_, head, sizeof head, first + cursor % room)) {
      return false;
    } else {
      ready->why = parse_tensor_length(head, left, to_end, &length, &is_filler);
    }
    next_tensor_ = ready->why != nullptr ? written : cursor + length;
    if (ready->why != nullptr) return true;
    if (is_filler) {
      move_tensor_cursor(next_tensor_);
      continue;
    }
    tensor_.resize(length);
    if (!read_exactly(segment_, tensor_.data(), length, first + cursor % room)) return false;
    ready->why = parse_tensor(tensor_, &ready->view);
    return true;
  }
  return false;
}

void SegmentReader::consume_tensor() { move_tensor_cursor(next_tensor_); }

}  // namespace foreshock::segment
