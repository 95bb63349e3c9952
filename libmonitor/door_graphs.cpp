// CUDA graphs: PyTorch (torch.cuda.graph, mode="reduce-overhead", Megatron) records and launches them through
// the CUDA runtime, which it finds by the dynamic linker. Attention in a launched graph calls nobody; so what
// was counted while it was recorded is multiplied by its launches (graph_ledger.h). Nothing of the runtime is
// called here but what the caller asked for.
//
// The names are exported under the versions that the runtime itself gives them, and not as defaults: only a
// program that is linked with it can meet them, and none that looks whether CUDA is there.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>

#include "libmonitor/door.h"
#include "libmonitor/guest.h"
#include "libmonitor/monitor.h"
#include "libmonitor/passed_words.h"

namespace foreshock {
namespace {

// The longest of these functions takes five arguments, all of them words.
#define FORESHOCK_FIVE Word a, Word b, Word c, Word d, Word e
using Function = int (*)(FORESHOCK_FIVE);

enum Which {
  kBeginCapture,
  kEndCapture,
  kInstantiate,
  kInstantiateWithFlags,
  kInstantiateWithParams,
  kLaunch,
  kFunctions
};
constexpr const char* kNames[kFunctions] = {"cudaStreamBeginCapture",         "cudaStreamEndCapture",
                                            "cudaGraphInstantiate",           "cudaGraphInstantiateWithFlags",
                                            "cudaGraphInstantiateWithParams", "cudaGraphLaunch"};
enum Runtime { kCuda11, kCuda12, kCuda13, kRuntimes };
constexpr const char* kVersions[kRuntimes] = {"libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"};

constexpr int kSymbolNotFound = 302;  // cudaErrorSharedObjectSymbolNotFound

std::atomic<void*> g_real[kRuntimes][kFunctions];
std::atomic<int> g_is_monitored{-1};  // -1: not asked yet

Function real_function(Runtime runtime, Which which, const void* ours) {
  void* found = g_real[runtime][which].load(std::memory_order_acquire);
  if (found == nullptr) {
    // Some packages carry it under a longer name (libcudart-d0da41ae.so.11.0); the version tells it.
    found = find_behind("libcudart", kNames[which], kVersions[runtime], ours);
    g_real[runtime][which].store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

bool is_monitored() {
  int known = g_is_monitored.load(std::memory_order_relaxed);
  if (known < 0) g_is_monitored.store(known = is_monitored_process() ? 1 : 0, std::memory_order_relaxed);
  return known != 0 && !g_guest.is_off();
}

void publish() {
  if ((g_guest.hot() & kHotArmed) != 0) g_monitor.graphs().store(g_guest.writer().coverage());
}

// What `place` points to, after a function that stores a handle there.
uintptr_t handle_at(Word place) { return place != 0 ? *reinterpret_cast<const uintptr_t*>(place) : 0; }

void note(Which which, bool succeeded, Word a, Word b, const PassCalls& before) {
  GraphLedger& ledger = g_monitor.graphs();
  switch (which) {
    case kBeginCapture:  // (stream, mode)
      if (succeeded) ledger.begin_recording(a, before);
      return;
    case kEndCapture:  // (stream, *graph); it has ended in any case
      ledger.end_recording(a, succeeded ? handle_at(b) : 0, before);
      return publish();
    case kLaunch:  // (executable, stream)
      if (succeeded) ledger.launch(a);
      return publish();
    default:  // (*executable, graph, ...)
      if (succeeded) ledger.instantiate(b, handle_at(a));
  }
}

int pass_on(Runtime runtime, Which which, const void* ours, FORESHOCK_FIVE) {
  const Function real = real_function(runtime, which, ours);
  if (real == nullptr) return kSymbolNotFound;
  const int error = real(a, b, c, d, e);
  if (!is_monitored()) return error;
  PassCalls so_far;
  if (which == kBeginCapture || which == kEndCapture) g_guest.count_calls(so_far.of);
  note(which, error == 0, a, b, so_far);
  return error;
}

}  // namespace
}  // namespace foreshock

// Functions whose own names stay here, and the name that others see.
#define FORESHOCK_RUNTIME_FUNCTION(runtime, version, which, name)                                           \
  extern "C" FORESHOCK_EXPORT int runtime##_##name(foreshock::Word a, foreshock::Word b, foreshock::Word c, \
                                                   foreshock::Word d, foreshock::Word e) {                  \
    return foreshock::pass_on(foreshock::runtime, foreshock::which,                                         \
                              reinterpret_cast<const void*>(&runtime##_##name), a, b, c, d, e);             \
  }                                                                                                         \
  __asm__(".symver " #runtime "_" #name "," #name "@" version);

#define FORESHOCK_RUNTIME(runtime, version)                                                            \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kBeginCapture, cudaStreamBeginCapture)                  \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kEndCapture, cudaStreamEndCapture)                      \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kInstantiate, cudaGraphInstantiate)                     \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kInstantiateWithFlags, cudaGraphInstantiateWithFlags)   \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kInstantiateWithParams, cudaGraphInstantiateWithParams) \
  FORESHOCK_RUNTIME_FUNCTION(runtime, version, kLaunch, cudaGraphLaunch)

FORESHOCK_RUNTIME(kCuda11, "libcudart.so.11.0")
FORESHOCK_RUNTIME(kCuda12, "libcudart.so.12")
FORESHOCK_RUNTIME(kCuda13, "libcudart.so.13")
