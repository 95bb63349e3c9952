#include "shadow/row_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace foreshock {
namespace {

// A slice of one row.
RowErrors row(double kernel, double floor) {
  RowErrors errors;
  errors.add(kernel, floor, 0);
  return errors;
}

std::optional<double> fused_ratio(PooledRows* pool, double kernel, double floor, double norm = 1) {
  const auto ratios = pool->add(row(kernel, floor), row(kernel, floor), norm);
  return ratios ? ratios->fused : std::nullopt;
}

// Adds equal slices until there is a ratio. Returns how many were needed; 0: more than 1000.
int slices_until_ratio(PooledRows* pool, double kernel, double floor, double* ratio, double norm = 1) {
  for (int n = 1; n <= 1000; ++n)
    if (const auto found = fused_ratio(pool, kernel, floor, norm)) {
      *ratio = *found;
      return n;
    }
  return 0;
}

TEST(RowErrors, ARatioNeedsAnError) {
  EXPECT_EQ(RowErrors().ratio(), std::nullopt);
  EXPECT_EQ(row(0, 0).ratio(), std::nullopt);
  EXPECT_EQ(row(4, 1).ratio(), 2.0);
  EXPECT_EQ(row(0, 1).ratio(), 0.0);
}

TEST(RowErrors, AnErrorIsSpreadOverTheRowsThatHaveIt) {
  RowErrors errors;
  for (int n = 0; n < 8; ++n) errors.add(1, n == 0 ? 1 : 0, 0);
  EXPECT_NEAR(errors.effective_rows().value(), 9.0 * 9 / (4 + 7), 1e-12);
  EXPECT_NEAR(errors.effective_floor_rows().value(), 1, 1e-12);
}

TEST(RowErrors, RowsWhoseFloorIsNotFiniteDoNotCount) {
  RowErrors errors = row(4, 1);
  errors.add(1, std::numeric_limits<double>::infinity(), 0);
  EXPECT_EQ(errors.rows, 1);
  EXPECT_EQ(errors.ratio(), 2.0);
}

TEST(PooledRows, SlicesOfOneRowHaveARatioTogether) {
  PooledRows pool;
  double ratio = 0;
  const int first = slices_until_ratio(&pool, 25, 1, &ratio);
  EXPECT_GE(first, kRowsOfPool);
  EXPECT_LE(first, kRowsOfPool + 4);  // older slices count a little less
  EXPECT_NEAR(ratio, 5, 1e-9);
  EXPECT_EQ(slices_until_ratio(&pool, 1, 1, &ratio), first);  // a new pool
  EXPECT_NEAR(ratio, 1, 1e-9);
}

TEST(PooledRows, SmallerGradientsCountAsMuch) {
  PooledRows pool;
  double ratio = 0;
  for (int n = 0; n < 8; ++n) EXPECT_EQ(fused_ratio(&pool, 1e6, 1e6, 1e3), std::nullopt);
  EXPECT_LE(slices_until_ratio(&pool, 1, 1, &ratio), kRowsOfPool - 4);
  EXPECT_NEAR(ratio, 1, 1e-9);
}

TEST(PooledRows, ASliceWithNearlyAllOfTheErrorDelaysTheRatio) {
  PooledRows pool;
  double ratio = 0;
  EXPECT_EQ(fused_ratio(&pool, 4e4, 1e4), std::nullopt);
  const int delayed = slices_until_ratio(&pool, 1, 1, &ratio);
  EXPECT_GT(delayed, 2 * kRowsOfPool);
  EXPECT_LT(ratio, 3);
}

TEST(PooledRows, WhatIsNotFiniteIsNotAdded) {
  PooledRows pool;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(fused_ratio(&pool, kInfinity, 1), std::nullopt);
  EXPECT_EQ(fused_ratio(&pool, 1, 1, 0), std::nullopt);  // no reference
  double ratio = 0;
  EXPECT_LE(slices_until_ratio(&pool, 1, 1, &ratio), kRowsOfPool + 4);
  EXPECT_NEAR(ratio, 1, 1e-9);
}

// Each error is a single draw, as that of a row of dQ. The bound is that of kRowsOfPool, times ten.
TEST(PooledRows, SoundSlicesHaveNoLargeRatio) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> draw;
  PooledRows pool;
  int pools = 0, above = 0;
  for (int n = 0; n < 400'000; ++n) {
    const double kernel = draw(random), floor = draw(random);
    const auto ratio = fused_ratio(&pool, kernel * kernel, floor * floor);
    if (!ratio) continue;
    ++pools;
    above += *ratio > 3;
  }
  EXPECT_GT(pools, 5000);
  EXPECT_LE(above, 2e-4 * pools);
}

}  // namespace
}  // namespace foreshock
