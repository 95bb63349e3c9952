// Samples calls, weights and gradients on CUDA devices. DeviceSampler finds the context of a stream, checks
// that the stream is not being captured into a graph, and gives one thread at a time access to the device.
// DeviceState copies slices (parts of calls) from one device into slots of the segment, the memory shared
// with the agent. A slice that is larger than a slot takes several slots, one for each of its parts. A ticket
// is the running number of a use of a slot. Nothing here waits for a device or synchronizes with it. A sample
// that is not possible immediately is skipped with a reason. Work that may wait (opening the driver, reading
// the kernels, setting up a device) is only requested, and done between two steps.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_

#include <cstdint>
#include <span>

#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/weight_measure.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

// Measures how long gathers (the kernels that copy slices) took on the trainer's stream. A device writes
// their times into the slot before the sequence word that publishes the slot. This class remembers the slots
// until their times can be read. It reads the image of the segment, into which read_back() of the segment's
// writer copies what a device has stored, and never waits. Thread-compatible.
class CopyTiming {
 public:
  // Remembers a slice whose gathers were launched. It has `parts` slots; slot n has ticket `ticket` + n.
  void expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts);

  struct Spent {
    uint64_t ns = 0;
    uint32_t slices = 0;
  };
  // Calls visit(Slot*) for each slot that is remembered.
  void for_each_slot(const auto& visit) const {
    for (uint32_t n = 0; n < count_; ++n) visit(expected_[n].slot);
  }
  // Returns the sum over the slices that have arrived since the last call. If a slot was reused before its
  // time was read, the last time that could be read is counted instead.
  Spent take();

 private:
  struct Expected {
    segment::Slot* slot;
    uint64_t sequence;  // value of the slot's sequence word when the slice has arrived
    bool is_first;      // the first slot of its slice
  };
  void collect();  // moves the slices that have arrived from expected_ to spent_

  // Large enough: a slot is claimed again only after its slice has arrived; if full, expect() collects first.
  Expected expected_[segment::kMaxSlots] = {};
  uint32_t count_ = 0;    // used entries of expected_
  uint64_t last_ns_ = 0;  // the last time that could be read
  Spent spent_;
};

// The input of a device's set-up.
struct DeviceSetting {
  const DriverApi* driver;
  const segment::SegmentWriter* writer;
  std::span<const std::byte> code;  // the device kernels (kernels/device_code.h)
};

// A slice whose slots are claimed and have a header, but no payload yet. Slot n has ticket `ticket` + n. What
// the slots hold is read from the plan, since other processes may write into the slots.
struct ClaimedSlice {
  segment::Slot* const* slots;
  uint64_t ticket;
  const SlicePlan* plan;

  uint32_t parts() const { return plan->slots; }
  segment::Slot header(uint32_t part) const { return slot_of(*plan, part); }
};

// The resources of sampling on one device in one context: a ring of device memory, a stream, an event, the
// kernels, and the pinned segment. set_up() must be called between steps, because it may wait for the device.
// Nothing is freed, because freeing may wait too and the context may no longer exist. set_up() and the
// functions after it must be called in the context `context_id`. Thread-compatible.
class DeviceState : public PerContext {
 public:
  // Bounds of the ring. If the device has less free memory than the lower bound needs, no slice is sampled.
  static constexpr uint64_t kMostRingBytes = uint64_t{64} << 20;
  static constexpr uint64_t kLeastRingBytes = uint64_t{64} << 10;
  static constexpr uint64_t kShareOfFree = 8;  // the ring takes at most an eighth of the free memory

  void forget() { *this = {}; }  // for a process after a fork, or another segment
  // `index`: index in segment::Progress::by_device, where the device stores the ticket of its latest slice.
  void set_up(const DeviceSetting& setting, int32_t index, uint64_t context_id);

  // Whether the stream has completed the work of set_up(). Nothing is sampled before that.
  bool is_ready();

  // capacity(): the bytes of the largest slot that the ring can hold. most_parts(): the most parts of one
  // slice.
  uint64_t capacity() const;
  uint32_t most_parts() const;

  // Gathers a slice into the ring on `stream` (the trainer's), then copies it to its slots and publishes it
  // on this object's own stream. Returns -1, or the FORESHOCK_SKIP_ reason why the slice will not arrive;
  // then nothing will write to the slots. If sending fails midway, returns -1 although the slice will never
  // arrive, and skip_reason() is set from then on.
  int send(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed, cuda::Stream stream);

  // Copies single numbers. Works even if there is no device memory for slices.
  ScalarReadback& scalars() { return scalars_; }
  const ScalarReadback& scalars() const { return scalars_; }

  // Returns the time that gathers took on the trainer's stream, for gathers that have ended since the last
  // call. May be called in any context.
  CopyTiming::Spent take_spent();

 private:
  void read_back();
  int try_set_up();
  bool pin_segment();
  bool gather(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
              cuda::Stream stream);
  bool copy_and_publish(const ClaimedSlice& claimed);
  cuda::Address progress_on_device() const;

  DeviceSetting setting_ = {};
  int32_t index_ = 0;
  cuda::Function gather_ = nullptr, packed_gather_ = nullptr, key_gather_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  cuda::Address slots_ = 0, progress_ = 0;  // device addresses of the segment's regions
  cuda::Address memory_ = 0, clocks_ = 0;   // the ring; a GatherClock (scratch memory) for each slice in it
  StagingRing ring_;
  StagingRing::FreeRange range_;  // where in the ring the slice is that send() is sending
  CopyTiming times_;
  ScalarReadback scalars_;
};

