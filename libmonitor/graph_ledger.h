// Attention that runs inside CUDA graphs, where no hook is called: what was counted while a graph was
// recorded, times its launches.
#ifndef FORESHOCK_LIBMONITOR_GRAPH_LEDGER_H_
#define FORESHOCK_LIBMONITOR_GRAPH_LEDGER_H_

#include <atomic>
#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// Attention calls so far, of every thread.
struct PassCalls {
  uint64_t of[segment::kPasses] = {};
};

// Any thread. Fixed room, no heap, nobody waits: who finds it taken leaves its graph unknown, and launches of
// unknown graphs are counted as that. Handles may be used again for other graphs.
class GraphLedger {
 public:
  // A stream begins to record, and ends; `graph` 0: nothing came of it. Calls of any thread in between are
  // the graph's: the backward pass is recorded by threads of its own. Where two streams record at once, it is
  // not known whose they are.
  void begin_recording(uintptr_t stream, const PassCalls& so_far);
  void end_recording(uintptr_t stream, uintptr_t graph, const PassCalls& so_far);

  // `executable` was made of `graph`.
  void instantiate(uintptr_t graph, uintptr_t executable);

  void launch(uintptr_t executable);

  // Of both passes, so far.
  uint64_t calls_in_graphs() const;

  // Totals of the process.
  void store(segment::Coverage* coverage) const;

  // In a child that trains by itself.
  void forget();

 private:
  static constexpr uint32_t kRecordings = 8;
  static constexpr uint32_t kGraphs = 64;  // the latest: executables are made soon after
  static constexpr uint32_t kExecutables = 1024;
  static constexpr uint32_t kUnknown = UINT32_MAX;

  struct Recording {
    uintptr_t stream = 0;
    bool is_alone = true;
    PassCalls before;
  };
  struct Graph {
    uintptr_t handle = 0;
    uint32_t calls[segment::kPasses] = {};  // kUnknown
  };
  // Only handles are never taken out, so that a launch finds its own without a lock.
  struct Executable {
    std::atomic<uintptr_t> handle{0};
    std::atomic<uint32_t> calls[segment::kPasses] = {};
  };

  Graph* graph_of(uintptr_t handle, bool add);
  Executable* executable_of(uintptr_t handle, bool add);

  std::atomic_flag busy_;
  Recording recordings_[kRecordings];
  uint32_t recording_ = 0;  // streams that record now
  bool is_overfull_ = false;
  PassCalls before_all_;
  Graph graphs_[kGraphs];
  uint32_t next_graph_ = 0;
  Executable executables_[kExecutables];
  std::atomic<uint64_t> launches_{0}, unknown_launches_{0};
  std::atomic<uint64_t> recorded_[segment::kPasses] = {}, launched_[segment::kPasses] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_GRAPH_LEDGER_H_
