// Sampled calls on devices: which context a call belongs to, whether its stream is being captured, and whose
// turn it is. Waits for nothing and asks the device nothing; a call that cannot be sampled at once is
// skipped, with the reason.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_

#include "libmonitor/device_state.h"

namespace foreshock {

// As many as have a word of their own in the segment; more of them in one process are not sampled. Which they
// are is settled by who comes first: a rank that uses only the last of eight has it.
inline constexpr int32_t kMostDevices = segment::kDeviceProgress;

class DeviceTurn;

// Thread-safe but for attach().
class DeviceSampler {
 public:
  // For a new segment. What was set up before is forgotten: it belonged to another process, or to another
  // segment. Opens nothing.
  void attach(const segment::SegmentWriter* writer, std::span<const std::byte> code,
              const char* library = "libcuda.so.1");

  // Makes *turn the turn of this call, or returns the FORESHOCK_SKIP_ reason.
  int begin(const CheckedCall& call, DeviceTurn* turn);

  const DeviceDriver& driver() const { return driver_; }

 private:
  friend class DeviceTurn;
  struct Device {
    std::atomic<int32_t> index{-1};  // of the driver; -1: of none yet
    std::atomic_flag busy;
    DeviceState state;
  };
  cuda::Context context_of(const CheckedCall& call, cuda::Context current) const;
  int take(const CheckedCall& call, cuda::Context context, DeviceTurn* turn);
  int place_of(int32_t device);

  const segment::SegmentWriter* writer_ = nullptr;
  std::span<const std::byte> code_;
  const char* library_ = nullptr;
  DeviceDriver driver_;
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

 private:
  friend class DeviceSampler;
  const DeviceDriver* driver_ = nullptr;  // not null: our context is to be popped
  DeviceSampler::Device* device_ = nullptr;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SAMPLER_H_
