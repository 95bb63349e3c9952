#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "libmonitor/coverage.h"

namespace foreshock {
namespace {

segment::Coverage totals(const CudaGraphCounter& ledger) {
  segment::Coverage coverage = {};
  ledger.store(&coverage);
  return coverage;
}

TEST(CudaGraphCounter, CapturedCallsTimesLaunches) {
  CudaGraphCounter ledger;
  ledger.begin_capture({{100, 50}});
  EXPECT_TRUE(ledger.is_capturing());
  PassCalls calls;
  ASSERT_TRUE(ledger.end_capture({{103, 52}}, &calls));
  EXPECT_FALSE(ledger.is_capturing());
  for (int n = 0; n < 5; ++n) ledger.launch(calls);
  ledger.launch_unknown();
  const segment::Coverage found = totals(ledger);
  EXPECT_EQ(found.graph_launches, 5);
  EXPECT_EQ(found.unknown_launches, 1);
  EXPECT_EQ(found.recorded_calls[0], 3);
  EXPECT_EQ(found.recorded_calls[1], 2);
  EXPECT_EQ(found.launched_calls[0], 15);
  EXPECT_EQ(found.launched_calls[1], 10);
  EXPECT_EQ(ledger.calls_in_graphs(), 25);
}

TEST(CudaGraphCounter, CapturesThatOverlapAreUnknownAndTheirCallsAreCountedOnce) {
  CudaGraphCounter ledger;
  PassCalls calls;
  ledger.begin_capture({{10, 0}});
  ledger.begin_capture({{12, 0}});
  EXPECT_FALSE(ledger.end_capture({{14, 0}}, &calls));
  EXPECT_FALSE(ledger.end_capture({{15, 0}}, &calls));
  EXPECT_EQ(totals(ledger).recorded_calls[0], 5);
  ledger.begin_capture({{20, 0}});
  EXPECT_TRUE(ledger.end_capture({{21, 0}}, &calls));
  EXPECT_EQ(calls.of[0], 1);
}

TEST(CudaGraphCounter, AnEndWithoutABeginIsUnknown) {
  CudaGraphCounter ledger;
  PassCalls calls;
  EXPECT_FALSE(ledger.end_capture({{7, 7}}, &calls));
  EXPECT_EQ(totals(ledger).recorded_calls[0], 0);
}

TEST(CudaGraphCounter, ACaptureWhoseEndWasNotSeenIsGivenUpAfterSomeSteps) {
  CudaGraphCounter ledger;
  PassCalls calls;
  ledger.begin_capture({{0, 0}});
  for (int n = 0; n < 8; ++n) ledger.end_step();
  EXPECT_TRUE(ledger.is_capturing());
  ledger.end_step();
  EXPECT_FALSE(ledger.is_capturing());
  ledger.begin_capture({{5, 0}});
  EXPECT_TRUE(ledger.end_capture({{6, 0}}, &calls));
}

TEST(CudaGraphCounter, AChildThatTrainsStartsAtZero) {
  CudaGraphCounter ledger;
  PassCalls calls;
  ledger.begin_capture({{0, 0}});
  ledger.end_capture({{2, 1}}, &calls);
  ledger.launch(calls);
  ledger.begin_capture({{2, 1}});
  ledger.forget();
  EXPECT_FALSE(ledger.is_capturing());
  EXPECT_EQ(totals(ledger).graph_launches + totals(ledger).recorded_calls[0], 0);
}

TEST(CudaGraphCounter, EveryLaunchOfEveryThreadIsCountedOnce) {
  CudaGraphCounter ledger;
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&ledger] {
      for (int launch = 0; launch < 1000; ++launch) ledger.launch({{2, 1}});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(totals(ledger).graph_launches, 4000);
  EXPECT_EQ(totals(ledger).launched_calls[0], 8000);
}

}  // namespace
}  // namespace foreshock
