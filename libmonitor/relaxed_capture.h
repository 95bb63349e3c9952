// A capture in any thread forbids this one what set-up does, and would be spoilt by it, unless this thread
// says that it has nothing to do with it.
#ifndef FORESHOCK_LIBMONITOR_RELAXED_CAPTURE_H_
#define FORESHOCK_LIBMONITOR_RELAXED_CAPTURE_H_

#include "libmonitor/device_driver.h"

namespace foreshock {

class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DeviceDriver& driver) : driver_(driver) {
    mode_ = cuda::kCaptureRelaxed;
    exchanged_ = driver_.thread_exchange_stream_capture_mode(&mode_) == cuda::kSuccess;
  }
  ~RelaxedCapture() {
    if (exchanged_) driver_.thread_exchange_stream_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  explicit operator bool() const { return exchanged_; }

 private:
  const DeviceDriver& driver_;
  int mode_;
  bool exchanged_;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_RELAXED_CAPTURE_H_
