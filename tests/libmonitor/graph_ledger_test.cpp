#include "libmonitor/graph_ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace foreshock {
namespace {

constexpr uintptr_t kStream = 0x10, kOtherStream = 0x20, kGraph = 0x1000, kExecutable = 0x2000;

segment::Coverage totals(const GraphLedger& ledger) {
  segment::Coverage coverage = {};
  ledger.store(&coverage);
  return coverage;
}

// Records a graph of `forward` and `backward` calls and makes an executable of it.
void record(GraphLedger* ledger, uintptr_t graph, uintptr_t executable, uint64_t forward, uint64_t backward) {
  ledger->begin_recording(kStream, {{100, 50}});
  ledger->end_recording(kStream, graph, {{100 + forward, 50 + backward}});
  ledger->instantiate(graph, executable);
}

TEST(GraphLedger, RecordedCallsTimesLaunches) {
  GraphLedger ledger;
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

TEST(GraphLedger, AGraphWithoutAttentionIsKnownToHaveNone) {
  GraphLedger ledger;
  record(&ledger, kGraph, kExecutable, 0, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).graph_launches, 1);
  EXPECT_EQ(totals(ledger).launched_calls[0], 0);
}

TEST(GraphLedger, OneGraphMayHaveSeveralExecutables) {
  GraphLedger ledger;
  record(&ledger, kGraph, kExecutable, 1, 1);
  ledger.instantiate(kGraph, kExecutable + 16);
  ledger.launch(kExecutable);
  ledger.launch(kExecutable + 16);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(GraphLedger, WhatWasNotRecordedIsUnknown) {
  GraphLedger ledger;
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

TEST(GraphLedger, ARecordingThatFailedWasStillNoAttentionThatRan) {
  GraphLedger ledger;
  ledger.begin_recording(kStream, {{10, 0}});
  ledger.end_recording(kStream, 0, {{14, 0}});
  EXPECT_EQ(totals(ledger).recorded_calls[0], 4);
  record(&ledger, kGraph, kExecutable, 1, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
}

TEST(GraphLedger, OfTwoRecordingsAtOnceNobodyKnowsWhoseTheCallsAre) {
  GraphLedger ledger;
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

TEST(GraphLedger, HandlesAreUsedAgain) {
  GraphLedger ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  record(&ledger, kGraph, kExecutable, 1, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
  ledger.instantiate(kGraph + 16, kExecutable);  // of a graph that nobody has seen
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
}

TEST(GraphLedger, WithoutRoomAGraphIsUnknown) {
  GraphLedger ledger;
  constexpr uintptr_t kMany = 1500;
  for (uintptr_t n = 1; n <= kMany; ++n) record(&ledger, n * 64, n * 4096, 1, 0);
  for (uintptr_t n = 1; n <= kMany; ++n) ledger.launch(n * 4096);
  EXPECT_EQ(totals(ledger).graph_launches, 1024);
  EXPECT_EQ(totals(ledger).unknown_launches, kMany - 1024);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1024);
}

TEST(GraphLedger, MoreStreamsThanItFollowsAreUnknownAndDoNoHarm) {
  GraphLedger ledger;
  for (uintptr_t n = 1; n <= 12; ++n) ledger.begin_recording(n, {{0, 0}});
  for (uintptr_t n = 1; n <= 12; ++n) ledger.end_recording(n, n * 64, {{n, 0}});
  ledger.instantiate(12 * 64, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  record(&ledger, kGraph, kExecutable, 2, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(GraphLedger, ARecordingWhoseEndWasNotSeenIsForgottenByTheNextOfItsStream) {
  GraphLedger ledger;
  ledger.begin_recording(kStream, {{5, 0}});
  record(&ledger, kGraph, kExecutable, 2, 1);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 2);
}

TEST(GraphLedger, AChildThatTrainsBeginsAnew) {
  GraphLedger ledger;
  record(&ledger, kGraph, kExecutable, 2, 1);
  ledger.launch(kExecutable);
  ledger.forget();
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).graph_launches, 0);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  EXPECT_EQ(totals(ledger).recorded_calls[0] + totals(ledger).launched_calls[0], 0);
}

TEST(GraphLedger, EveryLaunchOfEveryThreadIsCountedOnce) {
  GraphLedger ledger;
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

TEST(GraphLedger, WhatIsToldNeverGoesBackAndEndsExact) {
  constexpr int kThreads = 4, kLaunches = 500, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    GraphLedger ledger;
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
