#include <gtest/gtest.h>

#include <initializer_list>

#include "segment/layout.h"

namespace foreshock {
namespace {

int64_t after(std::initializer_list<int64_t> told) {
  StepStride stride;
  for (const int64_t step : told) stride.add(step);
  return stride.steps();
}

TEST(StepStride, IsOneUntilAHabitIsSeen) {
  EXPECT_EQ(after({}), 1);
  EXPECT_EQ(after({10}), 1);
  EXPECT_EQ(after({10, 20}), 1);
  EXPECT_EQ(after({10, 20, 30}), 10);
}

TEST(StepStride, AJumpIsNoHabit) {
  EXPECT_EQ(after({1, 2, 1000}), 1);
  EXPECT_EQ(after({1, 2, 1000, 1001}), 1);
  EXPECT_EQ(after({10, 20, 30, 35, 45}), 5);
  EXPECT_EQ(after({10, 20, 30, 35, 45, 55}), 10);
}

TEST(StepStride, BackwardsIsNone) {
  EXPECT_EQ(after({100, 110, 120, 50}), 1);
  EXPECT_EQ(after({100, 110, 120, 50, 60, 70}), 10);
  EXPECT_EQ(after({5, 5, 5}), 1);
}

TEST(StepStride, AnyNumberMayBeTold) {
  EXPECT_EQ(after({INT64_MAX, INT64_MIN, INT64_MAX}), 1);
  EXPECT_EQ(after({10, 20, 30, -1, 40}), 1);
}

}  // namespace
}  // namespace foreshock
