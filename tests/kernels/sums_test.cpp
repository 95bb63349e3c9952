#include "kernels/sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace foreshock {
namespace {

TEST(GradientSums, SumTheFiniteElements) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> g(1000, 2.f);
  g[3] = std::nanf(""), g[500] = kInfinity, g[999] = -kInfinity;
  GradientSums sums{.squares = 1, .finite = 2, .nonfinite = 3};  // added to
  add_gradient_sums(
      {.data = g.data(), .dtype = DType::kFp32, .shape = {1, 1, 10, 100}, .stride = {0, 0, 100, 1}}, &sums);
  EXPECT_EQ(sums.squares, 1 + 4.0 * 997);
  EXPECT_EQ(sums.finite, 2u + 997);
  EXPECT_EQ(sums.nonfinite, 3u + 3);
}

TEST(GradientSums, AcceptEverySecondColumn) {
  std::vector<double> g(24, 1e300);  // would overflow
  for (size_t n = 0; n < g.size(); n += 2) g[n] = static_cast<double>(n);
  GradientSums sums;
  add_gradient_sums({.data = g.data(), .dtype = DType::kFp64, .shape = {1, 1, 3, 4}, .stride = {0, 0, 8, 2}},
                    &sums);
  EXPECT_EQ(sums.squares, 4 * (11.0 * 12 * 23 / 6));  // 4 times the squares of 0 to 11
  EXPECT_EQ(sums.finite, 12u);
  EXPECT_EQ(sums.nonfinite, 0u);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The definition, element by element and in long double.
struct Truth {
  uint64_t counted = 0, bad_gradient = 0, bad_state = 0, epsilon = 0, surprised = 0;
  long double staleness = 0, squares = 0;

  void add(double gradient, double moment, const AdamStep& step) {
    bad_gradient += !std::isfinite(gradient);
    const bool usable = std::isfinite(moment) && moment >= 0;
    bad_state += !usable;
    if (!std::isfinite(gradient) || !usable) return;
    const long double g = gradient, v = moment, beta2 = step.beta2, eps = step.eps;
    const long double corrected = v / (1 - std::pow(beta2, static_cast<long double>(step.step)));
    const long double before =
        (v - (1 - beta2) * g * g) / beta2 / (1 - std::pow(beta2, static_cast<long double>(step.step - 1)));
    ++counted;
    const long double divisor = std::max(corrected, eps * eps);
    if (divisor > 0) staleness += g * g / divisor;
    epsilon += std::sqrt(corrected) < eps;
    surprised += g * g > 50 * before;
    squares += g * g;
  }
};

// Gradients over many magnitudes, and a second moment that knew most of them.
struct State {
  std::vector<double> gradient, moment;

  State(size_t count, uint64_t seed, const AdamStep& step) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> exponent(-9, 1);
    for (size_t n = 0; n < count; ++n) {
      const double scale = std::pow(10, exponent(random));
      const double g = normal(random) * scale * (n % 17 == 0 ? 100 : 1);
      const double before = scale * scale * (1 - std::pow(step.beta2, static_cast<double>(step.step - 1)));
      gradient.push_back(n % 13 == 0 ? 0 : g);
      moment.push_back(n % 29 == 0 ? 0 : step.beta2 * before + (1 - step.beta2) * g * g);
    }
  }
};

TensorView packed(const void* data, DType type, size_t count) {
  return {
      .data = data, .dtype = type, .shape = {1, 1, 1, static_cast<int64_t>(count)}, .stride = {0, 0, 0, 1}};
}

// Sums of positive terms, 8 chains in blocks of 256, and the error that 1 - beta2^t inherits from the
// power's.
void expect_equal(const AdamSums& got, const Truth& truth, size_t count, double beta2) {
  const double bound = (static_cast<double>(count) / 256 + 60 + 2 / (1 - beta2)) * 0x1p-53;
  EXPECT_EQ(got.counted, truth.counted);
  EXPECT_EQ(got.nonfinite_gradient, truth.bad_gradient);
  EXPECT_EQ(got.unusable_state, truth.bad_state);
  EXPECT_EQ(got.epsilon_dominated, truth.epsilon);
  EXPECT_EQ(got.surprised, truth.surprised);
  EXPECT_NEAR(got.staleness, static_cast<double>(truth.staleness),
              bound * static_cast<double>(truth.staleness));
  EXPECT_NEAR(got.gradient_squares, static_cast<double>(truth.squares),
              bound * static_cast<double>(truth.squares));
}

