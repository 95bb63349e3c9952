#include <gtest/gtest.h>

#include <cmath>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

TEST(CostModel, LearnsWhatASliceCostsPerCallAndPerByte) {
  CostModel model;
  for (uint64_t n = 0; n < 200; ++n) {
    const uint64_t bytes = 100'000 * (1 + n % 7);
    model.observe_slice(bytes, false, 20e-6 + 0.1e-9 * static_cast<double>(bytes));
  }
  for (uint64_t bytes : {100'000u, 400'000u, 2'000'000u}) {
    model.expect_slice(bytes);
    // Noiseless: what remains is the weight of the two first observations, 2 x 0.95^200 = 7e-5.
    EXPECT_NEAR(model.slice_seconds(false) / (20e-6 + 0.1e-9 * static_cast<double>(bytes)), 1, 1e-2) << bytes;
  }
}

TEST(CostModel, SlicesOfOneSizeAreEnough) {
  CostModel model;
  for (int n = 0; n < 200; ++n) model.observe_slice(1 << 20, false, 50e-6);
  EXPECT_NEAR(model.slice_seconds(false), 50e-6, 1e-6);
}

TEST(CostModel, AColdSlotCostsMore) {
  CostModel model;
  for (int n = 0; n < 60; ++n) model.observe_slice(1 << 20, false, 100e-6);
  for (int n = 0; n < 60; ++n) model.observe_slice(1 << 20, true, 400e-6);
  EXPECT_NEAR(model.slice_seconds(false), 100e-6, 10e-6);
  EXPECT_NEAR(model.slice_seconds(true), 400e-6, 10e-6);
}

TEST(CostModel, ADeviceCostsOnTopOfTheHost) {
  CostModel model;
  for (int n = 0; n < 60; ++n) model.observe_slice(1 << 20, false, 100e-6);
  model.observe_device(2, 60e-6);
  EXPECT_NEAR(model.slice_seconds(false), 130e-6, 1e-6) << "known from the first one on";
  for (int n = 0; n < 60; ++n) model.observe_device(1, 50e-6);
  EXPECT_NEAR(model.slice_seconds(false), 150e-6, 1e-6);
  model.observe_device(1, 10);
  EXPECT_LT(model.slice_seconds(false), 181e-6);  // a fifth of it, counted as four times the expected
}

TEST(CostModel, OneStallMovesNothingMuch) {
  CostModel model;
  for (int n = 0; n < 100; ++n) model.observe_slice(1 << 20, false, 100e-6);
  for (int n = 0; n < 5; ++n) model.observe_step(true, 200e-6);
  model.observe_slice(1 << 20, false, 10);
  model.observe_step(true, 10);
  EXPECT_LT(model.slice_seconds(false), 125e-6);  // one in twenty, counted as four times the expected
  EXPECT_NEAR(model.sampled_step_extra_seconds(), 200e-6, 1e-9);
}

TEST(CostModel, WhatASampledStepCostsByItself) {
  CostModel model;
  EXPECT_EQ(model.sampled_step_extra_seconds(), 0);
  for (int n = 0; n < 50; ++n) model.observe_step(false, 50e-6);
  model.observe_step(true, 350e-6);
  EXPECT_NEAR(model.sampled_step_extra_seconds(), 300e-6, 1e-9);
  model.expect_slice(1 << 20);
  const double slice = model.slice_seconds(false);
  EXPECT_EQ(model.slices_within(300e-6 + 3.5 * slice, false, 0), 3u);
  EXPECT_EQ(model.slices_within(200e-6, false, 0), 0u);
  EXPECT_EQ(model.slices_within(-1, false, 0), 0u);
}

