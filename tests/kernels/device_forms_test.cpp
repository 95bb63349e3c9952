// Kernels on a device: small launches of many forms, for each format, alignment, stride and loop of a kernel.
// Label gpu.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/histogram.h"
#include "kernels/sums.h"
#include "tests/kernels/device_test.h"

namespace foreshock {
namespace {

class Varied : public Device {
 protected:
  uint32_t any(uint32_t count) { return static_cast<uint32_t>(random_() % count); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[any(static_cast<uint32_t>(values.size()))];
  }

  // `count` values behind `skipped` others. A NaN has the usual pattern: devices convert others differently.
  Bytes floats(DType type, size_t count, size_t skipped, bool is_square = false) {
    std::normal_distribution<double> normal;
    Bytes out((count + skipped) * size_of(type));
    for (size_t n = 0; n < count + skipped; ++n) {
      double x = normal(random_) * std::pow(.1, n % 9);
      if (any(100) == 0) x = one_of({std::nan(""), HUGE_VAL, -HUGE_VAL, 0., -1.});
      if (is_square) x *= std::fabs(x);
      const float narrow = static_cast<float>(x);
      const uint16_t upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(narrow) >> 16);
      uint16_t half = static_cast<uint16_t>(upper << any(5));  // another value, of any magnitude
      if (std::isnan(x) || (half & 0x7c00) == 0x7c00) half = one_of<uint16_t>({0x7e00, 0x7c00});
      const void* from = type == DType::kFp64   ? static_cast<const void*>(&x)
                         : type == DType::kFp32 ? static_cast<const void*>(&narrow)
                         : type == DType::kBf16 ? static_cast<const void*>(&upper)
                                                : static_cast<const void*>(&half);
      std::memcpy(out.data() + n * size_of(type), from, size_of(type));
    }
    return out;
  }

  // Rows that lie around `middle`, copied to *to, which moves behind them. Their unit of copies is any.
  GatherPiece piece(uint64_t middle, uint64_t* to) {
    GatherPiece of = {};
    const uint32_t unit = 1u << any(5);
    of.element = 1u << any(4);
    const bool is_dense = unit > of.element || any(2) == 0;
    const uint32_t step = unit > of.element ? unit / of.element : 1;
    of.column_stride = is_dense ? 1 : one_of<int64_t>({2, 3, -1});
    of.width = step * one_of({1u, 2u, 5u, 33u, any(3) == 0 ? 500u : 7u});
    of.heads = 1 + any(3), of.rows = any(9), of.first_row = any(4);
    of.is_listed = any(3);
    of.row_stride = step * (static_cast<int64_t>(any(60)) - 20);
    of.head_stride = step * (static_cast<int64_t>(any(60)) - 20);
    const uint64_t bytes = uint64_t{of.rows} * of.width * of.element;
    of.head_bytes = any(2) == 0 ? 0 : (bytes / unit + any(3)) * unit;
    of.from = middle + unit * any(9);
    of.to = *to + unit * any(3);
    *to = (of.to + of.heads * std::max(bytes, of.head_bytes) + 15) / 16 * 16;
    return of;
  }

