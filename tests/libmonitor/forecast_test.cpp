// Forecasts of the cost of slices, of the agent's work and of sums of gradients, and their settlement.
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "libmonitor/ledger.h"
#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

TEST(SliceCost, LearnsWhatASliceCostsPerCallAndPerByte) {
  SliceCost cost;
  for (uint64_t n = 0; n < 200; ++n) {
    const uint64_t bytes = 100'000 * (1 + n % 7);
    cost.observe(bytes, false, 20e-6 + 0.1e-9 * static_cast<double>(bytes));
  }
  for (uint64_t bytes : {100'000u, 400'000u, 2'000'000u}) {
    cost.expect(bytes);
    // Noiseless: what remains is the weight of the two first observations, 2 x 0.95^200 = 7e-5.
    EXPECT_NEAR(cost.seconds(false) / (20e-6 + 0.1e-9 * static_cast<double>(bytes)), 1, 1e-2) << bytes;
  }
}

TEST(SliceCost, OneSizeIsEnoughAndAFirstUseCostsMore) {
  SliceCost cost;
  for (int n = 0; n < 200; ++n) cost.observe(1 << 20, false, 100e-6);
  EXPECT_NEAR(cost.seconds(false), 100e-6, 2e-6);
  for (int n = 0; n < 60; ++n) cost.observe(1 << 20, true, 400e-6);
  EXPECT_NEAR(cost.seconds(false), 100e-6, 10e-6);
  EXPECT_NEAR(cost.seconds(true), 400e-6, 10e-6);
  cost.observe(1 << 20, false, 10);
  EXPECT_LT(cost.seconds(false), 125e-6);  // one in twenty, counted as four times the expected
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

constexpr uint64_t kBytes = 1'000'000, kKernels = 5, kKernelsNs = 4000 * kKernels;
constexpr uint64_t kFirstNs = kBytes / 200 + kKernelsNs;

// The numbers of the two times of a launch.
struct Sent {
  uint64_t begin, end;
};

uint64_t charge(const Sent& sent, GradientCost* cost) { return cost->record_launch(sent.begin, sent.end); }

// What a device has brought so far, by the numbers that it is known by.
struct Brought {
  std::map<uint64_t, double> numbers = {};
  uint64_t next = 1;

  Sent send() { return {next++, next++}; }
  void bring(const Sent& sent, uint64_t begin_ns, uint64_t end_ns) {
    numbers[sent.begin] = std::bit_cast<double>(begin_ns);
    numbers[sent.end] = std::bit_cast<double>(end_ns);
  }
  void look(GradientCost* cost) const {
    cost->collect_times([this](uint64_t number, double* value) {
      const auto found = numbers.find(number);
      if (found == numbers.end()) return false;
      *value = found->second;
      return true;
    });
  }
};

TEST(GradientCost, IsForetoldBeforeAnythingWasMeasured) {
  GradientCost cost;
  EXPECT_EQ(cost.expected_seconds(), 0) << "of a training that has none on a device";
  EXPECT_EQ(cost.expect_work(kBytes, kKernels), kFirstNs);
  EXPECT_DOUBLE_EQ(cost.expected_seconds(), 1e-9 * kFirstNs);
  Brought brought;
  EXPECT_EQ(charge(brought.send(), &cost), kFirstNs);
  brought.look(&cost);
  EXPECT_EQ(cost.expect_work(kBytes, kKernels), kFirstNs) << "nothing has come";
}

TEST(GradientCost, WhatItWasShortOfIsOwedOnce) {
  GradientCost cost;
  Brought brought;
  cost.expect_work(kBytes, kKernels);
  const Sent sent = brought.send();
  charge(sent, &cost);
  brought.bring(sent, 1'700'000'000'000'000'000, 1'700'000'000'000'050'000);
  EXPECT_EQ(cost.take_owed(), 0u);
  for (int n = 0; n < 2; ++n) brought.look(&cost);
  constexpr uint64_t kTrueNs = 50'000 + kKernelsNs;
  EXPECT_EQ(cost.take_owed(), kTrueNs - kFirstNs);
  EXPECT_EQ(cost.take_owed(), 0u);
  EXPECT_EQ(charge(brought.send(), &cost), kTrueNs);
  EXPECT_EQ(cost.expect_work(2 * kBytes, kKernels), 2 * 50'000 + kKernelsNs);
}

TEST(GradientCost, WhatWasTooMuchIsTakenOffTheNextOnes) {
  GradientCost cost;
  Brought brought;
  cost.expect_work(100 * kBytes, kKernels);  // 500 us
  const Sent sent = brought.send();
  charge(sent, &cost);
  brought.bring(sent, 7, 7 + 100'000);
  brought.look(&cost);
  EXPECT_EQ(cost.take_owed(), 0u);
  // 400 us too much; of each 1 + 20 us.
  EXPECT_EQ(cost.expect_work(kBytes, kKernels), 0u);
  for (int n = 0; n < 19; ++n) EXPECT_EQ(charge(brought.send(), &cost), 0u) << n;
  EXPECT_EQ(charge(brought.send(), &cost), 20 * (1000 + kKernelsNs) - 400'000);
  EXPECT_EQ(charge(brought.send(), &cost), 1000 + kKernelsNs);
}

// Whatever it is and was taken for: in the end so much is charged as was spent.
TEST(GradientCost, AllThatIsSpentIsCharged) {
  GradientCost cost;
  Brought brought;
  uint64_t charged = 0, spent = 0;
  for (uint64_t n = 1; n <= 400; ++n) {
    cost.expect_work(kBytes + 1000 * (n % 7), kKernels);
    const Sent sent = brought.send();
    charged += charge(sent, &cost);
    const uint64_t ns = 3000 + 977 * (n % 11);
    spent += ns + kKernelsNs;
    brought.bring(sent, n << 40, (n << 40) + ns);
    brought.look(&cost);
    charged += cost.take_owed();
  }
  // Each charge is cut to a whole number, and the rest of it goes on. What the last one was too much has not
  // been taken off: it cannot be more than all of it.
  EXPECT_GE(charged + 1, spent);
  EXPECT_LE(charged, spent + 13'000 + kKernelsNs);
}

TEST(GradientCost, OneStallIsNotWhatTheNextWillTake) {
  GradientCost cost;
  Brought brought;
  const auto take = [&](uint64_t ns) {
    const Sent sent = brought.send();
    cost.expect_work(kBytes, 0);
    charge(sent, &cost);
    brought.bring(sent, 1, 1 + ns);
    brought.look(&cost);
  };
  take(1000);
  take(1'000'000);
  EXPECT_EQ(cost.take_owed(), 1'001'000u - kBytes / 200) << "of both, what the first was not charged";
  EXPECT_EQ(cost.expect_work(kBytes, 0), 1000u + (4 - 1) * 1000 / 5);
}

TEST(GradientCost, ATimeThatCannotBeTellsNothing) {
  GradientCost cost;
  Brought brought;
  cost.expect_work(kBytes, kKernels);
  const Sent sent = brought.send();
  charge(sent, &cost);
  brought.bring(sent, 5000, 4000);
  brought.look(&cost);
  EXPECT_EQ(cost.take_owed(), 0u);
  EXPECT_EQ(cost.expect_work(kBytes, kKernels), kFirstNs);
}

TEST(GradientCost, OfSoManyOnTheirWayTheOldestIsGivenUp) {
  GradientCost cost;
  Brought brought;
  cost.expect_work(kBytes, kKernels);
  const Sent first = brought.send();
  charge(first, &cost);
  for (int n = 0; n < 8; ++n) charge(brought.send(), &cost);
  brought.bring(first, 0, 1'000'000);
  brought.look(&cost);
  EXPECT_EQ(cost.take_owed(), 0u);
  EXPECT_EQ(cost.expect_work(kBytes, kKernels), kFirstNs);
}

}  // namespace
}  // namespace foreshock
