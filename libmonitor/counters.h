// What became of every call, counted per thread without a lock.
#ifndef FORESHOCK_LIBMONITOR_COUNTERS_H_
#define FORESHOCK_LIBMONITOR_COUNTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// Adds to a word of which this thread is the only writer: no locked instruction, yet never torn for a reader.
inline void bump(uint64_t& counter, uint64_t by = 1) {
  std::atomic_ref<uint64_t> word(counter);
  word.store(word.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

// The same to a word with other writers.
inline void bump_shared(uint64_t& counter, uint64_t by = 1) {
  std::atomic_ref<uint64_t>(counter).fetch_add(by, std::memory_order_relaxed);
}

// Where a thread counts: a block of its own, or one shared with others.
struct Counting {
  segment::ThreadBlock* block = nullptr;
  bool shared = true;

  void add(uint64_t& counter, uint64_t by = 1) const {
    shared ? bump_shared(counter, by) : bump(counter, by);
  }
  // Undoes an add of this thread.
  void take_back(uint64_t& counter) const { add(counter, ~uint64_t{0}); }
};

// A free block among `blocks`, or the last one, shared. Blocks are never given back: threads come and go,
// their counts stay.
Counting claim_block(segment::ThreadBlock* blocks);

// Moves every count of `from` (written with shared adds) into the shared block `to`; loses none that are
// added meanwhile.
void drain(segment::ThreadBlock* from, segment::ThreadBlock* to);

// Sums over all blocks that are in use.
struct CallTotals {
  uint64_t calls = 0;
  uint64_t cost_ns = 0;
};
CallTotals call_totals(segment::ThreadBlock* blocks);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_COUNTERS_H_
