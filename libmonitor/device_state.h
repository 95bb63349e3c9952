// Room on a device for slices on their way to the segment: bytes handed out in order and free again in that
// order. The host learns that a slice has left by the sequence word that the stream stores into its slot: it
// reads its own memory and asks the device nothing. Thread-compatible.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_STATE_H_
#define FORESHOCK_LIBMONITOR_DEVICE_STATE_H_

#include <cstdint>
#include <span>

#include "libmonitor/call.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_scalars.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

class StagingRing {
 public:
  // What lies in the ring at once: each slice has at least one slot of the segment.
  static constexpr uint32_t kMostSlices = segment::kMaxSlots;
  static constexpr uint64_t kAlign = 256;

  // Of `bytes` bytes (a multiple of kAlign), all free.
  void reset(uint64_t bytes);

  // Room for `bytes` bytes in one piece; false when there is none now. Nothing is taken before commit().
  struct Place {
    uint64_t offset = 0;
    uint32_t number = 0;  // of no other slice that is in the ring
  };
  bool find(uint64_t bytes, Place* place);

  // Takes what find() found last. Free again once `*sequence` is not less than `done`.
  void commit(const uint64_t* sequence, uint64_t done);

  uint64_t bytes() const { return bytes_; }
  uint32_t slices() const { return count_; }

 private:
  struct Taken {
    uint64_t begin, end;  // begin <= end
    const uint64_t* sequence;
    uint64_t done;
  };
  Taken& at(uint32_t n) { return taken_[(first_ + n) % kMostSlices]; }
  void free_what_has_left();

  uint64_t bytes_ = 0;
  uint32_t first_ = 0, count_ = 0;  // of taken_, oldest first
  Taken found_ = {};
  Taken taken_[kMostSlices] = {};
};

// How long the gathers took on the trainer's stream. A device writes it into the slot, before the sequence
// word that makes the slot visible; here the slots on their way are remembered until it can be read. Memory
// of the host alone is looked at, and nothing is waited for.

// Thread-compatible.
class CopyTiming {
 public:
  // Gathers into the slots of a slice, `ticket` and those after it, were given to a stream.
  void expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts);

  struct Spent {
    uint64_t ns = 0;
    uint32_t slices = 0;
  };
  // Of the slices that have arrived since it was last asked. A slot that holds something else by now counts
  // as much as the last one that could be read.
  Spent take();

 private:
  struct Expected {
    segment::Slot* slot;
    uint64_t sequence;
    bool is_first;
  };
  void collect();

  // A slot is claimed again only once it was seen, so no more are on their way at once.
  Expected expected_[segment::kMaxSlots] = {};
  uint32_t count_ = 0;
  uint64_t last_ns_ = 0;
  Spent spent_;
};

// What sampling has on one device, in one context: a ring, a stream of our own, an event, the kernel, and the
// segment pinned for it. Set up once, which may wait for the device and so is done between steps; nothing of
// it is given back, since that waits too, and the context may be gone by then.

// What a device is set up with and for.
struct DeviceSetting {
  const DriverApi* driver;
  const segment::SegmentWriter* writer;
  std::span<const std::byte> code;  // kernels/device_code.h
};

// A slice whose slots are claimed and described, with nothing in them yet.
struct ClaimedSlice {
  segment::Slot* const* slots;
  uint64_t ticket;
  uint32_t parts;
};

// Thread-compatible. set_up() and what follows it are called in the context that they are about.
class DeviceState : public PerContext {
 public:
  static constexpr uint64_t kMostRingBytes = uint64_t{64} << 20;
  static constexpr uint64_t kLeastRingBytes = uint64_t{64} << 10;
  static constexpr uint64_t kShareOfFree = 8;  // the ring takes an eighth of the free memory at most

  void forget() { *this = {}; }
  // `index`: which word of the segment's progress is its own.
  void set_up(const DeviceSetting& setting, int32_t index, uint64_t context_id);

  // Whether the stream has done what set_up() gave it. Nothing is sampled before.
  bool is_ready();

  // What a slot may hold so that the ring holds it too, and of how many such slots it holds a slice.
  uint64_t capacity() const;
  uint32_t most_parts() const;

  // Gathers on `stream`, copies on our own, publishes from there. Returns -1, or why the slice is not on its
  // way: then nothing was begun that stores into its slots. When that fails in the middle, it is, and never
  // comes; failed() says so from then on.
  int send(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed, cuda::Stream stream);

  // Single numbers: had even where the memory for slices is not.
  ScalarReadback& scalars() { return scalars_; }
  const ScalarReadback& scalars() const { return scalars_; }

  // What the trainer's stream has spent on gathers that ended since it was last asked. In any context.
  CopyTiming::Spent take_spent() { return times_.take(); }

 private:
  int try_set_up();
  bool pin_segment();
  bool gather(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
              cuda::Stream stream);
  template <class Job>
  bool launch(cuda::Function kernel, Job* job, cuda::Stream stream);
  bool copy_and_publish(const ClaimedSlice& claimed);
  cuda::Address progress_on_device() const;

  DeviceSetting setting_ = {};
  int32_t index_ = 0;
  cuda::Function gather_ = nullptr, packed_gather_ = nullptr, key_gather_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  cuda::Address slots_ = 0, progress_ = 0;  // of the segment, as the device sees it
  cuda::Address clocks_ = 0, memory_ = 0;   // on the device
  StagingRing ring_;
  StagingRing::Place place_;
  CopyTiming times_;
  ScalarReadback scalars_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_STATE_H_
