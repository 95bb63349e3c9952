#include "detect/level.h"

#include <gtest/gtest.h>

namespace foreshock {
namespace {

TEST(Level, RisesAtOnceAndFallsWhenTheScoreStaysLow) {
  LevelRule rule;
  EXPECT_EQ(rule.observe(0.49, 0.5), Level::kQuiet);
  EXPECT_EQ(rule.observe(0.5, 0.5), Level::kWatch);
  EXPECT_EQ(rule.observe(1, 0.5), Level::kWarn);
  for (int n = 1; n < LevelRule::kCalm; ++n) EXPECT_EQ(rule.observe(0.6, 0.5), Level::kWarn);
  EXPECT_EQ(rule.observe(0.6, 0.5), Level::kWatch);
  for (int n = 1; n < LevelRule::kCalm; ++n) EXPECT_EQ(rule.observe(0, 0.5), Level::kWatch);
  EXPECT_EQ(rule.observe(0, 0.5), Level::kQuiet);
}

TEST(Level, AScoreThatSwingsAroundTheThresholdIsOneEvent) {
  LevelRule rule;
  rule.observe(1.1, 0.5);
  for (int n = 0; n < 1000; ++n) EXPECT_EQ(rule.observe(n % 8 == 7 ? 1.1 : 0.1, 0.5), Level::kWarn);
}

}  // namespace
}  // namespace foreshock
