// Interposes the functions of the CUDA runtime that record and launch CUDA graphs: PyTorch's call of
// cudaGraphLaunch() reaches the function of that name here. A function here calls the runtime's function,
// counts the call, and makes no other CUDA call. Attention in a launched graph calls none of foreshock's
// hooks. So CudaGraphCounter (coverage.h) takes the attention calls that the hooks counted while a graph was
// recorded, and multiplies them by the number of the graph's launches. The names are exported under the
// symbol versions of the runtime, and not as default versions: only programs that are linked with the runtime
// resolve them, and a program that looks up the names to test for CUDA does not find them.
//
// The end of the file finds CUPTI (NVIDIA's profiling library) for KernelCounter (coverage.h).
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "libmonitor/base.h"
#include "libmonitor/bootstrap.h"
#include "libmonitor/coverage.h"
#include "libmonitor/monitor.h"
#include "libmonitor/options.h"
#include "libmonitor/process.h"

namespace foreshock {
namespace {

// The interposed functions take at most six arguments, each in one integer register. Every function here
// takes six words of unknown type (Word is uint64_t) and forwards all of them, so one type fits all.
#define FORESHOCK_SIX_WORDS Word a, Word b, Word c, Word d, Word e, Word f
using Function = int (*)(FORESHOCK_SIX_WORDS);

// X(kind, name, stream) for every interposed function. `stream`: the default stream that the handle 0 stands
// for in this function; meaningless for a function without a stream argument. Programs that are compiled with
// --default-stream per-thread call the names with _ptsz.
#define FORESHOCK_RUNTIME_FUNCTIONS(X)                                    \
  X(kBeginCapture, cudaStreamBeginCapture, kLegacy)                       \
  X(kBeginCapture, cudaStreamBeginCapture_ptsz, kPerThread)               \
  X(kBeginCaptureToGraph, cudaStreamBeginCaptureToGraph, kLegacy)         \
  X(kBeginCaptureToGraph, cudaStreamBeginCaptureToGraph_ptsz, kPerThread) \
  X(kEndCapture, cudaStreamEndCapture, kLegacy)                           \
  X(kEndCapture, cudaStreamEndCapture_ptsz, kPerThread)                   \
  X(kInstantiate, cudaGraphInstantiate, kLegacy)                          \
  X(kInstantiate, cudaGraphInstantiateWithFlags, kLegacy)                 \
  X(kInstantiate, cudaGraphInstantiateWithParams, kLegacy)                \
  X(kInstantiate, cudaGraphInstantiateWithParams_ptsz, kPerThread)        \
  X(kUpdate, cudaGraphExecUpdate, kLegacy)                                \
  X(kClone, cudaGraphClone, kLegacy)                                      \
  X(kLaunch, cudaGraphLaunch, kLegacy)                                    \
  X(kLaunch, cudaGraphLaunch_ptsz, kPerThread)                            \
  X(kDestroyGraph, cudaGraphDestroy, kLegacy)                             \
  X(kDestroyExecutable, cudaGraphExecDestroy, kLegacy)

enum Kind {
  kBeginCapture,
  kBeginCaptureToGraph,
  kEndCapture,
  kInstantiate,
  kUpdate,
  kClone,
  kLaunch,
  kDestroyGraph,
  kDestroyExecutable
};
enum DefaultStream { kLegacy, kPerThread };
struct Interposed {
  Kind kind;
  const char* name;
  DefaultStream default_stream;
};
#define FORESHOCK_INTERPOSED(kind, name, stream) {kind, #name, stream},
constexpr Interposed kInterposed[] = {FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_INTERPOSED)};
constexpr int kFunctions = sizeof kInterposed / sizeof *kInterposed;
#define FORESHOCK_NUMBER(kind, name, stream) kNumberOf_##name,
enum Number { FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_NUMBER) };

enum Runtime { kCuda11, kCuda12, kCuda13, kRuntimes };
constexpr const char* kVersions[kRuntimes] = {"libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"};

constexpr int kSymbolNotFound = 302;  // cudaErrorSharedObjectSymbolNotFound
constexpr int kWrongThread = 908;     // cudaErrorStreamCaptureWrongThread
constexpr Word kStreamPerThread = 2;  // cudaStreamPerThread, a handle

