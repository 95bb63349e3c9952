// Kernels on a device: launches of usual sizes. Label gpu; skipped, saying why, where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "tests/kernels/device_test.h"

namespace foreshock {
namespace {

// Over many magnitudes; squares of them.
template <class T>
Bytes values(size_t count, bool squared) {
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal(0, .02);
  Bytes out(count * sizeof(T));
  for (size_t n = 0; n < count; ++n) {
    const double x = random() % 10'000 == 0 ? std::nan("") : normal(random) * std::pow(.1, n % 7);
    const float narrow = static_cast<float>(squared ? x * x : x);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    if (sizeof(T) == 2) bits >>= 16;  // bf16; little-endian
    std::memcpy(out.data() + n * sizeof(T), &bits, sizeof(T));
  }
  return out;
}

TEST_F(Device, Gathers) {
  Buffers buffers;
  const size_t from = buffers.add(noise(8 << 20)), to = buffers.zeros(4 << 20);
  const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
  const auto job_at = [&](const Addresses& at) {
    GatherJob job = {};
    job.to = at[to], job.times = at[times], job.clock = at[clock];
    job.pieces = 3;
    for (uint32_t n = 0; n < kMostPositions; ++n) job.position[n] = 37 * n;
    job.piece[0] = {.from = at[from] + 4096,
                    .to = 0,
                    .head_stride = 0,
                    .row_stride = 256,
                    .column_stride = 1,
                    .heads = 1,
                    .rows = 8000,
                    .width = 128,
                    .element = 2,
                    .is_listed = 0,
                    .first_row = 5};
    job.piece[1] = {.from = at[from] + 2,
                    .to = 2'048'000,
                    .head_stride = 128,
                    .row_stride = 512,
                    .column_stride = 1,
                    .heads = 4,
                    .rows = 4,
                    .width = 128,
                    .element = 2,
                    .is_listed = 1,
                    .first_row = 0};
    job.piece[2] = {.from = at[from] + (1 << 20),
                    .to = 2'060'001,
                    .head_stride = 9,
                    .row_stride = -300,
                    .column_stride = 3,
                    .heads = 4,
                    .rows = 16,
                    .width = 33,
                    .element = 4,
                    .is_listed = 0,
                    .first_row = 0};
    return job;
  };
  expect_same<GatherJob>(DeviceKernel::kGather, launch_of(job_at({0, 0, 0, 0})), buffers, job_at, times);
  EXPECT_LE(result<uint64_t>(times, 0), result<uint64_t>(times, 1));
  EXPECT_GT(result<uint64_t>(times, 0), 0u);
}

// Each sequence of a packed batch, and offsets that make no sense.
TEST_F(Device, GathersOneOfPackedSequences) {
  const std::vector<std::vector<int32_t>> kinds = {{0, 900, 900, 1000, 4000, 4003},
                                                   {0, 5000, -1, 7, 9, 4003}};
  for (const std::vector<int32_t>& offsets : kinds) {
    for (const uint32_t place : {0u, 0x38000000u, 0x3b000000u, 0x80000000u, 0xffffffffu}) {
      Buffers buffers;
      std::vector<char> words(offsets.size() * sizeof(int32_t));
      std::memcpy(words.data(), offsets.data(), words.size());
      const size_t from = buffers.add(noise(8 << 20)), to = buffers.zeros(2 << 20), of = buffers.add(words);
      const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
      const size_t gathered = buffers.zeros(sizeof(GatheredSequence));
      const auto job_at = [&](const Addresses& at) {
        PackedGatherJob job = {};
        job.gather.to = at[to], job.gather.times = at[times], job.gather.clock = at[clock];
        job.gather.pieces = 3;
        for (uint32_t n = 0; n < kMostPositions; ++n) job.gather.position[n] = 0x9e3779b9u * n;
        job.gather.piece[0] = {.from = at[from],
                               .to = 0,
                               .head_stride = 0,
                               .row_stride = 512,
                               .column_stride = 1,
                               .heads = 1,
                               .rows = 3000,
                               .width = 128,
                               .element = 2,
                               .is_listed = 0,
                               .first_row = 0};
        job.gather.piece[1] = {.from = at[from] + 2048,
                               .to = 800'000,
                               .head_stride = 128,
                               .row_stride = 512,
                               .column_stride = 1,
                               .heads = 4,
                               .rows = 4,
                               .width = 128,
                               .element = 2,
                               .is_listed = 1,
                               .first_row = 0};
        job.gather.piece[2] = {.from = at[from] + 4,
                               .to = 900'000,
                               .head_stride = 3001,
                               .row_stride = 1,
                               .column_stride = 1,
                               .heads = 4,
                               .rows = 4,
                               .width = 1,
                               .element = 4,
                               .is_listed = 1,
                               .first_row = 0};
        job.sequences = {.query_offsets = at[of],
                         .key_offsets = at[of],
                         .count = 5,
                         .queries = 4003,
                         .keys = 4003,
                         .longest_query = 3000,
                         .longest_key = 3000,
                         .place = place};
        job.gathered = at[gathered];
        job.lse_piece = place % 2 == 0 ? kMostPieces : 2;
        job.lse_stride = 4 * 3001;
        job.parts = job.positions = 4;
        return job;
      };
      const PackedGatherJob nowhere = job_at(Addresses(6));
      expect_same<PackedGatherJob>(DeviceKernel::kPackedGather, launch_of(nowhere), buffers, job_at, times);
    }
  }
}

TEST_F(Device, CountsPatterns) {
  for (const bool shared : {true, false}) {
    for (const size_t count : {size_t{0}, size_t{9}, size_t{5'000'003}}) {
      Buffers buffers;
      const size_t from = buffers.add(values<uint16_t>(count + 1, false));
      const size_t words = buffers.zeros(kPatterns * sizeof(uint32_t));
      const auto job_at = [&](const Addresses& at) {
        return HistogramJob{.from = at[from] + 2, .count = count, .words = at[words]};
      };
      DeviceLimits limits = device().limits();
      if (!shared) limits.shared_bytes = 0;
      expect_same<HistogramJob>(DeviceKernel::kCountPatterns, launch_of_patterns(job_at({0, 0}), limits),
                                buffers, job_at);
    }
  }
}

// More than a counter of shared memory holds, from all threads at once.
TEST_F(Device, CountsEqualPatterns) {
  Buffers buffers;
  const size_t from = buffers.add(Bytes(20'000'000, 0x3f)),
               words = buffers.zeros(kPatterns * sizeof(uint32_t));
  const auto job_at = [&](const Addresses& at) {
    return HistogramJob{.from = at[from], .count = 10'000'000, .words = at[words]};
  };
  expect_same<HistogramJob>(DeviceKernel::kCountPatterns,
                            launch_of_patterns(job_at({0, 0}), device().limits()), buffers, job_at);
  EXPECT_EQ(result<uint32_t>(words, 0x3f3f), 20'000'000u);
}

TEST_F(Device, CountsBins) {
  Buffers buffers;
  const size_t from = buffers.add(values<uint32_t>(3'000'001, false));
  const size_t words = buffers.zeros(kBinWords * sizeof(uint64_t));
  const auto job_at = [&](const Addresses& at) {
    return HistogramJob{.from = at[from] + 4, .count = 3'000'000, .words = at[words]};
  };
  expect_same<HistogramJob>(DeviceKernel::kCountBins, launch_of_bins(job_at({0, 0}), device().limits()),
                            buffers, job_at);
}

TEST_F(Device, SumsGradients) {
  Buffers buffers;
  const size_t wide = buffers.add(values<uint32_t>(300'000, false));
  const size_t narrow = buffers.add(values<uint16_t>(200'001, false));
  const size_t results = buffers.zeros(2 * sizeof(GradientSums)),
               partials = buffers.zeros(9 * sizeof(GradientSums));
  const size_t arrived = buffers.zeros(4);
  const auto job_at = [&](const Addresses& at) {
    GradientSumsJob job = {};
    job.results = at[results], job.partials = at[partials], job.arrived = at[arrived];
    job.tensors = 2;
    job.tensor[0] = {at[wide], 300'000, 0, static_cast<uint32_t>(DType::kFp32), 0};
    job.tensor[1] = {at[narrow] + 2, 200'000, 5, static_cast<uint32_t>(DType::kBf16), 0};
    job.chunks = 5 + 4;
    return job;
  };
  expect_same<GradientSumsJob>(DeviceKernel::kGradientSums,
                               launch_of(job_at(Addresses(5)), device().limits()), buffers, job_at);
  EXPECT_GT(result<GradientSums>(results, 0).nonfinite, 0u);
  EXPECT_EQ(result<GradientSums>(results, 1).finite + result<GradientSums>(results, 1).nonfinite, 200'000u);
}

TEST_F(Device, SumsOptimizerState) {
  constexpr uint64_t kCount = 400'000;
  Buffers buffers;
  const size_t gradient = buffers.add(values<uint16_t>(kCount, false));
  const size_t moment = buffers.add(values<uint32_t>(kCount, true));
  const size_t results = buffers.zeros(sizeof(AdamSums)), partials = buffers.zeros(7 * sizeof(AdamSums));
  const size_t arrived = buffers.zeros(4);
  const auto job_at = [&](const Addresses& at) {
    AdamSumsJob job = {};
    job.results = at[results], job.partials = at[partials], job.arrived = at[arrived];
    job.tensors = 1;
    job.chunks = sum_chunks(kCount);
    job.tensor[0] = {.gradient = at[gradient],
                     .moment = at[moment],
                     .count = kCount,
                     .first_chunk = 0,
                     .gradient_dtype = static_cast<uint32_t>(DType::kBf16),
                     .moment_dtype = static_cast<uint32_t>(DType::kFp32),
                     .constants = adam_constants({.beta2 = .999, .eps = 1e-8, .step = 10})};
    return job;
  };
  expect_same<AdamSumsJob>(DeviceKernel::kAdamSums, launch_of(job_at(Addresses(5)), device().limits()),
                           buffers, job_at);
  EXPECT_GT(result<AdamSums>(results, 0).staleness, 0);
}

TEST_F(Device, Checksums) {
  for (const uint64_t misaligned : {0, 1, 2}) {
    Buffers buffers;
    const size_t from = buffers.add(noise(3'000'005)), to = buffers.zeros(8);
    const auto job_at = [&](const Addresses& at) {
      return ChecksumJob{.from = at[from] + misaligned, .bytes = 3'000'002, .to = at[to]};
    };
    expect_same<ChecksumJob>(DeviceKernel::kChecksum, launch_of(job_at({0, 0}), device().limits()), buffers,
                             job_at);
  }
}

TEST_F(Device, GathersKeyPositionsAndSumsKeys) {
  constexpr int64_t kQueries = 3000, kKeys = 2500, kDim = 64;
  constexpr size_t kSums = key_sum_count(kDim, kDim);
  Buffers buffers;
  const size_t query = buffers.add(values<uint16_t>(4 * kQueries * kDim, false));
  const size_t key = buffers.add(values<uint16_t>(2 * kKeys * kDim, false));
  const size_t value = buffers.add(values<uint16_t>(2 * kKeys * kDim + 1, false));
  const size_t to = buffers.zeros(16 * kDim * 2), sums = buffers.zeros(kSums * sizeof(ColumnSum));
  const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
  const auto job_at = [&](const Addresses& at) {
    KeyGatherJob job = {};
    job.gather.to = at[to], job.gather.times = at[times], job.gather.clock = at[clock];
    for (uint32_t n = 0; n < kMostPositions; ++n) job.gather.position[n] = 37 * n;
    job.gather.pieces = 1;
    job.gather.piece[0] = {.from = at[key],
                           .to = 0,
                           .head_stride = 0,
                           .row_stride = kDim,
                           .column_stride = 1,
                           .heads = 1,
                           .rows = 16,
                           .width = kDim,
                           .element = 2,
                           .is_listed = 1,
                           .first_row = 0};
    job.sums = at[sums];
    job.grad_query = {at[query], {kDim, 4 * kDim, 1}, 4, kQueries, kDim, 0};
    job.grad_key = {at[key], {0, kDim, 1}, 1, kKeys, kDim, 0};
    job.grad_value = {at[value], {0, 2 * kDim, 1}, 1, kKeys, kDim, 0};
    job.dtype = static_cast<uint32_t>(DType::kBf16);
    return job;
  };
  expect_same<KeyGatherJob>(DeviceKernel::kKeyGather, launch_of(job_at(Addresses(buffers.bytes.size()))),
                            buffers, job_at, times);
  EXPECT_GT(result<ColumnSum>(sums, 3).ulp_squares, 0);
  EXPECT_GT(result<ColumnSum>(sums, kSums - 1).nonfinite, 0u);
}

// Cells in memory of the device, as another kernel sees them; tests/libmonitor/live_device_test.cpp has those
// of the host.
TEST_F(Device, Scalars) {
  constexpr uint32_t kCount = 200;
  Buffers buffers;
  const size_t from = buffers.add(values<float>(kCount, false));
  const size_t cells = buffers.zeros(kScalarCells * sizeof(ScalarCell));
  const auto job_at = [&](const Addresses& at) {
    ScalarsJob job = {};
    job.cells = at[cells], job.first = 3 * kScalarCells - 7, job.count = kCount;
    job.dtype = static_cast<uint32_t>(DType::kFp32);
    for (uint32_t n = 0; n < kCount; ++n) job.from[n] = at[from] + 4 * (kCount - 1 - n);
    return job;
  };
  ScalarsJob shape = {};
  shape.count = kCount;
  expect_same<ScalarsJob>(DeviceKernel::kScalars, launch_of(shape), buffers, job_at);
  EXPECT_EQ(result<ScalarCell>(cells, 0).number, 3u * kScalarCells);
}

}  // namespace
}  // namespace foreshock
