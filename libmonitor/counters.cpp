#include "libmonitor/counters.h"

namespace foreshock {
namespace {

constexpr uint32_t kShared = segment::kThreadBlocks - 1;

uint64_t load(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_relaxed); }

}  // namespace

Counting claim_block(segment::ThreadBlock* blocks) {
  for (uint32_t n = 0; n < kShared; ++n) {
    std::atomic_ref<uint64_t> claimed(blocks[n].claimed);
    uint64_t expected = 0;
    if (claimed.load(std::memory_order_relaxed) == 0 && claimed.compare_exchange_strong(expected, 1))
      return {&blocks[n], false};
  }
  return {&blocks[kShared], true};
}

void drain(segment::ThreadBlock* from, segment::ThreadBlock* to) {
  // All words of a block but the first are counters.
  auto* source = reinterpret_cast<uint64_t*>(from);
  auto* target = reinterpret_cast<uint64_t*>(to);
  for (size_t n = 1; n < sizeof(segment::ThreadBlock) / sizeof(uint64_t); ++n) {
    const uint64_t count = std::atomic_ref<uint64_t>(source[n]).exchange(0, std::memory_order_relaxed);
    if (count != 0) std::atomic_ref<uint64_t>(target[n]).fetch_add(count, std::memory_order_relaxed);
  }
}

CallTotals call_totals(segment::ThreadBlock* blocks) {
  CallTotals totals;
  const auto add = [&](segment::ThreadBlock& block) {
    for (uint64_t& calls : block.calls) totals.calls += load(calls);
    totals.cost_ns += load(block.hook_ns) + load(block.step_ns);
  };
  for (uint32_t n = 0; n < kShared && load(blocks[n].claimed) != 0; ++n) add(blocks[n]);
  add(blocks[kShared]);
  return totals;
}

}  // namespace foreshock
