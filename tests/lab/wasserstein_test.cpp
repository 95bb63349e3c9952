#include "tests/support/wasserstein.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lab/inputs.h"

namespace foreshock::lab {
namespace {

using test::wasserstein;
using Values = std::vector<double>;

// Sums of a few hundred terms of size one: 1e-12 is far above their rounding.
constexpr double kTolerance = 1e-12;

Values normals(uint64_t key, int count) {
  Values x(count);
  for (int i = 0; i < count; ++i) x[i] = normal(key, i);
  return x;
}

// The examples of scipy.stats.wasserstein_distance.
TEST(Wasserstein, KnownValues) {
  EXPECT_NEAR(wasserstein(Values{0, 1, 3}, Values{5, 6, 8}), 5, kTolerance);
  EXPECT_NEAR(wasserstein(Values{0, 1}, Values{0, 1}, Values{3, 1}, Values{2, 2}), 0.25, kTolerance);
  EXPECT_NEAR(
      wasserstein(Values{3.4, 3.9, 7.5, 7.8}, Values{4.5, 1.4}, Values{1.4, 0.9, 3.1, 7.2}, Values{3.2, 3.5}),
      4.0781331438047861, kTolerance);
}

TEST(Wasserstein, ShiftAndScale) {
  const Values x = normals(1, 500);
  Values shifted = x, scaled = x;
  double mean_magnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    shifted[i] += 0.125;
    scaled[i] *= 1.01;
    mean_magnitude += std::fabs(x[i]) / x.size();
  }
  EXPECT_NEAR(wasserstein(x, shifted), 0.125, kTolerance);
  EXPECT_NEAR(wasserstein(x, scaled), 0.01 * mean_magnitude, kTolerance);
  EXPECT_EQ(wasserstein(x, x), 0);
}

// Any pairing is a coupling, so the distance is at most the mean difference; and at least that of the means.
TEST(Wasserstein, Bounds) {
  const Values x = normals(2, 300), y = normals(3, 300);
  double paired = 0, means = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    paired += std::fabs(x[i] - y[i]) / x.size();
    means += (x[i] - y[i]) / x.size();
  }
  const double distance = wasserstein(x, y);
  EXPECT_LE(distance, paired);
  EXPECT_GE(distance, std::fabs(means) - kTolerance);
  EXPECT_NEAR(distance, wasserstein(y, x), kTolerance);
}

TEST(Wasserstein, NothingAndNotANumberHaveNoDistance) {
  EXPECT_TRUE(std::isnan(wasserstein(Values{}, Values{1})));
  EXPECT_TRUE(std::isnan(wasserstein(Values{1, NAN}, Values{1})));
}

// A defect in a share f of the rows is missed by m sampled rows with probability (1 - f)^m: the sampling rule
// behind "300 rows catch 1 % with 95 %". Observed misses of 20000 trials lie within 5 standard deviations of
// the binomial.
TEST(Coverage, MissProbabilityOfSampledRows) {
  constexpr int kTrials = 20000;
  for (const auto& [share, sampled] : {std::pair{0.01, 300}, {0.05, 32}, {0.25, 8}}) {
    int missed = 0;
    for (uint64_t trial = 0; trial < kTrials; ++trial) {
      bool caught = false;
      for (int i = 0; i < sampled && !caught; ++i) caught = uniform(trial, i) < share;
      missed += !caught;
    }
    const double expected = std::pow(1 - share, sampled);
    const double deviation = std::sqrt(expected * (1 - expected) / kTrials);
    EXPECT_NEAR(static_cast<double>(missed) / kTrials, expected, 5 * deviation) << share << " " << sampled;
  }
}

}  // namespace
}  // namespace foreshock::lab
