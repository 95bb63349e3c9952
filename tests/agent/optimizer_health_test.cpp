#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "agent/tensor.h"

namespace foreshock {
namespace {

using namespace segment;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

std::vector<double> numbers(double elements, double staleness) {
  std::vector<double> values(kOptimizerNumbers, 0.0);
  values[kGradientSumOfSquares] = 4 * elements;
  values[kGradientElements] = values[kMomentElements] = values[kSurpriseElements] = elements;
  values[kStalenessSum] = staleness;
  values[kEpsilonDominated] = elements / 4;
  values[kSurprised] = elements / 2;
  return values;
}

OptimizerSums sums(const std::vector<double>& values, double weight = kUnknown, double update = kUnknown) {
  return OptimizerSums::from_payload(std::as_bytes(std::span(values)), weight, update);
}

TEST(OptimizerHealth, FiguresOfATensor) {
  const OptimizerSums one = sums(numbers(8, 72), 100, 4);
  EXPECT_DOUBLE_EQ(*one.gradient_rms(), 2);
  EXPECT_DOUBLE_EQ(*one.rms_staleness(), 3);
  EXPECT_DOUBLE_EQ(*one.epsilon_dominated_ratio(), .25);
  EXPECT_DOUBLE_EQ(*one.surprise_ratio(), .5);
  EXPECT_DOUBLE_EQ(*one.update_ratio(), .2);
}

TEST(OptimizerHealth, TensorsArePooledByTheirSums) {
  OptimizerHealth health;
  EXPECT_FALSE(health.summary());
  health.set({"a"}, 2, 1, sums(numbers(8, 72), 100, 4));
  health.set({"b"}, 2, 1, sums(numbers(2, 8), 100, 16));
  health.set({"bias"}, 1, 1, sums(numbers(2, 2), 0.01, 1));  // ten times itself, and no matrix
  health.set({"b"}, 2, 1, sums(numbers(2, 32), 100, 16));    // its last word counts
  const auto summary = health.summary();
  ASSERT_TRUE(summary);
  EXPECT_DOUBLE_EQ(*summary->pooled.rms_staleness(), std::sqrt(106. / 12));
  EXPECT_DOUBLE_EQ(*summary->staleness_max, 4);
  EXPECT_EQ(summary->stalest, "b");
  EXPECT_DOUBLE_EQ(*summary->update_ratio_max, .4);
  EXPECT_EQ(summary->fastest, "b");
  EXPECT_DOUBLE_EQ(*summary->pooled.update_ratio(), std::sqrt(21 / 200.01));
}

TEST(OptimizerHealth, PartsOfATensorAreOneTensor) {
  OptimizerSums joined = sums(numbers(8, 72), 100, 4);
  joined.join(sums(numbers(4, 36), 44, 5));
  EXPECT_DOUBLE_EQ(*joined.rms_staleness(), std::sqrt(108. / 12));
  EXPECT_DOUBLE_EQ(*joined.update_ratio(), 3. / 12);
  EXPECT_DOUBLE_EQ(*joined.surprise_ratio(), .5);
  std::vector<double> without_moment = numbers(4, 36);
  without_moment[kStalenessSum] = without_moment[kEpsilonDominated] = kUnknown;
  joined.join(sums(without_moment, 4, kUnknown));
  EXPECT_FALSE(joined.rms_staleness() || joined.epsilon_dominated_ratio() || joined.update_ratio())
      << "a part of it is not it";
  EXPECT_DOUBLE_EQ(*joined.gradient_rms(), 2);
}

TEST(OptimizerHealth, OthersOfTheSameNameAreOtherTensors) {
  OptimizerHealth health;
  health.set({.name = "a", .tensor_parallel = 0}, 2, 1, sums(numbers(8, 72), 100, 4));
  health.set({.name = "a", .tensor_parallel = 1}, 2, 2, sums(numbers(8, 8), 100, 4));
  EXPECT_DOUBLE_EQ(*health.summary()->pooled.rms_staleness(), std::sqrt(80. / 16));
  health.forget_before(2);
  EXPECT_DOUBLE_EQ(*health.summary()->pooled.rms_staleness(), 1);
}

TEST(OptimizerHealth, WhatIsNotKnownIsNotZero) {
  const OptimizerSums none = sums({}, kUnknown, kUnknown);
  EXPECT_FALSE(none.gradient_rms() || none.rms_staleness() || none.surprise_ratio() || none.update_ratio() ||
               none.epsilon_dominated_ratio());
  std::vector<double> first_step = numbers(8, 72);
  first_step[kSurprised] = first_step[kSurpriseElements] = 0;
  EXPECT_FALSE(sums(first_step).surprise_ratio());
  EXPECT_TRUE(sums(first_step).rms_staleness());
  EXPECT_FALSE(sums({}, 0, 4).update_ratio());
  // A tensor whose update is not known does not enlarge what the updates of others are compared with.
  OptimizerHealth health;
  health.set({"a"}, 2, 1, sums(numbers(8, 72), 100, 4));
  health.set({"b"}, 2, 1, sums({}, 1e9, kUnknown));
  EXPECT_DOUBLE_EQ(*health.summary()->pooled.update_ratio(), .2);
  EXPECT_DOUBLE_EQ(*health.summary()->pooled.rms_staleness(), 3);
}

TEST(OptimizerHealth, HostileNumbersAreNoFigures) {
  for (const double hostile : {-1.0, double{INFINITY}, -double{INFINITY}, kUnknown}) {
    std::vector<double> values = numbers(8, 72);
    values[kStalenessSum] = hostile;
    EXPECT_FALSE(sums(values).rms_staleness());
    values[kMomentElements] = hostile;
    EXPECT_FALSE(sums(values).epsilon_dominated_ratio());
    EXPECT_FALSE(sums({}, hostile, 1).update_ratio() || sums({}, 1, hostile).update_ratio());
  }
  std::vector<double> longer = numbers(8, 72);
  longer.resize(100, 5);
  EXPECT_DOUBLE_EQ(*sums(longer).rms_staleness(), 3);
  const std::vector<double> shorter(3, 1);
  EXPECT_DOUBLE_EQ(*sums(shorter).gradient_rms(), 1);
  EXPECT_FALSE(sums(shorter).rms_staleness());
}

}  // namespace
}  // namespace foreshock
