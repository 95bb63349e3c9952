#include <gtest/gtest.h>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

TEST(WeightCadence, BecomesLongerUntilAQuarterOfTheLimitPaysForIt) {
  WeightCadence cadence;
  cadence.start(0.01, 0);
  EXPECT_FALSE(cadence.allows()) << "before anything is known of a step";
  cadence.end_step(0.1, 0, 0, 0);
  EXPECT_TRUE(cadence.allows());
  cadence.choose_interval(4e6);  // 1 ms at the first guess; 64 steps earn 16 ms
  EXPECT_EQ(cadence.interval(), 64u);
  cadence.choose_interval(4e8);  // 100 ms need 400 steps
  EXPECT_EQ(cadence.interval(), 512u);
}

// 10 ms to measure. Steps of 0.1 s have 1 ms each, of which the share is a quarter of what is left.
TEST(WeightCadence, GetsAShareOfWhatUnavoidableCostsLeave) {
  const auto interval_with = [](double unavoidable_seconds) {
    WeightCadence cadence;
    cadence.start(0.01, 0);
    cadence.end_step(0.1, 0, 0, unavoidable_seconds);
    cadence.choose_interval(4e7);
    return cadence.interval();
  };
  EXPECT_EQ(interval_with(0), 64u) << "0.25 ms a step pay in 40 steps";
  EXPECT_EQ(interval_with(0.0008), 256u) << "0.05 ms a step pay in 200 steps";
  EXPECT_EQ(interval_with(0.05), 512u) << "nothing is left, but an eighth of the share pays in 320 steps";
}

// Steps of `seconds`, each of which reads a 64th of `bytes` at 0.25 ns a byte.
void train(WeightCadence* cadence, int steps, double seconds, double bytes) {
  for (int n = 0; n < steps; ++n) {
    const double read = bytes / static_cast<double>(cadence->interval());
    cadence->end_step(seconds, cadence->allows() ? 2.5e-10 * read : 0, cadence->allows() ? read : 0, 0);
    cadence->choose_interval(bytes);
  }
}

TEST(WeightCadence, ABurstOfShortStepsIsForgottenWithinFiveHundred) {
  WeightCadence cadence, control;
  for (WeightCadence* each : {&cadence, &control}) each->start(0.01, 0);
  train(&cadence, 2000, 0.0005, 8e8);
  EXPECT_GE(cadence.interval(), 32768u);
  train(&cadence, 500, 0.1, 8e8);
  train(&control, 2500, 0.1, 8e8);
  EXPECT_EQ(control.interval(), 1024u);
  EXPECT_EQ(cadence.interval(), control.interval());
}

// A bias of 4 KiB whose look takes 20 ms, since another process had the core.
TEST(WeightCadence, OnePreemptedLookChangesNothing) {
  WeightCadence cadence;
  cadence.start(0.01, 0);
  train(&cadence, 1000, 0.1, 8e8);
  const uint64_t before = cadence.interval();
  cadence.end_step(0.1, 0.02, 4096, 0);
  cadence.choose_interval(8e8);
  EXPECT_EQ(cadence.interval(), before);
}

TEST(WeightCadence, WhatCostsMoreForGoodMakesTheIntervalLonger) {
  WeightCadence cadence;
  cadence.start(0.01, 0);
  train(&cadence, 1000, 0.1, 8e8);
  const uint64_t before = cadence.interval();
  for (int n = 0; n < 300; ++n) {
    cadence.end_step(0.1, 2.5e-9 * 8e5, 8e5, 0);
    cadence.choose_interval(8e8);
  }
  EXPECT_GE(cadence.interval(), 8 * before);
}

// Steps near the edge between two intervals: one that changes all the time is learned by no detector.
TEST(WeightCadence, NoiseAtTheEdgeChangesItRarely) {
  WeightCadence cadence;
  cadence.start(0.01, 0);
  int changes = 0;
  uint64_t before = 0;
  for (int n = 0; n < 20000; ++n) {
    cadence.end_step(n % 7 < 3 ? 0.08 : 0.115, 0, 0, 0);
    cadence.choose_interval(1.024e9);  // 0.256 s: 1024 steps of 0.1 s
    changes += cadence.interval() != before;
    before = cadence.interval();
  }
  EXPECT_LE(changes, 8);
}

TEST(WeightCadence, AFixedOneStaysAndSkipsInstead) {
  WeightCadence cadence;
  cadence.start(0.01, 4);
  for (int step = 0; step < 50; ++step) cadence.end_step(0.1, 0.01, 1e6, 0);
  cadence.choose_interval(1e9);
  EXPECT_EQ(cadence.interval(), 4u);
  EXPECT_FALSE(cadence.allows());
}

TEST(WeightCadence, WaitsWhileTheBudgetOfAllIsOverdrawn) {
  for (const double limit : {0.01, 1.0}) {
    WeightCadence cadence;
    cadence.start(limit, 0);
    cadence.end_step(0.1, 0, 0, 0);
    cadence.set_budget_overdrawn(true);
    EXPECT_EQ(cadence.allows(), limit >= 1) << "without a limit nothing waits";
    cadence.set_budget_overdrawn(false);
    EXPECT_TRUE(cadence.allows());
  }
}

TEST(WeightCadence, ALimitOfZeroAllowsNothing) {
  for (const uint64_t fixed : {0, 4}) {
    WeightCadence cadence;
    cadence.start(0, fixed);
    cadence.keep_interval();
    for (int step = 0; step < 50; ++step) {
      cadence.end_step(0.1, 0, 0, 0);
      EXPECT_FALSE(cadence.allows()) << step;
    }
  }
}

}  // namespace
}  // namespace foreshock
