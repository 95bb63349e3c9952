// The trainer's side of the ring of tensors. No allocation, no system call. One caller at a time.
#ifndef FORESHOCK_SEGMENT_TENSOR_WRITER_H_
#define FORESHOCK_SEGMENT_TENSOR_WRITER_H_

#include "segment/tensor_record.h"

namespace foreshock::segment {

class TensorWriter {
 public:
  // `ring`: the region, `bytes` long with its head; null: there is none. `control` is the agent's.
  void attach(TensorRing* ring, uint64_t bytes, const Control* control);

  // Whether there is room for records behind the head.
  bool is_attached() const { return room_ > 0; }
  TensorRing* ring() const { return ring_; }
  uint64_t largest_record() const { return room_ / 2; }

  // A piece of the ring that is free, `least` bytes or more: where a record may be built. Null when the agent
  // has to read first. *bytes is its length.
  TensorRecord* begin(uint64_t least, uint64_t* bytes);

  // Makes the record at begin() visible; its `bytes` tell how much of the piece was needed.
  void publish(const TensorRecord* record);

  void count_due(uint64_t turns);
  void count_skipped(TensorSkip reason, uint64_t turns = 1);
  void count_heads_skipped(TensorHeadSkip reason);
  void tell_awaited(uint64_t turns);

 private:
  uint64_t consumed() const;
  char* at(uint64_t position) const { return data_ + position % room_; }

  TensorRing* ring_ = nullptr;
  char* data_ = nullptr;
  uint64_t room_ = 0;  // bytes of data
  const Control* control_ = nullptr;
  uint64_t filler_ = 0;  // bytes to be skipped before the record that is being built
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_TENSOR_WRITER_H_