// The set-up takes 0.1 s, later a stall 20 ms. Both are forgotten at once.
TEST(CostModel, WhatABareStepCosts) {
  CostModel model;
  EXPECT_EQ(model.bare_seconds(), 0) << "unknown";
  model.observe_step(true, 400e-6);
  EXPECT_NEAR(model.sampled_step_extra_seconds(), 400e-6, 1e-9);
  model.observe_step(false, 0.1);
  EXPECT_EQ(model.sampled_step_extra_seconds(), 0);
  for (int n = 0; n < 20; ++n) model.observe_step(false, 50e-6);
  EXPECT_NEAR(model.bare_seconds(), 50e-6, 1e-9);
  EXPECT_NEAR(model.sampled_step_extra_seconds(), 350e-6, 1e-9) << "of the step that was sampled before";
  model.observe_step(false, 0.02);
  EXPECT_LE(model.bare_seconds(), 80e-6 + 1e-9) << "a fifth of four times the usual cost";
  for (int n = 0; n < 20; ++n) model.observe_step(false, 50e-6);
  EXPECT_NEAR(model.bare_seconds(), 50e-6, 1e-6);
  for (int n = 0; n < 20; ++n) model.observe_step(false, 500e-6);
  EXPECT_NEAR(model.bare_seconds(), 500e-6, 50e-6) << "what stays is learned";
}

TEST(AgentForecast, ChargesASliceWhenItIsCopied) {
  AgentForecast forecast;
  EXPECT_EQ(forecast.end_step(2, false, {}), 0) << "nothing is known yet";
  EXPECT_NEAR(forecast.end_step(0, false, {0.004, 0.002, 2}), 0.004, 1e-12);
  EXPECT_NEAR(forecast.slice_seconds(), 0.001, 1e-12) << "other work of the agent is not that of slices";
  EXPECT_NEAR(forecast.end_step(3, false, {}), 0.003, 1e-12);
  EXPECT_NEAR(forecast.end_step(0, false, {0.0015, 0.0015, 1}), 0.0005, 1e-12);
  EXPECT_NEAR(forecast.end_step(0, false, {0.001, 0.001, 2}), -0.001, 1e-12);
}

TEST(AgentForecast, SlicesOfTheFirstLookCostNothingAndTeach) {
  AgentForecast forecast;
  EXPECT_EQ(forecast.end_step(4, true, {}), 0);
  EXPECT_EQ(forecast.end_step(4, true, {0, 0.008, 4}), 0);
  EXPECT_EQ(forecast.end_step(0, true, {0, 0.008, 4}), 0);
  EXPECT_NEAR(forecast.end_step(1, false, {}), 0.002, 1e-12);
}

// 0.03 ms a step for everything but slices and tensors, reported in every fourth step.
TEST(AgentForecast, KnowsWhatTheAgentSpendsOnAStepWithoutSlices) {
  AgentForecast forecast;
  for (int step = 1; step <= 400; ++step) {
    const bool reports = step % 4 == 0;
    forecast.end_step(1, false,
                      reports ? AgentForecast::Report{0.00712, 0.004, 4, 0.003} : AgentForecast::Report{});
  }
  EXPECT_NEAR(forecast.rest_seconds(), 30e-6, 1e-6);
}

// However the reports are delayed, what is charged in the end is what the agent has spent.
TEST(AgentForecast, ChargesInAllWhatTheAgentReports) {
  AgentForecast forecast;
  double charged = 0, reported = 0;
  uint64_t waiting = 0;
  for (uint64_t step = 1; step <= 2000; ++step) {
    const uint64_t random = mix(11, step, 0, 0);
    const uint64_t slices = step <= 1900 ? random % 5 : 0, judged = std::min(waiting, random / 8 % 6);
    const double seconds = 1e-3 * static_cast<double>(judged) * (0.5 + static_cast<double>(random / 64 % 8));
    charged += forecast.end_step(slices, false, {seconds + 1e-5, seconds, judged});
    reported += seconds + 1e-5;
    waiting += slices - judged;
  }
  ASSERT_EQ(waiting, 0u);
  EXPECT_NEAR(charged, reported, 1e-9 * reported);
}

// A training whose calls and costs are known, under budget and model as Monitor puts them together.
struct Synthetic {
  double step = 0.010, call = 30e-6, per_byte = 0.2e-9, cold_per_byte = 0.4e-9;
  double sampled_step = 100e-6, every_step = 30e-6;
  uint64_t bytes = 1 << 20, calls = 48, slots = 60, interval = 8;
  double noise = 0.5;  // relative, uniform
  double slice(bool cold) const {
    return call + (per_byte + (cold ? cold_per_byte : 0)) * static_cast<double>(bytes);
  }
};

