// A graph as a test records it, and what the ledger makes of it.
#ifndef FORESHOCK_TESTS_LIBMONITOR_RECORDED_GRAPH_H_
#define FORESHOCK_TESTS_LIBMONITOR_RECORDED_GRAPH_H_

#include "libmonitor/coverage.h"

namespace foreshock {

inline constexpr uintptr_t kStream = 0x10, kOtherStream = 0x20, kGraph = 0x1000, kExecutable = 0x2000;

inline segment::Coverage totals(const CudaGraphCounter& ledger) {
  segment::Coverage coverage = {};
  ledger.store(&coverage);
  return coverage;
}

// Records a graph of `forward` and `backward` calls and makes an executable of it.
inline void record(CudaGraphCounter* ledger, uintptr_t graph, uintptr_t executable, uint64_t forward,
                   uint64_t backward) {
  ledger->begin_recording(kStream, {{100, 50}});
  ledger->end_recording(kStream, graph, {{100 + forward, 50 + backward}});
  ledger->instantiate(graph, executable);
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_RECORDED_GRAPH_H_
