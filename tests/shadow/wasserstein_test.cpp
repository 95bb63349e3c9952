#include "tests/support/wasserstein.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "shadow/histogram.h"
#include "tests/shadow/weights.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

using test::histogram_of;
using test::Values;

// Of identities in exact arithmetic, relative to the distance; what is computed is good to 16 epsilon, the
// sorting truth sums up to 10^4 terms: 10^4 * 2^-53 = 1.1e-12 is its worst case, a hundredth of that its
// usual one.
constexpr double kTolerance = 1e-12;

void expect_exact(const Wasserstein& distance, double expected) {
  EXPECT_NEAR(distance.value, expected, kTolerance * expected);
  EXPECT_LE(distance.high - distance.low, kTolerance * expected);
  EXPECT_LE(distance.low, distance.value);
  EXPECT_LE(distance.value, distance.high);
}

class WassersteinOf : public testing::TestWithParam<DType> {};

TEST_P(WassersteinOf, EqualsTheSortedDistanceFor16Bits) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const size_t unequal = 1000 + 137 * seed;
    Values x = test::normal(2 * seed, 1000), y = test::normal(2 * seed + 1, unequal, 0.021, 1e-3);
    const Histogram a = histogram_of(GetParam(), &x), b = histogram_of(GetParam(), &y);
    expect_exact(wasserstein(a, b), test::wasserstein(x, y));
  }
}

TEST_P(WassersteinOf, IsADistance) {
  Values x = test::normal(1, 3000), y = test::normal(2, 2000), z = test::normal(3, 1000, 0.03);
  const Histogram a = histogram_of(GetParam(), &x), b = histogram_of(GetParam(), &y),
                  c = histogram_of(GetParam(), &z);
  const double ab = wasserstein(a, b).value, bc = wasserstein(b, c).value, ac = wasserstein(a, c).value;
  EXPECT_EQ(wasserstein(a, a).value, 0);
  EXPECT_EQ(wasserstein(a, a).high, 0);
  EXPECT_NEAR(wasserstein(b, a).value, ab, kTolerance * ab);
  EXPECT_LE(ac, (ab + bc) * (1 + kTolerance));
  EXPECT_LE(ab, (ac + bc) * (1 + kTolerance));
}

TEST_P(WassersteinOf, IgnoresNonFiniteValues) {
  Values x{1, 2, 3, NAN, INFINITY}, y{2, 3, 4, -INFINITY}, none{NAN};
  const Histogram a = histogram_of(GetParam(), &x), b = histogram_of(GetParam(), &y);
  expect_exact(wasserstein(a, b), 1);
  EXPECT_TRUE(std::isnan(wasserstein(a, histogram_of(GetParam(), &none)).value));
  EXPECT_TRUE(std::isnan(wasserstein(Histogram{}, b).low));
}

TEST_P(WassersteinOf, MinusZeroIsZero) {
  Values x{-0.0, -0.0, 1}, y{0.0, 0.0, 1};
  expect_exact(wasserstein(histogram_of(GetParam(), &x), histogram_of(GetParam(), &y)), 0);
}

