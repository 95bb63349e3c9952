#include <gtest/gtest.h>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

// A training of 10 ms steps, sampled every `interval`, where a sampled step costs `cost` seconds and every
// step `base`. Returns our share.
double share_of(double cost, double limit, uint64_t interval, int steps, double base = 0) {
  Budget budget;
  budget.set_limit(limit);
  double ours = 0, total = 0;
  for (int step = 1; step <= steps; ++step) {
    const bool due = step % static_cast<int>(interval) == 0;
    const double own = base + (due && budget.allows() ? cost : 0);
    budget.end_step(0.010 + own, own, interval);
    ours += own;
    total += 0.010;
  }
  return ours / total;
}

TEST(Budget, CheapSamplingIsNeverStopped) {
  // 0.4 ms every 8 steps of 10 ms is 0.5 %.
  EXPECT_NEAR(share_of(0.0004, 0.01, 8, 8000), 0.005, 1e-4);
}

TEST(Budget, DearSamplingIsHeldToTheLimit) {
  for (double cost : {0.001, 0.002, 0.005, 0.020}) {
    const double share = share_of(cost, 0.01, 8, 80000);
    EXPECT_LE(share, 0.0101) << cost;
    EXPECT_GE(share, 0.008) << cost;  // held, not stopped
  }
}

TEST(Budget, WhatEveryStepCostsIsPaidFirst) {
  // 0.06 ms in every step leave 0.04 ms a step for sampling.
  EXPECT_LE(share_of(0.002, 0.01, 8, 80000, 0.00006), 0.0101);
  // More than the limit in every step: nothing is left, and nothing is sampled on top of it.
  EXPECT_NEAR(share_of(0.002, 0.01, 8, 8000, 0.0002), 0.02, 1e-3);
}

// Steps of 10 ms in which `base` is always ours, and at each eighth `dear` where `is_allowed` says so.
double share_with_own_purse(double base, double dear, int steps) {
  Budget budget;
  budget.set_limit(0.01);
  double ours = 0;
  for (int step = 1; step <= steps; ++step) {
    const double own = base + (step % 8 == 0 && !budget.is_overdrawn() ? dear : 0);
    budget.end_step(0.010 + own, own, 8);
    ours += own;
  }
  return ours / (0.010 * steps);
}

TEST(Budget, AShareOfOnesOwnIsSpentWithinTheLimitOfAll) {
  // 0.25 % on top of what cannot be refused: all of it while that leaves room for it, then what is left, then
  // nothing but the patience of 256 steps' earnings, 1.3e-4 of 20000 steps, and one more of 0.2 ms.
  constexpr double kPatience = 256 * 0.01 / 20000 + 1e-6;
  EXPECT_NEAR(share_with_own_purse(0.00005, 0.0002, 20000), 0.0075, 1e-6);
  EXPECT_NEAR(share_with_own_purse(0.00009, 0.0002, 20000), 0.01, kPatience);
  EXPECT_NEAR(share_with_own_purse(0.0002, 0.0002, 20000), 0.02, kPatience);
}

// What cannot be refused takes 0.9 %. A sample may be taken where nothing is owed, now and then.
TEST(Budget, AShareOfOnesOwnLeavesSomethingForSamples) {
  Budget budget;
  budget.set_limit(0.01);
  int allowed = 0;
  for (int step = 1; step <= 20000; ++step) {
    const double own = 0.00009 + (step % 8 == 0 && !budget.is_overdrawn() ? 0.0002 : 0);
    budget.end_step(0.010 + own, own, 8);
    if (step > 5000 && budget.allows()) ++allowed;
  }
  EXPECT_GT(allowed, 0);
}

TEST(Budget, AStallOverdrawsFor512StepsAtMostWhateverTheInterval) {
  for (const uint64_t interval : {uint64_t{8}, uint64_t{64}, uint64_t{65536}}) {
    Budget budget;
    budget.set_limit(0.01);
    for (int step = 0; step < 20; ++step) budget.end_step(0.010, 0, interval);
    budget.end_step(100, 99.99, interval);
    int waited = 0;
    for (; budget.is_overdrawn() && waited < 100000; ++waited) budget.end_step(0.010, 0, interval);
    EXPECT_NEAR(waited, 512, 1) << interval;  // rounding of the sum
  }
}

TEST(Budget, IsNotOverdrawnByASampleDearerThanExpected) {
  Budget budget;
  budget.set_limit(0.01);
  for (int step = 0; step < 20; ++step) budget.end_step(0.010, 0, 8);
  budget.end_step(0.010 + 0.008, 0.008, 8);  // ten times what an interval earns
  EXPECT_FALSE(budget.allows());
  EXPECT_FALSE(budget.is_overdrawn());
  budget.end_step(10, 9.99, 8);
  EXPECT_TRUE(budget.is_overdrawn());
  budget.set_limit(1);
  EXPECT_FALSE(budget.is_overdrawn());
}

TEST(Budget, ABurstMayCostMoreAndWhatFollowsNot) {
  Budget budget;
  const auto train = [&](int steps, uint64_t every) {
    double ours = 0;
    for (int step = 1; step <= steps; ++step) {
      const double own = step % static_cast<int>(every) == 0 && budget.allows() ? 0.002 : 0;
      budget.end_step(0.010 + own, own, 8);
      ours += own;
    }
    return ours / (0.010 * steps);
  };
  budget.set_limit(0.01);
  train(8000, 8);
  budget.set_limit(0.01, 3);
  // One sample of 0.2 of a step, and what was saved up, beyond 3 %: over 4000 steps 1e-4 at most.
  EXPECT_NEAR(train(4000, 1), 0.03, 1e-4);
  budget.set_limit(0.01);
  EXPECT_LE(train(8000, 8), 0.0101);
  budget.set_limit(0.6, 3);
  EXPECT_FALSE(budget.is_unlimited());
  budget.set_limit(1, 3);
  EXPECT_TRUE(budget.is_unlimited());
}

TEST(Budget, OneStallDoesNotSilenceForGood) {
  Budget budget;
  budget.set_limit(0.01);
  for (int step = 0; step < 20; ++step) budget.end_step(0.010, 0, 8);
  budget.end_step(10, 9.99, 8);  // a hundred thousand times its allowance
  int waited = 0;
  for (; !budget.allows(); ++waited) budget.end_step(0.010, 0, 8);
  EXPECT_LE(waited, 64 * 8);
  EXPECT_GE(waited, 8);
}

TEST(Budget, SetUpIsNotHeldAgainstSampling) {
  Budget budget;
  budget.set_limit(0.01);
  budget.end_step(1.0, 0.5, 8);
  EXPECT_TRUE(budget.allows());
}

TEST(Budget, AHundredPercentMeansNoLimit) {
  Budget budget;
  budget.set_limit(1);
  for (int step = 0; step < 10; ++step) budget.end_step(0.001, 0.01, 1);
  EXPECT_TRUE(budget.allows());
}

}  // namespace
}  // namespace foreshock
