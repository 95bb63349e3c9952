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

// Exclusive access to the counter; false if another thread has it. Then the event is dropped, and the next
// Turn marks all graphs as unknown: the dropped event may have destroyed a graph whose handle is now reused.
class CudaGraphCounter::Turn {
 public:
  explicit Turn(CudaGraphCounter* counter) : lock_(counter->busy_) {
    if (!lock_)
      counter->has_missed_.store(true, std::memory_order_release);
    else if (counter->has_missed_.exchange(false, std::memory_order_acquire))
      counter->mark_all_unknown();
  }
  explicit operator bool() const { return static_cast<bool>(lock_); }

 private:
  TryLock lock_;
};

// Marks the active recordings as not alone: their calls cannot be separated from those of other recordings.
void CudaGraphCounter::mark_recordings_unknown() {
  for (Recording& recording : recordings_) recording.is_alone = false;
}

void CudaGraphCounter::mark_all_unknown() {
  mark_recordings_unknown();
  for (Graph& graph : graphs_) graph = {};  // a graph without an entry is unknown
}

// Removes the recording of the stream from the table and returns it. If the stream has none, the returned
// recording has stream 0.
CudaGraphCounter::Recording CudaGraphCounter::remove_recording(uintptr_t stream) {
  for (Recording& recording : recordings_) {
    if (stream == 0 || recording.stream != stream) continue;
    const Recording found = recording;
    recording = {};
    active_recordings_.fetch_sub(1, std::memory_order_relaxed);
    return found;
  }
  return {};
}

void CudaGraphCounter::begin_recording(uintptr_t stream, const PassCalls& so_far) {
  begin(stream, 0, so_far);
}

void CudaGraphCounter::begin_recording_into(uintptr_t stream, uintptr_t graph, const PassCalls& so_far) {
  begin(stream, graph, so_far);
}

// `body`: the existing graph into which the stream records, the body of a conditional node; 0: a new graph.
void CudaGraphCounter::begin(uintptr_t stream, uintptr_t body, const PassCalls& so_far) {
  const Turn turn(this);
  if (!turn || stream == 0) return;
  remove_recording(stream);  // removes an earlier recording whose end was not seen
  // Calls of recordings at the same time cannot be separated. A body is left to end_recording(), which marks
  // the other recordings only if the body has calls.
  if (body == 0) mark_recordings_unknown();
  const uint32_t others = active_recordings_.load(std::memory_order_relaxed);
  if (others == 0) {
    calls_before_all_ = so_far;
    has_overflowed_ = false;
  }
  for (Recording& recording : recordings_) {
    if (recording.stream != 0) continue;
    recording = {stream, body, others == 0, 0, so_far};
    active_recordings_.store(others + 1, std::memory_order_relaxed);
    return;
  }
  has_overflowed_ = true;  // some begins are not stored, so all graphs recorded at this time are unknown
}

void CudaGraphCounter::end_recording(uintptr_t stream, uintptr_t graph, const PassCalls& so_far) {
  const Turn turn(this);
  if (!turn) return;
  const Recording ended = remove_recording(stream);
  const bool was_seen = ended.stream != 0;
  // When the last active recording ends, all calls since the first of them began are added to recorded_.
  if (was_seen && active_recordings_.load(std::memory_order_relaxed) == 0)
    for (uint32_t pass = 0; pass < kPasses; ++pass)
      add(recorded_[pass], so_far.of[pass] - calls_before_all_.of[pass]);
  uint64_t calls[kPasses], calls_of_both = 0;  // not used if the begin was not seen
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    calls[pass] = so_far.of[pass] - ended.before.of[pass];
    calls_of_both += calls[pass];
  }
  // Calls in the body of a conditional node, or in a recording whose begin was not seen, were also counted
  // for the recordings that are still active. These become unknown. (Without a begin and a graph, nothing was
  // recorded.)
  const bool is_body_with_calls = ended.body != 0 && calls_of_both != 0;
  if (was_seen ? is_body_with_calls : graph != 0) mark_recordings_unknown();
  const bool is_known = was_seen && ended.is_alone && !has_overflowed_;
  Graph* entry = nullptr;  // of the graph that gets the calls; null: no graph gets them
  if (ended.body == 0)
    entry = graph != 0 ? add_graph(graph) : nullptr;
  else if (calls_of_both != 0)
    entry = graph_of(ended.body);
  // The calls are added to those of the entry: a body may be recorded in pieces. A new entry has 0 calls.
  for (uint32_t pass = 0; entry != nullptr && pass < kPasses; ++pass)
    calls[pass] = entry->calls[pass] != kUnknown ? calls[pass] + entry->calls[pass] : kUnknown;
  for (uint32_t pass = 0; entry != nullptr && pass < kPasses; ++pass)
    entry->calls[pass] = is_known && calls[pass] < kUnknown ? static_cast<uint32_t>(calls[pass]) : kUnknown;
}

