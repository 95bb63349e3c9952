#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "libmonitor/coverage.h"
#include "tests/libmonitor/recorded_graph.h"

namespace foreshock {
namespace {

TEST(CudaGraphCounter, RecordedCallsTimesLaunches) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 2);
  for (int n = 0; n < 5; ++n) ledger.launch(kExecutable);
  const segment::Coverage found = totals(ledger);
  EXPECT_EQ(found.graph_launches, 5);
  EXPECT_EQ(found.unknown_launches, 0);
  EXPECT_EQ(found.recorded_calls[0], 3);
  EXPECT_EQ(found.recorded_calls[1], 2);
  EXPECT_EQ(found.launched_calls[0], 15);
  EXPECT_EQ(found.launched_calls[1], 10);
}

TEST(CudaGraphCounter, AGraphWithoutAttentionIsKnownToHaveNone) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 0, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).graph_launches, 1);
  EXPECT_EQ(totals(ledger).launched_calls[0], 0);
}

TEST(CudaGraphCounter, OneGraphMayHaveSeveralExecutables) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 1, 1);
  ledger.instantiate(kGraph, kExecutable + 16);
  ledger.launch(kExecutable);
  ledger.launch(kExecutable + 16);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(CudaGraphCounter, WhatWasNotRecordedIsUnknown) {
  CudaGraphCounter ledger;
  ledger.instantiate(kGraph, kExecutable);  // built node by node
  ledger.launch(kExecutable);
  ledger.launch(0);
  ledger.end_recording(kStream, kGraph, {{7, 7}});  // its begin was not seen
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 3);
  EXPECT_EQ(totals(ledger).graph_launches, 0);
  EXPECT_EQ(totals(ledger).launched_calls[0], 0);
}

TEST(CudaGraphCounter, ARecordingThatFailedWasStillNoAttentionThatRan) {
  CudaGraphCounter ledger;
  ledger.begin_recording(kStream, {{10, 0}});
  ledger.end_recording(kStream, 0, {{14, 0}});
  EXPECT_EQ(totals(ledger).recorded_calls[0], 4);
  record(&ledger, kGraph, kExecutable, 1, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
}

TEST(CudaGraphCounter, OfTwoRecordingsAtOnceNobodyKnowsWhoseTheCallsAre) {
  CudaGraphCounter ledger;
  ledger.begin_recording(kStream, {{10, 0}});
  ledger.begin_recording(kOtherStream, {{11, 0}});
  ledger.end_recording(kStream, kGraph, {{13, 0}});
  ledger.end_recording(kOtherStream, kGraph + 16, {{15, 0}});
  ledger.instantiate(kGraph, kExecutable);
  ledger.instantiate(kGraph + 16, kExecutable + 16);
  ledger.launch(kExecutable);
  ledger.launch(kExecutable + 16);
  EXPECT_EQ(totals(ledger).unknown_launches, 2);
  EXPECT_EQ(totals(ledger).recorded_calls[0], 5);  // of both together it is known
  record(&ledger, kGraph, kExecutable, 2, 0);      // and the next one is alone again
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

// The body of a conditional node, as PyTorch records one while its graph is being recorded: no graph is
// handed out at its end.
TEST(CudaGraphCounter, AttentionInTheBodyOfAConditionLeavesTheGraphUnknown) {
  for (const uint64_t in_body : {0, 2}) {
    CudaGraphCounter ledger;
    constexpr uintptr_t kBody = kGraph + 16;
    ledger.begin_recording(kStream, {{10, 0}});
    ledger.begin_recording_into(kOtherStream, kBody, {{11, 0}});
    ledger.end_recording(kOtherStream, 0, {{11 + in_body, 0}});
    ledger.end_recording(kStream, kGraph, {{14 + in_body, 0}});
    ledger.instantiate(kGraph, kExecutable);
    ledger.launch(kExecutable);
    const segment::Coverage found = totals(ledger);
    EXPECT_EQ(found.recorded_calls[0], 4 + in_body);
    EXPECT_EQ(found.unknown_launches, in_body == 0 ? 0 : 1);
    EXPECT_EQ(found.launched_calls[0], in_body == 0 ? 4 : 0);
    record(&ledger, kGraph, kExecutable, 2, 0);  // the next one is alone again
    ledger.launch(kExecutable);
    EXPECT_EQ(totals(ledger).launched_calls[0], in_body == 0 ? 6 : 2);
  }
}

TEST(CudaGraphCounter, WhatIsRecordedIntoAGraphIsAddedToIt) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  ledger.begin_recording_into(kStream, kGraph, {{20, 5}});
  ledger.end_recording(kStream, kGraph, {{22, 6}});
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 5);
  EXPECT_EQ(totals(ledger).launched_calls[1], 1);
  ledger.begin_recording_into(kStream, kGraph + 16,
                              {{30, 0}});  // of one that was built, nobody knows the rest
  ledger.end_recording(kStream, kGraph + 16, {{31, 0}});
  ledger.instantiate(kGraph + 16, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
}

TEST(CudaGraphCounter, ARecordingWhoseEndWasNotSeenIsGivenUpAfterSomeSteps) {
  CudaGraphCounter ledger;
  const auto launch_of_a_new_one = [&ledger] {
    const uint64_t before = totals(ledger).launched_calls[0];
    record(&ledger, kGraph, kExecutable, 2, 0);
    ledger.launch(kExecutable);
    return totals(ledger).launched_calls[0] - before;
  };
  ledger.begin_recording(kOtherStream, {{1, 0}});
  for (int step = 0; step <= 8; ++step) {
    EXPECT_EQ(launch_of_a_new_one(), 0) << step;  // it may still be recording
    ledger.end_step();
  }
  EXPECT_EQ(launch_of_a_new_one(), 2);
  EXPECT_EQ(totals(ledger).recorded_calls[0], 2);  // those of the lost one are not known
}

TEST(CudaGraphCounter, AnEndWhoseBeginWasNotSeenTellsThatOthersWereNotAlone) {
  CudaGraphCounter ledger;
  ledger.begin_recording(kStream, {{10, 0}});
  ledger.end_recording(kOtherStream, kGraph + 16, {{13, 0}});
  ledger.end_recording(kStream, kGraph, {{14, 0}});
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  ledger.begin_recording(kStream, {{10, 0}});
  ledger.end_recording(kOtherStream, 0, {{13, 0}});  // that nothing came of says nothing
  ledger.end_recording(kStream, kGraph, {{14, 0}});
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 4);
}

