#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

WeightSchedule turns_of(uint32_t count) {
  WeightSchedule turns;
  EXPECT_TRUE(turns.reserve(count));
  for (uint32_t n = 0; n < count; ++n) turns.add(static_cast<double>(n) / count, true);
  return turns;
}

std::vector<uint32_t> due(WeightSchedule& turns, int64_t step, uint64_t interval,
                          WeightSchedule::DueCount* count, int64_t steps = 1) {
  std::vector<uint32_t> numbers(64);
  numbers.resize(turns.find_due(step, steps, interval, numbers.data(), numbers.size(), count));
  return numbers;
}

std::set<std::pair<int64_t, uint32_t>> all(uint32_t tensors, uint64_t interval) {
  WeightSchedule turns = turns_of(tensors);
  std::set<std::pair<int64_t, uint32_t>> found;
  WeightSchedule::DueCount count;
  for (int64_t step = 0; step < 64; ++step) {
    const auto numbers = due(turns, step, interval, &count);
    EXPECT_LE(numbers.size(), tensors / interval + 1) << "spread evenly";
    for (const uint32_t number : numbers) found.emplace(step, number);
  }
  EXPECT_EQ(found.size(), tensors * 64 / interval);
  return found;
}

TEST(WeightSchedule, AnIntervalTwiceAsLongIsASubset) {
  const auto some = all(40, 16), fewer = all(40, 32);
  EXPECT_TRUE(std::includes(some.begin(), some.end(), fewer.begin(), fewer.end()));
}

// The caller leaves out find_due() in the steps before next_due(); count_missed() reads all turns at every
// step.
TEST(WeightSchedule, ASkippedStepIsOneInWhichNoTensorIsDue) {
  WeightSchedule turns = turns_of(11), truth = turns_of(11);
  WeightSchedule::DueCount count;
  int64_t step = 0;
  uint64_t word = 1, found = 0;
  for (int n = 0; n < 20000; ++n) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    const uint64_t kind = word >> 32 & 1023;
    step = kind < 8    ? static_cast<int64_t>(word >> 48)
           : kind < 16 ? step
                       : step + 1;  // a jump; the same step
    const uint64_t interval = n / 500 % 3 == 0 ? 64 : n / 500 % 3 == 1 ? 1024 : 100;
    const int64_t steps = n / 2500 % 4 == 3 ? 3 : 1;
    const size_t numbers = due(turns, step, interval, &count, steps).size();
    EXPECT_EQ(numbers, truth.count_missed(step, steps, interval).due) << "call " << n << ", step " << step;
    if (numbers == 0 && steps == 1) {
      for (int64_t next = step + 1; next < turns.next_due(); ++next)
        EXPECT_EQ(truth.count_missed(next, 1, interval).due, 0u) << next;
    }
    found += numbers;
  }
  EXPECT_GT(found, 1000u);
}

TEST(WeightSchedule, EveryTurnEndsOnce) {
  WeightSchedule turns = turns_of(3);
  WeightSchedule::DueCount count;
  EXPECT_EQ(due(turns, 7, 1, &count).size(), 3u);
  EXPECT_EQ(count.due, 3u);
  EXPECT_EQ(turns.mark_done(0, 7), 0u);
  EXPECT_EQ(turns.mark_done(0, 7), 1u) << "shown once more without being asked for";
  EXPECT_EQ(due(turns, 7, 1, &count), (std::vector<uint32_t>{1, 2})) << "the same step again";
  EXPECT_EQ(count.due + count.lost, 0u);
  EXPECT_EQ(due(turns, 8, 1, &count).size(), 3u);
  EXPECT_EQ(count.due, 3u);
  EXPECT_EQ(count.lost, 2u);
  EXPECT_EQ(turns.mark_done(1, 7), 1u) << "of a step that was given up";
  EXPECT_EQ(turns.forget_due(), 3u);
  EXPECT_EQ(turns.forget_due(), 0u);
}

TEST(WeightSchedule, AStepThatComesAgainAfterAnotherIsANewOne) {
  WeightSchedule turns = turns_of(2);
  WeightSchedule::DueCount count;
  due(turns, 7, 1, &count);
  due(turns, 8, 1, &count);
  EXPECT_EQ(due(turns, 7, 1, &count).size(), 2u);
  EXPECT_EQ(count.due, 2u);
  EXPECT_EQ(count.lost, 2u);
  EXPECT_EQ(turns.mark_done(0, 7) + turns.mark_done(1, 7), 0u);
  EXPECT_EQ(turns.forget_due(), 0u);
}

TEST(WeightSchedule, OfAStepThatNobodyCouldAskAboutAllAreLost) {
  WeightSchedule turns = turns_of(4);
  WeightSchedule::DueCount count;
  due(turns, 7, 2, &count);
  EXPECT_EQ(turns.count_missed(7, 1, 2).due, 0u) << "it was";
  const WeightSchedule::DueCount missed = turns.count_missed(8, 1, 2);
  EXPECT_EQ(missed.due, 2u);
  EXPECT_EQ(missed.lost, 2u);
}

// A trainer that tells every tenth step only.
TEST(WeightSchedule, OfStepsThatAreToldAsOneAllHaveTheirs) {
  for (const uint64_t interval : {8, 12, 64}) {
    WeightSchedule turns = turns_of(48);
    WeightSchedule::DueCount count;
    std::vector<std::vector<int64_t>> shown(48);
    for (int64_t told = 0; told < 960; told += 10) {
      for (const uint32_t number : due(turns, told + 1, interval, &count, 10)) {
        shown[number].push_back(told + 1);
        turns.mark_done(number, told + 1);
      }
    }
    for (const auto& steps : shown) {
      // Every interval has one turn of each tensor; a shorter one than ten steps has one told step for it.
      EXPECT_EQ(steps.size(), 960 / std::max<uint64_t>(interval, 10));
      for (size_t n = 1; n < steps.size(); ++n) EXPECT_LT(steps[n] - steps[n - 1], int64_t(interval) + 10);
    }
  }
}

TEST(WeightSchedule, WhatIsNotHereHasNone) {
  WeightSchedule turns;
  ASSERT_TRUE(turns.reserve(2));
  turns.add(0, false);
  turns.add(0.5, true);
  WeightSchedule::DueCount count;
  EXPECT_EQ(due(turns, 0, 1, &count), (std::vector<uint32_t>{1}));
}

}  // namespace
}  // namespace foreshock
