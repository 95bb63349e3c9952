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

TEST(SquaredUlp, MatchesTheFormat) {
  const auto squared = [](double x, DType type) { return ColumnSum::squared_ulp(x, format_of(type)); };
  EXPECT_EQ(squared(1.0, DType::kBf16), 0x1p-14);
  EXPECT_EQ(squared(-1.9921875, DType::kBf16), 0x1p-14);
  EXPECT_EQ(squared(2.0, DType::kFp16), 0x1p-18);
  EXPECT_EQ(squared(1.0, DType::kFp32), 0x1p-46);
  EXPECT_EQ(squared(0x1p-24, DType::kFp16), 0x1p-48);  // subnormal
  EXPECT_EQ(squared(0x1p-60, DType::kBf16), 0x1p-134);
  // Smaller values count as ones of the least exponent.
  EXPECT_EQ(squared(0.0, DType::kBf16), 0x1p-138);
  EXPECT_EQ(squared(0x1p-70, DType::kFp64), 0x1p-228);
}

// The sums of one head, by their definition.
std::vector<ColumnSum> sums_by_definition(const TensorView& view, int64_t batch, int64_t head) {
  std::vector<ColumnSum> sums(static_cast<size_t>(view.shape[3]));
  for (int64_t row = 0; row < view.shape[2]; ++row)
    for (size_t c = 0; c < sums.size(); ++c)
      sums[c].add(
          load_as_double(view.row(batch, head, row), view.dtype, c * static_cast<size_t>(view.stride[3])),
          format_of(view.dtype));
  return sums;
}

double sum_of_magnitudes(const TensorView& view, int64_t batch, int64_t head, int64_t column) {
  double sum = 0;
  for (int64_t row = 0; row < view.shape[2]; ++row) {
    const double x =
        load_as_double(view.row(batch, head, row), view.dtype, static_cast<size_t>(column * view.stride[3]));
    if (std::isfinite(x)) sum += std::fabs(x);
  }
  return sum;
}

// Values of 16 bits are added in fp32 in blocks of 32 rows, all others in fp64 in another order than by the
// definition.
double rounding_of_sums(const TensorView& view) {
  return size_of(view.dtype) == 2 ? 32 * 0x1p-24 : static_cast<double>(view.shape[2]) * 0x1p-53;
}

void expect_by_definition(const TensorView& view, int64_t batch, int64_t head) {
  const auto width = static_cast<size_t>(view.shape[3]);
  std::vector<ColumnSum> sums(key_sum_count(width, width));
  sum_over_keys(view, view, view, batch, head, sums.data());
  const std::vector<ColumnSum> expected = sums_by_definition(view, batch, head);
  uint64_t nonfinite = 0;
  for (size_t c = 0; c < width; ++c) {
    const double magnitude = sum_of_magnitudes(view, batch, head, static_cast<int64_t>(c));
    for (const ColumnSum& sum : {sums[c], sums[width + c]}) {
      EXPECT_NEAR(sum.sum, expected[c].sum, rounding_of_sums(view) * magnitude) << c;
      EXPECT_NEAR(sum.ulp_squares, expected[c].ulp_squares, rounding_of_sums(view) * expected[c].ulp_squares)
          << c;
      EXPECT_EQ(sum.nonfinite, expected[c].nonfinite) << c;
    }
    nonfinite += expected[c].nonfinite;
  }
  EXPECT_EQ(sums[2 * width].nonfinite, nonfinite);
  EXPECT_EQ(sums[2 * width].sum, 0);
}

// Blocks of rows are added fast only if their values are ordinary: the sums must not show which way was
// taken.
TEST(SumOverKeys, IsExactForTinyAndHugeValues) {
  constexpr int64_t kRows = 100, kDim = 6;
  for (const DType type : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    const bool is_half = type == DType::kFp16;
    for (const float scale : {1.0f, is_half ? 0x1p-22f : 0x1p-80f, is_half ? 0x1p14f : 0x1p100f}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << " " << scale);
      std::vector<uint16_t> halves;
      std::vector<float> floats;
      for (int n = 0; n < kRows * kDim; ++n) {
        const float x = scale * static_cast<float>(n % 13 - 6) / 4;
        floats.push_back(x);
        if (is_half) {
          const float magnitude = std::fabs(x);
          const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -14, -14);
          const auto bits = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent));
          // With the hidden bit added, the exponent field grows by one.
          halves.push_back(static_cast<uint16_t>((x < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + bits));
        } else {
          halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
        }
      }
      const void* data = type == DType::kFp32 ? static_cast<const void*>(floats.data()) : halves.data();
      expect_by_definition({data, type, {1, 1, kRows, kDim}, {0, 0, kDim, 1}}, 0, 0);
      expect_by_definition({data, type, {1, 1, kRows, kDim - 1}, {0, 0, kDim, 1}}, 0, 0);  // odd width
      expect_by_definition({data, type, {1, 1, kRows, kDim / 2}, {0, 0, kDim, 2}}, 0, 0);  // not adjacent
    }
  }
}

// 61 is the largest exponent of bf16 that is summed in fp32: 32 squares of 2^62 exceed its range.
TEST(SumOverKeys, SquaredUlpsAreFiniteAtTheLargestExponent) {
  constexpr int64_t kRows = 64, kDim = 4;
  for (const float x : {0x1.fep61f, 0x1.fep62f}) {
    SCOPED_TRACE(x);
    const std::vector<uint16_t> data(kRows * kDim, static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    expect_by_definition({data.data(), DType::kBf16, {1, 1, kRows, kDim}, {0, 0, kDim, 1}}, 0, 0);
  }
}

TEST(SumOverKeys, SumsRowsInEveryFormatAndLayout) {
  constexpr int64_t kBatches = 2, kHeads = 2, kRows = 137, kDim = 40;
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
      expect_by_definition(view, 1, 1);
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

// Sums of n numbers in another order differ by the roundings of n additions of at most the sum of magnitudes;
// those of the host have their own roundings.
TEST_P(KeyGather, SumsEqualTheHostsForEveryLaunch) {
  const Geometry& of = GetParam();
  const Stored query(of, 2 * of.group, of.queries, of.head_dim, 1);
  const Stored key(of, 2, of.keys, of.head_dim, 2), value(of, 2, of.keys, of.value_dim, 3);
  std::vector<ColumnSum> host(
      key_sum_count(static_cast<size_t>(of.head_dim), static_cast<size_t>(of.value_dim)));
  sum_over_keys(query.view, key.view, value.view, 2, 1, host.data());
  const auto magnitude = [&](size_t column) {
    const auto c = static_cast<int64_t>(column);
    return c < of.head_dim ? sum_of_magnitudes(key.view, 2, 1, c)
                           : sum_of_magnitudes(value.view, 2, 1, c - of.head_dim);
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
      const double roundings = rounding_of_sums(key.view) + static_cast<double>(of.keys) * 0x1p-53;
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
