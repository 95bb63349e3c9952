#include <gtest/gtest.h>

#include "agent/sampling.h"

namespace foreshock {
namespace {

// A step of 10 ms; a sampled one costs `milliseconds` of ours.
SamplingCost cost_of(double milliseconds) { return {0.010, milliseconds * 1e-3, 0, {}}; }

TEST(Cadence, TheSmallestPowerOfTwoThatKeepsTheBudget) {
  // 1 % of 10 ms is 0.1 ms a step: a sampled step of 0.7 ms is paid for in 8 steps, one of 3 ms in 32.
  EXPECT_EQ(choose_interval(cost_of(0.7), 0.01, 8), 8u);
  EXPECT_EQ(choose_interval(cost_of(0.9), 0.01, 8), 16u);
  EXPECT_EQ(choose_interval(cost_of(3.0), 0.01, 8), 32u);
}

TEST(Cadence, AlwaysKeepsTheBudgetOrTheLongestInterval) {
  for (double milliseconds : {0.01, 0.3, 1.0, 5.0, 40.0, 1000.0}) {
    for (uint64_t in_force : {8u, 64u, 1024u}) {
      const uint64_t interval = choose_interval(cost_of(milliseconds), 0.01, in_force);
      EXPECT_TRUE(predicted_slowdown(cost_of(milliseconds), interval) <= 0.01 || interval == kMostInterval);
      EXPECT_EQ(interval & (interval - 1), 0u);
    }
  }
}

TEST(Cadence, ShrinksOnlyWithRoomToSpareSoItDoesNotSwing) {
  // At 16 steps 0.75 ms is 0.47 %, at 8 it would be 0.94 %: allowed, but too near to go back to.
  EXPECT_EQ(choose_interval(cost_of(0.75), 0.01, 16), 16u);
  EXPECT_EQ(choose_interval(cost_of(0.60), 0.01, 16), 8u);
  for (double milliseconds = 0.1; milliseconds < 20; milliseconds *= 1.1) {
    const uint64_t once = choose_interval(cost_of(milliseconds), 0.01, 64);
    EXPECT_EQ(choose_interval(cost_of(milliseconds), 0.01, once), once) << milliseconds;
  }
}

TEST(Cadence, TheAgentsOwnTimeCounts) {
  SamplingCost cost = cost_of(0.7);
  cost.agent.sampled_step_seconds = 0.0005;
  EXPECT_EQ(choose_interval(cost, 0.01, 8), 16u);
}

// Other steps cost twice the budget. It was 65536, at once and for good: only samples lead to another look.
TEST(Cadence, WhatOtherStepsCostKeepsNoneFromBeingSampled) {
  SamplingCost cost = cost_of(1.0);
  cost.other_step_seconds = 0.0002;
  EXPECT_EQ(choose_interval(cost, 0.01, 8), 64u) << "0.8 ms in 64 steps of 10 ms are 0.125 %";
  EXPECT_EQ(choose_interval(cost, 0.01, 64), 64u);
  cost.other_step_seconds = 0.00001;
  EXPECT_EQ(choose_interval(cost, 0.01, 64), 16u) << "the budget is kept again";
}

// What it spends on every step is the same whatever the interval: neither a reason not to sample more often,
// nor spared by sampling less.
TEST(Cadence, TheAgentsTimeOfEveryStepIsNotOfTheSamples) {
  SamplingCost cost = cost_of(0.3);
  cost.agent.step_seconds = 0.004 * 0.010;
  for (uint64_t interval : {8u, 64u, 1024u})
    EXPECT_NEAR(predicted_slowdown(cost, interval) - predicted_slowdown(cost_of(0.3), interval), 0.004,
                1e-15);
  EXPECT_EQ(choose_interval(cost, 0.01, 64), 8u);
}

TEST(Cadence, TheAgentsTimeIsOfTheSamplesThatItJudgedAndOfTheStepsThatItRead) {
  const AgentWork before = {1, 0.5, 1000, 10};
  EXPECT_FALSE(agent_cost(before, {9, 1, 1100, 11}, 4)) << "one sample";
  const auto cost = agent_cost(before, {1.75, 0.75, 1200, 12}, 4);
  ASSERT_TRUE(cost);
  EXPECT_DOUBLE_EQ(cost->sampled_step_seconds, 0.25 / 2 / 4);
  EXPECT_DOUBLE_EQ(cost->step_seconds, 0.5 / 200 / 4);
}

TEST(Cadence, RanksThatAreStartedAnewCountFromZero) {
  const AgentWork before = {1, 0.5, 1000, 10};
  EXPECT_FALSE(agent_cost(before, {2, 1, 40, 1}, 1));
  const auto cost = agent_cost(before, {1.75, 0.25, 50, 2}, 1);
  ASSERT_TRUE(cost);
  EXPECT_DOUBLE_EQ(cost->sampled_step_seconds, 0.25 / 2) << "theirs is all new";
  EXPECT_DOUBLE_EQ(cost->step_seconds, 0.5 / 50);
}

// One of several ranks is started anew, and what was spent on its samples is known no more.
TEST(Cadence, JudgingIsNeverNegativeNorMoreThanAllThatWasSpent) {
  const AgentWork before = {1, 0.5, 1000, 10};
  const auto less = agent_cost(before, {1.75, 0.25, 1050, 12}, 1);
  ASSERT_TRUE(less);
  EXPECT_DOUBLE_EQ(less->sampled_step_seconds, 0);
  EXPECT_DOUBLE_EQ(less->step_seconds, 0.75 / 50);
  const auto more = agent_cost(before, {1.75, 2.5, 1050, 12}, 1);
  ASSERT_TRUE(more);
  EXPECT_DOUBLE_EQ(more->sampled_step_seconds, 0.75 / 2);
  EXPECT_DOUBLE_EQ(more->step_seconds, 0);
}

// Of a trainer that tells every tenth step, what is measured is of ten: an interval of 64 steps has one
// sampled of 6.4 that are told, not of 64.
TEST(Cadence, StepsToldAsOneCountAsTheyAreTold) {
  SamplingCost cost = cost_of(0.3);
  cost.stride = 10;
  EXPECT_DOUBLE_EQ(predicted_slowdown(cost, 64), 0.3 / (6.4 * 10));
  EXPECT_DOUBLE_EQ(predicted_slowdown(cost, 8), 0.3 / 10) << "more often than told there is none";
  EXPECT_EQ(choose_interval(cost, 0.01, 8), 32u);
  EXPECT_EQ(choose_interval(cost_of(0.3), 0.01, 8), 8u);
  cost.other_step_seconds = 1e-5;
  EXPECT_DOUBLE_EQ(predicted_slowdown(cost, 64), (0.3e-3 + 5.4 * 1e-5) / (6.4 * 0.010));
}

TEST(Cadence, KnowsNothingBeforeTheFirstStep) { EXPECT_EQ(choose_interval({}, 0.01, 8), 8u); }

}  // namespace
}  // namespace foreshock
