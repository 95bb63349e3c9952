// CUDA graphs: PyTorch (torch.cuda.graph, mode="reduce-overhead", Megatron) records and launches them through
// the CUDA runtime, which it finds by the dynamic linker. Attention in a launched graph calls nobody; so what
// was counted while it was recorded is multiplied by its launches (coverage.h). Nothing of the runtime is
// called here but what the caller asked for.
//
// The names are exported under the versions that the runtime itself gives them, and not as defaults: only a
// program that is linked with it can meet them, and none that looks whether CUDA is there.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "libmonitor/base.h"
#include "libmonitor/bootstrap.h"
#include "libmonitor/coverage.h"
#include "libmonitor/environment.h"
#include "libmonitor/monitor.h"
#include "libmonitor/process.h"

namespace foreshock {
namespace {

// The longest of these functions takes six arguments, all of them words.
#define FORESHOCK_SIX Word a, Word b, Word c, Word d, Word e, Word f
using Function = int (*)(FORESHOCK_SIX);

// X(kind, name, stream) for every function that is followed. `stream`: what handle 0 stands for. Programs
// that are compiled with --default-stream per-thread meet the names with _ptsz.
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
struct Followed {
  Kind kind;
  const char* name;
  DefaultStream default_stream;
};
#define FORESHOCK_FOLLOWED(kind, name, stream) {kind, #name, stream},
constexpr Followed kFollowed[] = {FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_FOLLOWED)};
constexpr int kFunctions = sizeof kFollowed / sizeof *kFollowed;
#define FORESHOCK_NUMBER(kind, name, stream) kNumberOf_##name,
enum Number { FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_NUMBER) };

enum Runtime { kCuda11, kCuda12, kCuda13, kRuntimes };
constexpr const char* kVersions[kRuntimes] = {"libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"};

constexpr int kSymbolNotFound = 302;  // cudaErrorSharedObjectSymbolNotFound
constexpr int kWrongThread = 908;     // cudaErrorStreamCaptureWrongThread
constexpr Word kStreamPerThread = 2;  // cudaStreamPerThread

std::atomic<void*> g_real[kRuntimes][kFunctions];
std::atomic<int> g_is_monitored{-1};  // -1: not asked yet

Function real_function(Runtime runtime, Number number, const void* ours) {
  void* found = g_real[runtime][number].load(std::memory_order_acquire);
  if (found == nullptr) {
    // Some packages carry it under a longer name (libcudart-d0da41ae.so.11.0); the version tells it.
    found = find_behind("libcudart", kFollowed[number].name, kVersions[runtime], ours);
    g_real[runtime][number].store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

bool is_monitored() {
  int known = g_is_monitored.load(std::memory_order_relaxed);
  if (known < 0) g_is_monitored.store(known = is_monitored_process() ? 1 : 0, std::memory_order_relaxed);
  return known != 0 && !g_process.is_off();
}

void publish() {
  if ((g_process.hot() & kHotArmed) != 0) g_monitor.graphs().store(g_process.writer().coverage());
}

// What `place` points to, after a function that stores a handle there.
uintptr_t handle_at(Word place) { return place != 0 ? *reinterpret_cast<const uintptr_t*>(place) : 0; }

// The default stream of each thread has the same handle, so there its thread stands for it.
uintptr_t stream_of(const Followed& called, Word handle) {
  const bool is_of_thread =
      handle == kStreamPerThread || (handle == 0 && called.default_stream == kPerThread);
  return is_of_thread ? static_cast<uintptr_t>(pthread_self()) : handle;
}

void note(const Followed& called, int error, Word a, Word b) {
  CudaGraphCounter& ledger = g_monitor.graphs();
  const bool succeeded = error == 0;
  PassCalls so_far;
  if (called.kind <= kEndCapture) g_process.count_calls(so_far.of);
  switch (called.kind) {
    case kBeginCapture:  // (stream, mode)
      if (succeeded) ledger.begin_recording(stream_of(called, a), so_far);
      return;
    case kBeginCaptureToGraph:  // (stream, graph, ...)
      if (succeeded) ledger.begin_recording_into(stream_of(called, a), b, so_far);
      return;
    case kEndCapture:  // (stream, *graph); it has ended also where that failed, but for one case
      if (error != kWrongThread)
        ledger.end_recording(stream_of(called, a), succeeded ? handle_at(b) : 0, so_far);
      return publish();
    case kInstantiate:  // (*executable, graph, ...)
      if (succeeded) ledger.instantiate(b, handle_at(a));
      return;
    case kUpdate:  // (executable, graph, ...)
      if (succeeded) ledger.instantiate(b, a);
      return;
    case kClone:  // (*clone, graph)
      if (succeeded) ledger.clone(b, handle_at(a));
      return;
    case kLaunch:  // (executable, stream)
      if (succeeded) ledger.launch(a);
      return publish();
    case kDestroyGraph:  // both were told before
    case kDestroyExecutable:
      return;
  }
}

// Before the real function, after which another thread may be given the same handle.
void note_end(Kind kind, Word handle) {
  if (kind == kDestroyGraph) g_monitor.graphs().destroy_graph(handle);
  if (kind == kDestroyExecutable) g_monitor.graphs().destroy_executable(handle);
}

int pass_on(Runtime runtime, Number number, const void* ours, FORESHOCK_SIX) {
  const Function real = real_function(runtime, number, ours);
  if (real == nullptr) return kSymbolNotFound;
  if (!is_monitored()) return real(a, b, c, d, e, f);
  note_end(kFollowed[number].kind, a);
  const int error = real(a, b, c, d, e, f);
  note(kFollowed[number], error, a, b);
  return error;
}

}  // namespace
}  // namespace foreshock

