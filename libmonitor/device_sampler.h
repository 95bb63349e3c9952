// Samples calls, weights and gradients on devices. Finds their context, checks that their stream is not being
// captured, and gives one thread at a time access to a device. Nothing here waits for a device or
// synchronizes with it. A sample that is not possible immediately is skipped with a reason. Work that may
// wait (opening the driver, reading the kernels, setting up a device) is noted and done at the end of the
// step.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_

#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/device_state.h"
#include "libmonitor/weights_cuda.h"

namespace foreshock {

// Number of devices with their own word in the segment. The first kMostDevices devices that a process uses
// are sampled, further ones are not. Which devices of the machine these are does not matter.
inline constexpr int32_t kMostDevices = segment::kDeviceProgress;

class DeviceTurn;

// A device and the stream on which an operation was launched. A null `handle` is unknown.
struct DeviceStream {
  int32_t device_index;
  void* handle;
};

// Thread-safe, except attach() and set_up_wanted(), which must be called by one thread at a time.
class DeviceSampler {
 public:
  // Starts with a new segment. Drops all set-ups, since they belong to another process or another segment.
  // Does not open the driver.
  void attach(const segment::SegmentWriter* writer, const char* library = "libcuda.so.1");

  // Gives *turn access to the device of this call and returns -1, or returns the FORESHOCK_SKIP_ reason.
  int begin(const ValidatedCall& call, DeviceTurn* turn);
  // Does the same as begin() for weights on a device. Sets *place to the index of the device in this object.
  int begin_weights(const DeviceStream& stream, DeviceTurn* turn, int* place);

  // Calls visit(staging) for the device at `place`. Returns false if another thread uses the device.
  template <class Visit>
  bool visit_weights(int place, const Visit& visit) {
    TryLock lock(devices_[place].busy);
    if (lock) visit(devices_[place].weights);
    return static_cast<bool>(lock);
  }

  // Launches a kernel on the trainer's stream that copies numbers to the host (device_scalars.h). Sets the
  // numbers for find_scalar() and returns -1, or returns the FORESHOCK_SKIP_ reason.
  int send_scalars(const DeviceStream& at, const foreshock_tensor* values, size_t count, uint64_t* numbers);
  bool find_scalar(uint64_t number, double* value) const;
  // Does the same as send_scalars() for the squares of gradients. Kernels on that stream sum the squares
  // first.
  int send_gradients(const DeviceStream& at, const foreshock_gradient* gradients, size_t count,
                     SentGradients* sent);

  // Whether a call has used a device that is not set up.
  bool has_wanted() const { return has_wanted_.load(std::memory_order_relaxed); }

  // Sets up the devices that were used without a set-up. Called by a thread of the trainer between two steps.
  void set_up_wanted();

  // Returns the time that gathers took on the trainer's streams, for gathers that have ended since the last
  // call.
  CopyTiming::Spent take_spent();

  const DriverApi& driver() const { return driver_; }

 private:
  friend class DeviceTurn;
  // Each purpose is set up separately: a trainer may have weights but no attention that hooks see.
  enum Purpose { kCalls, kWeights, kGradients, kPurposes };
  struct Device {
    std::atomic<int32_t> index{-1};  // the driver's index of the device; -1: unused
    // Contexts that were used without a set-up.
    std::atomic<uint64_t> wanted[kPurposes] = {kNothing, kNothing, kNothing};
    std::atomic_flag busy;
    DeviceState state;
    WeightStaging weights;
    GradientReadback gradients;
  };
  // The last bits of a scalar's number are the index of its device.
  static constexpr uint64_t kPlaces = 8;
  static_assert(kMostDevices < kPlaces);
  static constexpr uint64_t kNothing = ~uint64_t{0}, kAnyContext = ~uint64_t{1};

  int enter(const DeviceStream& stream, Purpose purpose, DeviceTurn* turn);
  bool may_query_context(const DeviceStream& stream, bool may_be_captured) const;
  cuda::Context context_of(const DeviceStream& stream, cuda::Context current) const;
  cuda::Context primary_context(cuda::Device device) const;
  cuda::Context find_context(cuda::Device device, uint64_t wanted, cuda::Context current, uint64_t* id) const;
  int request_set_up(int place, Purpose purpose, uint64_t context_id);
  int claim(const DeviceStream& stream, cuda::Context context, DeviceTurn* turn);
  int check_context(const PerContext& setting, Purpose purpose, const DeviceTurn& turn);
  template <class State>
  int check(State& state, Purpose purpose, const DeviceTurn& turn);
  void set_up(int place, Purpose purpose, uint64_t wanted);
  int place_of(int32_t device);

  const segment::SegmentWriter* writer_ = nullptr;
  const char* library_ = nullptr;
  DriverApi driver_;
  Fatbin code_;
  std::atomic<bool> has_wanted_{false};
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

  explicit operator bool() const { return device_ != nullptr; }
  DeviceState& state() const { return device_->state; }
  WeightStaging& weights() const { return device_->weights; }
  GradientReadback& gradients() const { return device_->gradients; }

 private:
  friend class DeviceSampler;
  const DriverApi* driver_ = nullptr;  // not null: the context was pushed and must be popped
  DeviceSampler::Device* device_ = nullptr;
  int place_ = -1;  // index of device_
  uint64_t context_id_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
