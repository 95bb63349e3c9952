// Kernels of ours: their own bodies, on the host.
#include <cstring>

#include "kernels/device_code.h"
#include "tests/support/emulated_device.h"
#include "tests/support/fake_cuda/checks.h"

namespace fake_cuda {
namespace {

using foreshock::DeviceKernel;
using foreshock::GatherClock;
using foreshock::GatherJob;
using foreshock::KeyGatherJob;
using foreshock::name_of;
using foreshock::PackedGatherJob;

uint64_t device_clock() {
  Lock lock(world().mutex);
  return world().clock_ns += world().faults.clock_step_ns;
}

const GatherJob& gather_in(const GatherJob& job) { return job; }
const GatherJob& gather_in(const PackedGatherJob& job) { return job.gather; }
const GatherJob& gather_in(const KeyGatherJob& job) { return job.gather; }

// The driver takes the parameters when the launch is made, not when it runs.
template <class Job>
std::function<void()> gather(DeviceKernel kernel, const foreshock::LaunchShape& shape,
                             const void* parameter) {
  auto job = std::make_shared<Job>();
  std::memcpy(job.get(), parameter, sizeof(Job));
  return [kernel, shape, job] {
    constexpr GatherClock kZero = {};
    const bool is_in_use =
        std::memcmp(reinterpret_cast<const void*>(gather_in(*job).clock), &kZero, sizeof kZero) != 0;
    const bool has_run =
        foreshock::run_emulated(name_of(kernel), shape, job.get(), {.order = 1, .now = device_clock});
    Lock lock(world().mutex);
    if (is_in_use) violation("a gather found its clock in use");
    if (!has_run) violation("a launch that no device makes");
  };
}

template <class Job>
std::function<void()> other(const std::string& name, const foreshock::LaunchShape& shape,
                            const void* parameter) {
  auto job = std::make_shared<Job>();
  std::memcpy(job.get(), parameter, sizeof(Job));
  return [name, shape, job] {
    if (foreshock::run_emulated(name, shape, job.get(), {.order = 1})) return;
    Lock lock(world().mutex);
    violation("a launch that no device makes");
  };
}

// It stores into memory of the host, which has another address on the device; a test has it store into that
// of the device.
std::function<void()> scalars(const foreshock::LaunchShape& shape, const void* parameter) {
  foreshock::ScalarsJob job;
  std::memcpy(&job, parameter, sizeof job);
  constexpr size_t kBytes = foreshock::kScalarCells * sizeof(foreshock::ScalarCell);
  if (!is_on_device(job.cells, kBytes) && !is_inside(world().pinned, job.cells -= kHostOffset, kBytes)) {
    violation("numbers for memory that is not pinned");
    return [] {};
  }
  return other<foreshock::ScalarsJob>(name_of(DeviceKernel::kScalars), shape, &job);
}

}  // namespace

bool is_kernel(const std::string& name) {
  for (const char* known : foreshock::kDeviceKernelNames)
    if (name == known) return true;
  return false;
}

std::function<void()> work_of(const std::string& name, const foreshock::LaunchShape& shape,
                              const void* parameter) {
  if (name == name_of(DeviceKernel::kGather))
    return gather<GatherJob>(DeviceKernel::kGather, shape, parameter);
  if (name == name_of(DeviceKernel::kPackedGather))
    return gather<PackedGatherJob>(DeviceKernel::kPackedGather, shape, parameter);
  if (name == name_of(DeviceKernel::kKeyGather))
    return gather<KeyGatherJob>(DeviceKernel::kKeyGather, shape, parameter);
  if (name == name_of(DeviceKernel::kScalars)) return scalars(shape, parameter);
  if (name == name_of(DeviceKernel::kGradientSums))
    return other<foreshock::GradientSumsJob>(name, shape, parameter);
  if (name == name_of(DeviceKernel::kAdamSums)) return other<foreshock::AdamSumsJob>(name, shape, parameter);
  if (name == name_of(DeviceKernel::kChecksum)) return other<foreshock::ChecksumJob>(name, shape, parameter);
  return other<foreshock::HistogramJob>(name, shape, parameter);
}

}  // namespace fake_cuda
