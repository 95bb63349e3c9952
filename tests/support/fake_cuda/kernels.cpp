// Kernels of ours: their own bodies, on the host.
#include <cstring>

#include "kernels/device_code.h"
#include "tests/support/emulated_device.h"
#include "tests/support/fake_cuda/world.h"

namespace fake_cuda {
namespace {

using foreshock::GatherClock;
using foreshock::GatherJob;

uint64_t device_clock() {
  Lock lock(world().mutex);
  return world().clock_ns += world().faults.clock_step_ns;
}

void gather(const foreshock::LaunchShape& shape, const GatherJob& job) {
  constexpr GatherClock kZero = {};
  const bool is_in_use = std::memcmp(reinterpret_cast<const void*>(job.clock), &kZero, sizeof kZero) != 0;
  const bool has_run = foreshock::run_emulated(foreshock::name_of(foreshock::DeviceKernel::kGather), shape,
                                               &job, {.order = 1, .now = device_clock});
  Lock lock(world().mutex);
  if (is_in_use) violation("a gather found its clock in use");
  if (!has_run) violation("a launch that no device makes");
}

}  // namespace

bool is_kernel(const std::string& name) {
  return name == foreshock::name_of(foreshock::DeviceKernel::kGather);
}

std::function<void()> work_of(const std::string&, const foreshock::LaunchShape& shape,
                              const void* parameter) {
  // The driver takes the parameters when the launch is made, not when it runs.
  auto job = std::make_shared<GatherJob>();
  std::memcpy(job.get(), parameter, sizeof(GatherJob));
  return [shape, job] { gather(shape, *job); };
}

}  // namespace fake_cuda
