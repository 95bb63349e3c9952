// Counts attention calls in CUDA graphs, counts attention kernels, and stores names of unhooked attention.
#include "libmonitor/coverage.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "foreshock/hook.h"
#include "libmonitor/base.h"

namespace foreshock {
namespace {

using segment::KernelCountState;
using segment::kPasses;

void add(std::atomic<uint64_t>& total, uint64_t count) { total.fetch_add(count, std::memory_order_relaxed); }

struct KernelName {
  const char* part;  // a part of the kernel's symbol
  int pass;          // 0 forward, 1 backward
};

// flash-attn 2 and PyTorch's copy of it, then flash-attn 3, flash-attn 4, and memory-efficient attention.
constexpr KernelName kNames[] = {
    {"flash_fwd_kernel", 0},         {"flash_fwd_splitkv_kernel", 0}, {"flash_bwd_dq_dk_dv_loop", 1},
    {"FlashAttnFwdSm", 0},           {"FlashAttnBwdSm", 1},           {"FlashAttentionForwardSm", 0},
    {"FlashAttentionBackwardSm", 1}, {"fmha_cutlassF_", 0},           {"fmha_cutlassB_", 1},
};

// A full name of cuDNN is cudnn_generated_fort_native_sdpa_sm90_flash_fprop_...
constexpr KernelName kCudnnNames[] = {{"_flash_fprop", 0}, {"_flash_bprop", 1}};

}  // namespace

int attention_pass_of_kernel(const char* symbol) {
  if (symbol == nullptr) return -1;
  for (const KernelName& name : kNames)
    if (std::strstr(symbol, name.part) != nullptr) return name.pass;
  if (std::strstr(symbol, "sdpa") == nullptr) return -1;
  // cuDNN's helper kernels have "sdpa" in their names too.
  for (const char* helper : {"dot_do_o", "convert", "combine", "clear"})
    if (std::strstr(symbol, helper) != nullptr) return -1;
  for (const KernelName& name : kCudnnNames)
    if (std::strstr(symbol, name.part) != nullptr) return name.pass;
  return -1;
}

void CudaGraphCounter::begin_capture(const PassCalls& so_far) {
  const TryLock lock(busy_);
  if (!lock) return has_missed_.store(true, std::memory_order_relaxed);
  is_alone_ = active_.load(std::memory_order_relaxed) == 0;
  if (is_alone_) before_ = so_far;
  active_.fetch_add(1, std::memory_order_relaxed);
  steps_ = 0;
}

bool CudaGraphCounter::end_capture(const PassCalls& so_far, PassCalls* calls) {
  const TryLock lock(busy_);
  if (!lock) return false;
  if (active_.load(std::memory_order_relaxed) == 0) return false;  // its begin was not seen
  const bool was_alone = is_alone_ && !has_missed_.exchange(false, std::memory_order_relaxed);
  if (active_.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    calls->of[pass] = so_far.of[pass] - before_.of[pass];
    add(recorded_[pass], calls->of[pass]);
  }
  return was_alone;
}

void CudaGraphCounter::end_step() {
  if (!is_capturing()) [[likely]]
    return;
  const TryLock lock(busy_);
  if (lock && ++steps_ > kMostCaptureSteps) active_.store(0, std::memory_order_relaxed);
}

void CudaGraphCounter::launch(const PassCalls& calls) {
  add(launches_, 1);
  for (uint32_t pass = 0; pass < kPasses; ++pass) add(launched_[pass], calls.of[pass]);
}

void CudaGraphCounter::launch_unknown() { add(unknown_launches_, 1); }

uint64_t CudaGraphCounter::calls_in_graphs() const {
  return launched_[0].load(std::memory_order_relaxed) + launched_[1].load(std::memory_order_relaxed);
}

void CudaGraphCounter::store(segment::Coverage* coverage) const {
  // Several threads may store at once. None returns before the value that it has stored is the newest.
  const auto store_total = [](uint64_t& to, const std::atomic<uint64_t>& from) {
    uint64_t stored = 0;
    do {
      stored = from.load();
      std::atomic_ref<uint64_t>(to).store(stored);
    } while (from.load() != stored);
  };
  store_total(coverage->graph_launches, launches_);
  store_total(coverage->unknown_launches, unknown_launches_);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    store_total(coverage->recorded_calls[pass], recorded_[pass]);
    store_total(coverage->launched_calls[pass], launched_[pass]);
  }
}

void CudaGraphCounter::forget() {
  busy_.clear();  // a thread of the parent, which does not exist here, may have held it at the fork
  active_.store(0, std::memory_order_relaxed);
  has_missed_.store(false, std::memory_order_relaxed);
  for (std::atomic<uint64_t>* total : {&launches_, &unknown_launches_}) total->store(0);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    recorded_[pass].store(0);
    launched_[pass].store(0);
  }
}

