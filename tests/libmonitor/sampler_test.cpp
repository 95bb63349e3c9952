#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "libmonitor/call.h"
#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

TEST(Sampler, WithEveryStepsAreMultiplesOfTheInterval) {
  EXPECT_TRUE(is_multiple_of_every(16, 8));
  EXPECT_FALSE(is_multiple_of_every(17, 8));
  EXPECT_FALSE(is_multiple_of_every(-1, 1));  // unknown
  EXPECT_FALSE(is_multiple_of_every(5, 0));
}

TEST(Sampler, OneStepOfEachIntervalIsSampled) {
  for (const uint64_t interval : {1, 2, 6, 8, 64, 4096})
    for (uint64_t block = 0; block < 50; ++block) {
      int sampled = 0;
      for (uint64_t step = block * interval; step < (block + 1) * interval; ++step)
        sampled += is_sampled_step(3, static_cast<int64_t>(step), interval);
      EXPECT_EQ(sampled, 1) << interval << ' ' << block;
    }
  EXPECT_FALSE(is_sampled_step(3, -1, 1));  // unknown
  EXPECT_FALSE(is_sampled_step(3, 5, 0));
}

TEST(Sampler, SampledStepsHaveNoPeriod) {
  // Of n = 4096 sampled steps, n / period are expected to have any given rest. Six standard deviations of the
  // binomial distribution are allowed: 2e-9 each.
  constexpr double kSteps = 4096;
  for (const uint64_t interval : {6, 8, 64, 512})
    for (const uint64_t period : {2, 3, 4, 6, 8}) {
      if (interval % period != 0 && period % interval != 0) continue;  // multiples of it have all rests
      std::vector<double> rests(period);
      for (uint64_t block = 0; block < kSteps; ++block)
        ++rests[sampled_step_of(11, block, interval) % period];
      const double share = 1.0 / static_cast<double>(period);
      for (const double rest : rests)
        EXPECT_NEAR(rest, kSteps * share, 6 * std::sqrt(kSteps * share * (1 - share)))
            << interval << ' ' << period;
    }
}

TEST(Sampler, TwiceTheIntervalKeepsHalfOfTheSteps) {
  for (const uint64_t interval : {1, 8, 64, 1024})
    for (uint64_t block = 0; block < 200; ++block) {
      const uint64_t step = sampled_step_of(5, block, 2 * interval);
      EXPECT_TRUE(is_sampled_step(5, static_cast<int64_t>(step), interval)) << step << ' ' << interval;
    }
}

TEST(Sampler, StepsThatAreToldAsOneAreSampledIfOneOfThemIs) {
  for (const int64_t steps : {1, 2, 3, 8, 10, 20}) {
    for (const uint64_t interval : {1, 6, 8, 64})
      for (int64_t first = 0; first < 200; ++first) {
        bool any_multiple = false, any = false;
        for (int64_t step = first; step < first + steps; ++step) {
          any_multiple |= static_cast<uint64_t>(step) % interval == 0;
          any |= is_sampled_step(9, step, interval);
        }
        EXPECT_EQ(is_multiple_of_every(first, interval, steps), any_multiple)
            << first << ' ' << steps << ' ' << interval;
        EXPECT_EQ(is_sampled_step(9, first, interval, steps), any)
            << first << ' ' << steps << ' ' << interval;
      }
  }
  EXPECT_FALSE(is_multiple_of_every(-1, 8, 10));
  EXPECT_FALSE(is_sampled_step(9, -1, 8, 10));
}

TEST(Sampler, AsManyCallsAsAskedForWhicheverTheStep) {
  for (uint32_t slices : {1, 2, 7, 25, 63, 64, 99}) {
    for (int step = 0; step < 50; ++step) {
      uint32_t taken = 0;
      for (uint64_t call = 0; call < 100; ++call) taken += is_sampled_call(7, step, call, slices, 100);
      EXPECT_EQ(taken, slices);
    }
  }
}

TEST(Sampler, EveryCallHasTheSameChance) {
  constexpr int kSteps = 16000;
  for (uint32_t slices : {1, 4, 12, 48}) {
    std::vector<int> taken(64);
    for (int step = 0; step < kSteps; ++step)
      for (uint64_t call = 0; call < 64; ++call) taken[call] += is_sampled_call(1, step, call, slices, 64);
    // Binomial for each call; five deviations leave one false alarm in ten thousand runs of these 256.
    const double p = slices / 64.0, deviation = std::sqrt(kSteps * p * (1 - p));
    for (int count : taken) EXPECT_NEAR(count, kSteps * p, 5 * deviation);
  }
}

TEST(Sampler, AllCallsWhenThereIsRoomAndNoneWithout) {
  for (uint64_t call = 0; call < 50; ++call) {
    EXPECT_TRUE(is_sampled_call(3, 1, call, 60, 50));
    EXPECT_FALSE(is_sampled_call(3, 1, call, 0, 50));
    EXPECT_FALSE(is_sampled_call(3, 1, call, 0, 0));
  }
}

