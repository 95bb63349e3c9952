// Names the device kernels, and gives access to the fatbin, CUDA's container of their machine code.
// libforeshock.so is not linked with CUDA. When it first needs a kernel, it reads the fatbin from a file in
// its own folder (libmonitor/cuda_driver.h). A kernel has one parameter: a job of device_jobs.h, by value.
#ifndef FORESHOCK_KERNELS_DEVICE_CODE_H_
#define FORESHOCK_KERNELS_DEVICE_CODE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreshock {

// Identifies the fatbin of this build. libforeshock.so rejects a file with another size or checksum.
struct DeviceCodeSeal {
  uint64_t bytes;     // 0: the build had no nvcc
  uint64_t checksum;  // checksum() of kernels/sums.h
  int oldest_driver;  // that can load the machine code, as cuDriverGetVersion returns it
};
DeviceCodeSeal device_code_seal();

// Returns the bytes of the fatbin; empty if the build had no nvcc. cmake/device_code.cmake
// has the list of its machine code; its PTX of compute_80 is for later devices. Only tests and benchmarks
// link this function, which embeds the fatbin: in libforeshock.so it would map the fatbin into every process
// of a training.
std::span<const std::byte> DeviceCode();

// The kernels, each with the type of its job. The job's comment in device_jobs.h describes the computation.
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
inline constexpr int kDeviceKernels = 9;  // number of kernels

// Symbols in the fatbin, in the order of DeviceKernel.
inline constexpr const char* kDeviceKernelNames[kDeviceKernels] = {
    "foreshock_gather",         "foreshock_packed_gather", "foreshock_key_gather",
    "foreshock_count_patterns", "foreshock_count_bins",    "foreshock_gradient_sums",
    "foreshock_adam_sums",      "foreshock_checksum",      "foreshock_scalars"};

constexpr const char* name_of(DeviceKernel kernel) { return kDeviceKernelNames[static_cast<int>(kernel)]; }

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_DEVICE_CODE_H_
