// The trainer's side of a segment: creates the two files and stores into them. Used inside a guest: after
// create() nothing here allocates, blocks or makes a system call. segment/SEGMENT.md has the protocol.
#ifndef FORESHOCK_SEGMENT_WRITER_H_
#define FORESHOCK_SEGMENT_WRITER_H_

#include <atomic>

#include "segment/layout.h"

namespace foreshock::segment {

struct SegmentRequest {
  const char* directory;  // <base>/<run id>, on tmpfs, exists
  int rank;
  uint64_t nonce;
  uint32_t slots;             // 0: statistics only
  uint64_t slot_bytes;        // rounded up to 64
  uint64_t tensor_bytes = 0;  // of the ring of tensors, its head included; 0: none
  // Written before the file has its name: who finds it knows at once whose it is. Null: all zeros.
  const Identity* identity = nullptr;
};

// Bytes of the .seg file for a request.
uint64_t segment_bytes(uint32_t slots, uint64_t slot_bytes, uint64_t tensor_bytes = 0);

// A word that both processes see, as an atomic. The layout stays plain structs; the storage is shared memory.
template <class T>
std::atomic_ref<T> word(T& value) {
  return std::atomic_ref<T>(value);
}

class SegmentWriter {
 public:
  // Creates, reserves, locks and names both files. Returns null, or a static word that tells why not
  // ("no_space", "rank_taken", "no_directory", "no_mapping"); nothing is left behind then. The kernel lock
  // lives as long as the process: the descriptor is never closed.
  const char* create(const SegmentRequest& request);

  Identity* identity() const { return at<Identity>(kIdentity); }
  Op* ops() const { return at<Op>(kOps); }
  ThreadBlock* threads() const { return at<ThreadBlock>(kThreads); }
  Layer* layers() const { return at<Layer>(kLayers); }
  ScalarName* scalar_names() const { return at<ScalarName>(kScalarNames); }
  UnseenName* unseen_names() const { return at<UnseenName>(kUnseenNames); }
  Coverage* coverage() const { return at<Coverage>(kCoverage); }
  uint32_t slots() const { return static_cast<uint32_t>(header()->regions[kSlots].count); }
  uint64_t slot_bytes() const { return header()->regions[kSlots].record_size; }
  // For who makes a device store into them: both begin with a page of their own.
  char* slot_region() const { return base_ + header()->regions[kSlots].offset; }
  uint64_t slot_region_bytes() const { return slots() * slot_bytes(); }
  Progress* progress() const { return at<Progress>(kProgress); }
  const Control* control() const { return control_; }
  TensorRing* tensors() const { return tensor_bytes() > 0 ? at<TensorRing>(kTensors) : nullptr; }
  uint64_t tensor_bytes() const { return header()->regions[kTensors].record_size; }

  // Slots that a claim could take now.
  uint32_t free_slots() const;

  // Claims the slot of `ticket` for a slice, or returns null when the agent still holds it (the ticket is
  // burned). The slot's header is zeroed but for sequence, ticket and its place in the slice. Any thread.
  Slot* claim(uint64_t ticket) const;

  // The same for a slice over `count` slots, of consecutive tickets: all of them, or none (false).
  // 1 <= count <= slots().
  bool claim(uint64_t ticket, uint32_t count, Slot** slots) const;

  // Undoes a claim; nothing of it was visible.
  void give_back(uint64_t ticket, uint32_t count) const;

  // Stores the rest of a claimed slot's header.
  void describe(Slot* slot, const Slot& header) const;

  // Makes claimed slots visible to the agent as one slice.
  void publish(Slot* slot, uint64_t ticket) const { publish(&slot, ticket, 1); }
  void publish(Slot* const* slots, uint64_t ticket, uint32_t count) const;

  // Step records that the agent has not taken. Any thread.
  uint64_t steps_ahead() const;

  // Appends to the ring of steps; `record.sequence` is set here. Returns its number. One caller at a time.
  uint64_t append_step(const StepRecord& record);

  // Completes record `number`, which was appended as pending: loss, norm, steps left out and what is given.
  // One of the last kMostPendingSteps + 1. By who appends.
  void complete_step(uint64_t number, const StepRecord& record);

 private:
  const Header* header() const { return reinterpret_cast<const Header*>(base_); }
  template <class T>
  T* at(RegionId region) const {
    return reinterpret_cast<T*>(base_ + header()->regions[region].offset);
  }
  StepRecord* step(uint64_t number) const;
  Slot* slot(uint32_t index) const;
  void release(uint64_t ticket) const;
  uint64_t consumed(uint32_t index) const;

  char* base_ = nullptr;
  Control* control_ = nullptr;
  std::atomic<uint64_t> steps_written_{0};
};

// The trainer's side of the ring of tensors. No allocation, no system call. One caller at a time.

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
  // The same of a record without a histogram, which is not a snapshot: its turn was counted as skipped.
  void publish_uncounted(const TensorRecord* record);

  void count_due(uint64_t turns);
  void count_skipped(TensorSkip reason, uint64_t turns = 1);
  void count_heads_skipped(TensorHeadSkip reason);
  void set_awaited(uint64_t turns);

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

#endif  // FORESHOCK_SEGMENT_WRITER_H_
