#include "shadow/bias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace foreshock {
namespace {

BiasCluster step(int64_t n) { return {.batch = 0, .kv_head = 0, .step = n, .rank = 0}; }

TEST(BiasPool, EmptyHasNoBias) { EXPECT_FALSE(BiasPool().bias().has_value()); }

TEST(BiasPool, IsARatioOfSums) {
  BiasPool pool;
  pool.add(step(1), {1, 10});
  pool.add(step(2), {5, 20});
  EXPECT_DOUBLE_EQ(pool.bias()->ulp, 6.0 / 30);
  EXPECT_EQ(pool.bias()->slices, 2);
}

TEST(UnexplainedBias, IsTheDistanceFromAllControls) {
  const BiasSums above = {30, 10}, below = {-5, 10}, nothing = {};
  EXPECT_EQ(unexplained_bias({50, 10}, {above, below}), 2);
  EXPECT_EQ(unexplained_bias({10, 10}, {above, below}), 0);
  EXPECT_EQ(unexplained_bias({-20, 10}, {above, below}), -1.5);
  EXPECT_EQ(unexplained_bias({10, 10}, {below, nothing}), 1) << "0 is a control too";
  EXPECT_EQ(unexplained_bias(nothing, {below}), 0);
  EXPECT_EQ(unexplained_bias({INFINITY, 10}, {below}), 0);
}

TEST(BiasPool, HasNoZBelowSixteenClusters) {
  BiasPool pool;
  for (int i = 0; i < 15; ++i) pool.add(step(i), {1.0 + i % 3, 10});
  for (int i = 0; i < 20; ++i) pool.add(step(14), {1.0 + i % 3, 10});
  EXPECT_EQ(pool.bias()->clusters, 15);
  EXPECT_FALSE(pool.bias()->z.has_value());
  pool.add(step(99), {1, 10});
  EXPECT_TRUE(pool.bias()->z.has_value());
}

TEST(BiasPool, ZByHand) {
  BiasPool pool;
  for (int i = 0; i < 16; ++i) pool.add(step(i), {i % 2 == 0 ? 3.0 : 1.0, 10});
  // b = 0.2; every residual is +-1; var = 16/15 * 16 / 160^2.
  EXPECT_NEAR(*pool.bias()->z, 0.2 / std::sqrt(16.0 / 15 * 16 / 25600), 1e-12);
}

TEST(BiasPool, EachPartOfTheClusterCounts) {
  BiasPool pool;
  pool.add({0, 0, 0, 0}, {1, 1});
  pool.add({1, 0, 0, 0}, {1, 1});
  pool.add({0, 1, 0, 0}, {1, 1});
  pool.add({0, 0, 1, 0}, {1, 1});
  pool.add({0, 0, 0, 1}, {1, 1});
  pool.add({0, 0, 0, 0}, {1, 1});
  EXPECT_EQ(pool.bias()->clusters, 5);
}

TEST(BiasPool, KeepsTheLast64Slices) {
  BiasPool pool;
  for (int i = 0; i < 64; ++i) pool.add(step(i), {100, 1});
  for (int i = 0; i < 64; ++i) pool.add(step(64 + i), {1, 2});
  EXPECT_DOUBLE_EQ(pool.bias()->ulp, 0.5);
  EXPECT_EQ(pool.bias()->slices, 64);
}

TEST(BiasPool, IgnoresNonFiniteSlices) {
  BiasPool pool;
  pool.add(step(1), {std::nan(""), 1});
  pool.add(step(2), {INFINITY, 1});
  pool.add(step(3), {0, 0});
  pool.add(step(4), {1, std::nan("")});
  EXPECT_FALSE(pool.bias().has_value());
}

TEST(BiasPool, HasNoZWithoutSpread) {
  BiasPool pool;
  for (int i = 0; i < 20; ++i) pool.add(step(i), {0, 4});
  EXPECT_EQ(pool.bias()->ulp, 0);
  EXPECT_FALSE(pool.bias()->z.has_value());
}

// A run that diverges, as seen with a learning rate growing until NaN: one slice of an exploding step has a
// million times the gradient of all others, and rules a ratio of sums alone.
TEST(BiasPool, OneHugeSliceIsNoBias) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  BiasPool pool;
  for (int i = 0; i < 40; ++i) pool.add(step(i), {1000 * 0.05 * normal(engine), 1000});
  const Bias before = *pool.bias();
  pool.add(step(50), {80 * 1e9, 1e9});  // +80 ulp
  EXPECT_LT(std::fabs(*pool.bias()->z), 6);
  EXPECT_LT(std::fabs(pool.bias()->ulp), 10);
  EXPECT_LT(std::fabs(before.ulp), 0.05);
}

TEST(BiasPool, IgnoresSlicesWithVanishedGradients) {
  BiasPool pool;
  for (int i = 0; i < 20; ++i) pool.add(step(i), {i % 2 == 0 ? 30.0 : -30.0, 1000});
  for (int i = 0; i < 40; ++i) pool.add(step(20 + i), {-2.5e-3, 1e-3});
  EXPECT_EQ(pool.bias()->slices, 20);
  EXPECT_LT(std::fabs(pool.bias()->ulp), 0.01);
  // A gradient that has become small for good is judged again.
  for (int i = 0; i < 1000; ++i) pool.add(step(100 + i), {1e-4, 1e-3});
  EXPECT_NEAR(pool.bias()->ulp, 0.1, 1e-9);
}

// How often |z| exceeds `limit` over many pools of healthy slices of uneven weight, `slices_per_cluster` of
// which share one error.
double exceedance(int clusters, int slices_per_cluster, double limit, double bias) {
  std::mt19937_64 engine(11);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> weight(0.5, 2);
  constexpr int kPools = 4000;
  int over = 0;
  for (int n = 0; n < kPools; ++n) {
    BiasPool pool;
    for (int g = 0; g < clusters; ++g) {
      const double shared = bias + 0.03 * normal(engine);
      for (int i = 0; i < slices_per_cluster; ++i) {
        const double ulps = 1000 * weight(engine);
        pool.add(step(g), {ulps * shared, ulps});
      }
    }
    over += std::fabs(*pool.bias()->z) > limit;
  }
  return static_cast<double>(over) / kPools;
}

// Student with 63 and 15 degrees of freedom beyond 2: 0.050 and 0.064; the linearisation and the uneven
// weights add a little. 4000 pools: standard deviation 0.0035.
TEST(BiasPool, FalseAlarmRateMatchesStudent) {
  EXPECT_NEAR(exceedance(64, 1, 2, 0), 0.052, 0.015);
  EXPECT_NEAR(exceedance(16, 1, 2, 0), 0.070, 0.02);
  EXPECT_LE(exceedance(64, 1, 6, 0), 0.0005);
}

// Four slices of one cluster share their error; counted as independent they would double z and pass 2 in 30 %
// of the pools.
TEST(BiasPool, SharedErrorsAreNotCountedAsIndependent) { EXPECT_NEAR(exceedance(16, 4, 2, 0), 0.070, 0.02); }

TEST(BiasPool, FindsABiasOfOneTenthUlp) { EXPECT_GE(exceedance(64, 1, 6, 0.1), 0.999); }

}  // namespace
}  // namespace foreshock
