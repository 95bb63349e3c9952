#include "libmonitor/graph_ledger.h"

#include "libmonitor/try_lock.h"

namespace foreshock {
namespace {

using segment::kPasses;

void add(std::atomic<uint64_t>& to, uint64_t count) { to.fetch_add(count, std::memory_order_relaxed); }

}  // namespace

void GraphLedger::begin_recording(uintptr_t stream, const PassCalls& so_far) {
  TryLock lock(busy_);
  if (!lock) return;
  Recording* free = nullptr;
  for (Recording& recording : recordings_) {
    if (recording.stream == stream) {  // its end was not seen
      recording = {};
      --recording_;
    }
    if (recording.stream == 0) free = &recording;
    recording.is_alone = false;
  }
  if (free == nullptr) {  // of no use to be counted on: what ends cannot be matched with what began
    is_overfull_ = true;
    return;
  }
  if (recording_ == 0) {
    before_all_ = so_far;
    is_overfull_ = false;
  }
  *free = {stream, recording_ == 0, so_far};
  ++recording_;
}

void GraphLedger::end_recording(uintptr_t stream, uintptr_t graph, const PassCalls& so_far) {
  TryLock lock(busy_);
  if (!lock) return;
  Recording ended = {0, false, {}};
  for (Recording& recording : recordings_) {
    if (recording.stream != stream) continue;
    ended = recording;
    recording = {};
    --recording_;
    break;
  }
  if (ended.stream != 0 && recording_ == 0)
    for (uint32_t pass = 0; pass < kPasses; ++pass)
      add(recorded_[pass], so_far.of[pass] - before_all_.of[pass]);
  if (graph == 0) return;
  Graph* record = graph_of(graph, true);
  const bool is_known = ended.stream != 0 && ended.is_alone && !is_overfull_;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    const uint64_t calls = so_far.of[pass] - ended.before.of[pass];
    record->calls[pass] = is_known && calls < kUnknown ? static_cast<uint32_t>(calls) : kUnknown;
  }
}

GraphLedger::Graph* GraphLedger::graph_of(uintptr_t handle, bool add) {
  for (Graph& graph : graphs_)
    if (graph.handle == handle) return &graph;
  if (!add) return nullptr;
  Graph& oldest = graphs_[next_graph_++ % kGraphs];
  oldest = {handle, {}};
  return &oldest;
}

GraphLedger::Executable* GraphLedger::executable_of(uintptr_t handle, bool add) {
  // Handles are addresses: their low bits say little.
  const auto first = static_cast<uint32_t>((handle >> 4) * 0x9e3779b97f4a7c15u >> 54);
  static_assert(kExecutables == 1u << 10);
  for (uint32_t n = 0; n < kExecutables; ++n) {
    Executable& executable = executables_[(first + n) % kExecutables];
    const uintptr_t found = executable.handle.load(std::memory_order_acquire);
    if (found == handle) return &executable;
    if (found == 0) return add ? &executable : nullptr;
  }
  return nullptr;
}

void GraphLedger::instantiate(uintptr_t graph, uintptr_t executable) {
  if (executable == 0) return;
  TryLock lock(busy_);
  const Graph* record = lock ? graph_of(graph, false) : nullptr;
  // Of an unknown graph only what another one has left is to be undone.
  Executable* made = executable_of(executable, record != nullptr);
  if (made == nullptr) return;
  for (uint32_t pass = 0; pass < kPasses; ++pass)
    made->calls[pass].store(record != nullptr ? record->calls[pass] : kUnknown, std::memory_order_relaxed);
  if (record != nullptr) made->handle.store(executable, std::memory_order_release);
}

void GraphLedger::launch(uintptr_t executable) {
  const Executable* launched = executable != 0 ? executable_of(executable, false) : nullptr;
  uint32_t calls[kPasses] = {kUnknown, kUnknown};
  for (uint32_t pass = 0; launched != nullptr && pass < kPasses; ++pass)
    calls[pass] = launched->calls[pass].load(std::memory_order_relaxed);
  if (calls[0] == kUnknown || calls[1] == kUnknown) return add(unknown_launches_, 1);
  add(launches_, 1);
  for (uint32_t pass = 0; pass < kPasses; ++pass) add(launched_[pass], calls[pass]);
}

uint64_t GraphLedger::calls_in_graphs() const {
  return launched_[0].load(std::memory_order_relaxed) + launched_[1].load(std::memory_order_relaxed);
}

void GraphLedger::store(segment::Coverage* coverage) const {
  // Several threads come here at once: the one with the older figure must not have the last word.
  const auto store = [](uint64_t& to, const std::atomic<uint64_t>& from) {
    const std::atomic_ref<uint64_t> word(to);
    const uint64_t now = from.load(std::memory_order_relaxed);
    uint64_t told = word.load(std::memory_order_relaxed);
    while (told < now && !word.compare_exchange_weak(told, now, std::memory_order_relaxed)) {
    }
  };
  store(coverage->graph_launches, launches_);
  store(coverage->unknown_launches, unknown_launches_);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    store(coverage->recorded_calls[pass], recorded_[pass]);
    store(coverage->launched_calls[pass], launched_[pass]);
  }
}

void GraphLedger::forget() {
  busy_.clear();  // another thread of the parent may have held it
  for (Recording& recording : recordings_) recording = {};
  recording_ = 0;
  for (Graph& graph : graphs_) graph = {};
  for (Executable& executable : executables_) executable.handle.store(0, std::memory_order_relaxed);
  for (std::atomic<uint64_t>* total : {&launches_, &unknown_launches_}) total->store(0);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    recorded_[pass].store(0);
    launched_[pass].store(0);
  }
}

}  // namespace foreshock