TEST(CudaGraphCounter, NoStreamRecordsNothing) {  // the legacy default stream cannot
  CudaGraphCounter ledger;
  ledger.end_recording(0, 0, {{3, 0}});
  ledger.begin_recording(0, {{3, 0}});
  record(&ledger, kGraph, kExecutable, 2, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
  EXPECT_EQ(totals(ledger).recorded_calls[0], 2);
}

TEST(CudaGraphCounter, MoreStreamsThanItFollowsAreUnknownAndDoNoHarm) {
  CudaGraphCounter ledger;
  for (uintptr_t n = 1; n <= 12; ++n) ledger.begin_recording(n, {{0, 0}});
  for (uintptr_t n = 1; n <= 12; ++n) ledger.end_recording(n, n * 64, {{n, 0}});
  ledger.instantiate(12 * 64, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  record(&ledger, kGraph, kExecutable, 2, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(CudaGraphCounter, ARecordingWhoseEndWasNotSeenIsForgottenByTheNextOfItsStream) {
  CudaGraphCounter ledger;
  ledger.begin_recording(kStream, {{5, 0}});
  record(&ledger, kGraph, kExecutable, 2, 1);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(CudaGraphCounter, AChildThatTrainsBeginsAnew) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 2, 1);
  ledger.launch(kExecutable);
  ledger.forget();
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).graph_launches, 0);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  EXPECT_EQ(totals(ledger).recorded_calls[0] + totals(ledger).launched_calls[0], 0);
}

TEST(CudaGraphCounter, EveryLaunchOfEveryThreadIsCountedOnce) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 2, 1);
  constexpr int kThreads = 4, kLaunches = 2000;
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n)
    threads.emplace_back([&ledger] {
      for (int launch = 0; launch < kLaunches; ++launch) ledger.launch(kExecutable);
    });
  // Meanwhile others are made.
  for (uintptr_t n = 1; n <= 200; ++n) record(&ledger, n * 64, 0x100000 + n * 4096, 1, 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(totals(ledger).graph_launches, kThreads * kLaunches);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2 * kThreads * kLaunches);
  EXPECT_EQ(totals(ledger).unknown_launches, 0);
}

TEST(CudaGraphCounter, WhatIsToldNeverGoesBackAndEndsExact) {
  constexpr int kThreads = 4, kLaunches = 500, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    CudaGraphCounter ledger;
    record(&ledger, kGraph, kExecutable, 2, 1);
    segment::Coverage told = {};
    std::vector<std::thread> threads;
    for (int n = 0; n < kThreads; ++n)
      threads.emplace_back([&] {
        uint64_t before = 0;
        for (int launch = 0; launch < kLaunches; ++launch) {
          ledger.launch(kExecutable);
          ledger.store(&told);
          const uint64_t now = std::atomic_ref<uint64_t>(told.graph_launches).load();
          EXPECT_GE(now, before);
          before = now;
        }
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(told.graph_launches, kThreads * kLaunches);
    ASSERT_EQ(told.launched_calls[0], 2 * kThreads * kLaunches);
  }
}

}  // namespace
}  // namespace foreshock
