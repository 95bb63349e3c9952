// Sums over all keys: by their definition, and on the emulated device.
#include "kernels/key_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/device_code.h"
#include "kernels/key_gather_body.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

TEST(SquaredUlp, IsThatOfTheFormat) {
  const auto squared = [](double x, DType type) { return ColumnSum::squared_ulp(x, format_of(type)); };
  EXPECT_EQ(squared(1.0, DType::kBf16), 0x1p-14);
  EXPECT_EQ(squared(-1.9921875, DType::kBf16), 0x1p-14);
  EXPECT_EQ(squared(2.0, DType::kFp16), 0x1p-18);
  EXPECT_EQ(squared(1.0, DType::kFp32), 0x1p-46);
  EXPECT_EQ(squared(0x1p-24, DType::kFp16), 0x1p-48);  // subnormal
  EXPECT_EQ(squared(0.0, DType::kBf16), 0x1p-266);
  EXPECT_EQ(squared(0.0, DType::kFp64), 0);  // below the range
}

TEST(SumOverKeys, IsTheSumOfTheRowsInEveryFormatAndLayout) {
  constexpr int64_t kBatches = 2, kHeads = 2, kRows = 37, kDim = 40;
  constexpr size_t kCount = kBatches * kHeads * kRows * kDim;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  for (const DType type : {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16}) {
    std::vector<char> data(kCount * size_of(type));
    for (size_t n = 0; n < kCount; ++n) {
      const double x = n % 997 == 5 ? NAN : n % 991 == 7 ? 1e-6 * normal(random) : normal(random);
      const float f = static_cast<float>(x);
      // Any bits of two bytes are a number, NaN or Inf of the format.
      const uint16_t half = type == DType::kBf16 ? static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16)
                                                 : static_cast<uint16_t>(random());
      if (type == DType::kFp64) std::memcpy(&data[n * 8], &x, 8);
      if (type == DType::kFp32) std::memcpy(&data[n * 4], &f, 4);
      if (size_of(type) == 2) std::memcpy(&data[n * 2], &half, 2);
    }
    for (const bool heads_first : {true, false}) {
      TensorView view{data.data(), type, {kBatches, kHeads, kRows, kDim}, {}};
      const int64_t by_heads[] = {kHeads * kRows * kDim, kRows * kDim, kDim, 1};
      const int64_t by_rows[] = {kHeads * kRows * kDim, kDim, kHeads * kDim, 1};
      std::copy_n(heads_first ? by_heads : by_rows, 4, view.stride);
      std::vector<ColumnSum> sums(key_sum_count(kDim, kDim));
      sum_over_keys(view, view, view, 1, 1, sums.data());
      uint64_t nonfinite = 0;
      for (int64_t c = 0; c < kDim; ++c) {
        ColumnSum expected;
        for (int64_t row = 0; row < kRows; ++row)
          expected.add(load_as_double(view.row(1, 1, row), type, static_cast<size_t>(c)), format_of(type));
        for (const ColumnSum& sum : {sums[static_cast<size_t>(c)], sums[static_cast<size_t>(kDim + c)]}) {
          EXPECT_EQ(sum.sum, expected.sum);
          EXPECT_EQ(sum.ulp_squares, expected.ulp_squares);
          EXPECT_EQ(sum.nonfinite, expected.nonfinite);
        }
        nonfinite += expected.nonfinite;
      }
      EXPECT_EQ(sums[2 * kDim].nonfinite, nonfinite);
      EXPECT_EQ(sums[2 * kDim].sum, 0);
    }
  }
}

struct Geometry {
  const char* name;
  DType type;
  int64_t group, queries, keys, head_dim, value_dim;
};

constexpr Geometry kGeometries[] = {
    {"bf16", DType::kBf16, 2, 33, 17, 64, 64},   {"many_rows", DType::kBf16, 3, 300, 2100, 16, 24},
    {"wide", DType::kFp16, 1, 20, 30, 256, 192}, {"fp32", DType::kFp32, 2, 40, 40, 8, 130},
    {"fp64", DType::kFp64, 1, 500, 1025, 3, 1},
};

// A tensor of three batch elements and two kv-heads, whose rows of heads lie beside each other.
struct Stored {
  std::vector<uint64_t> storage;
  TensorView view;