INSTANTIATE_TEST_SUITE_P(SixteenBits, WassersteinOf, testing::Values(DType::kBf16, DType::kFp16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// scipy.stats.wasserstein_distance([0, 1, 3], [5, 6, 8]) = 5 and ([0, 1], [0, 1], [3, 1], [2, 2]) = 0.25.
TEST(Wasserstein, KnownValues) {
  Values x{0, 1, 3}, y{5, 6, 8};
  expect_exact(wasserstein(histogram_of(DType::kBf16, &x), histogram_of(DType::kBf16, &y)), 5);
  Values u{0, 0, 0, 1}, v{0, 0, 1, 1};
  expect_exact(wasserstein(histogram_of(DType::kFp32, &u), histogram_of(DType::kFp32, &v)), 0.25);
}

// Shifting by s moves W1 by s, scaling by c by (c - 1) E|x|; powers of two and small integers keep bf16
// exact.
TEST(Wasserstein, ShiftAndScale) {
  Values x, shifted, doubled;
  for (int n = -60; n <= 60; ++n) {
    for (int copies = 0; copies < 1 + (n & 3); ++copies) {
      x.push_back(n);
      shifted.push_back(n + 64);
      doubled.push_back(2 * n);
    }
  }
  const Histogram a = histogram_of(DType::kBf16, &x);
  expect_exact(wasserstein(a, histogram_of(DType::kBf16, &shifted)), 64);
  expect_exact(wasserstein(a, histogram_of(DType::kBf16, &doubled)), mean_magnitude(a));
}

// bf16 beside fp32, and both beside the truth.
TEST(Wasserstein, FormatsMayDiffer) {
  Values x = test::normal(5, 4000), y = test::normal(6, 3000);
  const Histogram a = histogram_of(DType::kBf16, &x), b = histogram_of(DType::kFp16, &y);
  expect_exact(wasserstein(a, b), test::wasserstein(x, y));
  expect_exact(wasserstein(histogram_of(DType::kFp32, &x), b), test::wasserstein(x, y));
}

// What one training step or one bit of precision does to fp32 weights, in many sizes, among them few values
// in wide bins, where the bounds are far apart.
Values changed(const Values& x, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise;
  const double scale = std::ldexp(1.0, -static_cast<int>(random() % 16)), shift = random() % 2 ? 1e-4 : 0;
  Values y = x;
  for (double& v : y)
    v = v * (1 + 1e-3 * static_cast<double>(random() % 3)) + shift + 0.02 * scale * noise(random);
  if (seed % 4 == 0) y.resize(1 + y.size() / 2);
  return y;
}

TEST(Wasserstein, BoundsOfFp32HoldInEveryPair) {
  constexpr int kPairs = 1200;
  double widest = 0;
  for (uint64_t seed = 0; seed < kPairs; seed += test::kVariationStep) {
    const size_t count = 1 + seed * seed % 3000;
    Values x = test::normal(seed, count, seed % 5 == 0 ? 1e-39 : 0.02, seed % 7 == 0 ? 0.5 : 0);
    Values y = changed(x, seed);
    const Wasserstein distance = wasserstein(histogram_of(DType::kFp32, &x), histogram_of(DType::kFp32, &y));
    // The truth itself may be off by count * 2^-53 of what it adds up.
    const double truth = test::wasserstein(x, y), slack = kTolerance * truth;
    ASSERT_LE(distance.low, truth + slack) << seed;
    ASSERT_GE(distance.high, truth - slack) << seed;
    ASSERT_LE(distance.low, distance.value) << seed;
    ASSERT_LE(distance.value, distance.high) << seed;
    if (truth > 0) widest = std::max(widest, (distance.high - distance.low) / truth);
  }
  RecordProperty("widest_relative_interval", std::to_string(widest));
}

// Three things that training does to weights: scaled and noisy, noise alone, drawn anew. Measured errors of
// the estimate at this size are 3e-5, 3e-3 and 4e-5 of W1. Noise alone is the worst: F - G changes its sign
// within most bins, and the upper bound is then far away; elsewhere the bounds are close.
TEST(Wasserstein, Fp32EstimatesAreClose) {
  FORESHOCK_SKIP_IF_SANITIZED();
  constexpr size_t kCount = 400000;
  Values x = test::normal(11, kCount), scaled = x, noisy = x, other = test::normal(12, kCount);
  std::mt19937_64 random(13);
  std::normal_distribution<double> noise(0, 0.02 * 0.01);
  for (double& v : scaled) v = v * 1.001 + noise(random);
  for (double& v : noisy) v += noise(random);
  const Histogram a = histogram_of(DType::kFp32, &x);
  const auto expect = [&](Values* y, double error, double interval) {
    const Wasserstein distance = wasserstein(a, histogram_of(DType::kFp32, y));
    const double truth = test::wasserstein(x, *y);
    EXPECT_NEAR(distance.value, truth, error * truth);
    EXPECT_LE(distance.high - distance.low, interval * truth);
  };
  expect(&scaled, 1e-4, 0.01);
  expect(&noisy, 6e-3, 1);
  expect(&other, 1e-4, 0.02);
}

// The mean W1 of many pairs of independent draws is the noise floor. One such W1 has a relative standard
// deviation of about a third, the mean of 200 of 2.4 %: 12 % are five of them.
TEST(Wasserstein, NoiseFloorMatchesIndependentDraws) {
  FORESHOCK_SKIP_IF_SANITIZED();
  constexpr int kPairs = 200;
  for (const auto& [n, m] : {std::pair<size_t, size_t>{1000, 1000}, {500, 2000}}) {
    double sum = 0, floor = 0;
    for (uint64_t seed = 0; seed < kPairs; ++seed) {
      Values x = test::normal(2 * seed, n), y = test::normal(2 * seed + 1, m);
      const Histogram a = histogram_of(DType::kFp32, &x), b = histogram_of(DType::kFp32, &y);
      sum += wasserstein(a, b).value;
      floor += sampling_noise_floor(a, b);
    }
    EXPECT_NEAR(sum / floor, 1, 0.12) << n << " " << m;
  }
}

// On [0, 1) the integral of sqrt(F (1 - F)) is pi / 8. A constant has no spread, so no noise.
TEST(Wasserstein, NoiseFloorOfKnownLaws) {
  constexpr size_t kCount = 1 << 16;
  Values even(kCount);
  for (size_t n = 0; n < kCount; ++n) even[n] = (static_cast<double>(n) + 0.5) / kCount;
  const Histogram a = histogram_of(DType::kFp32, &even);
  const double expected = std::sqrt(2 / std::numbers::pi) * std::sqrt(2.0 / kCount) * std::numbers::pi / 8;
  EXPECT_NEAR(sampling_noise_floor(a, a), expected, 1e-3 * expected);  // bins are 2^-11 of the values
  Values ones(1000, 1.0), minus_ones(1000, -1.0);
  EXPECT_EQ(sampling_noise_floor(histogram_of(DType::kFp32, &ones), histogram_of(DType::kBf16, &ones)), 0);
  EXPECT_EQ(
      sampling_noise_floor(histogram_of(DType::kFp32, &minus_ones), histogram_of(DType::kBf16, &minus_ones)),
      0);
  EXPECT_TRUE(std::isnan(sampling_noise_floor(a, Histogram{})));
}

}  // namespace
}  // namespace foreshock
