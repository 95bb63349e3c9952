#include "libmonitor/guest.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "libmonitor/clocks.h"
#include "libmonitor/environment.h"
#include "libmonitor/room.h"
#include "libmonitor/try_lock.h"

namespace foreshock {

constinit Guest g_guest;

namespace {

// A slice of 8192 keys of 64 bf16 values: what is reserved per slot when no call has been seen yet.
constexpr uint64_t kUnknownSlotBytes = uint64_t{2} << 20;

thread_local Counting t_counting;
thread_local uint32_t t_generation = 0;  // of t_counting; 0: none

// Later processes get larger numbers, by the clock that nobody sets: files on tmpfs are never older than it.
uint64_t fresh_nonce() {
  return (monotonic_ns() & ~uint64_t{0xffff}) | (static_cast<uint64_t>(getpid()) & 0xffff);
}

// What goes into a file name.
void copy_word(char* to, size_t capacity, const char* from) {
  size_t n = 0;
  for (; n + 1 < capacity && from[n] != '\0'; ++n) {
    const char c = from[n];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    to[n] = plain ? c : '_';
  }
  to[n] = '\0';
}

// A handler of exit() is told the status; a destructor, which runs later, is not.
std::atomic<int> g_exit_status{-1};
void note_exit(int status, void*) { g_exit_status.store(status & 0xff, std::memory_order_relaxed); }

// Whose command this is, in a file of its own. On a full tmpfs it stays empty, and every launcher of the run
// tells it. False: not even that.
bool write_owner(const char* path, uint64_t launcher_id) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= 64) {  // else a write would be SIGXFSZ
    char text[24];
    const int digits = std::snprintf(text, sizeof text, "%llu", static_cast<unsigned long long>(launcher_id));
    [[maybe_unused]] const ssize_t written = write(fd, text, static_cast<size_t>(digits));
  }
  close(fd);
  return true;
}

void copy_text(char* to, size_t capacity, const char* from) { std::snprintf(to, capacity, "%s", from); }

}  // namespace

bool Guest::is_inherited() const {
  const pid_t armed = armed_.load(std::memory_order_relaxed);
  return armed != 0 && armed != getpid();
}

Counting Guest::counting() {
  if ((hot() & kHotArmed) == 0) return {&own()->local, true};
  std::atomic_thread_fence(std::memory_order_acquire);  // whoever sees the hot word sees its segment
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (t_generation != generation) {
    t_counting = claim_block(writer_.threads());
    t_generation = generation;
  }
  return t_counting;
}

void Guest::count_calls(uint64_t (&calls)[segment::kPasses]) const {
  const auto add = [&](segment::ThreadBlock& block) {
    for (uint32_t op = 0; op < ops_known_.load(std::memory_order_acquire); ++op)
      calls[ops_[op].pass] += std::atomic_ref<uint64_t>(block.calls[op]).load(std::memory_order_relaxed);
  };
  add(own()->local);
  if ((hot() & kHotArmed) == 0) return;
  std::atomic_thread_fence(std::memory_order_acquire);
  for (uint32_t n = 0; n < segment::kThreadBlocks; ++n) add(writer_.threads()[n]);
}