  Stored(const Geometry& of, int64_t heads, int64_t rows, int64_t width, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const size_t element = size_of(of.type), count = static_cast<size_t>(3 * heads * rows * width);
    storage.resize(count * element / 8 + 2);
    char* data = reinterpret_cast<char*>(storage.data()) + element;
    for (size_t n = 0; n < count; ++n) {
      const double x = n % 499 == 3 ? NAN : n % 503 == 5 ? -INFINITY : normal(random) * std::pow(.1, n % 5);
      const float f = static_cast<float>(x);
      // Any two bytes are a number of fp16; of those of bf16, the larger half of fp32.
      const uint16_t half = of.type == DType::kBf16 ? static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16)
                                                    : static_cast<uint16_t>(random());
      const void* from = element == 8   ? static_cast<const void*>(&x)
                         : element == 4 ? &f
                                        : static_cast<const void*>(&half);
      std::memcpy(data + n * element, from, element);
    }
    view = {.data = data,
            .dtype = of.type,
            .shape = {3, heads, rows, width},
            .stride = {heads * rows * width, width, heads * width, 1}};
  }
  DeviceView at(int64_t batch, int64_t head, int64_t heads) const {
    return {.data = address(view.row(batch, head, 0)),
            .stride = {view.stride[1], view.stride[2], view.stride[3]},
            .heads = static_cast<uint32_t>(heads),
            .rows = static_cast<uint32_t>(view.shape[2]),
            .width = static_cast<uint32_t>(view.shape[3]),
            .reserved = 0};
  }
};

class KeyGather : public testing::TestWithParam<Geometry> {};

// Sums of n numbers in another order differ by the roundings of n additions of at most the sum of magnitudes.
TEST_P(KeyGather, SumsAreThoseOfTheHostWhateverTheLaunch) {
  const Geometry& of = GetParam();
  const Stored query(of, 2 * of.group, of.queries, of.head_dim, 1);
  const Stored key(of, 2, of.keys, of.head_dim, 2), value(of, 2, of.keys, of.value_dim, 3);
  std::vector<ColumnSum> host(
      key_sum_count(static_cast<size_t>(of.head_dim), static_cast<size_t>(of.value_dim)));
  sum_over_keys(query.view, key.view, value.view, 2, 1, host.data());
  const auto magnitude = [&](size_t column) {
    const bool is_key = column < static_cast<size_t>(of.head_dim);
    const TensorView& view = is_key ? key.view : value.view;
    double sum = 0;
    for (int64_t row = 0; row < of.keys; ++row) {
      const double x = load_as_double(view.row(2, 1, row), of.type,
                                      column - (is_key ? 0 : static_cast<size_t>(of.head_dim)));
      if (std::isfinite(x)) sum += std::fabs(x);
    }
    return sum;
  };

  std::vector<ColumnSum> first;
  for (const EmulatedLaunch& launch : kEmulatedLaunches) {
    SCOPED_TRACE(launch.name);
    uint64_t times[2] = {}, to[2] = {};
    GatherClock clock = {};
    std::vector<ColumnSum> sums(host.size(), ColumnSum{1, 2, 3});
    KeyGatherJob job = {};
    job.gather.to = address(to), job.gather.times = address(times), job.gather.clock = address(&clock);
    job.sums = address(sums.data());
    job.grad_query = query.at(2, of.group, of.group);
    job.grad_key = key.at(2, 1, 1), job.grad_value = value.at(2, 1, 1);
    job.dtype = static_cast<uint32_t>(of.type);
    LaunchShape shape = launch_of(job);
    shape.blocks = launch.blocks;
    ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kKeyGather), shape, &job, launch.how));
    EXPECT_EQ(clock.nonfinite + clock.arrived + clock.end + clock.not_begin, 0u);
    EXPECT_LE(times[0], times[1]);
    for (size_t n = 0; n + 1 < sums.size(); ++n) {
      const double roundings = static_cast<double>(of.keys) * 0x1p-53;
      EXPECT_NEAR(sums[n].sum, host[n].sum, roundings * magnitude(n)) << n;
      EXPECT_NEAR(sums[n].ulp_squares, host[n].ulp_squares, roundings * host[n].ulp_squares) << n;
      EXPECT_EQ(sums[n].nonfinite, host[n].nonfinite) << n;
    }
    EXPECT_EQ(sums.back().nonfinite, host.back().nonfinite);
    EXPECT_EQ(sums.back().sum, 0);
    if (first.empty()) first = sums;
    EXPECT_EQ(std::memcmp(first.data(), sums.data(), sums.size() * sizeof(ColumnSum)), 0);
  }
  EXPECT_GT(host.back().nonfinite, 0u);
}

INSTANTIATE_TEST_SUITE_P(Geometries, KeyGather, testing::ValuesIn(kGeometries),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshock
