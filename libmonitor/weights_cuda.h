// Measures weight tensors on a device: plans the kernels, launches them, and collects their results without
// waiting.
#ifndef FORESHOCK_LIBMONITOR_WEIGHTS_CUDA_H_
#define FORESHOCK_LIBMONITOR_WEIGHTS_CUDA_H_

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "libmonitor/base.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/weight_measure.h"

namespace foreshock {

// Results at the begin of the work's memory on the device. All zero before the launch.
struct WeightResults {
  uint64_t first[2],
      last[2];  // begin and end of the first and of the last kernel, in ns of the device's clock
  GatherClock clock;
  uint32_t arrived, reserved;
  uint64_t checksum;      // only if the values are counted
  GradientSums values;    // only if the values are counted
  GradientSums gradient;  // only without a second moment
  AdamSums moment;
};
static_assert(sizeof(WeightResults) == 184);

struct WeightWork {
  static constexpr uint64_t kAlign = 256;
  static constexpr uint64_t kPayload = kAlign;  // offset of the payload; scratch memory follows the payload

  uint64_t from;  // address of the dense values
  uint64_t count;
  DType type;
  bool is_counted;  // true: the payload is the words of kernels/histogram.h; false: the values themselves
  bool has_gradient, has_moment;
  GradientTensor gradient;
  AdamTensor adam;
  uint64_t payload_bytes;
  uint64_t bytes;  // size of the work's memory

  uint64_t result_bytes() const { return kPayload + payload_bytes; }
};

// Plans the work for `elements` dense values of fp32, bf16 or fp16 on a device. Returns false if the words
// cannot count so many values. Includes those tensors of the optimizer that are on the same device and can be
// read there.
bool plan_weight(const foreshock_tensor& values, uint64_t elements, const OptimizerState& optimizer,
                 WeightWork* work);

// The functions below return jobs of the work in the memory at `at`. This one copies the values in rows.
GatherJob copy_of_values(const WeightWork& work, uint64_t at);
// Returns a job that copies nothing and only stores the time.
GatherJob look_at_clock(uint64_t times, uint64_t clock);
GradientSumsJob sums_of_values_and_gradient(const WeightWork& work,
                                            uint64_t at);  // of those that are present
AdamSumsJob sums_of_moment(const WeightWork& work, uint64_t at);

// Calls launch(kernel, shape, &job) for every job of the work in the memory at `at`, in order. Stops at the
// first launch that returns false, and returns false.
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

// Identifies work that was sent to a device, and the location of its results.
struct SentWork {
  uint64_t context_id;
  uint64_t ticket, offset;
  uint32_t place;
};

// Sends measurements of weights to one device in one context, and receives their results. Has memory on the
// device, the same amount of memory on the host, and a stream. set_up() must be called between steps, because
// it may wait for the device. Nothing is freed, because that may wait too and the context may no longer
// exist. set_up() and send() must be called in that context. Thread-compatible.
class WeightStaging : public PerContext {
 public:
  // Room for one histogram of fp32 and many small tensors.
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;
  static constexpr uint64_t kLeastBytes = uint64_t{1} << 20;
  static constexpr uint64_t kShareOfFree = 32;  // takes at most 1/32 of the free memory

  void forget() { *this = {}; }
  void set_up(const DriverApi& driver, std::span<const std::byte> code, uint64_t context_id);
  bool is_ready();
  bool holds(const WeightWork& work) const { return work.bytes <= ring_.bytes(); }

  // Launches the work on `stream`, and copies the results to the host on this object's own stream. Returns
  // -1, or the reason why no results will arrive.
  int send(const WeightWork& work, cuda::Stream stream, SentWork* sent);

  // Returns the results as WeightResults followed by the payload, whose words may be overwritten. Null if
  // they have not arrived. Reads only host memory.
  char* results(const SentWork& sent) const;
  // Whether the results may still arrive.
  bool is_awaited(const SentWork& sent) const { return sent.context_id == context_id(); }
  // Frees the memory of the results for other work.
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
  uint64_t released_[StagingRing::kMostSlices] = {};  // by place: ticket of released work
};

// A measurement that was sent to a device, with the host's information about the tensor at that time.
struct PendingWeight {
  WeightWork work;
  SentWork sent;
  int place;                 // index of the device in DeviceSampler
  uint32_t number;           // number of the tensor
  foreshock_tensor values;   // the data may no longer exist
  OptimizerState optimizer;  // the data may no longer exist
  int64_t step;
  uint64_t time_ns, interval;
  uint64_t launch_ns;     // host time for the launch
  uint64_t round;         // number of ended steps at the time of sending
  uint64_t host_records;  // records of host tensors at the time of sending
  bool is_forgotten;      // the tensors were named again since; the measurement is already counted as skipped
};

// The measurements whose results have not arrived yet, in the order in which they were sent. The agent
// expects records in this order of steps. Thread-compatible.
class PendingWeights {
 public:
  static constexpr uint32_t kMost = StagingRing::kMostSlices;  // the capacity of one device, shared by all

  uint32_t count() const { return count_; }
  // Returns the entry to fill in for the next measurement, or null if there are too many. The entry is only
  // added by push().
  PendingWeight* next() { return count_ == kMost ? nullptr : &at(count_); }
  void push() { ++count_; }

  PendingWeight* oldest() { return count_ == 0 ? nullptr : &at(0); }
  void pop() {
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  // Marks all measurements as forgotten. Returns how many were not marked before.
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
