// What became of every call, counted per thread without a lock.
#ifndef FORESHOCK_LIBMONITOR_PROCESS_H_
#define FORESHOCK_LIBMONITOR_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "foreshock/hook.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

// Adds to a word of which this thread is the only writer: no locked instruction, yet never torn for a reader.
inline void bump(uint64_t& counter, uint64_t by = 1) {
  std::atomic_ref<uint64_t> word(counter);
  word.store(word.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

// The same to a word with other writers.
inline void bump_shared(uint64_t& counter, uint64_t by = 1) {
  std::atomic_ref<uint64_t>(counter).fetch_add(by, std::memory_order_relaxed);
}

// Where a thread counts: a block of its own, or one shared with others.
struct Counting {
  segment::ThreadBlock* block = nullptr;
  bool shared = true;

  void add(uint64_t& counter, uint64_t by = 1) const {
    shared ? bump_shared(counter, by) : bump(counter, by);
  }
  // Undoes an add of this thread.
  void take_back(uint64_t& counter) const { add(counter, ~uint64_t{0}); }
};

// A free block among `blocks`, or the last one, shared. Blocks are never given back: threads come and go,
// their counts stay.
Counting claim_block(segment::ThreadBlock* blocks);

// Moves every count of `from` (written with shared adds) into the shared block `to`; loses none that are
// added meanwhile.
void drain(segment::ThreadBlock* from, segment::ThreadBlock* to);

// Sums over all blocks that are in use.
struct CallTotals {
  uint64_t calls = 0;
  uint64_t sampled = 0;
  uint64_t cost_ns = 0;
};
CallTotals call_totals(segment::ThreadBlock* blocks);

// How much shared memory this process may take, so that nobody runs out of it because of us.

// Whether `directory` lies in memory. Set-up only, as the next one: makes system calls.
bool is_on_tmpfs(const char* directory);

// Where a process's memory cgroup is told and found.
struct CgroupFiles {
  const char* self = "/proc/self/cgroup";
  const char* root = "/sys/fs/cgroup";
};

struct FreeMemory {
  uint64_t bytes = 0;
  bool is_cgroups = false;  // the process's memory cgroup allows less than the mount has
};
// What is free on the mount of `directory` (tmpfs only; 0 elsewhere), also bounded by what the process's
// memory cgroup still allows.
FreeMemory free_shared_memory(const char* directory, const CgroupFiles& cgroup = {});

// A tenth of what is free, divided by the ranks of the node, never above `limit`. Ninety per cent and more
// stay free for the user's own shared memory.
uint64_t allowed_share(uint64_t free_bytes, uint64_t limit, int local_ranks);

// Of that share, what the ring of tensors may have; 0: too little for one.
uint64_t tensor_bytes(uint64_t share);

struct SlotPlan {
  uint32_t slots;  // 0: statistics only
  uint64_t slot_bytes;
};
// Slots for slices of `need` bytes within `bytes` for all of them. Where there is room for it a slot is twice
// as large as needed, since later calls may have longer keys; where few slices would fit, slots are smaller
// and a slice takes several. Fewer than two slots are none.
SlotPlan plan_slots(uint64_t bytes, uint64_t need);

// The life of the monitor in a process that is not ours: when it wakes, how it goes silent, what a child
// inherits.

// Bits of the word that every call looks at first, and above them the number of the segment:
inline constexpr uint32_t kHotArmed = 1;
inline constexpr uint32_t kHotSampledStep = 2;
inline constexpr uint32_t kHotTickPending = 4;
inline constexpr uint32_t kHotSwitchedOff = 8;
inline constexpr uint32_t kHotNoBudget = 16;
inline constexpr uint32_t kHotGeneration = 32;  // unit of the segment's number

// What a child must not find: it lies on a page that the kernel wipes in a forked child (MADV_WIPEONFORK), so
// a child is inert without a handler, also after a raw clone, and counts from nothing.
struct OwnPage {
  std::atomic<uint32_t> hot{0};
  segment::ThreadBlock local = {};  // counts from before there is a segment; shared by all threads
};
static_assert(sizeof(OwnPage) <= 4096);

struct Settings {
  char directory[400];  // <base>/<run id>
  char run_id[64];
  uint64_t launcher_id;
  uint64_t every;          // 0: adapted
  bool every_is_promised;  // `every` was given and no limit: no sample is refused for its cost
  double max_slowdown;
  uint64_t memory;
  bool slices;
  bool weights;
  uint64_t weights_every;  // 0: as the budget allows
  uint64_t count_kernels;  // steps; 0: none
  uint64_t seed;
  int rank, local_rank, world_size, local_ranks, attempt;
};

// Everything below is one object of static storage, never destroyed: threads may still call while the process
// ends.
class ProcessState {
 public:
  // The hot word as every call reads it.
  uint32_t hot() const { return own()->hot.load(std::memory_order_relaxed); }
  void set_bits(uint32_t bits) { own()->hot.fetch_or(bits, std::memory_order_relaxed); }
  void clear_bits(uint32_t bits) { own()->hot.fetch_and(~bits, std::memory_order_relaxed); }

  bool is_off() const { return off_.load(std::memory_order_relaxed); }

  // True in a child (fork, clone) of the process that created the segment. Makes a system call.
  bool is_inherited() const;

  // Creates the segment, once. `slot_bytes_needed` 0: not known yet. Returns true when this call did it.
  // Another thread in the middle of it makes this return false at once.
  // `prepare` runs before the segment is seen by any other thread.
  bool arm(uint64_t slot_bytes_needed, void (*prepare)());

  // Silent for the rest of the process; an empty file tells the launcher why.
  void off(const char* reason);

  // Where this thread counts. Before the segment exists: a local block that every thread shares.
  Counting counting();

  // Calls so far by pass, of every thread, whether there is a segment yet or not.
  void count_calls(uint64_t (&calls)[segment::kPasses]) const;

  // Counts from before the segment, moved into it. Called at step boundaries too: a thread may have been
  // late.
  void drain_local() { drain(&own()->local, &writer_.threads()[segment::kThreadBlocks - 1]); }

  const Settings& settings() const { return settings_; }
  segment::SegmentWriter& writer() { return writer_; }

  // Operations, known from set-up on; copied into the segment when it is created. Any thread.
  int32_t register_op(const char* name, uint32_t pass);
  uint32_t pass_of(int32_t op) const { return ops_[op].pass; }

  // Facts about this process that its environment does not tell. Told before there is a segment, they decide
  // its rank and its place in the world.
  void describe(const segment::Identity& late);

  // Whether this process is one of several of a job, as far as that was told.
  bool has_other_ranks() const { return settings_.world_size > 1 || late_.world_size > 1; }

  // What the process has given exit(), for the agent: called by the last code of this library that runs.
  void publish_exit();

  // The other facts, once the first step shows that all are told. For the thread at the end of a step.
  void publish_late();

 private:
  const char* create_segment(uint64_t slot_bytes_needed);
  OwnPage* own() const { return own_.load(std::memory_order_relaxed); }
  bool prepare_own_page();
  int32_t add_op(const char* name, uint32_t pass);
  void take_over(const segment::Identity& late);
  segment::Identity identity_of(const segment::SegmentRequest& given) const;

  OwnPage before_set_up_;
  std::atomic<OwnPage*> own_{&before_set_up_};
  std::atomic<bool> off_{false};
  std::atomic<pid_t> arming_{0};  // pid of the thread's process that creates the segment
  std::atomic<pid_t> armed_{0};   // pid of the process that has one
  std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> ops_known_{0};
  std::atomic_flag ops_busy_;
  segment::Op ops_[segment::kMaxOps] = {};
  segment::Identity late_ = {};
  std::atomic<bool> late_is_new_{false};
  pid_t late_pid_ = 0;  // of the process that it is about: a child is not what its parent was
  Settings settings_ = {};
  segment::SegmentWriter writer_;
};

extern ProcessState g_process;

// What the agent advises, out of the control file.

// False: there is none, it is being written, or it makes no sense. `size`, `version` and `age_steps` are the
// caller's. Any thread; waits for nobody.
bool read_advice(const segment::Control& control, foreshock_advice* advice);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PROCESS_H_
