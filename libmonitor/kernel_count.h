// Counts the attention kernels that are launched in a few steps, by CUPTI: what the calls that hooks have
// seen in the same steps are compared with. Only where asked for (--count-kernels): before CUDA 13.3 a
// process has one place for such a subscriber, and profilers want it too. So this one comes late, stays for
// few steps, gives way to whoever has the place and never holds it while torch.profiler runs.
#ifndef FORESHOCK_LIBMONITOR_KERNEL_COUNT_H_
#define FORESHOCK_LIBMONITOR_KERNEL_COUNT_H_

#include <cstdint>

#include "libmonitor/cupti.h"
#include "libmonitor/graph_ledger.h"
#include "libmonitor/options.h"
#include "segment/layout.h"

namespace foreshock {

class KernelCount {
 public:
  using Finder = bool (*)(cupti::Library* found);

  // Steps to count, beginning kWarmUpSteps from now; 0: none. `find` finds the library, null: nobody can.
  void ask(uint64_t steps, Finder find);

  // At the end of every step, by one thread at a time: attention calls so far, and those of them that ran in
  // CUDA graphs. What came of it goes into `coverage`.
  void end_step(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage);

  static constexpr uint64_t kWarmUpSteps = 10;  // compilation, autotuning, first-time set-ups
  static constexpr uint64_t kMostSteps = kMostCountedSteps;

 private:
  void begin(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage);
  void finish(segment::KernelCountState state, segment::Coverage* coverage);
  cupti::Result subscribe(char (&holder)[cupti::kHolderSize]);
  bool enable(uint32_t on);

  uint64_t steps_ = 0, warm_up_ = 0, counted_ = 0;
  Finder find_ = nullptr;
  bool is_counting_ = false;
  cupti::Library library_ = {};
  cupti::Subscriber subscriber_ = nullptr;
  PassCalls before_;
  uint64_t in_graphs_before_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_KERNEL_COUNT_H_
