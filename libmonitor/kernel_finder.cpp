// Finds CUPTI (NVIDIA's profiling library) for KernelCounter (coverage.h). CUPTI is used if this process has
// already loaded it, as PyTorch with CUDA does; it is never loaded here.
#include <cstring>

#include "libmonitor/coverage.h"
#include "libmonitor/mapped_libraries.h"
#include "libmonitor/monitor.h"
#include "libmonitor/options.h"

namespace foreshock {
namespace {

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
