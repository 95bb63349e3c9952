// The state of the monitor in a process: counters of calls per thread, limits of shared memory, settings, and
// the creation and end of the segment. The segment is a file on tmpfs that the agent process reads; its
// image, which the monitor works with, is private memory. The launcher is the command `foreshock run`, which
// starts trainer and agent.
#ifndef FORESHOCK_LIBMONITOR_PROCESS_H_
#define FORESHOCK_LIBMONITOR_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "foreshock/hook.h"
#include "libmonitor/options.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

// Adds to a word whose only writer is this thread, without a locked instruction. Readers see whole values.
inline void bump(uint64_t& counter, uint64_t amount = 1) {
  std::atomic_ref<uint64_t> word(counter);
  word.store(word.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

// Adds to a word that has several writers.
inline void bump_shared(uint64_t& counter, uint64_t amount = 1) {
  std::atomic_ref<uint64_t>(counter).fetch_add(amount, std::memory_order_relaxed);
}

// The block of counters to which a thread adds: its own, or one that it shares with other threads.
struct Counting {
  segment::ThreadBlock* block = nullptr;
  bool shared = true;

  void add(uint64_t& counter, uint64_t amount = 1) const {  // `counter`: a word of *block
    shared ? bump_shared(counter, amount) : bump(counter, amount);
  }
  void add_call(int32_t op) const {
    add(block->calls[op]);
    add(block->all_calls);
  }
  // Undoes an earlier add of 1 by this thread: adds 2^64 - 1, which wraps around.
  void take_back(uint64_t& counter) const { add(counter, ~uint64_t{0}); }
};

// Claims a free block among the kThreadBlocks blocks. If none is free, returns the last one, which all later
// threads share. Blocks are never freed, so the counts of a thread stay after its end.
Counting claim_block(segment::ThreadBlock* blocks);

// Moves every count of `source` (written with bump_shared()) into the shared block of `target`. Counts that
// threads add to `source` meanwhile are not lost: they are moved by this or by the next drain().
void drain(segment::ThreadBlock* source, const Counting& target);

// Sums over all blocks that are in use: attention calls, sampled calls, and the monitor's time.
struct CallTotals {
  uint64_t calls = 0;
  uint64_t sampled = 0;
  uint64_t cost_ns = 0;  // the monitor's time on the trainer's threads
};
[[gnu::hot]] CallTotals call_totals(segment::ThreadBlock* blocks);

// Whether `directory` is on tmpfs. Set-up only: makes system calls.
bool is_on_tmpfs(const char* directory);

// Where the memory cgroup of the process is found: a file with its name, and the mount of all cgroups.
struct CgroupFiles {
  const char* self = "/proc/self/cgroup";
  const char* root = "/sys/fs/cgroup";
};

struct FreeMemory {
  uint64_t bytes = 0;
  bool limited_by_cgroup = false;  // `bytes` is half of the cgroup's remaining memory, not that of the mount
};
// Returns the free memory on the mount of `directory` (0 if it is not on tmpfs), limited by half of what the
// process's cgroup has left (a segment's image takes as much as its file). For set-up: makes system calls.
FreeMemory free_shared_memory(const char* directory, const CgroupFiles& cgroup = {});

// Returns the shared memory that this process may use: a tenth of the free memory divided by the ranks of the
// node, at most `limit`, so that 90 % stay free for the user. A segment's fixed part may take more than this.
uint64_t allowed_share(uint64_t free_bytes, uint64_t limit, int local_ranks);

// Returns the part of `share` for the ring of weight tensor records, or 0 if `share` is too small for a ring.
uint64_t tensor_bytes(uint64_t share);

// The slots of a segment, which hold the samples.
struct SlotPlan {
  uint32_t slots;  // 0: the segment has counters and steps, but cannot hold samples
  uint64_t slot_bytes;
};
// Plans slots for sampled slices of `need` bytes each within a total of `bytes` bytes. If memory is ample, a
// slot is twice as large as a slice, since later calls may have more keys. If few slices would fit, slots may
// be smaller than a slice, which then uses several. If fewer than two slots fit, the plan has no slots.
SlotPlan plan_slots(uint64_t bytes, uint64_t need);

// Bits of the hot word, which every attention call reads first.
inline constexpr uint32_t kHotArmed = 1;        // the segment exists
inline constexpr uint32_t kHotSampledStep = 2;  // the present step is sampled
// A step has ended. The next forward call outside a backward pass begins the next step.
inline constexpr uint32_t kHotTickPending = 4;
inline constexpr uint32_t kHotPaused = 8;     // paused by the agent or `foreshock pause`, until it is resumed
inline constexpr uint32_t kHotNoBudget = 16;  // the present step would be sampled, but the budget is spent
// This bit and all higher ones of the hot word count the segments that this process and its parents have
// created. ProcessState::generation_ has the same count. counting() compares it to find out that a thread's
// block of counters belongs to an earlier segment.
inline constexpr uint32_t kHotGeneration = 32;

// State that a child process must not inherit. The kernel zeroes this page in a forked or cloned child
// (MADV_WIPEONFORK), so a child is inactive and counts from zero without a fork handler.
struct OwnPage {
  std::atomic<uint32_t> hot{0};
  segment::ThreadBlock local = {};  // counts from before the segment exists; shared by all threads
};
static_assert(sizeof(OwnPage) <= 4096);  // the smallest page of memory; a larger one is used in part

// The state of the monitor in this process: g_process, never destroyed, since threads may use it during exit.
class ProcessState {
 public:
  // Acquire and release: a thread that finds kHotArmed also sees the segment, and one that finds
  // kHotSampledStep also sees the step's number and limits, which were stored before the bit.
  uint32_t hot() const { return own_page()->hot.load(std::memory_order_acquire); }
  void set_bits(uint32_t bits) { own_page()->hot.fetch_or(bits, std::memory_order_release); }
  void clear_bits(uint32_t bits) { own_page()->hot.fetch_and(~bits, std::memory_order_relaxed); }

  // Whether off() was called, or create_segment_once() found that the environment does not request foreshock.
  bool is_off() const { return off_.load(std::memory_order_relaxed); }

  // Whether this is a child (fork, clone) of the process that created the segment. Makes a system call.
  bool is_inherited() const;

  // Creates the segment, once, and calls `prepare` before other threads can use it. `slot_bytes_needed`: size
  // of a sampled slice; 0: unknown. Returns whether this call created it; does not wait for another thread.
  bool create_segment_once(uint64_t slot_bytes_needed, void (*prepare)());

  // Switches the monitor off for the rest of the process. Leaves `reason` in a file name, for the launcher.
  void off(const char* reason);

  // Returns the block in which this thread counts. Before the segment exists, all threads count in the block
  // `local` of own_page(), the page of this process.
  Counting counting() {
    if ((hot() & kHotArmed) == 0) return {&own_page()->local, true};
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (t_generation != generation) begin_counting(generation);
    return t_counting;
  }

  // Adds the calls of all threads so far to `calls` (forward, backward), also before the segment exists.
  void add_calls_to(uint64_t (&calls)[segment::kPasses]) const;

  // Moves the counts of the local block into the shared block of the segment. Also called at the end of
  // steps, since a thread may add to the local block even while the segment is created.
  void drain_local() { drain(&own_page()->local, shared_block()); }

  // The counters of this process in the image of its present segment, one block for each thread.
  segment::ThreadBlock* blocks() const { return writer_.threads(); }

  const Settings& settings() const { return settings_; }
  segment::SegmentWriter& writer() { return writer_; }

  // Implements foreshock_register_op: returns the number of the attention operation, or -1. Operations are
  // copied into the segment when it is created. Any thread.
  int32_t register_op(const char* name, uint32_t pass);
  uint32_t pass_of(int32_t op) const { return ops_[op].pass; }

  // Stores facts about this process that its environment lacks; -1: unknown. Rank, local rank, world size and
  // attempt have an effect only before the segment exists, but has_other_ranks() reads the world size at any
  // time. publish_described() publishes the others.
  void describe(const segment::Identity& described);

  // Whether the job has other ranks, according to the environment or describe().
  bool has_other_ranks() const { return settings_.world_size > 1 || described_.world_size > 1; }

  // Writes the exit status for the agent into the segment, if it is known. Must be the monitor's last action.
  void publish_exit();

  // Writes framework and parallel ranks of a new describe() into the segment. Called at the end of a step,
  // except after a brief step, in which only calls and losses were counted, and by Monitor::finish_at_exit().
  void publish_described();

 private:
  const char* create_segment(uint64_t slot_bytes_needed);
  Counting shared_block() {
    constexpr uint32_t kLast = segment::kThreadBlocks - 1;
    return {.block = &blocks()[kLast], .shared = true};
  }
  void begin_counting(uint32_t generation);  // claims this thread's block in the segment of this number
  OwnPage* own_page() const { return own_page_.load(std::memory_order_relaxed); }
  bool prepare_own_page();
  int32_t with_ops(auto f);
  uint32_t publish_ops(uint32_t first);
  int32_t add_op(const char* name, uint32_t pass);
  void apply_to_settings(const segment::Identity& described);
  segment::Identity identity_of(const segment::SegmentRequest& given) const;

  // t_generation: number of the segment whose block t_counting has; 0: no segment. constinit: a variable that
  // might need an initialization at run time would be accessed through a function.
  static inline constinit thread_local Counting t_counting;
  static inline constinit thread_local uint32_t t_generation = 0;

  OwnPage initial_page_;  // used until prepare_own_page(); a child process inherits it
  std::atomic<OwnPage*> own_page_{&initial_page_};
  std::atomic<bool> off_{false};
  std::atomic<pid_t> creating_pid_{0};   // pid of the process in which a thread is creating the segment
  std::atomic<pid_t> segment_pid_{0};    // pid of the process that has a segment
  std::atomic<uint32_t> generation_{0};  // segments created so far (kHotGeneration)
  std::atomic<uint32_t> ops_known_{0};   // number of registered operations in ops_
  std::atomic_flag ops_busy_;            // set while a thread registers an operation
  segment::Op ops_[segment::kMaxOps] = {};
  segment::Identity described_ = {};  // facts from describe()
  std::atomic<bool> described_is_new_{false};
  // pid of the process that called describe(). A child ignores the facts, except in has_other_ranks().
  pid_t described_pid_ = 0;
  Settings settings_ = {};
  segment::SegmentWriter writer_;
};

extern ProcessState g_process;

// Reads the agent's advice from the control file. Returns false if it is missing, unfinished or invalid. Does
// not set `size`, `version` and `age_steps`. Any thread; never waits.
bool read_advice(const segment::Control& control, foreshock_advice* advice);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PROCESS_H_
