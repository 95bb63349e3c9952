// Handles of graphs that are destroyed and handed out again, and graphs that are copied.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/libmonitor/recorded_graph.h"

namespace foreshock {
namespace {

TEST(GraphHandles, AGraphThatIsDestroyedLeavesItsHandleToAnUnknownOne) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  ledger.destroy_graph(kGraph);
  ledger.launch(kExecutable);                    // what was made of it stays known
  ledger.instantiate(kGraph, kExecutable + 16);  // built node by node, where the other was
  ledger.launch(kExecutable + 16);
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 3);
  EXPECT_EQ(totals(ledger).unknown_launches, 2);
}

TEST(GraphHandles, AnExecutableThatIsDestroyedLeavesItsHandleToAnUnknownOne) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  ledger.destroy_executable(kExecutable);
  ledger.destroy_executable(kExecutable + 16);  // nobody knows it
  ledger.destroy_executable(0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 3);
}

TEST(GraphHandles, PlacesOfDestroyedOnesAreUsedAgain) {
  CudaGraphCounter ledger;
  constexpr uintptr_t kMany = 5000;
  for (uintptr_t n = 1; n <= kMany; ++n) {
    record(&ledger, n * 64, n * 4096, 1, 0);
    ledger.launch(n * 4096);
    ledger.destroy_graph(n * 64);
    ledger.destroy_executable(n * 4096);
  }
  EXPECT_EQ(totals(ledger).launched_calls[0], kMany);
  EXPECT_EQ(totals(ledger).unknown_launches, 0);
}

TEST(GraphHandles, AHandleBehindTheFreedPlaceOfAnotherOneIsFoundAndNotDoubled) {
  CudaGraphCounter ledger;
  // So many that their places run into each other; every second one goes.
  constexpr uintptr_t kMany = 1000;
  for (uintptr_t n = 1; n <= kMany; ++n) record(&ledger, n * 64, n * 4096, 1, 0);
  for (uintptr_t n = 1; n <= kMany; n += 2) ledger.destroy_executable(n * 4096);
  for (uintptr_t n = 2; n <= kMany; n += 2) record(&ledger, n * 64, n * 4096, 2, 0);
  for (uintptr_t n = 2; n <= kMany; n += 2) ledger.destroy_executable(n * 4096);
  for (uintptr_t n = 1; n <= kMany; ++n) ledger.launch(n * 4096);
  EXPECT_EQ(totals(ledger).unknown_launches, kMany);
}

TEST(GraphHandles, GraphsThatAreDestroyedMakeRoomForThoseThatAreKept) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);  // kept, to be made into another executable later
  for (uintptr_t n = 1; n <= 200; ++n) {
    record(&ledger, 0x100000 + n * 64, kExecutable + n * 64, 1, 0);
    ledger.destroy_graph(0x100000 + n * 64);
  }
  ledger.instantiate(kGraph, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 3);
}

TEST(GraphHandles, AnExecutableTakesTheNodesOfAnotherGraph) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  record(&ledger, kGraph + 16, kExecutable + 16, 5, 2);
  ledger.instantiate(kGraph + 16, kExecutable);  // cudaGraphExecUpdate
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 5);
  EXPECT_EQ(totals(ledger).launched_calls[1], 2);
  ledger.instantiate(kGraph + 32, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
}

TEST(GraphHandles, ACloneHasWhatItsOriginalHas) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 1);
  ledger.clone(kGraph, kGraph + 16);
  ledger.destroy_graph(kGraph);
  ledger.instantiate(kGraph + 16, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 3);
  EXPECT_EQ(totals(ledger).launched_calls[1], 1);
  ledger.clone(kGraph, kGraph + 16);  // of an unknown one, where the other clone was
  ledger.instantiate(kGraph + 16, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
}

TEST(GraphHandles, ACloneOfTheOldestGraphTakesItsPlaceAndItsCalls) {
  CudaGraphCounter ledger;
  for (uintptr_t n = 0; n < 64; ++n) record(&ledger, kGraph + n * 16, kExecutable + n * 16, n + 1, 0);
  ledger.clone(kGraph, kGraph + 0x10000);
  ledger.instantiate(kGraph + 0x10000, kExecutable);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
}

TEST(GraphHandles, HandlesAreUsedAgain) {
  CudaGraphCounter ledger;
  record(&ledger, kGraph, kExecutable, 3, 0);
  record(&ledger, kGraph, kExecutable, 1, 0);
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
  ledger.instantiate(kGraph + 16, kExecutable);  // of a graph that nobody has seen
  ledger.launch(kExecutable);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1);
  EXPECT_EQ(totals(ledger).unknown_launches, 1);
}

// Whether the end of a graph was told or came while another thread had the ledger: a new graph under its
// handle must not pass for it.
TEST(GraphHandles, NoEndIsForgottenWhileAnotherThreadIsAtIt) {
  CudaGraphCounter ledger;
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    for (uintptr_t n = 1; !is_over.load(std::memory_order_relaxed); ++n)
      ledger.destroy_graph(0x100000 + n % 64 * 64);
  });
  constexpr int kGraphs = 100000;
  for (int n = 0; n < kGraphs; ++n) {
    record(&ledger, kGraph, kExecutable, 1, 0);
    ledger.destroy_graph(kGraph);
    ledger.instantiate(kGraph, kExecutable + 16);  // built node by node
    ledger.launch(kExecutable + 16);
    ledger.destroy_executable(kExecutable + 16);
    ledger.destroy_executable(kExecutable);
    ledger.launch(kExecutable);
  }
  is_over = true;
  other.join();
  EXPECT_EQ(totals(ledger).launched_calls[0], 0);
  EXPECT_EQ(totals(ledger).unknown_launches, 2 * kGraphs);
}

TEST(GraphHandles, WithoutRoomAGraphIsUnknown) {
  CudaGraphCounter ledger;
  constexpr uintptr_t kMany = 1500;
  for (uintptr_t n = 1; n <= kMany; ++n) record(&ledger, n * 64, n * 4096, 1, 0);
  for (uintptr_t n = 1; n <= kMany; ++n) ledger.launch(n * 4096);
  EXPECT_EQ(totals(ledger).graph_launches, 1024);
  EXPECT_EQ(totals(ledger).unknown_launches, kMany - 1024);
  EXPECT_EQ(totals(ledger).launched_calls[0], 1024);
}

}  // namespace
}  // namespace foreshock
