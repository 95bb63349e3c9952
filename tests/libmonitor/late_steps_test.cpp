#include <gtest/gtest.h>

#include <algorithm>

#include "foreshock/hook.h"
#include "libmonitor/step_numbers.h"

namespace foreshock {
namespace {

constexpr uint32_t kRoot = FORESHOCK_LOSS_BACKWARD_ROOT;
PendingEvent loss(uint64_t number, uint64_t scale = 0) {
  return {kRoot, {0, number}, {1, scale}, scale != 0};
}
PendingEvent skip(uint64_t number) { return {PendingEvent::kSkip, {0, number}, {1, 0}, false}; }

class LateStepsTest : public testing::Test {
 protected:
  LateStepsTest() {
    steps_.forget();
    steps_.open_with_room();
  }
  // What has come is the number itself, in halves.
  bool look(PendingStep& step, uint64_t until) {
    return step.store_arrived([until](uint64_t number, double* value) {
      *value = static_cast<double>(number) / 2;
      return number <= until;
    });
  }
  PendingSteps steps_;
};

TEST_F(LateStepsTest, EachKindIsKnownByItself) {
  PendingStep& step = steps_.open();
  step.add(loss(1));
  step.add(skip(2));
  step.add(PendingGradient{0, false, {0, 3}});
  EXPECT_FALSE(look(step, 0));
  EXPECT_FALSE(step.knows_losses() || step.knows_skips() || step.knows_gradients());
  EXPECT_FALSE(look(step, 1));
  EXPECT_TRUE(step.knows_losses());
  EXPECT_EQ(step.event[0].value.value, 0.5);
  EXPECT_FALSE(look(step, 2));
  EXPECT_TRUE(step.knows_skips());
  EXPECT_EQ(step.count_missing([](uint64_t) { return true; }), 1u);
  EXPECT_TRUE(look(step, 3));
  EXPECT_TRUE(step.knows_gradients());
  EXPECT_EQ(step.gradient[0].norm.value, 1.5);
}

TEST_F(LateStepsTest, WhatIsToldTwiceIsMissingOnce) {
  PendingStep& step = steps_.open();
  for (const uint64_t number : {1, 1, 2}) step.add(loss(number, 3));
  for (const uint64_t number : {4, 5}) step.add(PendingGradient{0, false, {0, number}});
  EXPECT_EQ(step.count_missing([](uint64_t) { return true; }), 5u);
  EXPECT_FALSE(look(step, 2));
  EXPECT_EQ(step.count_missing([](uint64_t) { return true; }), 3u);
}

TEST_F(LateStepsTest, AScaleOfOneTellsNothing) {
  for (const uint64_t scale : {uint64_t{2}, uint64_t{4}}) {
    steps_.open().clear();
    steps_.open().add(loss(1, scale));  // 1 or 2 by what look() finds
    EXPECT_TRUE(look(steps_.open(), scale));
    EXPECT_EQ(steps_.open().knows_losses(), scale == 4);
  }
}

TEST_F(LateStepsTest, OfASumBothNumbersAreNeeded) {
  for (const uint64_t weight : {uint64_t{2}, uint64_t{4}}) {
    PendingStep& step = steps_.open();
    step.clear();
    step.add(PendingEvent{PendingEvent::kSum, {0, 3}, {0, weight}, false});
    EXPECT_EQ(step.count_missing([](uint64_t) { return true; }), 2u);
    EXPECT_FALSE(look(step, std::min(weight, uint64_t{3})));
    EXPECT_FALSE(step.knows_losses());
    EXPECT_TRUE(look(step, 4));
    EXPECT_TRUE(step.knows_losses()) << "a weight may be 1";
    EXPECT_EQ(step.event[0].value.value, 1.5);
    EXPECT_EQ(step.event[0].scale.value, static_cast<double>(weight) / 2);
  }
}

TEST_F(LateStepsTest, WhatHasNoRoomIsNotKnown) {
  PendingStep& step = steps_.open();
  for (uint32_t n = 0; n < PendingStep::kMostEvents; ++n) step.add(loss(1));
  for (uint32_t n = 0; n < PendingStep::kMostGradients; ++n) step.add(PendingGradient{0, false, {0, 1}});
  EXPECT_TRUE(look(step, 1));
  EXPECT_TRUE(step.knows_losses() && step.knows_gradients());
  step.add(PendingGradient{0, false, {1, 0}});
  EXPECT_TRUE(step.knows_losses());
  EXPECT_FALSE(step.knows_gradients());
  step.begin_gradients();
  EXPECT_TRUE(step.knows_gradients());
  step.add(loss(1));
  EXPECT_TRUE(look(step, 1));
  EXPECT_FALSE(step.knows_losses() || step.knows_skips());
}

TEST_F(LateStepsTest, WithoutMemoryNothingIsKnown) {
  PendingSteps none;
  none.forget();
  EXPECT_TRUE(none.open().knows_losses() && none.open().knows_gradients() && none.open().knows_skips());
  none.open().add(loss(1));
  none.open().add(PendingGradient{0, false, {0, 1}});
  EXPECT_TRUE(look(none.open(), 0));
  EXPECT_FALSE(none.open().knows_losses() || none.open().knows_gradients() || none.open().knows_skips());
}

TEST_F(LateStepsTest, StepsComeOutInTheirOrderManyTimesRound) {
  uint64_t in = 0, out = 0;
  for (int round = 0; round < 20; ++round) {
    while (!steps_.is_full()) {
      EXPECT_EQ(steps_.open().event_count, 0u) << "of the one before";
      steps_.open().add(loss(++in));
      segment::StepRecord record = {};
      record.step = static_cast<int64_t>(100 + in);
      steps_.end_step(in, record);
    }
    for (int n = 0; n <= round % 3 && steps_.has_waiting(); ++n) {
      EXPECT_EQ(steps_.oldest().record, ++out);
      EXPECT_EQ(steps_.oldest().so_far.step, static_cast<int64_t>(100 + out));
      EXPECT_EQ(steps_.oldest().event[0].value.number, out);
      steps_.drop_oldest();
    }
  }
}

TEST(FetchedByTrainingTest, HasTheLastOfThem) {
  TrainerReadbacks fetched;
  double value = 0;
  EXPECT_FALSE(fetched.find(7, &value));
  for (uint64_t n = 1; n <= 70; ++n) fetched.add(n, static_cast<double>(n) / 4);
  EXPECT_TRUE(fetched.find(70, &value));
  EXPECT_EQ(value, 17.5);
  EXPECT_TRUE(fetched.find(7, &value));
  EXPECT_FALSE(fetched.find(6, &value));
}

}  // namespace
}  // namespace foreshock
