#include "tests/support/emulated_device.h"

#include <algorithm>

#include "kernels/device_code.h"
#include "kernels/gather_body.h"
#include "kernels/histogram_body.h"
#include "kernels/key_gather_body.h"
#include "kernels/sums_body.h"
#include "tests/support/emulated_block.h"

namespace foreshock {
namespace {

// Every block takes the job by value, as a launch does: what is done to the caller's afterwards is not seen.
template <class Job, class Body>
bool launch(const LaunchShape& shape, const void* given, const Emulation& how, const Body& body) {
  Job job;
  std::memcpy(&job, given, sizeof job);
  std::vector<uint32_t> order(shape.blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (how.order != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(how.order));
  const auto work = [&](uint32_t first) {
    for (uint32_t n = first; n < shape.blocks; n += how.blocks_at_once) {
      EmulatedBlock block(order[n], shape, how);
      body(job, block);
    }
  };
  std::vector<std::jthread> others;
  for (uint32_t n = 1; n < how.blocks_at_once; ++n) others.emplace_back(work, n);
  work(0);
  return true;
}

}  // namespace

bool run_emulated(std::string_view symbol, const LaunchShape& shape, const void* job, const Emulation& how) {
  constexpr uint32_t kMostShared = 227 << 10;  // of a block on sm_90
  if (shape.blocks < 1 || shape.threads < 1 || shape.threads > EmulatedBlock::kMostThreads ||
      shape.shared_bytes > kMostShared)
    return false;
  if (symbol == name_of(DeviceKernel::kGather))
    return launch<GatherJob>(shape, job, how, [](const auto& of, auto& block) { gather_body(of, block); });
  if (symbol == name_of(DeviceKernel::kPackedGather))
    return launch<PackedGatherJob>(shape, job, how,
                                   [](const auto& of, auto& block) { packed_gather_body(of, block); });
  if (symbol == name_of(DeviceKernel::kKeyGather))
    return launch<KeyGatherJob>(shape, job, how,
                                [](const auto& of, auto& block) { key_gather_body(of, block); });
  if (symbol == name_of(DeviceKernel::kCountPatterns))
    return launch<HistogramJob>(shape, job, how,
                                [](const auto& of, auto& block) { count_patterns_body(of, block); });
  if (symbol == name_of(DeviceKernel::kCountBins))
    return launch<HistogramJob>(shape, job, how,
                                [](const auto& of, auto& block) { count_bins_body(of, block); });
  if (symbol == name_of(DeviceKernel::kGradientSums))
    return launch<GradientSumsJob>(shape, job, how,
                                   [](const auto& of, auto& block) { gradient_sums_body(of, block); });
  if (symbol == name_of(DeviceKernel::kAdamSums))
    return launch<AdamSumsJob>(shape, job, how,
                               [](const auto& of, auto& block) { adam_sums_body(of, block); });
  if (symbol == name_of(DeviceKernel::kChecksum))
    return launch<ChecksumJob>(shape, job, how,
                               [](const auto& of, auto& block) { checksum_body(of, block); });
  if (symbol == name_of(DeviceKernel::kScalars))
    return launch<ScalarsJob>(shape, job, how, [](const auto& of, auto& block) { scalars_body(of, block); });
  return false;
}

}  // namespace foreshock