// The number of devices with a word of their own in the segment. The first kMostDevices devices that a
// process uses are sampled, whatever their index in the machine; further devices are not.
inline constexpr int32_t kMostDevices = segment::kDeviceProgress;

class DeviceTurn;

// A device and the stream on which an operation was launched. `handle` null: the stream is unknown.
struct DeviceStream {
  int32_t device_index;
  void* handle;
};

// All sampled devices. Thread-safe, except attach() and set_up_wanted(): call them in one thread at a time.
class DeviceSampler {
 public:
  // Starts with a new segment. Drops all set-ups, since they belong to another process or another segment.
  // Does not open the driver `library`.
  void attach(const segment::SegmentWriter* writer, const char* library = "libcuda.so.1");

  // Gives *turn access to the device of this call and returns -1, or returns the FORESHOCK_SKIP_ reason.
  int begin(const ValidatedCall& call, DeviceTurn* turn);
  // Does the same as begin() for weights on a device. Sets *place to the index of the device in devices_.
  int begin_weights(const DeviceStream& stream, DeviceTurn* turn, int* place);

  // Calls visit(WeightStaging&) for the device at `place`. Returns false if another thread uses the device.
  template <class Visit>
  bool visit_weights(int place, const Visit& visit) {
    TryLock lock(devices_[place].busy);
    if (lock) visit(devices_[place].weights);
    return static_cast<bool>(lock);
  }

  // Launches a kernel on the trainer's stream that copies `count` values to the host (device_scalars.h). Sets
  // the numbers under which find_scalar() finds them and returns -1, or returns the FORESHOCK_SKIP_ reason.
  int send_scalars(const DeviceStream& stream, const foreshock_tensor* values, size_t count,
                   uint64_t* numbers);
  bool find_scalar(uint64_t number, double* value) const;  // false: it has not arrived, or was overwritten
  // Does the same as send_scalars() for the sums of squares of gradients, which kernels compute first.
  int send_gradients(const DeviceStream& stream, const foreshock_gradient* gradients, size_t count,
                     SentGradients* sent);

  // Whether a call, weight, number or gradient was on a device. (Entries of devices_ are used in order.)
  bool is_any_used() const { return devices_[0].index.load(std::memory_order_relaxed) != -1; }
  // Whether one of these was on a device that is not set up for it.
  bool needs_set_up() const { return needs_set_up_.load(std::memory_order_relaxed); }
  // Makes the missing set-ups. Must be called between two steps.
  void set_up_wanted();

  // Returns the time on the trainer's streams of gathers that have ended since the last call.
  CopyTiming::Spent take_spent();

  const DriverApi& driver() const { return driver_; }

 private:
  friend class DeviceTurn;
  // Each purpose is set up separately: a trainer may have weights but no attention that hooks see.
  enum Purpose { kCalls, kWeights, kGradients, kPurposes };
  struct Device {
    std::atomic<int32_t> index{-1};  // the driver's index of the device; -1: unused
    // By purpose: id of the context to be set up; kNothing: none; kAnyContext: the driver is not open yet.
    std::atomic<uint64_t> wanted[kPurposes] = {kNothing, kNothing, kNothing};
    std::atomic_flag busy;
    DeviceState state;
    WeightStaging weights;
    GradientReadback gradients;
  };
  // A number for find_scalar() is n * kPlaces + place. `place` is the index of the device in devices_, n the
  // value's number in the ScalarReadback of this device.
  static constexpr uint64_t kPlaces = 8;
  static_assert(kMostDevices < kPlaces);
  static constexpr uint64_t kNothing = ~uint64_t{0}, kAnyContext = ~uint64_t{1};  // no context has these ids

  // Does the work of begin() for any purpose, without the final check().
  int enter(const DeviceStream& stream, Purpose purpose, DeviceTurn* turn);
  bool may_query_context(const DeviceStream& stream, bool is_before_check) const;
  cuda::Context context_of(const DeviceStream& stream, cuda::Context current) const;
  cuda::Context primary_context(cuda::Device device) const;
  cuda::Context find_context(cuda::Device device, uint64_t wanted, cuda::Context current, uint64_t* id) const;
  int request_set_up(int place, Purpose purpose, uint64_t context_id);
  int claim(const DeviceStream& stream, cuda::Context context, DeviceTurn* turn);
  int check_context(const PerContext& object, Purpose purpose, const DeviceTurn& turn);
  template <class State>
  int check(State& state, Purpose purpose, const DeviceTurn& turn);
  void set_up(int place, Purpose purpose, uint64_t wanted);
  int place_of(int32_t device);

  const segment::SegmentWriter* writer_ = nullptr;
  const char* library_ = nullptr;
  DriverApi driver_;
  Fatbin code_;
  std::atomic<bool> needs_set_up_{false};
  Device devices_[kMostDevices];
};

// Exclusive access to a device, from begin() until the copies of the slice have been enqueued. The context of
// the call is current during this time.
class DeviceTurn {
 public:
  DeviceTurn() = default;
  ~DeviceTurn();
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

  DeviceState& state() const { return device_->state; }
  WeightStaging& weights() const { return device_->weights; }
  GradientReadback& gradients() const { return device_->gradients; }

 private:
  friend class DeviceSampler;
  const DriverApi* driver_ = nullptr;  // not null: the context was pushed and must be popped
  DeviceSampler::Device* device_ = nullptr;
  int place_ = -1;  // index of *device_ in DeviceSampler::devices_
  uint64_t context_id_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