// Functions whose own names stay here, and the name that others see.
#define FORESHOCK_RUNTIME_FUNCTION(runtime, version, name)                                                  \
  extern "C" FORESHOCK_EXPORT int runtime##_##name(foreshock::Word a, foreshock::Word b, foreshock::Word c, \
                                                   foreshock::Word d, foreshock::Word e,                    \
                                                   foreshock::Word f) {                                     \
    return foreshock::pass_on(foreshock::runtime, foreshock::kNumberOf_##name,                              \
                              reinterpret_cast<const void*>(&runtime##_##name), a, b, c, d, e, f);          \
  }                                                                                                         \
  __asm__(".symver " #runtime "_" #name "," #name "@" version);

#define FORESHOCK_OF_CUDA_11(kind, name, stream) \
  FORESHOCK_RUNTIME_FUNCTION(kCuda11, "libcudart.so.11.0", name)
#define FORESHOCK_OF_CUDA_12(kind, name, stream) FORESHOCK_RUNTIME_FUNCTION(kCuda12, "libcudart.so.12", name)
#define FORESHOCK_OF_CUDA_13(kind, name, stream) FORESHOCK_RUNTIME_FUNCTION(kCuda13, "libcudart.so.13", name)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_11)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_12)
FORESHOCK_RUNTIME_FUNCTIONS(FORESHOCK_OF_CUDA_13)

// CUPTI, where this process has it already: PyTorch with CUDA is linked with it. Nothing is opened anew.

namespace foreshock {
namespace {

using Question = bool (*)();

// torch::profiler::impl::profilerEnabled(), of this thread, and
// torch::autograd::profiler::isProfilerEnabledInMainThread().
constexpr const char* kQuestions[] = {
    "_ZN5torch8profiler4impl15profilerEnabledEv",
    "_ZN5torch8autograd8profiler29isProfilerEnabledInMainThreadEv",
};

// A torch that cannot be asked is taken to be profiling.
bool profiler_runs() {
  const char* daemon = SafeEnvironment().find("KINETO_USE_DAEMON");
  if (daemon != nullptr && *daemon != '\0' && std::strcmp(daemon, "0") != 0) return true;
  char path[512];
  if (!find_mapped_path("libtorch_cpu.so", path)) return false;
  bool was_asked = false;
  for (const char* name : kQuestions) {
    const auto question = reinterpret_cast<Question>(find_in_mapped("libtorch_cpu.so", name));
    if (question == nullptr) continue;
    was_asked = true;
    if (question()) return true;
  }
  return !was_asked;
}

template <class T>
bool find(const char* name, T* function) {
  *reinterpret_cast<void**>(function) = find_in_mapped("libcupti", name);
  return *function != nullptr;
}

bool find_cupti(cupti::Library* found) {
  *found = {};
  found->profiler_runs = profiler_runs;
  find("cuptiSubscribe_v2", &found->subscribe_v2);
  return find("cuptiSubscribe", &found->subscribe) && find("cuptiUnsubscribe", &found->unsubscribe) &&
         find("cuptiEnableCallback", &found->enable_callback);
}

// What the static library, which unit tests link, cannot do by itself.
__attribute__((constructor)) void tell_how_to_find_it() { g_monitor.set_kernel_finder(find_cupti); }

}  // namespace
}  // namespace foreshock
