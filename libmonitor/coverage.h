// Counts and names attention that the hooks do not see: calls in CUDA graphs, attention kernels counted by
// CUPTI (NVIDIA's profiling library), and names. Names are found by the adapter (operations of other packages
// without a hook) and the Python helper (unseen.py, seams.py). The agent reads all from the segment (Coverage
// and UnseenName of segment/layout.h). Namespace cupti declares the part of CUPTI that is used, so that
// building does not need CUPTI; cupti_abi_test.cpp compares it with cupti.h if that is installed.
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
// Callback numbers of cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchCooperativeKernel, _ptsz,
// cuLaunchKernelEx, _ptsz. Every kernel launch calls one of these, also a launch by the runtime API.
inline constexpr uint32_t kLaunches[] = {307, 442, 477, 478, 652, 653};

struct CallbackData {  // the first members of CUpti_CallbackData
  int site;            // 0: entry of the function; 1: its exit
  const char* function;
  const void* parameters;
  void* result;
  const char* symbol;  // symbol of the kernel
};

struct SubscriberParams {  // of subscribe_v2()
  size_t size;
  const char* name;
  char* holder;  // buffer that receives the name of another subscriber
  size_t holder_size;
};
inline constexpr size_t kHolderSize = 64;  // bytes of the buffer that is passed as `holder`

using Subscriber = void*;
using Callback = void (*)(void* user_data, int domain, uint32_t function, const void* data);

// Functions of a CUPTI library that is already loaded. `subscribe_v2` is null before CUDA 13.
struct Library {
  Result (*subscribe)(Subscriber*, Callback, void*);
  Result (*subscribe_v2)(Subscriber*, Callback, void*, SubscriberParams*);
  Result (*unsubscribe)(Subscriber);
  Result (*enable_callback)(uint32_t enable, Subscriber, int domain, uint32_t function);
  // Whether torch.profiler, which needs CUPTI too, runs or may be started by a daemon at any time.
  bool (*profiler_runs)();
};

}  // namespace foreshock::cupti

namespace foreshock {

// Returns the pass (0 forward, 1 backward) of the attention call that a kernel computes, from its symbol,
// mangled or not. Returns -1 for any other kernel, and for helpers of an attention call (sums of dO * O,
// conversions, combining the parts of a split).
int attention_pass_of_kernel(const char* symbol);

// Numbers of attention calls of all threads so far: of[0] forward calls, of[1] backward calls.
struct PassCalls {
  uint64_t of[segment::kPasses] = {};
};

// Counts attention calls that run inside CUDA graphs, where no hook is called. The Python helper (graphs.py)
// reports the capture and the replays of torch.cuda.CUDAGraph, and keeps the calls of each graph: those that
// the hooks counted while it was captured. Each replay adds them. A graph is called unknown if its number of
// calls is unknown; its launches are counted separately. Any thread may call the functions. No function
// waits: a capture that meets another thread inside the counter is unknown.
class CudaGraphCounter {
 public:
  // A capture begins, or ends (also if it failed). `so_far`: attention calls of all threads so far. The calls
  // of all threads between begin and end count for the graph, since another thread runs the backward pass. If
  // two captures overlap, their calls cannot be separated, and both graphs are unknown. end_capture() sets
  // `*calls` to the calls of the graph; returns false if they are unknown.
  void begin_capture(const PassCalls& so_far);
  bool end_capture(const PassCalls& so_far, PassCalls* calls);

  void launch(const PassCalls& calls);
  void launch_unknown();
  // Called at the end of every step that is not brief (in a brief step, only calls and losses are counted).
  // Gives up captures whose end was not seen for kMostCaptureSteps such steps.
  void end_step();

  bool is_capturing() const { return active_.load(std::memory_order_relaxed) > 0; }
  uint64_t calls_in_graphs() const;               // the calls of both passes in launched graphs so far
  void store(segment::Coverage* coverage) const;  // stores the totals of the process into the segment
  void forget();  // clears all counts; called in a forked child process that trains

 private:
  static constexpr uint32_t kMostCaptureSteps = 8;  // a capture usually spans one step or a few

  std::atomic_flag busy_;
  std::atomic<uint32_t> active_{0};      // captures whose end is missing
  bool is_alone_ = true;                 // false: captures overlap
  std::atomic<bool> has_missed_{false};  // a begin was dropped while another thread held busy_
  uint32_t steps_ = 0;                   // steps that have ended since the last capture began
  PassCalls before_;                     // attention calls when the first of the active captures began
  std::atomic<uint64_t> launches_{0}, unknown_launches_{0};  // of known graphs, and of unknown graphs
  // Attention calls by pass: in captures, and in the launches of graphs that are not unknown.
  std::atomic<uint64_t> recorded_[segment::kPasses] = {}, launched_[segment::kPasses] = {};
};

// Counts the attention kernels that are launched in a few steps, with CUPTI, for comparison with the calls
// that the hooks have seen in the same steps. Runs only with --count-kernels: before CUDA 13.3 a process can
// have only one CUPTI subscriber, and profilers need to be that subscriber too. So the counter subscribes
// late and for few steps. It does not start if another subscriber exists or while torch.profiler runs.
class KernelCounter {
 public:
  using Finder = bool (*)(cupti::Library* found);
  // Counts in `steps` steps (0: in no step), after kWarmUpSteps steps. `find` finds CUPTI; null: no CUPTI.
  void start(uint64_t steps, Finder find);
  // Called at the end of every step, by one thread at a time. `calls` are the attention calls so far;
  // `calls_in_graphs` of them ran in CUDA graphs. Stores its state and results in `coverage`.
  void end_step(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage);

  static constexpr uint64_t kWarmUpSteps = 10;  // compilation, autotuning, first-time set-ups
  static constexpr uint64_t kMostSteps = kMostCountedSteps;

 private:
  void begin(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage);
  void finish(segment::KernelCountState state, segment::Coverage* coverage);
  cupti::Result subscribe(char (&other_subscriber)[cupti::kHolderSize]);
  bool enable(uint32_t on);

  uint64_t steps_ = 0, warm_up_ = 0, counted_ = 0;  // steps to count; steps until the start; steps counted
  Finder find_ = nullptr;
  bool is_counting_ = false;
  cupti::Library library_ = {};
  cupti::Subscriber subscriber_ = nullptr;
  PassCalls before_;  // attention calls when the counting began; in_graphs_before_ of them ran in CUDA graphs
  uint64_t in_graphs_before_ = 0;
};

// Stores the names of modules and operations with attention that no hook sees, also before the segment
// exists. Any thread; a call is dropped if another thread is using the table. Fixed memory.
class UnhookedAttention {
 public:
  // Copies the names noted so far into `records`, the kMaxUnseen entries of the segment. note() adds later
  // names there too.
  void attach(segment::UnseenName* records);
  // Adds a name. `evidence` is FORESHOCK_UNSEEN_...; a smaller number is better evidence and replaces a
  // larger one. An empty name is dropped, and so is a new name if the table is full. `has_segment`: whether
  // the attached records belong to this process (false in a forked child).
  void note(const char* name, uint32_t evidence, bool has_segment);

 private:
  void store(uint32_t index);

  std::atomic_flag busy_;
  segment::UnseenName names_[segment::kMaxUnseen] = {};
  uint32_t known_ = 0;                      // number of names in names_
  segment::UnseenName* records_ = nullptr;  // in the segment; null before attach()
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_COVERAGE_H_