// Drops recordings whose end was not seen for kMostRecordingSteps steps.
void CudaGraphCounter::end_step() {
  if (active_recordings_.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  const TryLock lock(busy_);
  if (!lock) return;  // the next step tries again
  for (Recording& recording : recordings_) {
    if (recording.stream == 0) continue;  // unused entry
    ++recording.steps;
    if (recording.steps > kMostRecordingSteps) remove_recording(recording.stream);
  }
}

CudaGraphCounter::Graph* CudaGraphCounter::graph_of(uintptr_t handle) {
  for (Graph& graph : graphs_)
    if (handle != 0 && graph.handle == handle) return &graph;
  return nullptr;
}

// Reuses the entry with the same handle, else the one with the smallest number: empty (0) or the oldest.
CudaGraphCounter::Graph* CudaGraphCounter::add_graph(uintptr_t handle) {
  Graph* entry = graph_of(handle);
  if (entry == nullptr)
    entry = std::min_element(std::begin(graphs_), std::end(graphs_),
                             [](const Graph& a, const Graph& b) { return a.number < b.number; });
  *entry = {handle, ++graphs_made_, {}};
  return entry;
}

// If `graph` is unknown, an entry that an earlier graph left under the handle of the clone becomes unknown.
void CudaGraphCounter::clone(uintptr_t graph, uintptr_t clone) {
  if (clone == 0) return;
  const Turn turn(this);
  if (!turn) return;
  const Graph* known = graph_of(graph);
  // A copy, since add_graph() may reuse the entry `known`.
  const Graph original = known != nullptr ? *known : Graph{};
  Graph* made = known != nullptr ? add_graph(clone) : graph_of(clone);
  for (uint32_t pass = 0; made != nullptr && pass < kPasses; ++pass)
    made->calls[pass] = known != nullptr ? original.calls[pass] : kUnknown;
}

void CudaGraphCounter::destroy_graph(uintptr_t graph) {
  const Turn turn(this);
  if (Graph* gone = turn ? graph_of(graph) : nullptr; gone != nullptr) *gone = {};
}

void CudaGraphCounter::destroy_executable(uintptr_t executable) {
  Executable* gone = executable > kGone ? executable_of(executable, false) : nullptr;
  if (gone != nullptr) gone->handle.compare_exchange_strong(executable, kGone, std::memory_order_acq_rel);
}

// Returns the entry of an executable graph. If the table has no such entry, returns null without `add`, but
// with `add` a free entry, whose handle is 0 (never used) or kGone (destroyed), or null if the table is full.
// Any thread may call it; with `add` the thread must hold the lock.
CudaGraphCounter::Executable* CudaGraphCounter::executable_of(uintptr_t handle, bool add) {
  // Multiplicative hashing (by 2^64 / golden ratio) into 10 bits. The low 4 bits are dropped first, since
  // handles are aligned addresses.
  const auto first = static_cast<uint32_t>((handle >> 4) * 0x9e3779b97f4a7c15u >> 54);
  static_assert(kExecutables == 1u << 10);
  Executable* free = nullptr;
  for (uint32_t n = 0; n < kExecutables; ++n) {
    Executable& executable = executables_[(first + n) % kExecutables];
    const uintptr_t found = executable.handle.load(std::memory_order_acquire);
    if (found == handle) return &executable;
    if (free == nullptr && found <= kGone) free = &executable;
    if (found == 0) break;
  }
  return add ? free : nullptr;
}

void CudaGraphCounter::instantiate(uintptr_t graph, uintptr_t executable) {
  if (executable <= kGone) return;
  const Turn turn(this);
  const Graph* known = turn ? graph_of(graph) : nullptr;
  // An executable of an unknown graph needs no entry, but one that exists under its handle becomes unknown.
  Executable* made = executable_of(executable, known != nullptr);
  if (made == nullptr) return;
  for (uint32_t pass = 0; pass < kPasses; ++pass)
    made->calls[pass].store(known != nullptr ? known->calls[pass] : kUnknown, std::memory_order_relaxed);
  if (known != nullptr) made->handle.store(executable, std::memory_order_release);
}

// Takes no lock, since graphs are launched at every step.
void CudaGraphCounter::launch(uintptr_t executable) {
  const Executable* launched = executable > kGone ? executable_of(executable, false) : nullptr;
  uint32_t calls[kPasses] = {kUnknown, kUnknown};
  for (uint32_t pass = 0; launched != nullptr && pass < kPasses; ++pass)
    calls[pass] = launched->calls[pass].load(std::memory_order_relaxed);
  if (calls[0] == kUnknown || calls[1] == kUnknown) return add(unknown_launches_, 1);
  add(launches_, 1);
  for (uint32_t pass = 0; pass < kPasses; ++pass) add(launched_[pass], calls[pass]);
}

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
  has_missed_.store(false, std::memory_order_relaxed);
  for (Recording& recording : recordings_) recording = {};
  active_recordings_.store(0, std::memory_order_relaxed);
  for (Graph& graph : graphs_) graph = {};
  for (Executable& executable : executables_) executable.handle.store(0, std::memory_order_relaxed);
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
      evidence > FORESHOCK_UNSEEN_REGISTERED)
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