struct Outcome {
  double share = 0;  // ours over theirs, at the end
  double worst = 0;  // the most we were over the limit at any time, in seconds
  uint64_t slices = 0;
  uint64_t first_sample = 0;  // step
};

Outcome simulate(const Synthetic& s, double limit, uint64_t steps) {
  Budget budget;
  CostModel model;
  budget.set_limit(limit);
  model.expect_slice(2 * s.bytes);  // slots are made for the worst mask
  Outcome outcome;
  uint64_t random = 1;
  double ours = 0, theirs = 0;
  const auto uniform = [&] { return static_cast<double>(mix(7, ++random, 0, 0) >> 11) * 0x1p-53; };
  for (uint64_t step = 1; step <= steps; ++step) {
    double own = s.every_step, on_slices = 0;
    const bool cold = outcome.slices < s.slots;
    const bool due = step % s.interval == 0 && budget.allows();
    const uint32_t paid = due ? model.slices_within(budget.balance_seconds(), cold, 0) : 0;
    for (uint64_t call = 0; paid > 0 && call < s.calls; ++call) {
      if (!is_sampled_call(3, static_cast<int64_t>(step), call, std::min<uint32_t>(paid, s.slots), s.calls))
        continue;
      const bool is_cold = outcome.slices < s.slots;
      const double cost = s.slice(is_cold) * (1 + s.noise * (uniform() - 0.5));
      model.observe_slice(s.bytes, is_cold, cost);
      on_slices += cost;
      ++outcome.slices;
      if (outcome.first_sample == 0) outcome.first_sample = step;
    }
    if (paid > 0) own += s.sampled_step;
    model.observe_step(paid > 0, own);
    own += on_slices;
    const double sample = model.sampled_step_extra_seconds() + model.slice_seconds(outcome.slices < s.slots);
    budget.end_step(s.step + own, own, s.interval, 1.5 * sample);
    ours += own;
    theirs += s.step;
    outcome.worst = std::max(outcome.worst, ours - limit * theirs);
  }
  outcome.share = ours / theirs;
  return outcome;
}

TEST(CostModel, TheLimitHoldsFromTheFirstSampleOnAndIsUsed) {
  for (double limit : {0.005, 0.01, 0.02}) {
    for (uint64_t interval : {1, 8, 64}) {
      Synthetic s;
      s.interval = interval;
      const Outcome outcome = simulate(s, limit, 8000);
      EXPECT_LE(outcome.share, 1.01 * limit) << limit << " " << interval;
      EXPECT_GE(outcome.share, 0.9 * limit)
          << limit << " " << interval;  // there is more to sample than is paid for
      // At no time more ahead than by the two first steps, which are not held against sampling, by the first
      // sampled one, of which nothing is known but its slices, and by how much dearer than expected the
      // slices of one step were: a quarter, of at most what may be saved up.
      const double least = 1.5 * (s.sampled_step + 1.25 * s.slice(true));
      const double saved = limit * s.step * static_cast<double>(interval) + least;
      EXPECT_LE(outcome.worst, 2 * s.every_step + s.sampled_step + 0.25 * saved) << limit << " " << interval;
    }
  }
}

TEST(CostModel, CheapSamplesAreAllTaken) {
  Synthetic s;
  s.bytes = 20'000;
  s.calls = 4;
  s.interval = 8;
  const Outcome outcome = simulate(s, 0.01, 8000);
  EXPECT_GE(outcome.slices, 4u * 990);
  EXPECT_LE(outcome.share, 0.01);
}

TEST(CostModel, ASampleThatCostsMoreThanAnIntervalEarnsIsSavedUpFor) {
  Synthetic s;
  s.bytes = 64 << 20;  // 13 ms, and 40 while the slots are cold, where eight steps earn 0.8 ms
  const Outcome outcome = simulate(s, 0.01, 40000);
  EXPECT_GE(outcome.slices, 80u);
  EXPECT_LE(outcome.share, 0.0105);
  EXPECT_GE(outcome.share, 0.008);
}

TEST(CostModel, WhereEveryStepCostsMoreThanTheLimitNothingIsSampled) {
  Synthetic s;
  s.every_step = 0.00012;
  EXPECT_EQ(simulate(s, 0.01, 8000).slices, 0u);
}

}  // namespace
}  // namespace foreshock