namespace {

// Static, because a thread may still run the callback after its KernelCounter has unsubscribed.
std::atomic<uint64_t> g_kernels[kPasses];

// CUPTI calls this at every kernel launch, in the thread that launches.
void count_launch(void*, int domain, uint32_t, const void* data) {
  const auto* launch = static_cast<const cupti::CallbackData*>(data);
  if (domain != cupti::kDriverApi || launch == nullptr || launch->site != 0) return;  // 0: entry
  const int pass = attention_pass_of_kernel(launch->symbol);
  if (pass >= 0) g_kernels[pass].fetch_add(1, std::memory_order_relaxed);
}

template <class T>
void store(T& to, T value) {
  std::atomic_ref<T>(to).store(value, std::memory_order_relaxed);
}

void store_state(KernelCountState state, segment::Coverage* coverage) {
  std::atomic_ref<uint32_t>(coverage->kernel_count_state)
      .store(static_cast<uint32_t>(state), std::memory_order_release);
}

}  // namespace

void KernelCounter::start(uint64_t steps, Finder find) {
  *this = {};
  steps_ = std::min(steps, kMostSteps);
  find_ = find;
  warm_up_ = kWarmUpSteps;
}

cupti::Result KernelCounter::subscribe(char (&other_subscriber)[cupti::kHolderSize]) {
  if (library_.subscribe_v2 == nullptr) return library_.subscribe(&subscriber_, count_launch, nullptr);
  cupti::SubscriberParams params = {sizeof params, "foreshock", other_subscriber, sizeof other_subscriber};
  return library_.subscribe_v2(&subscriber_, count_launch, nullptr, &params);
}

// Switches the callbacks of all launch functions on (1) or off (0).
bool KernelCounter::enable(uint32_t on) {
  bool all = true;
  for (const uint32_t function : cupti::kLaunches)
    all &= library_.enable_callback(on, subscriber_, cupti::kDriverApi, function) == cupti::kSuccess;
  return all;
}

void KernelCounter::begin(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage) {
  if (find_ == nullptr || !find_(&library_)) return finish(KernelCountState::kNoLibrary, coverage);
  if (library_.profiler_runs())  // tries again at the next step
    return store_state(KernelCountState::kProfiler, coverage);
  char other_subscriber[cupti::kHolderSize] = {};
  const cupti::Result result = subscribe(other_subscriber);
  if (result == cupti::kSubscribedByAnother) {
    std::memcpy(coverage->kernel_count_holder, other_subscriber, sizeof other_subscriber - 1);
    return finish(KernelCountState::kTaken, coverage);
  }
  if (result != cupti::kSuccess) return finish(KernelCountState::kRefused, coverage);
  is_counting_ = true;  // finish() must unsubscribe from now on
  for (std::atomic<uint64_t>& kernels : g_kernels) kernels.store(0, std::memory_order_relaxed);
  before_ = calls;
  in_graphs_before_ = calls_in_graphs;
  if (!enable(1)) return finish(KernelCountState::kRefused, coverage);
  store_state(KernelCountState::kCounting, coverage);
}

void KernelCounter::finish(KernelCountState state, segment::Coverage* coverage) {
  if (is_counting_) {
    enable(0);
    library_.unsubscribe(subscriber_);
  }
  *this = {};  // steps_ is 0, so end_step() does nothing from now on
  store_state(state, coverage);
}

void KernelCounter::end_step(const PassCalls& calls, uint64_t calls_in_graphs, segment::Coverage* coverage) {
  if (steps_ == 0) return;
  if (!is_counting_) {
    if (warm_up_ > 0) {
      --warm_up_;
      return store_state(KernelCountState::kWaiting, coverage);
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

void UnhookedAttention::attach(segment::UnseenName* records) {
  busy_.clear();  // a thread of the parent may have held it at the fork
  records_ = records;
  for (uint32_t n = 0; n < known_; ++n) store(n);
}

void UnhookedAttention::store(uint32_t index) {
  segment::UnseenName& record = records_[index];
  std::memcpy(record.name, names_[index].name, sizeof record.name);
  std::atomic_ref<uint32_t>(record.evidence).store(names_[index].evidence, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(record.ready).store(1, std::memory_order_release);
}

void UnhookedAttention::note(const char* name, uint32_t evidence, bool has_segment) {
  if (name == nullptr || *name == '\0' || evidence < FORESHOCK_UNSEEN_USED ||
      evidence > FORESHOCK_UNSEEN_IMPORTED)
    return;
  if (busy_.test_and_set(std::memory_order_acquire)) return;
  char shortened[sizeof(segment::UnseenName::name)] = {};
  std::strncpy(shortened, name, sizeof shortened - 1);
  uint32_t index = 0;
  while (index < known_ && std::strcmp(names_[index].name, shortened) != 0) ++index;
  // A smaller number is better evidence.
  if (index < segment::kMaxUnseen && (index == known_ || evidence < names_[index].evidence)) {
    std::memcpy(names_[index].name, shortened, sizeof shortened);
    names_[index].evidence = evidence;
    if (index == known_) ++known_;
    // In a forked child without a segment, records_ are the parent's.
    if (has_segment && records_ != nullptr) store(index);
  }
  busy_.clear(std::memory_order_release);
}

}  // namespace foreshock
