// What is used of NVIDIA's CUPTI, declared here so that nothing of it is needed to build. cupti_abi_test.cpp
// compares it with cupti.h where that is.
#ifndef FORESHOCK_LIBMONITOR_COVERAGE_H_
#define FORESHOCK_LIBMONITOR_COVERAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libmonitor/options.h"
#include "segment/layout.h"

namespace foreshock::cupti {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kSubscribedByAnother = 39;  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED

inline constexpr int kDriverApi = 1;  // CUPTI_CB_DOMAIN_DRIVER_API
// cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchCooperativeKernel, _ptsz, cuLaunchKernelEx, _ptsz: every way
// of launching ends in one of these, the runtime's too.
inline constexpr uint32_t kLaunches[] = {307, 442, 477, 478, 652, 653};

struct CallbackData {
  int site;  // 0: the function is entered
  const char* function;
  const void* parameters;
  void* result;
  const char* symbol;  // of the kernel
};

struct SubscriberParams {
  size_t size;
  const char* name;
  char* holder;  // who else has it is written here
  size_t holder_size;
};
inline constexpr size_t kHolderSize = 64;

using Subscriber = void*;
using Callback = void (*)(void* given, int domain, uint32_t function, const void* data);

// Of a library that the process has already. `subscribe_v2` is null before CUDA 13.
struct Library {
  Result (*subscribe)(Subscriber*, Callback, void*);
  Result (*subscribe_v2)(Subscriber*, Callback, void*, SubscriberParams*);
  Result (*unsubscribe)(Subscriber);
  Result (*enable_callback)(uint32_t enable, Subscriber, int domain, uint32_t function);
  // Whether torch.profiler runs, or a daemon may start it at any time.
  bool (*profiler_runs)();
};

}  // namespace foreshock::cupti

// Which kernels are one attention call each, by the names that their makers give them.

namespace foreshock {

// The pass (0 forward, 1 backward) of the call that the kernel `symbol` is, mangled or not; -1: it is none,
// or only a helper beside one (sums of dO * O, conversions, what combines parts of a split).
int attention_pass_of_kernel(const char* symbol);

// Attention that runs inside CUDA graphs, where no hook is called: what was counted while a graph was
// recorded, times its launches.

// Attention calls so far, of every thread.
struct PassCalls {
  uint64_t of[segment::kPasses] = {};
};

// Any thread. Fixed room, no heap, nobody waits: who finds it taken leaves its graph unknown, and launches of
// unknown graphs are counted as that. Handles are used again for other graphs: what is not told of one that
// is new must not be known of it.
class CudaGraphCounter {
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

// Counts the attention kernels that are launched in a few steps, by CUPTI: what the calls that hooks have
// seen in the same steps are compared with. Only where asked for (--count-kernels): before CUDA 13.3 a
// process has one place for such a subscriber, and profilers want it too. So this one comes late, stays for
// few steps, gives way to whoever has the place and never holds it while torch.profiler runs.

class KernelCounter {
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

#endif  // FORESHOCK_LIBMONITOR_COVERAGE_H_
