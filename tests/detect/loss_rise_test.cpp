#include "detect/loss_rise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace foreshock {
namespace {

std::vector<int64_t> onsets(int count, const std::function<double(int)>& loss) {
  LossRiseRule rule;
  std::vector<int64_t> found;
  for (int n = 0; n < count; ++n)
    if (const auto onset = rule.observe(n, loss(n), false)) found.push_back(*onset);
  return found;
}

TEST(LossRise, AHealthyLossNeverRises) {
  for (uint64_t run = 0; run < 50; ++run) {
    std::mt19937_64 engine(run);
    std::normal_distribution<double> noise(0, 0.2);
    EXPECT_TRUE(onsets(5000, [&](int n) { return 2 + 3 * std::exp(-n / 500.0) + noise(engine); }).empty())
        << run;
  }
}

// 0.5 % a step is 16 % a block of 32: high in the second block after the rise began, declared two blocks
// later.
TEST(LossRise, ASlowFailureIsFoundThoughNoStepOfItIsHigh) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> noise(0, 0.2);
  const auto found = onsets(1400, [&](int n) { return 2 + 0.01 * std::max(n - 1000, 0) + noise(engine); });
  ASSERT_FALSE(found.empty());
  EXPECT_GE(found[0], 1000 - 32);
  EXPECT_LE(found[0], 1000 + 64);
}

TEST(LossRise, ALevelReachedIsToldOnce) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> noise(0, 0.05);
  EXPECT_EQ(onsets(8000, [&](int n) { return (n < 2000 ? 2 : 3) + noise(engine); }).size(), 1u);
}

TEST(LossRise, WhatTheOtherRuleTellsIsNotToldAgain) {
  LossRiseRule rule;
  for (int n = 0; n < 3000; ++n) {
    const bool in_event = n >= 1000 && n < 1100;
    EXPECT_FALSE(rule.observe(n,
                              n < 1000   ? 2 + 0.01 * (n % 3)
                              : in_event ? 50
                                         : 3 + 0.01 * (n % 3),
                              in_event));
  }
}

TEST(LossRise, LossesThatAreNotFiniteAreLeftOut) {
  EXPECT_TRUE(onsets(3000, [](int n) {
                return n % 7 == 0 ? NAN : n % 11 == 0 ? INFINITY : 2 + 0.01 * (n % 3);
              }).empty());
}

}  // namespace
}  // namespace foreshock
