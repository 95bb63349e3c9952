// The trainer's side of a segment, the file that one trainer process shares with the agent
// (segment/layout.h): creates the .seg and .ctl files, writes into .seg, and reads .ctl, which the agent
// writes. Runs inside the trainer, so after create() nothing here allocates, throws or waits. Every use of a
// slot has a number, its ticket (from 1); ticket t uses the slot t mod slots(). Protocol: segment/SEGMENT.md.
//
// Other processes of the user may write any byte of both files at any time, and truncate them. So neither
// file is mapped for the host: a store or load behind the end of a file raises SIGBUS. The trainer keeps its
// image of the segment in private memory, where all layout, sequences, positions and counters are, and copies
// ranges of it into the file with pwrite(). What is read from the files is bounded where it is read.
#ifndef FORESHOCK_SEGMENT_WRITER_H_
#define FORESHOCK_SEGMENT_WRITER_H_

#include <atomic>
#include <initializer_list>

#include "segment/layout.h"

namespace foreshock::segment {

struct SegmentRequest {
  const char* directory;  // <base>/<run id>; must exist and be on tmpfs
  int rank;
  uint64_t nonce;                      // distinguishes the segments of a rank
  uint32_t slots;                      // 0: only counters, steps and tensors, no slices
  uint64_t slot_bytes;                 // rounded up to a multiple of 64
  uint64_t tensor_bytes = 0;           // size of the ring of tensor records with its head; 0: no ring
  const Identity* identity = nullptr;  // rank, host and so on, for the agent; null: all zeros
};

uint64_t segment_bytes(uint32_t slots, uint64_t slot_bytes, uint64_t tensor_bytes = 0);  // of the .seg file

// Gives atomic access to a word that several threads use, since the structs of layout.h have plain members.
template <class T>
std::atomic_ref<T> word(T& value) {
  return std::atomic_ref<T>(value);
}

class SegmentWriter {
 public:
  // Creates both files. Returns null on success. On failure leaves no file and returns a static word:
  // "no_space", "rank_taken", "no_directory", "no_mapping", "file_limit", "no_descriptor" or "not_permitted".
  // The .seg file stays open and locked until the process ends; the lock shows that the process lives.
  const char* create(const SegmentRequest& request);

  // These are addresses in the image. A change reaches the file by one of the publish functions below.
  Identity* identity() const { return at<Identity>(kIdentity); }
  Op* ops() const { return at<Op>(kOps); }
  ThreadBlock* threads() const { return threads_; }  // null before create()
  Layer* layers() const { return at<Layer>(kLayers); }
  ScalarName* scalar_names() const { return at<ScalarName>(kScalarNames); }
  UnseenName* unseen_names() const { return at<UnseenName>(kUnseenNames); }
  Coverage* coverage() const { return at<Coverage>(kCoverage); }
  uint32_t slots() const { return static_cast<uint32_t>(regions_[kSlots].count); }
  uint64_t slot_bytes() const { return regions_[kSlots].record_size; }
  char* slot_region() const { return base_ + regions_[kSlots].offset; }
  uint64_t slot_region_bytes() const { return slots() * slot_bytes(); }
  Progress* progress() const { return at<Progress>(kProgress); }
  TensorRing* tensors() const { return tensor_bytes() > 0 ? at<TensorRing>(kTensors) : nullptr; }
  uint64_t tensor_bytes() const { return regions_[kTensors].record_size; }

  // Copies ranges of the image into the file, in this order; the only way in which the host writes into it.
  // Does nothing with a range outside of the image. A write that fails or is cut short is counted, and the
  // training goes on. Does not change errno, and raises no signal: a file that was truncated grows again,
  // never beyond its size at creation. Any thread.
  struct Range {
    const void* from;
    uint64_t bytes;
  };
  void write(std::initializer_list<Range> ranges) const;
  uint64_t failed_writes() const { return failed_writes_.load(std::memory_order_relaxed); }

  // Writes the counters of one thread, or of all threads that have counted.
  void publish_block(const ThreadBlock* block) const { write({{block, sizeof *block}}); }
  void publish_threads() const { write({claimed_threads(), shared_threads()}); }
  // Writes the counters of tensors, as the publication of a tensor record does.
  void publish_tensor_counts() const {
    if (const TensorRing* ring = tensors(); ring != nullptr) write({{ring, sizeof *ring}});
  }
  // Writes what has changed (all, if the file was truncated: a failed write) in the regions that have neither
  // counters of threads nor steps, tensor records or slices. If another thread is in here, does nothing.
  void publish_facts() const;

