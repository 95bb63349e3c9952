// The kernels of kernels/device_code.h: their bodies on the blocks of a device. A job stays in the memory of
// parameters, which all threads read at once.
#include "kernels/adam_sums_body.h"
#include "kernels/checksum_body.h"
#include "kernels/conservation_body.h"
#include "kernels/device_block.cuh"
#include "kernels/gather_body.h"
#include "kernels/gradient_sums_body.h"
#include "kernels/histogram_body.h"
#include "kernels/scalars_body.h"

extern "C" {

__global__ void __launch_bounds__(256) foreshock_gather(const __grid_constant__ foreshock::GatherJob job) {
  foreshock::DeviceBlock block;
  foreshock::gather_body(job, block);
}

__global__ void __launch_bounds__(256)
    foreshock_packed_gather(const __grid_constant__ foreshock::PackedGatherJob job) {
  foreshock::DeviceBlock block;
  foreshock::packed_gather_body(job, block);
}

__global__ void __launch_bounds__(1024)
    foreshock_count_patterns(const __grid_constant__ foreshock::HistogramJob job) {
  foreshock::DeviceBlock block;
  foreshock::count_patterns_body(job, block);
}

__global__ void __launch_bounds__(256)
    foreshock_count_bins(const __grid_constant__ foreshock::HistogramJob job) {
  foreshock::DeviceBlock block;
  foreshock::count_bins_body(job, block);
}

__global__ void __launch_bounds__(foreshock::kSumLanes)
    foreshock_gradient_sums(const __grid_constant__ foreshock::GradientSumsJob job) {
  foreshock::DeviceBlock block;
  foreshock::gradient_sums_body(job, block);
}

__global__ void __launch_bounds__(foreshock::kSumLanes)
    foreshock_adam_sums(const __grid_constant__ foreshock::AdamSumsJob job) {
  foreshock::DeviceBlock block;
  foreshock::adam_sums_body(job, block);
}

__global__ void __launch_bounds__(256)
    foreshock_checksum(const __grid_constant__ foreshock::ChecksumJob job) {
  foreshock::DeviceBlock block;
  foreshock::checksum_body(job, block);
}

__global__ void __launch_bounds__(foreshock::kColumnLanes)
    foreshock_conservation(const __grid_constant__ foreshock::ConservationJob job) {
  foreshock::DeviceBlock block;
  foreshock::conservation_body(job, block);
}

__global__ void __launch_bounds__(128) foreshock_scalars(const __grid_constant__ foreshock::ScalarsJob job) {
  foreshock::DeviceBlock block;
  foreshock::scalars_body(job, block);
}

}  // extern "C"
