// What the kernels of a device are to do for a tensor whose turn it is, and how their results lie. Pure.
#ifndef FORESHOCK_LIBMONITOR_WEIGHTS_CUDA_H_
#define FORESHOCK_LIBMONITOR_WEIGHTS_CUDA_H_

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/device_state.h"
#include "libmonitor/weight_measure.h"

namespace foreshock {

// At the front of the room that the work is done in. All zero before.
struct WeightResults {
  uint64_t first[2], last[2];  // when the first kernel and the last one began and ended; ns of the device
  GatherClock clock;
  uint32_t arrived, reserved;
  uint64_t checksum;      // of values that are counted
  GradientSums values;    // of these too
  GradientSums gradient;  // where there is no second moment
  AdamSums moment;
};
static_assert(sizeof(WeightResults) == 184);

struct WeightWork {
  static constexpr uint64_t kAlign = 256;
  static constexpr uint64_t kPayload = kAlign;  // where it begins; behind it what the host need not see

  uint64_t from;  // the values, dense
  uint64_t count;
  DType type;
  bool is_counted;  // the payload is the words of kernels/histogram.h, else the values themselves
  bool has_gradient, has_moment;
  GradientTensor gradient;
  AdamTensor adam;
  uint64_t payload_bytes;
  uint64_t bytes;  // of the room

  uint64_t result_bytes() const { return kPayload + payload_bytes; }
};

// Of `elements` dense values of fp32, bf16 or fp16, at `values` on a device. False: there are more of them
// than the words count. Of the optimizer as much as lies on the same device and can be read there.
bool plan_weight(const foreshock_tensor& values, uint64_t elements, const OptimizerState& optimizer,
                 WeightWork* work);

// Values are copied in rows, each by some neighbouring threads.
GatherJob copy_of_values(const WeightWork& work, uint64_t at);
// A job that copies nothing and tells the time.
GatherJob look_at_clock(uint64_t times, uint64_t clock);
GradientSumsJob sums_of_values_and_gradient(const WeightWork& work, uint64_t at);  // of what there is of both
AdamSumsJob sums_of_moment(const WeightWork& work, uint64_t at);

// Calls launch(kernel, shape, &job) for the work in the room at `at`, in the order in which it is to be done.
// False as soon as one of them is.
template <class Launch>
bool launch_all(const WeightWork& work, uint64_t at, const DeviceLimits& limits, const Launch& launch) {
  const uint64_t clock = at + offsetof(WeightResults, clock);
  const auto gather = [&](GatherJob job) { return launch(DeviceKernel::kGather, launch_of(job), &job); };
  if (work.is_counted) {
    if (!gather(look_at_clock(at + offsetof(WeightResults, first), clock))) return false;
    HistogramJob histogram = {work.from, work.count, at + WeightWork::kPayload};
    const bool is_fp32 = work.type == DType::kFp32;
    if (!launch(is_fp32 ? DeviceKernel::kCountBins : DeviceKernel::kCountPatterns,
                is_fp32 ? launch_of_bins(histogram, limits) : launch_of_patterns(histogram, limits),
                &histogram))
      return false;
    ChecksumJob checksum = {work.from, work.count * size_of(work.type),
                            at + offsetof(WeightResults, checksum)};
    if (!launch(DeviceKernel::kChecksum, launch_of(checksum, limits), &checksum)) return false;
  } else if (!gather(copy_of_values(work, at))) {
    return false;
  }
  GradientSumsJob sums = sums_of_values_and_gradient(work, at);
  if (sums.tensors > 0 && !launch(DeviceKernel::kGradientSums, launch_of(sums, limits), &sums)) return false;
  if (work.has_moment) {
    AdamSumsJob moment = sums_of_moment(work, at);
    if (!launch(DeviceKernel::kAdamSums, launch_of(moment, limits), &moment)) return false;
  }
  return gather(look_at_clock(at + offsetof(WeightResults, last), clock));
}

// Where results of the weights on one device, in one context, wait: memory on the device, as much of the host
// beside it, and a stream of our own between them. Set up once, which may wait for the device and so is done
// between steps; nothing of it is given back, since that waits too, and the context may be gone by then.

// Work that was given to a device, and where its results are to be found.
struct SentWork {
  uint64_t context_id;
  uint64_t ticket, offset;
  uint32_t place;
};

// Thread-compatible. set_up() and send() are called in the context that they are about.
class WeightStaging : public PerContext {
 public:
  // One histogram of fp32, and a good many small tensors beside it.
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;
  static constexpr uint64_t kLeastBytes = uint64_t{1} << 20;
  static constexpr uint64_t kShareOfFree = 32;  // of the free memory it takes so little at most

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
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

  const DriverApi* driver_ = nullptr;
  DeviceLimits limits_ = {};
  cuda::Function function_[kDeviceKernels] = {};
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  MmapBuffer host_;  // pinned: words, then the same places as in memory_
  cuda::Address words_ = 0, memory_ = 0;
  uint64_t ticket_ = 0;
  StagingRing ring_;
  uint64_t released_[StagingRing::kMostSlices] = {};  // tickets of which nothing is needed any more
};

// Turns of tensors that were given to devices and have not come back yet, in the order in which they were
// sent: it is that of their steps, in which an agent expects their records.

// What the host knew of a tensor when its turn came.
struct PendingWeight {
  WeightWork work;
  SentWork sent;
  int place;                 // of its device among those that are sampled
  uint32_t number;           // of the tensor
  foreshock_tensor values;   // their data may be gone
  OptimizerState optimizer;  // as well
  int64_t step;
  uint64_t time_ns, interval;
  uint64_t launch_ns;     // of the host
  uint64_t round;         // of ended steps, when it was sent
  uint64_t host_records;  // written without a device until then
  bool is_forgotten;      // its tensor has another number by now, and its turn is counted
};

// Thread-compatible.
class PendingWeights {
 public:
  static constexpr uint32_t kMost = StagingRing::kMostSlices;  // as a device holds; more devices share them

  uint32_t count() const { return count_; }
  // Where the next one is to be described; null: there are too many. Nothing is taken before push().
  PendingWeight* next() { return count_ == kMost ? nullptr : &at(count_); }
  void push() { ++count_; }

  PendingWeight* oldest() { return count_ == 0 ? nullptr : &at(0); }
  void pop() {
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  // Marks all of them. Returns how many were not.
  uint32_t forget() {
    uint32_t forgotten = 0;
    for (uint32_t n = 0; n < count_; ++n) forgotten += !std::exchange(at(n).is_forgotten, true);
    return forgotten;
  }
  void clear() { first_ = count_ = 0; }

 private:
  PendingWeight& at(uint32_t n) { return pending_[(first_ + n) % kMost]; }

  uint32_t first_ = 0, count_ = 0;
  PendingWeight pending_[kMost] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHTS_CUDA_H_
