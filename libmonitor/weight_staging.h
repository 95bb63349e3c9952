// Where results of the weights on one device, in one context, wait: memory on the device, as much of the host
// beside it, and a stream of our own between them. Set up once, which may wait for the device and so is done
// between steps; nothing of it is given back, since that waits too, and the context may be gone by then.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_STAGING_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_STAGING_H_

#include <span>

#include "libmonitor/context_setting.h"
#include "libmonitor/device_driver.h"
#include "libmonitor/device_ring.h"
#include "libmonitor/private_memory.h"
#include "libmonitor/weight_work.h"

namespace foreshock {

// Work that was given to a device, and where its results are to be found.
struct SentWork {
  uint64_t context_id;
  uint64_t ticket, offset;
  uint32_t place;
};

// Thread-compatible. set_up() and send() are called in the context that they are about.
class WeightStaging : public ContextSetting {
 public:
  // One histogram of fp32, and a good many small tensors beside it.
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;
  static constexpr uint64_t kLeastBytes = uint64_t{1} << 20;
  static constexpr uint64_t kShareOfFree = 32;  // of the free memory it takes so little at most

  void forget() { *this = {}; }
  void set_up(const DeviceDriver& driver, std::span<const std::byte> code, uint64_t context_id);
  bool is_ready();
  bool holds(const WeightWork& work) const { return work.bytes <= ring_.bytes(); }

  // Does the work on `stream`, and brings the results on our own. Returns -1, or why they will never come.
  int send(const WeightWork& work, cuda::Stream stream, SentWork* sent);

  // What came of it, as WeightResults and the payload behind them; the words of a payload may be written to.
  // Null: not yet. Memory of the host is looked at, and nothing is asked.
  char* results(const SentWork& sent) const;
  // Whether what was sent then may still come.
  bool is_awaited(const SentWork& sent) const { return sent.context_id == context_id(); }
  // They are not looked at any more: the room is free for other work.
  void release(const SentWork& sent);

 private:
  int try_set_up(std::span<const std::byte> code);
  bool load(std::span<const std::byte> code);
  bool copy(const WeightWork& work, const SentWork& sent);
  uint64_t* word(uint32_t n) const { return reinterpret_cast<uint64_t*>(host_.data()) + n; }
  cuda::Address word_on_device(uint32_t n) const { return words_ + n * sizeof(uint64_t); }

  const DeviceDriver* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function function_[kDeviceKernels] = {};
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  PrivateMemory host_;  // pinned: words, then the same places as in memory_
  cuda::Address words_ = 0, memory_ = 0;
  uint64_t ticket_ = 0;
  DeviceRing ring_;
  uint64_t released_[DeviceRing::kMostSlices] = {};  // tickets of which nothing is needed any more
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_STAGING_H_
