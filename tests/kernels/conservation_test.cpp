// What a backward conserves: by its definition, of an attention that was really computed, and by the body of
// the device's kernel, bit for bit.
#include "kernels/conservation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/conservation_body.h"
#include "kernels/device_code.h"
#include "tests/support/emulated_launches.h"

namespace foreshock {
namespace {

// To the nearest bf16, ties to even; x is finite.
uint16_t to_bf16(double x) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

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

// The gradients of one attention call in fp64, rounded once: heads that share keys, not causal.
struct Backward {
  static constexpr int kHeads = 2, kQueries = 40, kKeys = 60, kDim = 64;
  std::vector<uint16_t> grad_out, grad_key, grad_value;

  Backward() : grad_out(kHeads * kQueries * kDim), grad_key(kKeys * kDim), grad_value(kKeys * kDim) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    const auto drawn = [&](int count) {
      std::vector<double> out(static_cast<size_t>(count));
      for (double& x : out) x = normal(random);
      return out;
    };
    const auto q = drawn(kHeads * kQueries * kDim), k = drawn(kKeys * kDim), v = drawn(kKeys * kDim);
    std::vector<double> dk(k.size()), dv(v.size());
    for (int row = 0; row < kHeads * kQueries; ++row) {
      std::vector<double> d(kDim), p(kKeys), dp(kKeys);
      for (int c = 0; c < kDim; ++c) {
        grad_out[static_cast<size_t>(row * kDim + c)] = to_bf16(normal(random));
        d[c] = bf16_to_float(grad_out[static_cast<size_t>(row * kDim + c)]);
      }
      double sum = 0, delta = 0;
      for (int j = 0; j < kKeys; ++j) {
        double score = 0;
        for (int c = 0; c < kDim; ++c) {
          score += q[row * kDim + c] * k[j * kDim + c] / 8;
          dp[j] += d[c] * v[j * kDim + c];
        }
        sum += p[j] = std::exp(score);
      }
      for (int j = 0; j < kKeys; ++j) delta += (p[j] /= sum) * dp[j];
      for (int j = 0; j < kKeys; ++j) {
        for (int c = 0; c < kDim; ++c) {
          dv[j * kDim + c] += p[j] * d[c];
          dk[j * kDim + c] += p[j] * (dp[j] - delta) * q[row * kDim + c] / 8;
        }
      }
    }
    for (size_t n = 0; n < dk.size(); ++n) grad_key[n] = to_bf16(dk[n]), grad_value[n] = to_bf16(dv[n]);
  }

