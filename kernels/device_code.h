// The kernels for devices: one fatbin, embedded as data, so that nothing of CUDA is linked. Its symbols take
// one parameter each, a job of kernels/device_jobs.h, by value.
#ifndef FORESHOCK_KERNELS_DEVICE_CODE_H_
#define FORESHOCK_KERNELS_DEVICE_CODE_H_

#include <cstddef>
#include <span>

namespace foreshock {

// Machine code for sm_80, sm_90 and sm_100, and PTX of compute_100 for what comes later. Empty when the build
// had no nvcc.
std::span<const std::byte> DeviceCode();

enum class DeviceKernel : int {
  kGather,         // GatherJob
  kCountPatterns,  // HistogramJob
  kCountBins,      // HistogramJob
  kGradientSums,   // GradientSumsJob
  kAdamSums,       // AdamSumsJob
  kChecksum,       // ChecksumJob
  kConservation,   // ConservationJob
};
inline constexpr int kDeviceKernels = 7;

// Symbols in the fatbin, in the order above.
inline constexpr const char* kDeviceKernelNames[kDeviceKernels] = {
    "foreshock_gather",    "foreshock_count_patterns", "foreshock_count_bins",  "foreshock_gradient_sums",
    "foreshock_adam_sums", "foreshock_checksum",       "foreshock_conservation"};

constexpr const char* name_of(DeviceKernel kernel) { return kDeviceKernelNames[static_cast<int>(kernel)]; }

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DEVICE_CODE_H_
