#include "detect/baseline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace foreshock {
namespace {

TEST(Baseline, TheFirstValuesHaveTheirPlainMeanAndSpread) {
  Baseline baseline;
  for (double x : {3.0, 5.0, 10.0}) baseline.add(x, 100, 50);
  EXPECT_NEAR(baseline.mean(), 6, 1e-15);
  EXPECT_NEAR(baseline.std(), std::sqrt((9 + 1 + 16) / 2.0), 1e-14);  // n - 1
}

TEST(Baseline, LaterItIsTheWeightedMeanOfAllValues) {
  constexpr double kMemory = 8;
  Baseline baseline;
  std::vector<double> weights, values;
  for (int n = 1; n <= 100; ++n) {
    const double x = std::sin(n), share = 1 / std::min<double>(n, kMemory);
    baseline.add(x, kMemory, 1000);
    for (double& weight : weights) weight *= 1 - share;
    weights.push_back(share);
    values.push_back(x);
  }
  double mean = 0, variance = 0;
  for (size_t n = 0; n < values.size(); ++n) mean += weights[n] * values[n];
  for (size_t n = 0; n < values.size(); ++n) variance += weights[n] * std::pow(values[n] - mean, 2);
  EXPECT_NEAR(baseline.mean(), mean, 1e-14);
  EXPECT_NEAR(baseline.std(), std::sqrt(variance * 100 / 99), 1e-14);
}

TEST(Baseline, OneWildValueDoesNotBecomeUsual) {
  Baseline baseline;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 1);
  for (int n = 0; n < 200; ++n) baseline.add(draw(engine), 128, 64);
  const double before = baseline.std();
  baseline.add(1e9, 128, 64);
  EXPECT_LE(std::fabs(baseline.mean()), 1);
  // Variance grows by at most weight * clip^2 = 16 / 128 of itself.
  EXPECT_LE(baseline.std(), before * std::sqrt(1 + 16.0 / 128) * (1 + 1e-12));
}

TEST(Baseline, ALevelThatHasMovedForGoodIsLearned) {
  Baseline baseline;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 1e-3);
  for (int n = 0; n < 500; ++n) baseline.add(draw(engine), 128, 64);
  // A million spreads away. The spread grows by 15/256 each, so ln(1e6) / (15/256) = 236 values, then a few
  // memories.
  for (int n = 0; n < 1500; ++n) baseline.add(1000 + draw(engine), 128, 64);
  EXPECT_NEAR(baseline.mean(), 1000, 10);
}

}  // namespace
}  // namespace foreshock
