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
// unknown graphs are counted as that. Handles are used again for other graphs: what is not told of one that
// is new must not be known of it.
class GraphLedger {
 public:
  // A stream begins to record, and ends; `graph` 0: nothing came of it. Calls of any thread in between are
  // the graph's: the backward pass is recorded by threads of its own. Where two streams record at once, it is
  // not known whose they are.
  void begin_recording(uintptr_t stream, const PassCalls& so_far);
  void end_recording(uintptr_t stream, uintptr_t graph, const PassCalls& so_far);

  // Into a graph that there is, as the body of a conditional node: how often that runs nobody knows. So
  // attention in it leaves the graphs unknown that are recorded meanwhile, and one without it none.
  void begin_recording_into(uintptr_t stream, uintptr_t graph, const PassCalls& so_far);

  // `executable` was made of `graph`, or has taken its nodes over.
  void instantiate(uintptr_t graph, uintptr_t executable);

  void clone(uintptr_t graph, uintptr_t clone);

  void launch(uintptr_t executable);

  // Before their handles can be handed out again.
  void destroy_graph(uintptr_t graph);
  void destroy_executable(uintptr_t executable);

  // A recording whose end was not seen is given up after some of these, and others are alone again.
  void end_step();

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
  static constexpr uintptr_t kGone = 1;         // in the place of a handle: another one may stand here
  static constexpr uint32_t kLongestSteps = 8;  // a training records one step, or a few

  struct Recording {
    uintptr_t stream = 0;
    uintptr_t into = 0;  // the graph that was there before, or 0
    bool is_alone = true;
    uint32_t steps = 0;  // that have ended since it began
    PassCalls before;
  };
  struct Graph {
    uintptr_t handle = 0;
    uint64_t number = 0;                    // of its making
    uint32_t calls[segment::kPasses] = {};  // kUnknown
  };
  // A launch finds its own without a lock: places are never emptied, and what is in the place of a handle is
  // changed by whoever has the lock, but for a handle to kGone.
  struct Executable {
    std::atomic<uintptr_t> handle{0};
    std::atomic<uint32_t> calls[segment::kPasses] = {};
  };
  class Turn;

  void begin(uintptr_t stream, uintptr_t into, const PassCalls& so_far);
  Recording take_out(uintptr_t stream);
  void doubt_recordings();
  void doubt_all();
  Graph* graph_of(uintptr_t handle);
  Graph* add_graph(uintptr_t handle);
  Executable* executable_of(uintptr_t handle, bool add);

  std::atomic_flag busy_;
  std::atomic<bool> has_missed_{false};  // something came while it was busy
  Recording recordings_[kRecordings];
  std::atomic<uint32_t> recording_{0};  // streams that record now
  bool is_overfull_ = false;
  PassCalls before_all_;
  Graph graphs_[kGraphs];
  uint64_t graphs_made_ = 0;
  Executable executables_[kExecutables];
  std::atomic<uint64_t> launches_{0}, unknown_launches_{0};
  std::atomic<uint64_t> recorded_[segment::kPasses] = {}, launched_[segment::kPasses] = {};
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_GRAPH_LEDGER_H_