bool Guest::prepare_own_page() {
  OwnPage* none = &before_set_up_;
  if (own() != none) return true;
  void* page = mmap(nullptr, sizeof(OwnPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  if (madvise(page, sizeof(OwnPage), MADV_WIPEONFORK) != 0 ||
      !own_.compare_exchange_strong(none, new (page) OwnPage, std::memory_order_acq_rel))
    munmap(page, sizeof(OwnPage));
  return own() != &before_set_up_;
}

const char* Guest::create_segment(uint64_t slot_bytes_needed) {
  if (access(settings_.directory, W_OK | X_OK) != 0) return "no_directory";
  const FreeMemory free = free_shared_memory(settings_.directory);
  if (!is_on_tmpfs(settings_.directory)) return "no_tmpfs";
  const uint64_t share = allowed_share(free.bytes, settings_.memory, settings_.local_ranks);
  const uint64_t fixed = segment::segment_bytes(0, 0, segment::kTensorHeadOnly);
  const uint64_t ring = settings_.weights ? tensor_bytes(share) : 0;
  const uint64_t tensors = std::max(ring, segment::kTensorHeadOnly);
  SlotPlan plan = {0, 0};
  const uint64_t need = slot_bytes_needed != 0 ? slot_bytes_needed : kUnknownSlotBytes;
  if (settings_.slices && share > fixed + ring) plan = plan_slots(share - fixed - ring, need);
  if (fixed > free.bytes / 2) return free.is_cgroups ? "memory_limit" : "no_space";

  segment::SegmentRequest request = {settings_.directory, settings_.rank,  fresh_nonce(),
                                     plan.slots,          plan.slot_bytes, tensors};
  segment::Identity identity = identity_of(request);
  request.identity = &identity;
  const char* why = writer_.create(request);
  const auto is = [&why](const char* word) { return why != nullptr && std::strcmp(why, word) == 0; };
  if (plan.slots > 0 && (is("no_space") || is("file_limit") || is("no_mapping"))) {
    // Somebody was faster with the rest of the memory, or a limit is near: statistics only.
    request.slots = 0;
    request.slot_bytes = 0;
    request.tensor_bytes = segment::kTensorHeadOnly;
    identity = identity_of(request);
    why = writer_.create(request);
  }
  return why;
}

segment::Identity Guest::identity_of(const segment::SegmentRequest& given) const {
  segment::Identity identity = {};
  identity.pid = static_cast<uint64_t>(getpid());
  identity.launcher_id = settings_.launcher_id;
  identity.start_time_ns = realtime_ns();
  identity.sample_seed = settings_.seed;
  identity.rank = settings_.rank;
  identity.local_rank = settings_.local_rank;
  identity.world_size = settings_.world_size;
  identity.attempt = settings_.attempt;
  copy_text(identity.run_id, sizeof identity.run_id, settings_.run_id);
  gethostname(identity.host, sizeof identity.host - 1);
  const ssize_t length = readlink("/proc/self/exe", identity.executable, sizeof identity.executable - 1);
  if (length > 0) {
    identity.executable[length] = '\0';
    if (const char* slash = std::strrchr(identity.executable, '/'))
      std::memmove(identity.executable, slash + 1, std::strlen(slash));
  }
  identity.slots_wanted = settings_.slices ? segment::kMaxSlots : 0;
  identity.slots_given = given.slots;
  identity.slot_bytes = given.slot_bytes;
  identity.max_slowdown = settings_.max_slowdown;
  identity.fixed_interval = settings_.every;
  identity.local_ranks = static_cast<uint32_t>(settings_.local_ranks);
  return identity;
}

bool Guest::arm(uint64_t slot_bytes_needed, void (*prepare)()) {
  if (is_off() || (hot() & kHotArmed) != 0) return false;
  const pid_t self = getpid();
  // A child of a process that was in the middle of this must not wait for a thread it does not have.
  pid_t holder = arming_.load(std::memory_order_relaxed);
  if (holder == self || !arming_.compare_exchange_strong(holder, self)) return false;

  const char* why = nullptr;
  const bool is_wanted = read_environment(&settings_);
  if (late_pid_ == self)
    take_over(late_);  // what the process found out about itself goes before its environment
  if (!is_wanted) {
    off_.store(true, std::memory_order_relaxed);  // nobody needs to be told
  } else if (!prepare_own_page()) {
    why = "no_mapping";
  } else {
    why = create_segment(slot_bytes_needed);
  }
  if (why != nullptr) off(why);
  if (is_off()) {
    arming_.store(0);
    return false;
  }
  armed_.store(self);
  const uint32_t known = ops_known_.load(std::memory_order_acquire);
  std::copy_n(ops_, known, writer_.ops());
  prepare();
  const uint32_t generation = generation_.fetch_add(1) + 1;
  own()->hot.store(kHotArmed + generation * kHotGeneration, std::memory_order_release);
  drain_local();
  on_exit(note_exit, nullptr);
  arming_.store(0);
  return true;
}

void Guest::publish_exit() {
  const int status = g_exit_status.load(std::memory_order_relaxed);
  if (status < 0) return;
  segment::Identity& identity = *writer_.identity();
  identity.exit_status = status;
  std::atomic_ref<uint32_t>(identity.has_exited).store(1, std::memory_order_release);
}

void Guest::off(const char* reason) {
  if (off_.exchange(true)) return;
  own()->hot.store(0, std::memory_order_relaxed);
  Settings settings = {};
  if (!read_environment(&settings)) return;
  char path[512], temporary[512], word[48];
  copy_word(word, sizeof word, reason);
  const int length = std::snprintf(path, sizeof path, "%s/off.%d.%s", settings.directory, getpid(), word);
  if (length <= 0 || length >= static_cast<int>(sizeof path) - 1) return;
  std::snprintf(temporary, sizeof temporary, "%s/.off.%d.%s", settings.directory, getpid(), word);
  // It has its name when it is whole: an empty one is anybody's. Where nothing can be renamed that is better
  // than none.
  if (!write_owner(temporary, settings.launcher_id)) return;
  if (rename(temporary, path) == 0) return;
  unlink(temporary);
  write_owner(path, settings.launcher_id);
}

// Without a number an operation is missed for the whole run, and to give one takes microseconds, once: so who
// finds another thread at it tries a while.
int32_t Guest::register_op(const char* name, uint32_t pass) {
  constexpr int kTries = 100'000;
  if (pass >= segment::kPasses || name == nullptr) return -1;
  for (int n = 0; n < kTries; ++n)
    if (TryLock lock(ops_busy_); lock) return add_op(name, pass);
  return -1;
}

int32_t Guest::add_op(const char* name, uint32_t pass) {
  const uint32_t number = ops_known_.load(std::memory_order_relaxed);
  for (uint32_t n = 0; n < number; ++n)  // one operation by two ways
    if (ops_[n].pass == pass && std::strncmp(ops_[n].name, name, sizeof ops_[n].name - 1) == 0)
      return static_cast<int32_t>(n);
  if (number == segment::kMaxOps) return -1;
  prepare_own_page();  // in time for what is counted before the first step
  segment::Op& op = ops_[number];
  copy_text(op.name, sizeof op.name, name);
  op.pass = pass;
  op.ready = 1;
  ops_known_.store(number + 1, std::memory_order_release);
  if ((hot() & kHotArmed) != 0) writer_.ops()[number] = op;
  return static_cast<int32_t>(number);
}

void Guest::take_over(const segment::Identity& late) {
  if (late.rank >= 0) settings_.rank = late.rank;
  if (late.local_rank >= 0) settings_.local_rank = late.local_rank;
  if (late.world_size >= 0) settings_.world_size = late.world_size;
  if (late.attempt >= 0) settings_.attempt = late.attempt;
}

void Guest::describe(const segment::Identity& late) {
  late_ = late;
  late_pid_ = getpid();
  late_is_new_.store(true, std::memory_order_release);
}

void Guest::publish_late() {
  if (!late_is_new_.load(std::memory_order_acquire)) return;
  late_is_new_.store(false, std::memory_order_relaxed);
  if (late_pid_ != getpid()) return;
  segment::Identity& identity = *writer_.identity();
  identity.data_parallel = late_.data_parallel;
  identity.tensor_parallel = late_.tensor_parallel;
  identity.pipeline_parallel = late_.pipeline_parallel;
  identity.expert_parallel = late_.expert_parallel;
  copy_text(identity.framework, sizeof identity.framework, late_.framework);
  std::atomic_ref<uint32_t>(identity.late_ready).store(1, std::memory_order_release);
}

}  // namespace foreshock