std::atomic<void*> g_real[kRuntimes][kFunctions];  // the runtimes' functions; null: not found yet
std::atomic<int> g_is_monitored{-1};               // -1: not determined yet

// Returns the runtime's function, which the caller would get without libforeshock.so; null if it is missing.
// `ours`: the function of this file that has the same name.
Function real_function(Runtime runtime, Number number, const void* ours) {
  void* found = g_real[runtime][number].load(std::memory_order_acquire);
  if (found == nullptr) {
    // Some packages have a longer file name (libcudart-d0da41ae.so.11.0); the symbol version identifies it.
    found = find_original("libcudart", kInterposed[number].name, kVersions[runtime], ours);
    g_real[runtime][number].store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

// Whether to count calls in this process: its environment requests foreshock, and foreshock is not off.
bool is_monitored() {
  int known = g_is_monitored.load(std::memory_order_relaxed);
  if (known < 0) {
    known = is_monitored_process() ? 1 : 0;
    g_is_monitored.store(known, std::memory_order_relaxed);
  }
  return known != 0 && !g_process.is_off();
}

// Stores the counts in the segment (the shared memory that the agent reads), if this process has one.
void publish() {
  if ((g_process.hot() & kHotArmed) != 0) g_monitor.graphs().store(g_process.writer().coverage());
}

uintptr_t handle_at(Word address) { return address != 0 ? *reinterpret_cast<const uintptr_t*>(address) : 0; }

// Returns a number that identifies the stream. The per-thread default streams of all threads have the same
// handle, so such a stream is identified by the thread's id.
uintptr_t stream_of(const Interposed& called, Word handle) {
  const bool is_of_thread =
      handle == kStreamPerThread || (handle == 0 && called.default_stream == kPerThread);
  return is_of_thread ? static_cast<uintptr_t>(pthread_self()) : handle;
}

// Counts a call that has returned `error`. Ignores destructions, which count_destruction() has counted. a, b:
// the first two arguments, named in the comment of each case.
void count_call(const Interposed& called, int error, Word a, Word b) {
  CudaGraphCounter& graphs = g_monitor.graphs();
  const bool succeeded = error == 0;
  PassCalls so_far;  // attention calls counted by the hooks; used only when a recording begins or ends
  const bool begins_or_ends = called.kind <= kEndCapture;  // the first three kinds
  if (begins_or_ends) g_process.add_calls_to(so_far.of);
  switch (called.kind) {
    case kBeginCapture:  // (stream, mode)
      if (succeeded) graphs.begin_recording(stream_of(called, a), so_far);
      return;
    case kBeginCaptureToGraph:  // (stream, graph, ...)
      if (succeeded) graphs.begin_recording_into(stream_of(called, a), b, so_far);
      return;
    case kEndCapture:  // (stream, *graph); the recording has ended even after an error, except kWrongThread
      if (error != kWrongThread)
        graphs.end_recording(stream_of(called, a), succeeded ? handle_at(b) : 0, so_far);
      return publish();
    case kInstantiate:  // (*executable, graph, ...)
      if (succeeded) graphs.instantiate(b, handle_at(a));
      return;
    case kUpdate:  // (executable, graph, ...); the executable runs this graph from now on
      if (succeeded) graphs.instantiate(b, a);
      return;
    case kClone:  // (*clone, graph)
      if (succeeded) graphs.clone(b, handle_at(a));
      return;
    case kLaunch:  // (executable, stream)
      if (succeeded) graphs.launch(a);
      return publish();
    case kDestroyGraph:
    case kDestroyExecutable:
      return;
  }
}

// Counts a destruction. Must be called before it: afterwards another thread may get the same handle.
void count_destruction(Kind kind, Word handle) {
  if (kind == kDestroyGraph) g_monitor.graphs().destroy_graph(handle);
  if (kind == kDestroyExecutable) g_monitor.graphs().destroy_executable(handle);
}

int forward_call(Runtime runtime, Number number, const void* ours, FORESHOCK_SIX_WORDS) {
  const Function real = real_function(runtime, number, ours);
  if (real == nullptr) return kSymbolNotFound;
  if (!is_monitored()) return real(a, b, c, d, e, f);
  count_destruction(kInterposed[number].kind, a);
  const int error = real(a, b, c, d, e, f);
  count_call(kInterposed[number], error, a, b);
  return error;
}

}  // namespace
}  // namespace foreshock

