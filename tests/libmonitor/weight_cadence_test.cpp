#include <gtest/gtest.h>

#include "libmonitor/weights.h"

namespace foreshock {
namespace {

TEST(WeightCadence, BecomesLongerUntilAQuarterOfTheLimitPaysForIt) {
  WeightCadence cadence;
  cadence.start(0.01, 0);
  EXPECT_FALSE(cadence.allows()) << "before anything is known of a step";
  cadence.end_step(0.1, 0, 0);
  EXPECT_TRUE(cadence.allows());
  cadence.begin_interval(4e6);  // 1 ms at the first guess; 64 steps earn 16 ms
  EXPECT_EQ(cadence.interval(), 64u);
  cadence.begin_interval(4e8);  // 100 ms need 400 steps
  EXPECT_EQ(cadence.interval(), 512u);
}

TEST(WeightCadence, AFixedOneStaysAndSkipsInstead) {
  WeightCadence cadence;
  cadence.start(0.01, 4);
  for (int step = 0; step < 50; ++step) cadence.end_step(0.1, 0.01, 1e6);
  cadence.begin_interval(1e9);
  EXPECT_EQ(cadence.interval(), 4u);
  EXPECT_FALSE(cadence.allows());
}

TEST(WeightCadence, WaitsWhileTheBudgetOfAllIsOverdrawn) {
  for (const double limit : {0.01, 1.0}) {
    WeightCadence cadence;
    cadence.start(limit, 0);
    cadence.end_step(0.1, 0, 0);
    cadence.wait(true);
    EXPECT_EQ(cadence.allows(), limit >= 1) << "without a limit nothing waits";
    cadence.wait(false);
    EXPECT_TRUE(cadence.allows());
  }
}

TEST(WeightCadence, ALimitOfZeroAllowsNothing) {
  for (const uint64_t fixed : {0, 4}) {
    WeightCadence cadence;
    cadence.start(0, fixed);
    cadence.hold();
    for (int step = 0; step < 50; ++step) {
      cadence.end_step(0.1, 0, 0);
      EXPECT_FALSE(cadence.allows()) << step;
    }
  }
}

}  // namespace
}  // namespace foreshock
