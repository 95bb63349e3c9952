#include "libmonitor/kernel_count.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "libmonitor/kernel_names.h"

namespace foreshock {
namespace {

using segment::KernelCountState;
using segment::kPasses;

// Not of an object: a thread may still be in the callback when it was given back.
std::atomic<uint64_t> g_kernels[kPasses];

void count_launch(void*, int domain, uint32_t, const void* data) {
  const auto* launch = static_cast<const cupti::CallbackData*>(data);
  if (domain != cupti::kDriverApi || launch == nullptr || launch->site != 0) return;
  const int pass = attention_pass_of_kernel(launch->symbol);
  if (pass >= 0) g_kernels[pass].fetch_add(1, std::memory_order_relaxed);
}

template <class T>
void store(T& to, T value) {
  std::atomic_ref<T>(to).store(value, std::memory_order_relaxed);
}

void tell(KernelCountState state, segment::Coverage* coverage) {
  std::atomic_ref<uint32_t>(coverage->kernel_count_state)
      .store(static_cast<uint32_t>(state), std::memory_order_release);
}

}  // namespace

void KernelCount::ask(uint64_t steps, Finder find) {
  *this = {};
  steps_ = std::min(steps, kMostSteps);
  find_ = find;
  warm_up_ = kWarmUpSteps;
}

cupti::Result KernelCount::subscribe(char (&holder)[cupti::kHolderSize]) {
  if (library_.subscribe_v2 == nullptr) return library_.subscribe(&subscriber_, count_launch, nullptr);
  cupti::SubscriberParams params = {sizeof params, "foreshock", holder, sizeof holder};
  return library_.subscribe_v2(&subscriber_, count_launch, nullptr, &params);
}

bool KernelCount::enable(uint32_t on) {
  bool all = true;
  for (const uint32_t function : cupti::kLaunches)
    all &= library_.enable_callback(on, subscriber_, cupti::kDriverApi, function) == cupti::kSuccess;
  return all;
}

void KernelCount::begin(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage) {
  if (find_ == nullptr || !find_(&library_)) return finish(KernelCountState::kNoLibrary, coverage);
  if (library_.profiler_runs()) return tell(KernelCountState::kProfiler, coverage);  // asked again next step
  char holder[cupti::kHolderSize] = {};
  const cupti::Result result = subscribe(holder);
  if (result == cupti::kSubscribedByAnother) {
    std::memcpy(coverage->kernel_count_holder, holder, sizeof holder - 1);
    return finish(KernelCountState::kTaken, coverage);
  }
  if (result != cupti::kSuccess) return finish(KernelCountState::kRefused, coverage);
  is_counting_ = true;
  for (std::atomic<uint64_t>& kernels : g_kernels) kernels.store(0, std::memory_order_relaxed);
  before_ = calls;
  in_graphs_before_ = calls_in_graphs;
  if (!enable(1)) return finish(KernelCountState::kRefused, coverage);
  tell(KernelCountState::kCounting, coverage);
}

void KernelCount::finish(KernelCountState state, segment::Coverage* coverage) {
  if (is_counting_) {
    enable(0);
    library_.unsubscribe(subscriber_);
  }
  *this = {};
  tell(state, coverage);
}

void KernelCount::end_step(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage) {
  if (steps_ == 0) return;
  if (!is_counting_) {
    if (warm_up_ > 0) {
      --warm_up_;
      return tell(KernelCountState::kWaiting, coverage);
    }
    return begin(calls, calls_in_graphs, coverage);
  }
  ++counted_;
  store<uint64_t>(coverage->kernel_count_steps, counted_);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    store(coverage->kernels[pass], g_kernels[pass].load(std::memory_order_relaxed));
    store(coverage->kernel_count_calls[pass], calls.of[pass] - before_.of[pass]);
  }
  store(coverage->kernel_count_in_graphs, calls_in_graphs - in_graphs_before_);
  if (counted_ >= steps_ || library_.profiler_runs()) finish(KernelCountState::kDone, coverage);
}

}  // namespace foreshock
