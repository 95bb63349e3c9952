#include "libmonitor/budget.h"

#include <gtest/gtest.h>

namespace foreshock {
namespace {

// A training of 10 ms steps, sampled every `interval`, where a sampled step costs `cost` seconds. Returns our share.
double share_of(double cost, double limit, uint64_t interval, int steps) {
  Budget budget;
  budget.set_limit(limit);
  double ours = 0, total = 0;
  for (int step = 1; step <= steps; ++step) {
    const bool due = step % static_cast<int>(interval) == 0;
    const bool sampled = due && budget.allows(interval);
    const double own = sampled ? cost : 0;
    budget.end_step(0.010 + own, own, sampled);
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
  for (double cost : {0.001, 0.002, 0.005}) {
    const double share = share_of(cost, 0.01, 8, 80000);
    EXPECT_LE(share, 0.0101) << cost;
    EXPECT_GE(share, 0.004) << cost;  // held, not stopped
  }
}

TEST(Budget, OneStallDoesNotSilenceForLong) {
  Budget budget;
  budget.set_limit(0.01);
  for (int step = 0; step < 20; ++step) budget.end_step(0.010, 0, false);
  budget.allows(8);
  budget.end_step(10, 9.99, true);  // a hundred thousand times its allowance
  int waited = 0;
  while (!budget.allows(8)) ++waited;
  EXPECT_LE(waited, 10);
}

TEST(Budget, AHundredPercentMeansNoLimit) {
  Budget budget;
  budget.set_limit(1);
  budget.end_step(0.001, 0.01, true);
  EXPECT_TRUE(budget.allows(1));
}

}  // namespace
}  // namespace foreshock