class AdamSumsOf : public testing::TestWithParam<size_t> {};

TEST_P(AdamSumsOf, AgreeWithTheDefinition) {
  for (const AdamStep step :
       {AdamStep{.95, 1e-8, 7}, AdamStep{.999, 1e-6, 2}, AdamStep{.999, 1e-8, 100'000}}) {
    const State state(GetParam(), GetParam() + 1, step);
    Truth truth;
    for (size_t n = 0; n < GetParam(); ++n) truth.add(state.gradient[n], state.moment[n], step);
    AdamSums sums;
    add_adam_sums(packed(state.gradient.data(), DType::kFp64, GetParam()),
                  packed(state.moment.data(), DType::kFp64, GetParam()), step, &sums);
    expect_equal(sums, truth, GetParam(), step.beta2);
    EXPECT_EQ(sums.surprise_counted, sums.counted);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, AdamSumsOf, testing::Values(0, 1, 7, 8, 255, 256, 257, 1000, 100'003));

uint16_t bf16(double x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
}

TEST(AdamSums, AcceptMixedFormats) {
  constexpr size_t kCount = 3000;
  const AdamStep step{.999, 1e-8, 50};
  const State state(kCount, 5, step);
  std::vector<uint16_t> gradient;
  std::vector<float> moment;
  Truth truth;
  for (size_t n = 0; n < kCount; ++n) {
    gradient.push_back(bf16(state.gradient[n]));
    moment.push_back(static_cast<float>(state.moment[n]));
    truth.add(bf16_to_float(gradient[n]), moment[n], step);
  }
  AdamSums sums;
  add_adam_sums(packed(gradient.data(), DType::kBf16, kCount), packed(moment.data(), DType::kFp32, kCount),
                step, &sums);
  expect_equal(sums, truth, kCount, step.beta2);
  std::vector<uint16_t> halves(kCount);  // of fp16: patterns of 0 to 2999, all finite
  for (size_t n = 0; n < kCount; ++n) halves[n] = static_cast<uint16_t>(n);
  Truth of_halves;
  for (size_t n = 0; n < kCount; ++n) of_halves.add(fp16_to_float(halves[n]), moment[n], step);
  AdamSums half_sums;
  add_adam_sums(packed(halves.data(), DType::kFp16, kCount), packed(moment.data(), DType::kFp32, kCount),
                step, &half_sums);
  expect_equal(half_sums, of_halves, kCount, step.beta2);
}

// A gradient that is a transposed view beside a packed state, and a shard that is every second row.
TEST(AdamSums, AcceptStridedTensors) {
  constexpr int64_t kRows = 70, kColumns = 300;
  const AdamStep step{.99, 1e-8, 9};
  const State state(2 * kRows * kColumns, 3, step);
  const TensorView transposed{.data = state.gradient.data(),
                              .dtype = DType::kFp64,
                              .shape = {1, 1, kRows, kColumns},
                              .stride = {0, 0, 1, kRows}};
  const TensorView shard{.data = state.moment.data(),
                         .dtype = DType::kFp64,
                         .shape = {1, 1, kRows, kColumns},
                         .stride = {0, 0, 2 * kColumns, 1}};
  Truth truth;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c)
      truth.add(state.gradient[static_cast<size_t>(r + c * kRows)],
                state.moment[static_cast<size_t>(2 * r * kColumns + c)], step);
  }
  AdamSums sums;
  add_adam_sums(transposed, shard, step, &sums);
  // A block ends with its row: 70 rows of two blocks.
  expect_equal(sums, truth, 256 * 2 * kRows, step.beta2);
  AdamSums both;  // the same elements whichever way they lie, when both lie that way
  TensorView moment = transposed;
  moment.data = state.moment.data();
  add_adam_sums(transposed, moment, step, &both);
  AdamSums flat;
  add_adam_sums(packed(state.gradient.data(), DType::kFp64, kRows * kColumns),
                packed(state.moment.data(), DType::kFp64, kRows * kColumns), step, &flat);
  EXPECT_EQ(both.staleness, flat.staleness);
  EXPECT_EQ(both.surprised, flat.surprised);
}

TEST(AdamSums, CountNonFiniteValuesSeparately) {
  const AdamStep step{.9, 1e-8, 3};
  const double nan = std::nan("");
  const std::vector<double> gradient{1, nan, kInfinity, -kInfinity, 1, 1, 1, nan};
  const std::vector<double> moment{1, 1, 1, 1, nan, -1, kInfinity, nan};
  AdamSums sums;
  add_adam_sums(packed(gradient.data(), DType::kFp64, 8), packed(moment.data(), DType::kFp64, 8), step,
                &sums);
  EXPECT_EQ(sums.counted, 1u);
  EXPECT_EQ(sums.nonfinite_gradient, 4u);
  EXPECT_EQ(sums.unusable_state, 4u);
  EXPECT_EQ(sums.gradient_squares, 1);
  EXPECT_TRUE(std::isfinite(sums.staleness));
}

TEST(AdamSums, UnusedRowsDoNotRaiseTheSurprise) {
  const std::vector<double> zeros(100, 0.0);
  for (const double eps : {1e-8, 0.0}) {
    AdamSums sums;
    add_adam_sums(packed(zeros.data(), DType::kFp64, 100), packed(zeros.data(), DType::kFp64, 100),
                  {.beta2 = .999, .eps = eps, .step = 10}, &sums);
    EXPECT_EQ(sums.staleness, 0);
    EXPECT_EQ(sums.surprised, 0u);
    EXPECT_EQ(sums.epsilon_dominated, eps > 0 ? 100u : 0u);
  }
}

TEST(AdamSums, SurpriseIsUnknownAtTheFirstStep) {
  const std::vector<double> gradient(9, 2.0), moment(9, 4 * (1 - .999));
  AdamSums sums;
  add_adam_sums(packed(gradient.data(), DType::kFp64, 9), packed(moment.data(), DType::kFp64, 9),
                {.beta2 = .999, .eps = 1e-8, .step = 1}, &sums);
  EXPECT_EQ(sums.counted, 9u);
  EXPECT_EQ(sums.surprise_counted, 0u);
  EXPECT_NEAR(sums.staleness, 9, 9 * 1e-12);  // v^ is g^2 then; 1 - .999 is rounded, relative 2^-53 / .001
}

TEST(AdamSums, ConstantsThatNoAdamHasGiveNoSums) {
  const std::vector<double> ones(4, 1.0);
  const TensorView view = packed(ones.data(), DType::kFp64, 4);
  for (const AdamStep step : {AdamStep{.9, 1e-8, 0}, AdamStep{1, 1e-8, 3}, AdamStep{-.1, 1e-8, 3},
                              AdamStep{.9, -1, 3}, AdamStep{std::nan(""), 1e-8, 3}}) {
    AdamSums sums;
    add_adam_sums(view, view, step, &sums);
    EXPECT_EQ(sums.counted, 0u);
  }
}

// Sums of 1001 terms in two orders differ by at most 1001 * 2^-53 relative, 1.2e-13.
constexpr double kOrder = 2e-13;

TEST(Update, Fp32EqualsTheSumsInOrder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> before(1001), after(1001);
  double magnitude = 0, squares = 0, after_squares = 0, most = 0;
  for (size_t n = 0; n < before.size(); ++n) {
    before[n] = normal(random);
    after[n] = before[n] + 1e-3f * normal(random);
    const double d = double{after[n]} - double{before[n]};
    magnitude += std::fabs(d);
    squares += d * d;
    after_squares += double{after[n]} * double{after[n]};
    most = std::max(most, std::fabs(d));
  }
  const Update update = update_between(before.data(), after.data(), DType::kFp32, before.size());
  EXPECT_NEAR(update.sum_magnitude, magnitude, kOrder * magnitude);
  EXPECT_NEAR(update.sum_squares, squares, kOrder * squares);
  EXPECT_NEAR(update.sum_squares_after, after_squares, kOrder * after_squares);
  EXPECT_EQ(update.max_magnitude, most);
}

TEST(Update, SixteenBitFormatsAreExact) {
  const uint16_t bf16_before[] = {0x3f80, 0xbf80}, bf16_after[] = {0x4000, 0xbf80};  // 1, -1 -> 2, -1
  const Update update = update_between(bf16_before, bf16_after, DType::kBf16, 2);
  EXPECT_EQ(update.sum_magnitude, 1);
  EXPECT_EQ(update.sum_squares_after, 5);
  const uint16_t fp16_before[] = {0x3c00}, fp16_after[] = {0x3800};  // 1 -> 0.5
  EXPECT_EQ(update_between(fp16_before, fp16_after, DType::kFp16, 1).max_magnitude, 0.5);
}

TEST(Update, IsNotFiniteWithNonFiniteValues) {
  const float before[] = {1, 1, 1}, after[] = {1, NAN, 3};
  const Update update = update_between(before, after, DType::kFp32, 3);
  EXPECT_TRUE(std::isnan(update.sum_magnitude));
  EXPECT_TRUE(std::isnan(update.max_magnitude));
  EXPECT_TRUE(std::isnan(update.sum_squares_after));
}

class SumOfSquares : public testing::TestWithParam<size_t> {};

// Against long double, for lengths around the number of chains. Bound: each chain adds n/8 terms, so the
// relative error is at most (n / 8 + 8) * 2^-53 (all terms are positive).
TEST_P(SumOfSquares, AgreesWithLongDouble) {
  const size_t count = GetParam();
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal;
  std::vector<double> fp64(count);
  std::vector<float> fp32(count);
  std::vector<uint16_t> bf16(count);
  long double exact64 = 0, exact32 = 0, exact16 = 0;
  for (size_t n = 0; n < count; ++n) {
    fp64[n] = normal(random);
    fp32[n] = static_cast<float>(fp64[n]);
    bf16[n] = static_cast<uint16_t>(std::bit_cast<uint32_t>(fp32[n]) >> 16);
    exact64 += static_cast<long double>(fp64[n]) * fp64[n];
    exact32 += static_cast<long double>(fp32[n]) * fp32[n];
    exact16 += static_cast<long double>(bf16_to_float(bf16[n])) * bf16_to_float(bf16[n]);
  }
  const double bound = (static_cast<double>(count) / 8 + 8) * 0x1p-53;
  const auto expect_near = [&](double got, long double exact) {
    EXPECT_LE(std::fabs(static_cast<double>(got - exact)), bound * static_cast<double>(exact)) << count;
  };
  expect_near(sum_of_squares(fp64.data(), DType::kFp64, count), exact64);
  expect_near(sum_of_squares(fp32.data(), DType::kFp32, count), exact32);
  expect_near(sum_of_squares(bf16.data(), DType::kBf16, count), exact16);
}

INSTANTIATE_TEST_SUITE_P(Lengths, SumOfSquares, testing::Values(0, 1, 7, 8, 9, 15, 16, 1000, 100003));

TEST(SumOfSquares, IsNotFiniteWithNonFiniteValues) {
  for (size_t at : {size_t{0}, size_t{5}, size_t{16}}) {
    std::vector<float> values(17, 1.f);
    values[at] = NAN;
    EXPECT_TRUE(std::isnan(sum_of_squares(values.data(), DType::kFp32, values.size())));
    values[at] = -INFINITY;
    EXPECT_TRUE(std::isinf(sum_of_squares(values.data(), DType::kFp32, values.size())));
  }
}

// The definition, word by word.
uint64_t slow_checksum(const std::vector<unsigned char>& bytes) {
  uint64_t sum = 0;
  for (size_t n = 0; 4 * n < bytes.size(); ++n) {
    uint32_t word = 0;
    for (size_t b = 0; b < 4 && 4 * n + b < bytes.size(); ++b) word |= uint32_t{bytes[4 * n + b]} << 8 * b;
    sum += word * ((n * 0x9e3779b1u % (uint64_t{1} << 31)) * 2 + 1);
  }
  return sum;
}

std::vector<unsigned char> some_bytes(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<unsigned char> bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

TEST(Checksum, MatchesItsDefinition) {
  for (size_t size : {0, 1, 2, 3, 4, 7, 4095, 4096, 4097, 9998, 50001}) {
    const auto bytes = some_bytes(size);
    EXPECT_EQ(checksum(bytes.data(), size), slow_checksum(bytes)) << size;
  }
}

TEST(Checksum, ChangesWithAnyFlippedBit) {
  auto bytes = some_bytes(4099);
  const uint64_t before = checksum(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    ASSERT_NE(checksum(bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
}

TEST(Checksum, ChangesIfTwoWordsAreExchanged) {
  auto bytes = some_bytes(8192);
  const uint64_t before = checksum(bytes.data(), bytes.size());
  for (size_t n = 4; n < bytes.size(); n += 4) {
    std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + static_cast<std::ptrdiff_t>(n));
    ASSERT_NE(checksum(bytes.data(), bytes.size()), before) << n;
    std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + static_cast<std::ptrdiff_t>(n));
  }
}

}  // namespace
}  // namespace foreshock
