// What sampling has on one device, in one context: a ring, a stream of our own, an event, the kernel, and the
// segment pinned for it. Set up once, which may wait for the device and so is done between steps; nothing of
// it is given back, since that waits too, and the context may be gone by then.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_STATE_H_
#define FORESHOCK_LIBMONITOR_DEVICE_STATE_H_

#include <span>

#include "libmonitor/checked_call.h"
#include "libmonitor/context_setting.h"
#include "libmonitor/device_driver.h"
#include "libmonitor/device_ring.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/gather_times.h"
#include "segment/writer.h"

namespace foreshock {

// What a device is set up with and for.
struct DeviceSetting {
  const DeviceDriver* driver;
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
class DeviceState : public ContextSetting {
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
  int send(const CheckedCall& call, const Slice& slice, const ClaimedSlice& claimed, cuda::Stream stream);

  // Single numbers: had even where the memory for slices is not.
  DeviceScalars& scalars() { return scalars_; }
  const DeviceScalars& scalars() const { return scalars_; }

  // What the trainer's stream has spent on gathers that ended since it was last asked. In any context.
  GatherTimes::Spent take_spent() { return times_.take(); }

 private:
  int try_set_up();
  bool pin_segment();
  bool gather(const CheckedCall& call, const Slice& slice, const ClaimedSlice& claimed, cuda::Stream stream);
  template <class Job>
  bool launch(cuda::Function kernel, Job* job, cuda::Stream stream);
  bool copy_and_publish(const ClaimedSlice& claimed);
  cuda::Address progress_on_device() const;

  DeviceSetting setting_ = {};
  int32_t index_ = 0;
  cuda::Function gather_ = nullptr, packed_gather_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  cuda::Address slots_ = 0, progress_ = 0;  // of the segment, as the device sees it
  cuda::Address clocks_ = 0, memory_ = 0;   // on the device
  DeviceRing ring_;
  DeviceRing::Place place_;
  GatherTimes times_;
  DeviceScalars scalars_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_STATE_H_
