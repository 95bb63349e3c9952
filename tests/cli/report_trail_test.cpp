#include <gtest/gtest.h>

#include "cli/report_model.h"

namespace foreshock::cli {
namespace {

void add(Trail& trail, std::initializer_list<int64_t> steps) {
  for (const int64_t step : steps) {
    StepLine line;
    line.step = step;
    trail.add(line);
  }
}

TEST(ReportTrail, StepsThatGoBackBeginAnotherAttempt) {
  Trail trail;
  add(trail, {1, 2, 3, 2, 3});
  ASSERT_EQ(trail.attempts().size(), 2u);
  EXPECT_EQ(trail.attempts()[0].last, 3);
  EXPECT_EQ(trail.attempts()[1].first, 2);
  EXPECT_EQ(trail.recent().size(), 2u);
  EXPECT_EQ(trail.steps(), 5u);
  EXPECT_EQ(trail.missed(), 0u);
}

TEST(ReportTrail, WhatWasPassedOverIsCounted) {
  Trail trail;
  add(trail, {1, 2, 10});
  trail.add(StepLine());
  EXPECT_EQ(trail.missed(), 7u);
  EXPECT_EQ(trail.steps(), 3u);
}

TEST(ReportTrail, TheLastStepsAreKept) {
  Trail trail;
  for (int64_t step = 0; step < 2000; ++step) add(trail, {step});
  EXPECT_EQ(trail.recent().size(), Trail::kMostRecent);
  EXPECT_EQ(trail.recent().back().step, 1999);
}

TEST(ReportTrail, DifferencesDoNotOverflow) {
  EXPECT_EQ(steps_between(3, 10), 7);
  EXPECT_EQ(steps_between(INT64_MIN, INT64_MAX), INT64_MAX);
  EXPECT_EQ(steps_between(INT64_MAX, INT64_MIN), INT64_MIN);
}

}  // namespace
}  // namespace foreshock::cli
