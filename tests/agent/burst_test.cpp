#include <gtest/gtest.h>

#include "agent/sampling.h"
#include "detect/detector.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

// 10 ms steps, sampling costs `sampled` in the trainer.
SamplingCost cost_of(double sampled) { return {0.010, sampled, 0, {}}; }

TEST(Burst, IsAsDenseAsThreeTimesTheBudgetPaysFor) {
  // 0.1 ms are 1 % of a step: every step.
  EXPECT_EQ(plan_burst(cost_of(0.0001), 0.01, 64, 100, std::nullopt)->interval, 1u);
  // 1 ms: 10 % of one step in 4 is 2.5 %.
  const auto burst = plan_burst(cost_of(0.001), 0.01, 64, 100, std::nullopt);
  ASSERT_TRUE(burst);
  EXPECT_EQ(burst->interval, 4u);
  EXPECT_LE(predicted_slowdown(cost_of(0.001), burst->interval), segment::kBurstSlowdown * 0.01);
  EXPECT_GT(predicted_slowdown(cost_of(0.001), burst->interval / 2), segment::kBurstSlowdown * 0.01);
  EXPECT_EQ(burst->from_step, 100);
  EXPECT_EQ((burst->until_step - burst->from_step) / static_cast<int64_t>(burst->interval), kBurstSamples);
}

TEST(Burst, IsNoneThatIsNotTwiceAsDense) {
  EXPECT_FALSE(plan_burst(cost_of(0.0001), 0.01, 1, 100, std::nullopt));
  EXPECT_TRUE(plan_burst(cost_of(0.001), 0.01, 8, 100, std::nullopt));
  EXPECT_FALSE(plan_burst(cost_of(0.001), 0.01, 4, 100, std::nullopt));
  EXPECT_FALSE(plan_burst(cost_of(1), 0.01, 8, 100, std::nullopt));
}

// Every step that is told, of a trainer that tells every tenth: so many samples are in it all the same.
TEST(Burst, IsOfStepsAsTheyAreTold) {
  SamplingCost cost = cost_of(0.0001);
  cost.stride = 10;
  const auto burst = plan_burst(cost, 0.01, 64, 100, std::nullopt);
  ASSERT_TRUE(burst);
  EXPECT_EQ(burst->interval, 16u);
  EXPECT_EQ(burst->until_step - burst->from_step, kBurstSamples * 16);
  EXPECT_FALSE(plan_burst(cost, 0.01, 16, 100, std::nullopt)) << "not twice as dense";
}

TEST(Burst, IsFollowedByAPause) {
  const auto first = plan_burst(cost_of(0.0001), 0.01, 64, 100, std::nullopt);
  ASSERT_TRUE(first);
  const int64_t over = first->until_step, steps = over - first->from_step;
  EXPECT_FALSE(plan_burst(cost_of(0.0001), 0.01, 64, first->from_step + 1, first));
  EXPECT_FALSE(plan_burst(cost_of(0.0001), 0.01, 64, over + kBurstPause * steps - 1, first));
  EXPECT_TRUE(plan_burst(cost_of(0.0001), 0.01, 64, over + kBurstPause * steps, first));
  EXPECT_TRUE(plan_burst(cost_of(0.0001), 0.01, 64, 40, first)) << "the training went back";
}

// A trainer that reports every 100th step gets a burst 400 steps ahead.
TEST(Burst, IsPendingFromTheStepAtWhichItWasPlanned) {
  const Burst burst = {1, 1400, 1432, 1000};
  EXPECT_TRUE(is_pending_or_running(burst, 1000));
  EXPECT_TRUE(is_pending_or_running(burst, 1431));
  EXPECT_FALSE(is_pending_or_running(burst, 1432)) << "it is over";
  EXPECT_FALSE(is_pending_or_running(burst, 900)) << "an older checkpoint was loaded";
}

TEST(Burst, NeverIsLongerThanATrainerAccepts) {
  const auto burst = plan_burst(cost_of(0.1), 0.01, 1 << 16, 0, std::nullopt);
  ASSERT_TRUE(burst);
  EXPECT_EQ(burst->until_step, segment::kMostBurstSteps);
}

TEST(Burst, OfStepsThatNobodyCountsIsNone) {
  EXPECT_FALSE(plan_burst(cost_of(0.0001), 0.01, 64, -5, std::nullopt));
  EXPECT_FALSE(plan_burst(cost_of(0.0001), 0.01, 64, INT64_MAX - 1, std::nullopt));
  EXPECT_FALSE(plan_burst({}, 0.01, 64, 100, std::nullopt));
}

// What a burst samples is not taken for usual: a detector that has learned 256 values, then sees a burst of a
// shift that is not yet a warning, still warns of it afterwards.
TEST(Burst, DoesNotTeachADetectorWhatItIsAbout) {
  Detector detector(DetectorId::kEntropyDrop);
  const auto entropy = [](int n) { return 2 * (1 + 0.05 * ((n * 37 % 101) / 50.0 - 1)); };
  for (int n = 0; n < 256; ++n) detector.observe(n * 8, entropy(n), 0);
  for (int n = 0; n < kBurstSamples; ++n)
    EXPECT_NE(detector.observe(2048 + n, 0.85 * entropy(n), 0).level, Level::kWarn);
  Reading reading;
  for (int n = 0; n < 32; ++n) reading = detector.observe(2080 + n * 8, 0.6 * entropy(n), 0);
  EXPECT_EQ(reading.level, Level::kWarn);
}

}  // namespace
}  // namespace foreshock
