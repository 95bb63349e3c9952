// What the kernels of a device are to do for a tensor whose turn it is, and how their results lie. Pure.
#ifndef FORESHOCK_LIBMONITOR_WEIGHT_WORK_H_
#define FORESHOCK_LIBMONITOR_WEIGHT_WORK_H_

#include "kernels/device_code.h"
#include "kernels/device_jobs.h"
#include "libmonitor/optimizer_numbers.h"

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

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHT_WORK_H_