  std::mt19937_64 random_{7};
};

constexpr DType kFloats[] = {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16};
constexpr size_t kFrom = 1 << 20, kTo = 2 << 20;  // bytes of the buffers of gathers

TEST_F(Varied, Gathers) {
  for (int round = 0; round < 12; ++round) {
    Buffers buffers;
    const size_t from = buffers.add(noise(kFrom)), to = buffers.zeros(kTo);
    const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
    GatherJob job = {};
    job.pieces = 12;
    uint64_t end = 0;
    for (uint32_t n = 0; n < kMostPositions; ++n) job.position[n] = 3 * n % 17;
    for (uint32_t n = 0; n < job.pieces; ++n) job.piece[n] = piece(kFrom / 2, &end);
    ASSERT_LE(end, kTo);
    const LaunchShape shape = {1 + any(3), one_of({1u, 7u, 64u, 256u}), 0};
    const auto job_at = [&](const Addresses& at) {
      GatherJob placed = job;
      placed.to = at[to], placed.times = at[times], placed.clock = at[clock];
      for (uint32_t n = 0; n < job.pieces; ++n) placed.piece[n].from += at[from];
      return placed;
    };
    expect_same<GatherJob>(DeviceKernel::kGather, shape, buffers, job_at, times);
  }
}

TEST_F(Varied, GathersPacked) {
  for (int round = 0; round < 24; ++round) {
    const bool is_huge = round % 6 == 0;  // the products of its lengths do not fit into 32 bits
    PackedGatherJob job = {};
    job.sequences.count = 1 + any(is_huge ? 4 : 9);
    std::vector<int32_t> offsets[2];
    for (std::vector<int32_t>& each : offsets) {
      for (uint32_t n = 0; n <= job.sequences.count; ++n)
        each.push_back(is_huge ? static_cast<int32_t>(n * 0x1d000000) : static_cast<int32_t>(any(60)));
      if (round % 5 != 0) std::sort(each.begin(), each.end());
    }
    Buffers buffers;
    const size_t from = buffers.add(noise(kFrom)), to = buffers.zeros(kTo);
    const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
    const size_t gathered = buffers.zeros(sizeof(GatheredSequence));
    size_t lists[2];
    for (int n = 0; n < 2; ++n) {
      Bytes words(offsets[n].size() * sizeof(int32_t));
      std::memcpy(words.data(), offsets[n].data(), words.size());
      lists[n] = buffers.add(words);
    }
    job.gather.pieces = 6;
    uint64_t end = 0;
    for (uint32_t n = 0; n < kMostPositions; ++n) job.gather.position[n] = 0x9e3779b9u * n;
    for (uint32_t n = 0; n < job.gather.pieces; ++n) {
      job.gather.piece[n] = piece(kFrom / 2, &end);
      if (is_huge) job.gather.piece[n].row_stride = job.gather.piece[n].head_stride = 0;
    }
    job.lse_piece = any(8), job.lse_stride = any(50);
    if (job.lse_piece < job.gather.pieces) job.gather.piece[job.lse_piece].width = 1;
    ASSERT_LE(end, kTo);
    job.sequences.queries = job.sequences.keys = 0x7fffffff;
    job.sequences.longest_query = job.sequences.longest_key = is_huge ? 0x7fffffff : 50 + any(20);
    job.sequences.place = static_cast<uint32_t>(random_());
    job.parts = 1 + any(kMostPositions), job.positions = 1 + any(job.parts);
    const LaunchShape shape = {1 + any(3), one_of({1u, 7u, 64u, 256u}), 0};
    const auto job_at = [&](const Addresses& at) {
      PackedGatherJob placed = job;
      placed.gather.to = at[to], placed.gather.times = at[times], placed.gather.clock = at[clock];
      placed.gathered = at[gathered];
      placed.sequences.query_offsets = at[lists[0]], placed.sequences.key_offsets = at[lists[1]];
      for (uint32_t n = 0; n < job.gather.pieces; ++n) placed.gather.piece[n].from += at[from];
      return placed;
    };
    expect_same<PackedGatherJob>(DeviceKernel::kPackedGather, shape, buffers, job_at, times);
  }
}

TEST_F(Varied, GathersAndSumsKeys) {
  for (const DType type :
       {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16, DType::kNone, DType::kNone}) {
    Buffers buffers;
    const size_t from = buffers.add(noise(kFrom)), to = buffers.zeros(kTo);
    const size_t times = buffers.zeros(16), clock = buffers.zeros(sizeof(GatherClock));
    KeyGatherJob job = {};
    job.gather.pieces = 8;
    uint64_t end = 0;
    for (uint32_t n = 0; n < kMostPositions; ++n) job.gather.position[n] = 5 * n % 17;
    for (uint32_t n = 0; n < job.gather.pieces; ++n) job.gather.piece[n] = piece(kFrom / 2, &end);
    ASSERT_LE(end, kTo);
    const bool sums_keys = type != DType::kNone;
    DeviceView* const views[] = {&job.grad_query, &job.grad_key, &job.grad_value};
    size_t data[3] = {};
    for (int n = 0; n < 3 && sums_keys; ++n) {
      DeviceView& view = *views[n];
      view = {0, {0, 0, 1}, n == 0 ? 1 + any(3) : 1, 60 + any(90), one_of({1u, 16u, 19u, 40u}), 0};
      view.stride[0] = view.width, view.stride[1] = int64_t{view.heads} * view.width + any(3);
      data[n] = buffers.add(floats(type, static_cast<size_t>(view.rows * view.stride[1]), 0));
    }
    const size_t sums =
        buffers.zeros(key_sum_count(job.grad_key.width, job.grad_value.width) * sizeof(ColumnSum));
    job.dtype = static_cast<uint32_t>(type);
    LaunchShape shape = launch_of(job);
    shape.blocks = 1 + any(3);
    const auto job_at = [&](const Addresses& at) {
      KeyGatherJob placed = job;
      placed.gather.to = at[to], placed.gather.times = at[times], placed.gather.clock = at[clock];
      for (uint32_t n = 0; n < job.gather.pieces; ++n) placed.gather.piece[n].from += at[from];
      if (sums_keys) {
        placed.sums = at[sums];
        placed.grad_query.data = at[data[0]], placed.grad_key.data = at[data[1]];
        placed.grad_value.data = at[data[2]];
      }
      return placed;
    };
    expect_same<KeyGatherJob>(DeviceKernel::kKeyGather, shape, buffers, job_at, times);
  }
}

// The kernels `kPatterns` and `kBins` count values of `type`, at any alignment, in launches of any shape.
TEST_F(Varied, Counts) {
  for (int round = 0; round < 100; ++round) {
    const bool is_pattern = round % 2 == 0, is_shared = round % 4 == 0;
    const DType type = is_pattern ? DType::kBf16 : DType::kFp32;
    const size_t count = one_of<size_t>({0, 3, 15, 50, is_shared ? 100'000u : 5000u}),
                 skipped = any(16 / size_of(type));
    Buffers buffers;
    Bytes values = floats(type, count, skipped);
    if (any(2) == 0) std::memset(values.data() + values.size() / 8, 0x3f, values.size() - values.size() / 8);
    const size_t from = buffers.add(values);
    const size_t words =
        buffers.zeros(is_pattern ? kPatterns * sizeof(uint32_t) : kBinWords * sizeof(uint64_t));
    const auto job_at = [&](const Addresses& at) {
      return HistogramJob{.from = at[from] + skipped * size_of(type), .count = count, .words = at[words]};
    };
    const LaunchShape shape = {1 + any(2), is_shared ? 256 : one_of({1u, 32u, 256u}),
                               is_shared ? kPatternSharedBytes : 0};
    expect_same<HistogramJob>(is_pattern ? DeviceKernel::kCountPatterns : DeviceKernel::kCountBins, shape,
                              buffers, job_at);
  }
}

// Of each format, aligned or not.
TEST_F(Varied, SumsGradients) {
  Buffers buffers;
  GradientSumsJob job = {};
  std::vector<size_t> data;
  for (const DType type : kFloats)
    for (const size_t skipped : {0, 1})
      for (const uint64_t count : {0, 9, 4001}) {
        GradientTensor& tensor = job.tensor[job.tensors++];
        tensor = {skipped * size_of(type), count, job.chunks, static_cast<uint32_t>(type), 0};
        job.chunks += sum_chunks(count);
        data.push_back(buffers.add(floats(type, count, skipped)));
      }
  // A tensor whose chunks another launch has summed: more of them than a lane adds at a time.
  constexpr uint64_t kSummed = 5 * kSumLanes + 3;
  job.tensor[job.tensors++] = {0, kSummed * kSumChunk, job.chunks, static_cast<uint32_t>(DType::kFp32), 0};
  data.push_back(buffers.zeros(0));
  Bytes summed((job.chunks + kSummed) * sizeof(GradientSums));
  for (uint64_t n = 0; n < job.chunks + kSummed; ++n) {
    const GradientSums sums = {.squares = .1 * any(9), .finite = any(9), .nonfinite = any(9)};
    std::memcpy(summed.data() + n * sizeof sums, &sums, sizeof sums);
  }
  const size_t results = buffers.zeros(job.tensors * sizeof(GradientSums));
  const size_t partials = buffers.add(summed), arrived = buffers.zeros(4);
  const auto job_at = [&](const Addresses& at) {
    GradientSumsJob placed = job;
    placed.results = at[results], placed.partials = at[partials], placed.arrived = at[arrived];
    for (uint32_t n = 0; n < job.tensors; ++n) placed.tensor[n].data += at[data[n]];
    return placed;
  };
  LaunchShape shape = launch_of(job, device().limits());
  shape.blocks = 3;
  expect_same<GradientSumsJob>(DeviceKernel::kGradientSums, shape, buffers, job_at);
}

// Sets each moment so near the limit of is_surprising() that another rounding can lie on its other side.
void lay_near_surprise(const Bytes& gradient, size_t skipped, size_t count, const AdamConstants& constants,
                       Bytes* moment) {
  for (size_t n = 0; n < count; ++n) {
    double g;
    std::memcpy(&g, gradient.data() + (skipped + n) * sizeof g, sizeof g);
    const double limit = g * g * (constants.old_moment_factor / kSurprise + constants.new_share);
    const double near = limit * (1 + (static_cast<double>(n % 9) - 4) * 0x1p-52);
    std::memcpy(moment->data() + (1 - skipped + n) * sizeof near, &near, sizeof near);
  }
}

TEST_F(Varied, SumsOptimizerState) {
  Buffers buffers;
  AdamSumsJob job = {};
  std::vector<size_t> gradients, moments;
  for (const DType type : kFloats)
    for (const DType of_moment : kFloats)
      for (const uint64_t count : {9, 3001}) {
        const size_t skipped = any(2);
        AdamTensor& tensor = job.tensor[job.tensors++];
        tensor = {.gradient = skipped * size_of(type),
                  .moment = (1 - skipped) * size_of(of_moment),
                  .count = count,
                  .first_chunk = job.chunks,
                  .gradient_dtype = static_cast<uint32_t>(type),
                  .moment_dtype = static_cast<uint32_t>(of_moment),
                  .constants = adam_constants({.beta2 = .99, .eps = 1e-4, .step = 1 + job.tensors % 3})};
        job.chunks += sum_chunks(count);
        const Bytes gradient = floats(type, count, skipped);
        Bytes moment = floats(of_moment, count, 1 - skipped, true);
        if (type == DType::kFp64 && of_moment == DType::kFp64)
          lay_near_surprise(gradient, skipped, count, tensor.constants, &moment);
        gradients.push_back(buffers.add(gradient));
        moments.push_back(buffers.add(moment));
      }
  constexpr uint64_t kSummed = 5 * kSumLanes + 3;  // as of Varied.SumsGradients
  job.tensor[job.tensors] = job.tensor[0];
  job.tensor[job.tensors].count = kSummed * kSumChunk, job.tensor[job.tensors++].first_chunk = job.chunks;
  gradients.push_back(gradients[0]), moments.push_back(moments[0]);
  Bytes summed((job.chunks + kSummed) * sizeof(AdamSums));
  for (uint64_t n = 0; n < job.chunks + kSummed; ++n) {
    const AdamSums sums = {.counted = any(9), .staleness = .1 * any(9), .gradient_squares = .1 * any(9)};
    std::memcpy(summed.data() + n * sizeof sums, &sums, sizeof sums);
  }
  const size_t results = buffers.zeros(job.tensors * sizeof(AdamSums));
  const size_t partials = buffers.add(summed), arrived = buffers.zeros(4);
  const auto job_at = [&](const Addresses& at) {
    AdamSumsJob placed = job;
    placed.results = at[results], placed.partials = at[partials], placed.arrived = at[arrived];
    for (uint32_t n = 0; n < job.tensors; ++n)
      placed.tensor[n].gradient += at[gradients[n]], placed.tensor[n].moment += at[moments[n]];
    return placed;
  };
  LaunchShape shape = launch_of(job, device().limits());
  shape.blocks = 3;
  expect_same<AdamSumsJob>(DeviceKernel::kAdamSums, shape, buffers, job_at);
}

TEST_F(Varied, Checksums) {
  for (int round = 0; round < 40; ++round) {
    const uint64_t skipped = any(4), count = one_of({any(9), any(200), 7000u});
    Buffers buffers;
    const size_t from = buffers.add(noise(count + skipped)), to = buffers.zeros(8);
    const auto job_at = [&](const Addresses& at) {
      return ChecksumJob{.from = at[from] + skipped, .bytes = count, .to = at[to]};
    };
    const LaunchShape shape = {1 + any(3), one_of({1u, 33u, 256u}), sizeof(uint64_t)};
    expect_same<ChecksumJob>(DeviceKernel::kChecksum, shape, buffers, job_at);
  }
}

TEST_F(Varied, Scalars) {
  for (const DType type : {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16, DType::kNone}) {
    const bool is_sum = type == DType::kNone;
    const uint32_t count = 150, stride = is_sum ? sizeof(GradientSums) : static_cast<uint32_t>(size_of(type));
    std::vector<GradientSums> gradients(count);
    for (GradientSums& each : gradients) each = {.squares = .1 * any(9), .finite = 9, .nonfinite = any(2)};
    Bytes values(count * sizeof(GradientSums));
    std::memcpy(values.data(), gradients.data(), values.size());
    Buffers buffers;
    const size_t from = buffers.add(is_sum ? values : floats(type, count, 0));
    const size_t cells = buffers.zeros(kScalarCells * sizeof(ScalarCell));
    const auto job_at = [&](const Addresses& at) {
      ScalarsJob job = {};
      job.cells = at[cells], job.first = 5 * kScalarCells - 9, job.count = count;
      job.dtype = is_sum ? kSumOfSquares : static_cast<uint32_t>(type);
      for (uint32_t n = 0; n < count; ++n) job.from[n] = at[from] + n * stride;
      return job;
    };
    ScalarsJob shape = {};
    shape.count = count;
    expect_same<ScalarsJob>(DeviceKernel::kScalars, launch_of(shape), buffers, job_at);
  }
}

}  // namespace
}  // namespace foreshock