  // Reads the control file again. control() is the copy that this function has read last; at first, and if
  // the file is damaged, the copy is what create() stored.
  void refresh_control() const;
  const Control* control() const { return &control_; }
  void read_control(
      Control* control) const;  // reads into *control instead; what create() stored if it is damaged

  // Adds to a counter of Coverage that several threads may change: count(&Coverage::numbers_late, 1). The
  // second function adds to numbers_skipped. Any thread.
  void count(uint64_t Coverage::*counter, uint64_t amount);
  void count_skipped_numbers(uint32_t reason, uint64_t amount);

  // Returns the number of slots that are unused or whose last slice was consumed. Reads the control file.
  uint32_t free_slots() const;
  // Claims the slot of `ticket` for a slice that fits into one slot. Returns null if the agent has not
  // consumed the slot's last slice yet; the ticket must then not be used again. Sets the slot's sequence to
  // 2 * ticket - 1 (odd: being written) and its ticket, and zeroes the rest of the header. The slot is in the
  // image: the file has nothing of it before publish(). Reads the control file. Any thread.
  Slot* claim(uint64_t ticket) const;
  // Claims `count` slots with consecutive tickets from `ticket` on for one slice, 1 <= count <= slots(), sets
  // their part numbers, and copies `header` into each, except what is written later (times, SequenceTold,
  // nonfinite_out). If not all are free, claims none and returns false.
  bool claim(uint64_t ticket, uint32_t count, Slot** slots, const Slot& header = {}) const;
  // Undoes a claim of `count` slots from `ticket` on that were not published.
  void give_back(uint64_t ticket, uint32_t count) const;
  // Makes claimed slots visible to the agent as one slice: writes them with their checksums, then sets their
  // sequences to 2 * their ticket.
  void publish(Slot* slot, uint64_t ticket) const { publish(&slot, ticket, 1); }
  void publish(Slot* const* slots, uint64_t ticket, uint32_t count) const;

  // For devices, which store slices and progress words into the file themselves. They need addresses in a
  // shared mapping of the file, whose pages the driver pins; the host never touches it. map_for_devices()
  // makes the mapping, once, and returns false if it cannot. device_memory() returns the place in it of an
  // address in the image. The slots and the Progress begin at a page boundary.
  bool map_for_devices() const;
  char* device_memory(const void* in_image) const {
    return shared_ + (static_cast<const char*>(in_image) - base_);
  }
  // Writes the headers of `count` claimed slots from `ticket` on, and leaves the slots to a device, which
  // will store the payloads and then set the sequences. They are free again when the agent has consumed them.
  void leave_to_device(Slot* const* slots, uint64_t ticket, uint32_t count) const;
  // Copies what a device has stored from the file into the image: sequence and times of a slot, if its slice
  // has arrived; all words of Progress::by_device.
  void read_back(Slot* slot) const;
  void read_back_progress() const;

  uint64_t steps_ahead() const;  // step records that the agent had not consumed at the last refresh_control()
  // Appends a record to the ring of steps and sets its `sequence` and checksum. Writes it, and the counters
  // of all threads. Returns its number. One caller at a time.
  [[gnu::hot]] uint64_t append_step(const StepRecord& record);
  // Completes record `number`, which was appended with the bit kNumbersPending, since some of its numbers
  // were still on a device. Stores loss, norm, skipped steps and `given` (bits of the known numbers); does
  // nothing if the record was overwritten. Must not run at the same time as append_step().
  void complete_step(uint64_t number, const StepRecord& record);

 private:
  template <class T>
  T* at(RegionId region) const {
    return reinterpret_cast<T*>(base_ + regions_[region].offset);
  }
  StepRecord* step(uint64_t number) const { return steps_ + number % kStepRecords; }
  Slot* slot(uint32_t index) const {
    const Region& region = regions_[kSlots];
    return reinterpret_cast<Slot*>(base_ + region.offset + region.record_size * index);
  }
  uint32_t index_of(const Slot* slot) const {
    return static_cast<uint32_t>((reinterpret_cast<const char*>(slot) - slot_region()) / slot_bytes());
  }
  void release(uint64_t ticket) const;
  uint64_t consumed(uint32_t index) const;  // the slot's last ticket that the agent has consumed; 0: none
  bool may_write() const;
  void put(const void* from, uint64_t bytes) const;
  Range claimed_threads() const;
  Range shared_threads() const;
  uint64_t used_bytes(RegionId region) const;

