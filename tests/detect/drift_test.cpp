#include "detect/drift.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace foreshock {
namespace {

constexpr const DetectorInfo& kBias = info_of(DetectorId::kBias);
constexpr const DetectorInfo& kDrift = info_of(DetectorId::kOutputErrorDrift);

// The first value that warns; -1: none of `count`.
int first_warning(const DetectorInfo& info, int count,
                  const std::function<std::pair<double, double>(int)>& value) {
  Drift drift;
  for (int n = 0; n < count; ++n) {
    const auto [kernel, control] = value(n);
    if (drift.observe(info, kernel, control) >= 1) return n;
  }
  return -1;
}

// The spread is learned from 32 values, with an error of 1/8 at first. Were it too small by a third for good,
// the slack would be 1/3 and the threshold 12 of true spreads: 1 alarm in 7e4 on two sides
// (cusum_run_length). It is learned on, and heals within a hundred values; of 200 streams of 1000 values none
// may warn.
TEST(Drift, AHealthySeriesOfUnknownSpreadIsQuiet) {
  for (int stream = 0; stream < 200; ++stream) {
    std::mt19937_64 engine(static_cast<uint64_t>(stream));
    std::normal_distribution<double> draw(0, std::pow(10, stream % 9 - 4));
    EXPECT_EQ(first_warning(kDrift, 1000, [&](int) { return std::pair(draw(engine), 0.0); }), -1) << stream;
  }
}

// A spread that falls by a factor of ten over the run, as that of gradients does, and values with heavy
// tails.
TEST(Drift, ASpreadThatChangesAndHeavyTailsAreNoDrift) {
  for (uint64_t stream = 0; stream < 50; ++stream) {
    std::mt19937_64 engine(stream);
    std::student_t_distribution<double> draw(3);
    const auto value = [&](int n) { return std::pair(draw(engine) * std::pow(10, -n / 2000.0), 0.0); };
    EXPECT_EQ(first_warning(kDrift, 2000, value), -1) << stream;
  }
}

// As when a bias that has nothing to do with the gradient makes the products larger, of either sign.
TEST(Drift, NoiseThatSwellsTenfoldIsNoDrift) {
  for (uint64_t stream = 0; stream < 200; ++stream) {
    std::mt19937_64 engine(stream);
    std::normal_distribution<double> draw(0, 1);
    const auto value = [&](int n) { return std::pair((n >= 200 ? 10 : 1) * draw(engine), 0.0); };
    EXPECT_EQ(first_warning(kDrift, 600, value), -1) << stream;
  }
}

// A quarter ulp over a noise of 0.03 is 8 spreads, clipped to 4: (18 / 3.5 = 5.1) six values.
TEST(Drift, AQuarterUlpIsFoundInSixSlicesAfterTheLearning) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 0.03);
  const auto from_the_start = [&](int) { return std::pair(0.25 + draw(engine), 0.0); };
  EXPECT_EQ(first_warning(kBias, 200, from_the_start), 32 + 5);
  const auto later = [&](int n) { return std::pair((n >= 100 ? -0.25 : 0) + draw(engine), 0.0); };
  const int found = first_warning(kBias, 200, later);
  // A jump of d adds d^2 / 8 to the recent variance until the mean has followed: z is about 3 then.
  EXPECT_GE(found, 105);
  EXPECT_LE(found, 112);
}

// 0.02 ulp lasts long enough to be certain, and is below what the alarm is about.
TEST(Drift, ACertainButSmallBiasDoesNotWarn) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0.02, 0.01);
  EXPECT_EQ(first_warning(kBias, 2000, [&](int) { return std::pair(draw(engine), 0.0); }), -1);
}

TEST(Drift, WhatTheRoundedReferenceShowsTooIsNoAlarm) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 0.03);
  const auto both = [&](int) { return std::pair(0.25 + draw(engine), 0.25 + draw(engine)); };
  EXPECT_EQ(first_warning(kBias, 1000, both), -1);
}

TEST(Drift, AConstantSeriesHasNoSpreadAndSaysNothing) {
  EXPECT_EQ(first_warning(kDrift, 1000, [](int) { return std::pair(1.0, 0.0); }), -1);
}

}  // namespace
}  // namespace foreshock