  Conservation sums() const {
    const auto view = [](const std::vector<uint16_t>& data, int64_t heads, int64_t rows) {
      return TensorView{.data = data.data(),
                        .dtype = DType::kBf16,
                        .shape = {1, heads, rows, kDim},
                        .stride = {heads * rows * kDim, rows * kDim, kDim, 1}};
    };
    return conservation(view(grad_out, kHeads, kQueries), view(grad_key, 1, kKeys),
                        view(grad_value, 1, kKeys), 0, 0);
  }
};

// Rounded once, the root is that of the mean of 64 squared errors of unit variance: its standard deviation is
// at most 1 / sqrt(2 * 64) = 0.09 (a sum of 60 uniform errors is nearly normal); 5 of them are allowed.
TEST(Conservation, HoldsUpToTheRoundingOfTheGradients) {
  const Conservation sums = Backward().sums();
  EXPECT_NEAR(std::sqrt(sums.value_squares / sums.value_noise), 1, .45);
  EXPECT_NEAR(std::sqrt(sums.key_squares / sums.key_noise), 1, .45);
  EXPECT_EQ(sums.nonfinite, 0u);
}

TEST(Conservation, AWrongElementShows) {
  Backward wrong_key, wrong_value;
  uint16_t* key = &*std::max_element(wrong_key.grad_key.begin(), wrong_key.grad_key.end(),
                                     [](uint16_t a, uint16_t b) { return (a & 0x7fff) < (b & 0x7fff); });
  *key ^= 0x8000;  // its sign
  EXPECT_GT(std::sqrt(wrong_key.sums().key_squares / wrong_key.sums().key_noise), 10);
  uint16_t* value = &*std::max_element(wrong_value.grad_value.begin(), wrong_value.grad_value.end(),
                                       [](uint16_t a, uint16_t b) { return (a & 0x7fff) < (b & 0x7fff); });
  *value ^= 0x8000;
  EXPECT_GT(std::sqrt(wrong_value.sums().value_squares / wrong_value.sums().value_noise), 10);
}

TEST(Conservation, WhatIsNotFiniteIsCounted) {
  Backward backward;
  backward.grad_key[5] = 0x7f80, backward.grad_value[6] = 0x7fc0, backward.grad_out[7] = 0xff80;
  const Conservation sums = backward.sums();
  EXPECT_EQ(sums.nonfinite, 3u);
  EXPECT_TRUE(std::isfinite(sums.key_squares + sums.value_squares));
}

struct Geometry {
  const char* name;
  DType type;
  uint32_t batches, heads, kv_heads, queries, keys, head_dim, value_dim;
};

void PrintTo(const Geometry& geometry, std::ostream* to) { *to << geometry.name; }

constexpr Geometry kGeometries[] = {
    {"small_bf16", DType::kBf16, 2, 4, 2, 33, 17, 64, 64},
    {"several_chunks", DType::kBf16, 1, 3, 1, 900, 2100, 16, 24},  // 2700 rows of dO over a border of heads
    {"wide", DType::kFp16, 1, 2, 2, 20, 30, 256, 192},
    {"fp32", DType::kFp32, 2, 2, 1, 40, 40, 8, 130},
    {"fp64", DType::kFp64, 1, 1, 1, 5, 1025, 3, 1},
};

class ConservationBody : public testing::TestWithParam<std::tuple<Geometry, EmulatedLaunch>> {};

// Random bytes: NaN, infinities and every magnitude among them. Rows of heads lie inside of one another.
TEST_P(ConservationBody, HasTheBitsOfTheHost) {
  const auto& [of, launch] = GetParam();
  const auto element = static_cast<int64_t>(size_of(of.type));
  std::mt19937_64 random(of.queries);
  const auto tensor = [&, &of = of](int64_t heads, int64_t rows, int64_t columns,
                                    std::vector<uint64_t>* storage) {
    storage->resize(static_cast<size_t>(of.batches * heads * rows * columns * element / 8 + 8));
    for (uint64_t& word : *storage) word = random();
    return TensorView{.data = reinterpret_cast<const char*>(storage->data()) + element,
                      .dtype = of.type,
                      .shape = {of.batches, heads, rows, columns},
                      .stride = {heads * rows * columns, columns, heads * columns, 1}};
  };
  std::vector<uint64_t> storage[3];
  const TensorView out = tensor(of.heads, of.queries, of.value_dim, &storage[0]);
  const TensorView key = tensor(of.kv_heads, of.keys, of.head_dim, &storage[1]);
  const TensorView value = tensor(of.kv_heads, of.keys, of.value_dim, &storage[2]);
  const auto device = [](const TensorView& view) {
    DeviceView to = {.data = address(view.data), .stride = {}};
    std::copy_n(view.stride, 4, to.stride);
    return to;
  };
  const size_t pairs = size_t{of.batches} * of.kv_heads;
  std::vector<Conservation> results(pairs);
  std::vector<uint32_t> arrived(pairs);
  ConservationJob job = {.grad_out = device(out),
                         .grad_key = device(key),
                         .grad_value = device(value),
                         .results = address(results.data()),
                         .partials = 0,
                         .arrived = address(arrived.data()),
                         .batches = of.batches,
                         .heads = of.heads,
                         .kv_heads = of.kv_heads,
                         .queries = of.queries,
                         .keys = of.keys,
                         .head_dim = of.head_dim,
                         .value_dim = of.value_dim,
                         .dtype = static_cast<uint32_t>(of.type)};
  const std::vector<uint64_t> scratch(shape_of(job).scratch_bytes / 8);
  job.partials = address(scratch.data());
  LaunchShape shape = launch_of(job, {.processors = 1, .shared_bytes = 0});
  shape.blocks = launch.blocks;
  ASSERT_TRUE(run_emulated(name_of(DeviceKernel::kConservation), shape, &job, launch.how));
  for (size_t pair = 0; pair < pairs; ++pair) {
    const Conservation want = conservation(out, key, value, static_cast<int64_t>(pair / of.kv_heads),
                                           static_cast<int64_t>(pair % of.kv_heads));
    EXPECT_EQ(std::memcmp(&results[pair], &want, sizeof want), 0) << pair;
    EXPECT_EQ(arrived[pair], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Geometries, ConservationBody,
                         testing::Combine(testing::ValuesIn(kGeometries),
                                          testing::ValuesIn(kEmulatedLaunches)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace foreshock
