// Sampled calls, weights and gradients on devices: which context they belong to, whether their stream is
// being captured, and whose turn it is. Nothing waits here, and no device is asked; what cannot be had at
// once is skipped, with the reason. What may wait (opening the driver, reading the kernels, setting up a
// device) is only noted, and done at the end of the step.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_

#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/device_state.h"
#include "libmonitor/weights_cuda.h"

namespace foreshock {

// As many as have a word of their own in the segment; more of them in one process are not sampled. Which they
// are is settled by who comes first: a rank that uses only the last of eight has it.
inline constexpr int32_t kMostDevices = segment::kDeviceProgress;

class DeviceTurn;

// The stream that an operation on a device was given to; null: unknown.
struct DeviceStream {
  int32_t device_index;
  void* handle;
};

// Thread-safe but for attach(), and one thread at a time in set_up_wanted().
class DeviceSampler {
 public:
  // For a new segment. What was set up before is forgotten: it belonged to another process, or to another
  // segment. Opens nothing.
  void attach(const segment::SegmentWriter* writer, const char* library = "libcuda.so.1");

  // Makes *turn the turn of this call, or returns the FORESHOCK_SKIP_ reason.
  int begin(const ValidatedCall& call, DeviceTurn* turn);
  // The same for weights that an optimizer steps there; *place is that of the device.
  int begin_weights(const DeviceStream& stream, DeviceTurn* turn, int* place);

  // Calls visit(staging) of the device at a place, unless another thread is at it: then false.
  template <class Visit>
  bool visit_weights(int place, const Visit& visit) {
    TryLock lock(devices_[place].busy);
    if (lock) visit(devices_[place].weights);
    return static_cast<bool>(lock);
  }

  // Puts a kernel for numbers that lie on a device on the trainer's stream (device_scalars.h). Fills in what
  // find_scalar() knows them by and returns -1, or the FORESHOCK_SKIP_ reason for which they will not come.
  int send_scalars(const DeviceStream& at, const foreshock_tensor* values, size_t count, uint64_t* numbers);
  bool find_scalar(uint64_t number, double* value) const;
  // The same for the squares of gradients, which kernels on that stream sum first (device_scalars.h).
  int send_gradients(const DeviceStream& at, const foreshock_gradient* gradients, size_t count,
                     SentGradients* sent);

  // Whether a call has met a device that is not set up.
  bool has_wanted() const { return has_wanted_.load(std::memory_order_relaxed); }

  // Sets up what was wanted. For a thread of the trainer, between two steps.
  void set_up_wanted();

  // What the trainer's streams have spent on gathers that ended since it was last asked.
  CopyTiming::Spent take_spent();

  const DriverApi& driver() const { return driver_; }

 private:
  friend class DeviceTurn;
  // What is had on a device is set up for itself: a trainer without attention that is seen may have weights.
  enum Purpose { kCalls, kWeights, kGradients, kPurposes };
  struct Device {
    std::atomic<int32_t> index{-1};  // of the driver; -1: of none yet
    // The contexts that were met without being set up.
    std::atomic<uint64_t> wanted[kPurposes] = {kNothing, kNothing, kNothing};
    std::atomic_flag busy;
    DeviceState state;
    WeightStaging weights;
    GradientReadback gradients;
  };
  // A number of scalars tells its device in its last bits.
  static constexpr uint64_t kPlaces = 8;
  static_assert(kMostDevices < kPlaces);
  static constexpr uint64_t kNothing = ~uint64_t{0}, kAnyContext = ~uint64_t{1};

  int enter(const DeviceStream& stream, Purpose purpose, DeviceTurn* turn);
  bool tells_context(const DeviceStream& stream, bool may_be_captured) const;
  cuda::Context context_of(const DeviceStream& stream, cuda::Context current) const;
  cuda::Context primary_context(cuda::Device device) const;
  cuda::Context find_context(cuda::Device device, uint64_t wanted, cuda::Context current, uint64_t* id) const;
  int want(int place, Purpose purpose, uint64_t context_id);
  int take(const DeviceStream& stream, cuda::Context context, DeviceTurn* turn);
  int meet(const PerContext& setting, Purpose purpose, const DeviceTurn& turn);
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

// From begin() until the slice is on its way: the context of the call is current and its device is this
// thread's.
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
  const DriverApi* driver_ = nullptr;  // not null: our context is to be popped
  DeviceSampler::Device* device_ = nullptr;
  int place_ = -1;  // of it
  uint64_t context_id_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