// Defines a function under an internal name, and exports it under the runtime's name and version. Each
// function of the runtime has one such definition for each major version of the runtime.
#define FORESHOCK_RUNTIME_FUNCTION(runtime, version, name)                                                  \
  extern "C" FORESHOCK_EXPORT int runtime##_##name(foreshock::Word a, foreshock::Word b, foreshock::Word c, \
                                                   foreshock::Word d, foreshock::Word e,                    \
                                                   foreshock::Word f) {                                     \
    return foreshock::forward_call(foreshock::runtime, foreshock::kNumberOf_##name,                         \
                                   reinterpret_cast<const void*>(&runtime##_##name), a, b, c, d, e, f);     \
  }                                                                                                         \
  __asm__(".symver " #runtime "_" #name "," #name "@" version);

#define FORESHOCK_OF_CUDA_11(kind, name, stream) \
  FORESHOCK_RUNTIME_FUNCTION(kCuda11, "libcudart.so.11.0", name)
#define FORESHOCK_OF_CUDA_12(kind, name, stream) FORESHOCK_RUNTIME_FUNCTION(kCuda12, "libcudart.so.12", name)
#define FORESHOCK_OF_CUDA_13(kind, name, stream) FORESHOCK_RUNTIME_FUNCTION(kCuda13, "libcudart.so.13", name)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_11)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_12)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_13)

namespace foreshock {
namespace {

// -- CUPTI: used if this process has already loaded it, as PyTorch with CUDA does; never loaded here --

using ProfilerQuery = bool (*)();

// Functions of torch: torch::profiler::impl::profilerEnabled(), which covers the calling thread only, and
// torch::autograd::profiler::isProfilerEnabledInMainThread().
constexpr const char* kProfilerQueries[] = {
    "_ZN5torch8profiler4impl15profilerEnabledEv",
    "_ZN5torch8autograd8profiler29isProfilerEnabledInMainThreadEv",
};

// Whether torch's profiler runs, or a daemon (KINETO_USE_DAEMON) may start it at any time. CUPTI accepts one
// subscriber at a time, so KernelCounter leaves CUPTI to the profiler while the profiler runs. Without torch
// the profiler cannot run. If torch does not export these functions, the profiler is assumed to run.
bool profiler_runs() {
  const char* daemon = SafeEnvironment().find("KINETO_USE_DAEMON");
  if (daemon != nullptr && *daemon != '\0' && std::strcmp(daemon, "0") != 0) return true;
  char path[512];
  if (!find_mapped_path("libtorch_cpu.so", path)) return false;
  bool is_exported = false;
  for (const char* name : kProfilerQueries) {
    const auto query = reinterpret_cast<ProfilerQuery>(find_in_mapped("libtorch_cpu.so", name));
    if (query == nullptr) continue;
    is_exported = true;
    if (query()) return true;
  }
  return !is_exported;
}

// Sets *function to CUPTI's function `name`. Returns false, and sets null, if it is not found.
template <class T>
bool find_in_cupti(const char* name, T* function) {
  *reinterpret_cast<void**>(function) = find_in_mapped("libcupti", name);
  return *function != nullptr;
}

// Returns whether all functions were found. subscribe_v2 is optional, so the result does not depend on it.
bool find_cupti(cupti::Library* found) {
  *found = {};
  found->profiler_runs = profiler_runs;
  find_in_cupti("cuptiSubscribe_v2", &found->subscribe_v2);
  return find_in_cupti("cuptiSubscribe", &found->subscribe) &&
         find_in_cupti("cuptiUnsubscribe", &found->unsubscribe) &&
         find_in_cupti("cuptiEnableCallback", &found->enable_callback);
}

// The monitor must not refer to this file, which the static library that unit tests link does not contain.
__attribute__((constructor)) void register_kernel_finder() { g_monitor.set_kernel_finder(find_cupti); }

}  // namespace
}  // namespace foreshock
