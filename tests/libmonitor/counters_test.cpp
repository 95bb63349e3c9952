#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "libmonitor/process.h"

namespace foreshock {
namespace {

std::unique_ptr<segment::ThreadBlock[]> blocks() {
  return std::make_unique<segment::ThreadBlock[]>(segment::kThreadBlocks);
}

TEST(Counters, EveryThreadCountsWhetherItHasABlockOrShares) {
  const auto all = blocks();
  std::vector<std::thread> threads;
  constexpr int kThreads = 80, kCalls = 500;  // more than there are blocks
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&] {
      const Counting counting = claim_block(all.get());
      for (int call = 0; call < kCalls; ++call) counting.add_call(1);
      counting.add(counting.block->hook_ns, 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const CallTotals totals = call_totals(all.get());
  EXPECT_EQ(totals.calls, uint64_t{kThreads} * kCalls);
  EXPECT_EQ(totals.cost_ns, uint64_t{kThreads} * 7);
  EXPECT_GT(all[segment::kThreadBlocks - 1].calls[1], 0u);
}

TEST(Counters, DrainLosesNothingThatIsAddedMeanwhile) {
  const auto all = blocks();
  segment::ThreadBlock local = {};
  const Counting counting = {&local, true};
  constexpr int kCalls = 200000;
  std::thread caller([&] {
    for (int n = 0; n < kCalls; ++n) counting.add_call(2);
  });
  for (int n = 0; n < 100; ++n) drain(&local, {.block = &all[63]});
  caller.join();
  drain(&local, {.block = &all[63]});
  EXPECT_EQ(all[63].calls[2], uint64_t{kCalls});
  EXPECT_EQ(all[63].all_calls, uint64_t{kCalls});
  EXPECT_EQ(local.calls[2], 0u);
  EXPECT_EQ(local.all_calls, 0u);
}

TEST(Counters, TakingBackUndoesAnAdd) {
  segment::ThreadBlock block = {};
  for (bool shared : {false, true}) {
    const Counting counting = {&block, shared};
    counting.add(block.sampled[0]);
    counting.take_back(block.sampled[0]);
    EXPECT_EQ(block.sampled[0], 0u);
  }
}

}  // namespace
}  // namespace foreshock
