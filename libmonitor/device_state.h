// Sends slices of calls on a device to the segment: a staging ring on the device, the timing of gathers, and
// the state of one device in one context.
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

// Allocates memory on a device for slices that are being copied to the segment, in order, and frees it in the
// same order. After copying a slice, the stream stores a sequence word into the slice's slot. The host reads
// that word from its own memory to find out that the slice's memory is free. Thread-compatible.
class StagingRing {
 public:
  // Limit of slices in the ring. Each slice has at least one slot of the segment.
  static constexpr uint32_t kMostSlices = segment::kMaxSlots;
  static constexpr uint64_t kAlign = 256;

  // Sets the size of the ring to `bytes` (a multiple of kAlign) and frees all of it.
  void reset(uint64_t bytes);

  struct Place {
    uint64_t offset = 0;
    uint32_t number = 0;  // unique among the slices in the ring
  };
  // Finds a free range of `bytes` bytes. Returns false if there is none now. The range is not allocated
  // before commit().
  bool find(uint64_t bytes, Place* place);

  // Allocates the range that find() found last. It is free again once `*sequence` >= `done`.
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
  void free_completed();

  uint64_t bytes_ = 0;
  uint32_t first_ = 0, count_ = 0;  // the used part of taken_, oldest first
  Taken found_ = {};
  Taken taken_[kMostSlices] = {};
};

// Measures how long gathers took on the trainer's stream. A device writes the times into the slot before the
// sequence word that publishes the slot. This class remembers the slots until their times can be read. It
// reads only host memory and never waits. Thread-compatible.
class CopyTiming {
 public:
  // Remembers a slice whose gathers were launched. Its slots have the tickets from `ticket` on.
  void expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts);

  struct Spent {
    uint64_t ns = 0;
    uint32_t slices = 0;
  };
  // Returns the time of the slices that have arrived since the last call. If a slot already holds another
  // slice, the last time that could be read is counted instead.
  Spent take();

 private:
  struct Expected {
    segment::Slot* slot;
    uint64_t sequence;
    bool is_first;
  };
  void collect();

  // A slot is claimed again only after its earlier slice was seen here, so this is enough.
  Expected expected_[segment::kMaxSlots] = {};
  uint32_t count_ = 0;
  uint64_t last_ns_ = 0;
  Spent spent_;
};

// The input of a device's set-up.
struct DeviceSetting {
  const DriverApi* driver;
  const segment::SegmentWriter* writer;
  std::span<const std::byte> code;  // kernels/device_code.h
};

// A slice whose slots are claimed and have a header, but no payload yet.
struct ClaimedSlice {
  segment::Slot* const* slots;
  uint64_t ticket;
  uint32_t parts;
};

// The resources of sampling on one device in one context: a ring, a stream, an event, the kernels, and the
// pinned segment. set_up() must be called between steps, because it may wait for the device. Nothing is
// freed, because that may wait too and the context may no longer exist. set_up() and the functions after it
// must be called in their context. Thread-compatible.
class DeviceState : public PerContext {
 public:
  static constexpr uint64_t kMostRingBytes = uint64_t{64} << 20;
  static constexpr uint64_t kLeastRingBytes = uint64_t{64} << 10;
  static constexpr uint64_t kShareOfFree = 8;  // the ring takes at most an eighth of the free memory

  void forget() { *this = {}; }
  // `index`: index in segment::Progress::by_device.
  void set_up(const DeviceSetting& setting, int32_t index, uint64_t context_id);

  // Whether the stream has completed the work of set_up(). Nothing is sampled before that.
  bool is_ready();

  // capacity(): largest slot, in bytes, that the ring can hold. most_parts(): most slots of one slice that it
  // can hold.
  uint64_t capacity() const;
  uint32_t most_parts() const;

  // Gathers a slice on `stream`, then copies and publishes it on this object's own stream. Returns -1, or the
  // reason why the slice will not arrive; then nothing writes to its slots. If sending fails midway, returns
  // -1 although the slice never arrives, and failed() is set from then on.
  int send(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed, cuda::Stream stream);

  // Copies single numbers. Works even if there is no memory for slices.
  ScalarReadback& scalars() { return scalars_; }
  const ScalarReadback& scalars() const { return scalars_; }

  // Returns the time that gathers took on the trainer's stream, for gathers that have ended since the last
  // call. May be called in any context.
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
  cuda::Address slots_ = 0, progress_ = 0;  // device addresses of the segment's regions
  cuda::Address clocks_ = 0, memory_ = 0;   // in device memory
  StagingRing ring_;
  StagingRing::Place place_;
  CopyTiming times_;
  ScalarReadback scalars_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_STATE_H_