  char* base_ = nullptr;             // the image
  char* published_facts_ = nullptr;  // what publish_facts() has written; of the layout of the image
  uint64_t size_ = 0;                // of the file and of the image
  int segment_file_ = -1, control_file_ = -1;
  // Two regions of the image, which the end of a step finds here.
  ThreadBlock* threads_ = nullptr;
  StepRecord* steps_ = nullptr;
  std::atomic<uint64_t> steps_written_{0};
  Region regions_[kRegions] = {};  // the layout
  mutable Control control_ = {};
  mutable std::atomic_flag control_busy_, facts_busy_;
  mutable char* shared_ = nullptr;  // see map_for_devices()
  mutable std::atomic<uint64_t> failed_writes_{0};
  mutable std::atomic<uint64_t> shared_counted_{0};  // see shared_threads()
  // Of each slot: its sequence, as in Slot but never set by a device, and its sequence before the last claim.
  mutable std::atomic<uint64_t> sequences_[kMaxSlots] = {};
  mutable uint64_t before_claim_[kMaxSlots] = {};
};

// The trainer's side of the ring of tensor records (snapshots of weights). One caller at a time.
class TensorWriter {
 public:
  // `ring`: the region kTensors of the image of `segment`, with `bytes` bytes; null: no ring.
  void attach(TensorRing* ring, uint64_t bytes, const SegmentWriter* segment);
  // Does the same for a ring that is in no segment. `control` has the cursor of its reader.
  void attach(TensorRing* ring, uint64_t bytes, const Control* control);

  bool is_attached() const { return room_ > 0; }  // whether the ring has space for records
  TensorRing* ring() const { return ring_; }      // in the image; null: no ring
  const TensorRing& counts() const { return counts_; }
  // Bytes of the largest record that fits into an empty ring from any position: records do not wrap around.
  uint64_t largest_record() const { return room_ / 2; }

  // Returns a free range of the ring with at least `least` bytes, in which a record may be built, and sets
  // *bytes to its length. Returns null if the agent must consume records first.
  TensorRecord* begin(uint64_t least, uint64_t* bytes);

  // Copies `record` to the start of the range of begin(), makes it visible with the payloads that the caller
  // has stored after it, and counts a snapshot. record->bytes must be set. Does nothing if it is larger than
  // the range.
  void publish_snapshot(const TensorRecord* record);
  // Does the same without counting a snapshot. For a record without a histogram, whose tensor the caller has
  // counted as skipped.
  void publish_uncounted(const TensorRecord* record);

  // These change the counters of the same names in TensorRing (layout.h).
  void count_due(uint64_t tensors);
  void count_skipped(TensorSkip reason, uint64_t tensors = 1);
  void set_awaited(uint64_t tensors);
  void set_interval(uint64_t steps);
  // Sets tensors and elements, and the numbers of tensors that are not followed (kTensorUnfollowed of them).
  void set_named(uint64_t tensors, uint64_t elements, const uint64_t* unfollowed);

 private:
  uint64_t consumed() const;
  void add(uint64_t TensorRing::*counter, uint64_t amount);
  bool fits(const TensorRecord& record) const {  // into the range of begin()
    return record.bytes >= sizeof record && record.bytes <= granted_;
  }
  // Positions are numbers of bytes since the first record, as in TensorRing::written.
  char* at(uint64_t position) const { return data_ + position % room_; }

  TensorRing* ring_ = nullptr;
  TensorRing counts_ = {};  // the truth, of which *ring_ is a copy
  char* data_ = nullptr;    // the records
  uint64_t room_ = 0;       // bytes at data_
  const Control* control_ = nullptr;
  const SegmentWriter* segment_ = nullptr;  // null: the ring is in no segment
  uint64_t filler_ = 0;   // bytes left unused at the ring's end, before the record that is being built
  uint64_t granted_ = 0;  // bytes of the range of begin()
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_WRITER_H_
