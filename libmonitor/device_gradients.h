// The squares of a step's gradients, summed on the device that they lie on, in one context: by kernels on the
// trainer's own stream, since once the step is over their memory may be somebody else's. Set up once, which
// may wait for the device and so is done between steps; nothing of it is given back, since that waits too,
// and the context may be gone by then.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_GRADIENTS_H_
#define FORESHOCK_LIBMONITOR_DEVICE_GRADIENTS_H_

#include <span>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "libmonitor/context_setting.h"
#include "libmonitor/device_driver.h"
#include "libmonitor/device_scalars.h"

namespace foreshock {

// Numbers of DeviceScalars; `stride` from one to the next.
struct SentGradients {
  uint64_t begin,
      end;  // when the first kernel began and the last one ended: the device's ns, as a double's bits
  uint64_t first, stride;  // the squares of the first gradient that has values
};

// Whether its values lie as the kernels read them: in one block, on a CUDA device.
bool is_gradient_on_device(const foreshock_gradient& gradient);

// Thread-compatible. set_up() and send() are called in the context that they are about.
class DeviceGradients : public ContextSetting {
 public:
  static constexpr uint64_t kMostTensors = 4096;
  static constexpr uint64_t kMostChunks = 32768;  // of one tensor: 2^31 elements
  static constexpr uint64_t kShareOfFree = 32;    // of the free memory it takes so little at most
  // Before the sums of gradients their own number: when it began and when it ended.
  static constexpr size_t kTimes = 2;

  void forget() { *this = {}; }
  void set_up(const DeviceDriver& driver, std::span<const std::byte> code, uint64_t context_id);
  static bool is_ready() { return true; }

  // Sums the squares of all that have values, which is_gradient_on_device() holds for, and has `scalars`
  // bring them. Returns -1, or why nothing will come.
  int send(const foreshock_gradient* gradients, size_t count, cuda::Stream stream, DeviceScalars* scalars,
           SentGradients* sent);

 private:
  int try_set_up(std::span<const std::byte> code);
  bool sum_all(const foreshock_gradient* gradients, size_t count, cuda::Stream stream);
  bool look_at_clock(cuda::Address times, cuda::Stream stream);
  bool launch(cuda::Function kernel, const LaunchShape& shape, void* job, cuda::Stream stream);

  const DeviceDriver* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function sums_ = nullptr, clock_ = nullptr;
  cuda::Address memory_ = 0;
  cuda::Stream last_stream_ = nullptr;
  uint64_t last_ = 0;  // the last number that was sent; 0: none yet
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_GRADIENTS_H_
