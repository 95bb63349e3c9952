#include "detect/circumstances.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace foreshock {
namespace {

using testing::IsEmpty;

TEST(Circumstances, ReportsAJumpOfTheRateButNoSchedule) {
  StepTrail trail, warm_up;
  for (int64_t step = 1; step <= 100; ++step) {
    trail.add(step, {.gradient_norm = {}, .learning_rate = step < 100 ? 0.003 : 0.3, .skipped_steps = {}});
    warm_up.add(step, {.gradient_norm = {},
                       .learning_rate = 1e-5 * static_cast<double>(step - 1),  // from 0 on
                       .skipped_steps = {}});
  }
  ASSERT_EQ(trail.before(101).size(), 1u);
  EXPECT_EQ(text_of(trail.before(101)[0], 101), "one step after the learning rate went from 0.003 to 0.3");
  EXPECT_EQ(text_of(trail.before(100)[0], 100),
            "in the step in which the learning rate went from 0.003 to 0.3");
  EXPECT_THAT(trail.before(99), IsEmpty()) << "the change came later";
  EXPECT_THAT(trail.before(100 + StepTrail::kRecent + 1), IsEmpty()) << "too long ago";
  EXPECT_THAT(warm_up.before(100), IsEmpty());
}

TEST(Circumstances, ReportsANormOnlyBeforeTheOnset) {
  StepTrail trail;
  for (int64_t step = 1; step <= 60; ++step)
    trail.add(step, {.gradient_norm = step >= 50 ? 2349 : 1.5, .learning_rate = 0.1, .skipped_steps = {}});
  EXPECT_THAT(trail.before(50), IsEmpty()) << "it may follow from the event";
  ASSERT_EQ(trail.before(52).size(), 1u);
  EXPECT_EQ(text_of(trail.before(52)[0], 52), "2 steps after the gradient norm went from 1.5 to 2349");
}

TEST(Circumstances, ReportsSkippedStepsAndAReturnInOrder) {
  StepTrail trail;
  for (int64_t step = 1; step <= 200; ++step) trail.add(step, {});
  trail.go_back(200, 150);
  for (int64_t step = 150; step <= 170; ++step)
    trail.add(step, {.gradient_norm = {}, .learning_rate = {}, .skipped_steps = step < 160 ? 4u : 6u});
  const std::vector<Circumstance> found = trail.before(165);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_of(found[0], 165), "15 steps after the training went back to step 150");
  EXPECT_EQ(text_of(found[1], 165), "5 steps after the gradient scaler began to skip steps (2 skipped)");
}

// The losses of steps 1 to `steps`, about 2, of which those of the steps in `high` are 40.
StepTrail trail_of_losses(int64_t steps, const std::vector<int64_t>& high) {
  StepTrail trail;
  for (int64_t step = 1; step <= steps; ++step) {
    StepNumbers numbers;
    numbers.gradient_norm = numbers.loss = std::find(high.begin(), high.end(), step) != high.end()
                                               ? 40
                                               : 2 + 0.01 * static_cast<double>(step % 7);
    trail.add(step, numbers);
  }
  return trail;
}

TEST(Circumstances, ReportsOneLossThatStoodOutBeforeTheNormOfItsStep) {
  const std::vector<Circumstance> found = trail_of_losses(120, {100}).before(103);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_of(found[0], 103),
            "3 steps after one loss stood out alone: 40, the losses before it are near 2.03");
  EXPECT_EQ(found[1].kind, CircumstanceKind::kGradientNorm);
}

TEST(Circumstances, HighLossesInARowAreTheEventItself) {
  for (const Circumstance& each : trail_of_losses(120, {100, 101, 102, 103}).before(101))
    EXPECT_NE(each.kind, CircumstanceKind::kLoneLoss);
  EXPECT_THAT(trail_of_losses(120, {100}).before(100), IsEmpty());
  EXPECT_THAT(trail_of_losses(60, {50}).before(55), testing::SizeIs(1)) << "too few losses to compare with";
}

}  // namespace
}  // namespace foreshock