TEST(Sampler, SlicesStayInsideTheCall) {
  const CallShape shapes[] = {{1, 1, 1, 1, 1},   {2, 8, 2, 5, 9},    {3, 32, 8, 100, 100}, {1, 24, 1, 7, 7},
                              {4, 16, 16, 3, 3}, {2, 64, 1, 1, 512}, {1, 6, 2, 1000, 1000}};
  for (const CallShape& shape : shapes) {
    for (uint64_t call = 0; call < 200; ++call) {
      const Slice slice = choose_slice(shape, 11, 4, call, 0);
      const int64_t group = shape.heads / shape.kv_heads;
      ASSERT_GE(slice.rows(), 1);
      ASSERT_LE(slice.rows(), kRowsPerSample);
      ASSERT_LT(slice.batch, shape.batch);
      ASSERT_LT(slice.kv_head, shape.kv_heads);
      ASSERT_GE(slice.first_head, slice.kv_head * group);
      ASSERT_LE(slice.first_head + slice.heads, (slice.kv_head + 1) * group);
      for (int n = 0; n < slice.positions; ++n) {
        ASSERT_GE(slice.position[n], n == 0 ? 0 : slice.position[n - 1] + 1);  // one from each part, in order
        ASSERT_LT(slice.position[n], shape.queries);
      }
    }
  }
}

// One slice in four has both ends: a loss may reach only the first or the last token of a sequence.
TEST(Sampler, TheEndsAreChosenMoreOftenAndOtherPlacesEquallyOften) {
  const CallShape shape = {2, 4, 2, 32, 32};
  std::vector<int> positions(32), kv_heads(2);
  constexpr int kDraws = 8000;
  for (int step = 0; step < kDraws; ++step) {
    const Slice slice = choose_slice(shape, 5, step, 0, 0);
    ++kv_heads[slice.kv_head];
    for (int n = 0; n < slice.positions; ++n) ++positions[slice.position[n]];
  }
  // 8 positions in 8 parts of 4: each position is drawn with p = 1/4, sd = sqrt(8000 * 3/16) = 39. In the
  // first and the last part, the end is drawn with p = 1/4 + 3/4 * 1/4 = 7/16 (sd 44), the others with 3/16.
  for (int n = 4; n < 28; ++n) EXPECT_NEAR(positions[n], kDraws / 4, 5 * 39);
  for (int n : {1, 2, 3, 28, 29, 30}) EXPECT_NEAR(positions[n], kDraws * 3 / 16, 5 * 39);
  for (int n : {0, 31}) EXPECT_NEAR(positions[n], kDraws * 7 / 16, 5 * 44);
  EXPECT_NEAR(kv_heads[0], kDraws / 2, 5 * 45);
}

TEST(Sampler, APlaceIsMissedAsOftenAsTheBinomialSays) {
  // One batch and kv-head of 32 holds what is looked for; 64 slices miss it with probability (1 - 1/32)^64.
  // Over 2000 trials the share of misses has sd sqrt(p (1 - p) / 2000).
  const CallShape shape = {4, 8, 8, 64, 64};
  constexpr int kTrials = 2000, kSlices = 64;
  int missed = 0;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    bool found = false;
    for (int64_t step = 0; step < kSlices && !found; ++step) {
      const Slice slice = choose_slice(shape, trial, step, 3, 0);
      found = slice.batch == 1 && slice.kv_head == 5;
    }
    missed += !found;
  }
  const double p = std::pow(31.0 / 32, kSlices);
  EXPECT_NEAR(missed / double{kTrials}, p, 5 * std::sqrt(p * (1 - p) / kTrials));
}

TEST(Sampler, DependsOnSeedStepCallAndRankAlone) {
  const CallShape shape = {8, 8, 8, 1000, 1000};
  const auto place = [&](uint64_t seed, int64_t step, uint64_t call, int rank) {
    const Slice slice = choose_slice(shape, seed, step, call, rank);
    return std::vector<int64_t>{slice.batch, slice.kv_head, slice.position[0], slice.position[7]};
  };
  EXPECT_EQ(place(1, 2, 3, 4), place(1, 2, 3, 4));
  EXPECT_NE(place(1, 2, 3, 4), place(2, 2, 3, 4));
  EXPECT_NE(place(1, 2, 3, 4), place(1, 3, 3, 4));
  EXPECT_NE(place(1, 2, 3, 4), place(1, 2, 4, 4));
  EXPECT_NE(place(1, 2, 3, 4), place(1, 2, 3, 5));
}

TEST(Sampler, EveryRankCountsNonfiniteValuesInTheSameHalfOfTheCalls) {
  const CallShape shape = {2, 4, 2, 32, 32};
  constexpr int kCalls = 8000;
  int counting = 0;
  for (uint64_t call = 0; call < kCalls; ++call) {
    const bool counts = choose_slice(shape, 5, 3, call, 0).counts_nonfinite;
    ASSERT_EQ(choose_slice(shape, 5, 3, call, 7).counts_nonfinite, counts) << call;
    ASSERT_FALSE(choose_columns(shape, 5, 3, call, 0).counts_nonfinite) << call;
    counting += counts;
  }
  EXPECT_NEAR(counting, kCalls / 2, 5 * 45);  // sd = sqrt(8000 / 4)
}

}  // namespace
}  // namespace foreshock
