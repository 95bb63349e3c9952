// CUPTI, where this process has it already: PyTorch with CUDA is linked with it. Nothing is opened anew.
#include <cstdlib>
#include <cstring>

#include "libmonitor/cupti.h"
#include "libmonitor/door.h"
#include "libmonitor/monitor.h"
#include "libmonitor/variables.h"

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
  const char* daemon = Variables().find("KINETO_USE_DAEMON");
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
