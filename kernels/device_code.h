// The kernels for devices: one fatbin, so that nothing of CUDA is linked. It lies in a file beside the
// library, which reads it when it first has use for it (libmonitor/cuda_driver.h). Its symbols take one
// parameter each, a job of kernels/device_jobs.h, by value.
#ifndef FORESHOCK_KERNELS_DEVICE_CODE_H_
#define FORESHOCK_KERNELS_DEVICE_CODE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreshock {

// What the fatbin of this build is, by which it is told from that of any other.
struct DeviceCodeSeal {
  uint64_t bytes;     // 0: the build had no nvcc
  uint64_t checksum;  // kernels/sums.h
  int toolkit;        // that made it, as 1000 * major + 10 * minor
};
DeviceCodeSeal device_code_seal();

// Its bytes, embedded, for programs of our own that launch kernels: not for the library, since every process
// of a training would have them in its address space. Machine code for sm_80, sm_90 and sm_100, and PTX of
// compute_100 for what comes later. Empty when the build had no nvcc.
std::span<const std::byte> DeviceCode();

enum class DeviceKernel : int {
  kGather,         // GatherJob
  kPackedGather,   // PackedGatherJob
  kKeyGather,      // KeyGatherJob
  kCountPatterns,  // HistogramJob
  kCountBins,      // HistogramJob
  kGradientSums,   // GradientSumsJob
  kAdamSums,       // AdamSumsJob
  kChecksum,       // ChecksumJob
  kScalars,        // ScalarsJob
};
inline constexpr int kDeviceKernels = 9;

// Symbols in the fatbin, in the order above.
inline constexpr const char* kDeviceKernelNames[kDeviceKernels] = {
    "foreshock_gather",         "foreshock_packed_gather", "foreshock_key_gather",
    "foreshock_count_patterns", "foreshock_count_bins",    "foreshock_gradient_sums",
    "foreshock_adam_sums",      "foreshock_checksum",      "foreshock_scalars"};

constexpr const char* name_of(DeviceKernel kernel) { return kDeviceKernelNames[static_cast<int>(kernel)]; }

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DEVICE_CODE_H_
