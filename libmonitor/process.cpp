// Creates the segment (the shared file of this trainer process), plans its size from the free shared memory,
// and keeps the process's counters. Reports why a process is not monitored. Reads the advice of the agent,
// the process that judges the samples in the segment.
#include "libmonitor/process.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libmonitor/base.h"
#include "libmonitor/options.h"
#include "segment/layout.h"

// The C library musl lacks this function. Without the pragma, a program of musl that inherits LD_PRELOAD
// would not start.
#pragma weak on_exit

namespace foreshock {
namespace {

constexpr uint32_t kSharedBlock =
    segment::kThreadBlocks - 1;  // the last block, for threads that find no free one

uint64_t load(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_relaxed); }

// If this many slots of double size fit, slots get double size, since later calls may have more keys.
constexpr uint32_t kSlotsToDouble = 32;

// If fewer than kFewWholeSlots slots that hold a whole slice fit, a slice larger than kLeastPartBytes is
// split over several smaller slots. Their number is at most kSlotsOfParts. The size of each is a multiple of
// 64 bytes, at least kLeastPartBytes.
constexpr uint64_t kFewWholeSlots = 8, kSlotsOfParts = 32, kLeastPartBytes = uint64_t{256} << 10;
// Bounds of the ring of weight records. If it would be smaller, the segment has no ring.
constexpr uint64_t kLeastTensorRingBytes = uint64_t{256} << 10, kMostTensorRingBytes = uint64_t{4} << 20;

// Reads the first `capacity` - 1 bytes of a file, and ends them with a 0. Returns the length of the text. If
// the file cannot be opened, returns 0 and leaves `text` unset.
size_t read_start(const char* path, char* text, size_t capacity) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, text, capacity - 1);
  close(fd);
  const size_t length = got > 0 ? static_cast<size_t>(got) : 0;
  text[length] = '\0';
  return length;
}

bool read_number(const char* directory, const char* file, uint64_t* value) {
  char path[1280], text[64];  // a directory of headroom_of() and a file name
  if (std::snprintf(path, sizeof path, "%s/%s", directory, file) >= static_cast<int>(sizeof path))
    return false;
  // The limit file of a cgroup without a limit has the text "max".
  if (read_start(path, text, sizeof text) == 0 || text[0] < '0' || text[0] > '9') return false;
  *value = std::strtoull(text, nullptr, 10);
  return true;
}

// Returns the number in the line "`name` number" of memory.stat; 0: the line is missing.
uint64_t stat_number(const char* text, const char* name) {
  const size_t length = std::strlen(name);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    if (std::strncmp(line, name, length) == 0 && line[length] == ' ')
      return std::strtoull(line + length + 1, nullptr, 10);
    line = std::strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return 0;
}

// Returns a number of memory.stat that covers the cgroup and all cgroups below it, as the usage does. Version
// 1 of cgroups has this number in the line `name_in_v1` (total_...), version 2 in the line `name`.
uint64_t stat_number(const char* text, const char* name, const char* name_in_v1) {
  const uint64_t in_v1 = stat_number(text, name_in_v1);
  return in_v1 != 0 ? in_v1 : stat_number(text, name);
}

// Returns the bytes charged to a cgroup that the kernel can free before it refuses memory: cached file pages
// that need not be written first. These do not include tmpfs pages and locked pages. Slabs (kernel objects)
// are left out, because their users can pin them.
uint64_t reclaimable(const char* directory) {
  char path[1300], text[8192];
  std::snprintf(path, sizeof path, "%s/memory.stat", directory);
  if (read_start(path, text, sizeof text) == 0) return 0;
  const uint64_t cached = stat_number(text, "inactive_file", "total_inactive_file") +
                          stat_number(text, "active_file", "total_active_file");
  const uint64_t unwritten =
      stat_number(text, "file_dirty", "total_dirty") + stat_number(text, "file_writeback", "total_writeback");
  return cached - std::min(cached, unwritten);
}

// Names in one version of cgroups. `marker`: the text between number and path in a line of /proc/self/cgroup
// ("0::/user.slice"); `tree`: folder below the root of the mount; `limit`, `usage`: files of a cgroup.
struct CgroupNames {
  const char *marker, *tree, *limit, *usage;
};
constexpr CgroupNames kCgroupVersions[] = {
    {"::", "", "memory.max", "memory.current"},
    {":memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}};

// Returns the path of this process's cgroup, a pointer into `text` (/proc/self/cgroup); the path ends at the
// newline. Null: no line has this marker, so the process has no cgroup of this version.
const char* own_path(const char* text, const char* marker) {
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n')) {
    if (*line == '\n') ++line;
    const char* after = line + std::strspn(line, "0123456789");
    if (std::strncmp(after, marker, std::strlen(marker)) == 0) return after + std::strlen(marker);
  }
  return nullptr;
}

// Returns the least remaining memory of this process's cgroup and its parents; UINT64_MAX: no limit. `root`:
// mount of all cgroups. `text`: content of /proc/self/cgroup.
uint64_t headroom_of(const CgroupNames& names, const char* root, const char* text) {
  const char* path = own_path(text, names.marker);
  if (path == nullptr) return UINT64_MAX;
  char directory[1200];
  const size_t root_length = std::strlen(root) + std::strlen(names.tree);
  std::snprintf(directory, sizeof directory, "%s%s%.*s", root, names.tree,
                static_cast<int>(std::strcspn(path, "\n")), path);
  uint64_t headroom = UINT64_MAX;
  // Each round ends with `directory` cut to its parent. The loop ends above the root of the cgroups.
  for (char* cut = directory; cut != nullptr && std::strlen(directory) >= root_length;) {
    uint64_t limit = 0, usage = 0;
    if (read_number(directory, names.limit, &limit) && read_number(directory, names.usage, &usage)) {
      usage -= std::min(usage, reclaimable(directory));
      headroom = std::min(headroom, limit - std::min(limit, usage));
    }
    cut = std::strrchr(directory, '/');
    if (cut != nullptr) *cut = '\0';
  }
  return headroom;
}

// A process may have cgroups of both versions at once; the smaller headroom counts.
uint64_t cgroup_headroom(const CgroupFiles& files) {
  char text[4096];
  if (read_start(files.self, text, sizeof text) == 0) return UINT64_MAX;
  uint64_t headroom = UINT64_MAX;
  for (const CgroupNames& names : kCgroupVersions)
    headroom = std::min(headroom, headroom_of(names, files.root, text));
  return headroom;
}

}  // namespace

Counting claim_block(segment::ThreadBlock* blocks) {
  for (uint32_t n = 0; n < kSharedBlock; ++n) {
    std::atomic_ref<uint64_t> claimed(blocks[n].claimed);
    uint64_t expected = 0;
    if (claimed.load(std::memory_order_relaxed) == 0 && claimed.compare_exchange_strong(expected, 1))
      return {.block = &blocks[n], .shared = false};
  }
  return {.block = &blocks[kSharedBlock], .shared = true};
}

void drain(segment::ThreadBlock* source, const Counting& target) {
  auto* counts = reinterpret_cast<uint64_t*>(source);  // all words of a block but the first are counters
  auto* totals = reinterpret_cast<uint64_t*>(target.block);
  for (size_t n = 1; n < sizeof(segment::ThreadBlock) / sizeof(uint64_t); ++n) {
    if (load(counts[n]) == 0) continue;  // most counts are 0, and an exchange is slow
    const uint64_t count = std::atomic_ref<uint64_t>(counts[n]).exchange(0, std::memory_order_relaxed);
    if (count != 0) target.add(totals[n], count);
  }
}

CallTotals call_totals(segment::ThreadBlock* blocks) {
  CallTotals totals;
  const auto add = [&](segment::ThreadBlock& block) {
    totals.calls += load(block.all_calls);
    for (uint64_t& sampled : block.sampled) totals.sampled += load(sampled);
    totals.cost_ns += load(block.hook_ns) + load(block.step_ns);
  };
  for (uint32_t n = 0; n < kSharedBlock && load(blocks[n].claimed) != 0; ++n)  // blocks are claimed in order
    add(blocks[n]);
  add(blocks[kSharedBlock]);
  return totals;
}

bool is_on_tmpfs(const char* directory) {
  struct statfs status = {};
  return statfs(directory, &status) == 0 && status.f_type == TMPFS_MAGIC;
}

FreeMemory free_shared_memory(const char* directory, const CgroupFiles& cgroup) {
  struct statfs status = {};
  if (statfs(directory, &status) != 0 || status.f_type != TMPFS_MAGIC) return {};
  // A tmpfs mounted without a size limit reports 0 blocks.
  const uint64_t free_on_mount =
      status.f_blocks == 0 ? UINT64_MAX
                           : static_cast<uint64_t>(status.f_bavail) * static_cast<uint64_t>(status.f_bsize);
  const uint64_t headroom = cgroup_headroom(cgroup);
  if (headroom == UINT64_MAX) return {free_on_mount, false};
  // The cgroup is charged for each page of the file, and for the same page of the trainer's image.
  return {std::min(free_on_mount, headroom / 2), headroom / 2 < free_on_mount};
}

// A tenth of the free memory for all ranks of the node together; the rest stays free for the user.
uint64_t allowed_share(uint64_t free_bytes, uint64_t limit, int local_ranks) {
  return std::min(free_bytes / 10 / static_cast<uint64_t>(std::max(local_ranks, 1)), limit);
}

uint64_t tensor_bytes(uint64_t share) {
  const uint64_t part = std::min(share / 16, kMostTensorRingBytes);  // most of the share is for slots
  return part < kLeastTensorRingBytes ? 0 : part / 64 * 64;          // as the segment aligns it
}

SlotPlan plan_slots(uint64_t bytes, uint64_t need) {
  if (need == 0) return {0, 0};  // a whole slice needs `need` bytes; 0: no slots are wanted
  if (bytes / need < kFewWholeSlots && need > kLeastPartBytes) {  // split slices
    const uint64_t slots = std::min<uint64_t>(bytes / kLeastPartBytes, kSlotsOfParts);
    return slots < 2 ? SlotPlan{0, 0} : SlotPlan{static_cast<uint32_t>(slots), bytes / slots / 64 * 64};
  }
  if (bytes / need < 2) return {0, 0};
  if (bytes / need >= 2 * kSlotsToDouble) need *= 2;
  return {static_cast<uint32_t>(std::min<uint64_t>(bytes / need, segment::kMaxSlots)), need};
}

constinit ProcessState g_process;

namespace {

// Assumed size of a slice before any call was seen: 8192 keys and values of 64 bf16 numbers each.
constexpr uint64_t kUnknownSlotBytes = uint64_t{2} << 20;

// Returns the number for the segment's file name. Later processes get larger numbers: the monotonic clock
// cannot be set back, and files on tmpfs do not survive a reboot. The low 16 bits are the pid's.
uint64_t fresh_nonce() {
  return (monotonic_ns() & ~uint64_t{0xffff}) | (static_cast<uint64_t>(getpid()) & 0xffff);
}

// Copies text for use in a file name. Characters other than ASCII letters and digits become '_'.
void copy_word(char* to, size_t capacity, const char* from) {
  size_t n = 0;
  for (; n + 1 < capacity && from[n] != '\0'; ++n) {
    const char c = from[n];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    to[n] = plain ? c : '_';
  }
  to[n] = '\0';
}

// note_exit() gets the exit status from exit(). publish_exit(), called later by our destructor, does not.
std::atomic<int> g_exit_status{-1};  // -1: exit() has not run
void note_exit(int status, void*) { g_exit_status.store(status & 0xff, std::memory_order_relaxed); }

// Creates the file by which off() reports a reason, with the id of the launcher that will print the reason.
// On a full tmpfs the file stays empty; then every launcher prints it. Returns false if it cannot be created.
// The file is a new one: others may write into the run directory, and what they put in its place may lead
// elsewhere.
bool write_launcher_id(const char* path, uint64_t launcher_id) {
  unlink(path);
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  rlimit limit = {};
  // A write beyond RLIMIT_FSIZE raises SIGXFSZ. 64 is more than the bytes written here.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= 64) {
    char text[24];
    const int digits = std::snprintf(text, sizeof text, "%llu", static_cast<unsigned long long>(launcher_id));
    [[maybe_unused]] const ssize_t written = write(fd, text, static_cast<size_t>(digits));
  }
  close(fd);
  return true;
}

void copy_text(char* to, size_t capacity, const char* from) { std::snprintf(to, capacity, "%s", from); }

}  // namespace

bool ProcessState::is_inherited() const {
  const pid_t creator = segment_pid_.load(std::memory_order_relaxed);
  return creator != 0 && creator != getpid();
}

void ProcessState::begin_counting(uint32_t generation) {
  t_counting = claim_block(blocks());
  t_generation = generation;
}

void ProcessState::add_calls_to(uint64_t (&calls)[segment::kPasses]) const {
  const auto add = [&](segment::ThreadBlock& block) {
    for (uint32_t op = 0; op < ops_known_.load(std::memory_order_acquire); ++op)
      calls[ops_[op].pass] += std::atomic_ref<uint64_t>(block.calls[op]).load(std::memory_order_relaxed);
  };
  add(own_page()->local);
  if ((hot() & kHotArmed) == 0) return;
  for (uint32_t n = 0; n < segment::kThreadBlocks; ++n) add(blocks()[n]);
}

// Replaces initial_page_, once, by a page that the kernel zeroes in a forked child (MADV_WIPEONFORK).
// Returns false if no such page is available.
bool ProcessState::prepare_own_page() {
  OwnPage* initial = &initial_page_;
  if (own_page() != initial) return true;
  void* page = mmap(nullptr, sizeof(OwnPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  if (madvise(page, sizeof(OwnPage), MADV_WIPEONFORK) != 0 ||
      !own_page_.compare_exchange_strong(initial, new (page) OwnPage, std::memory_order_acq_rel))
    munmap(page, sizeof(OwnPage));
  return own_page() != &initial_page_;
}

// Returns null, or the reason for off(). `share` is divided into the fixed part (counters, steps, layers),
// the ring of weight records (an empty one takes kLeastTensorsBytes), and slots. The fixed part may exceed
// `share`.
const char* ProcessState::create_segment(uint64_t slot_bytes_needed) {
  if (access(settings_.directory, W_OK | X_OK) != 0) return "no_directory";
  const FreeMemory free = free_shared_memory(settings_.directory);
  if (!is_on_tmpfs(settings_.directory)) return "no_tmpfs";
  const uint64_t share = allowed_share(free.bytes, settings_.memory, settings_.local_ranks);
  const uint64_t fixed = segment::segment_bytes(0, 0, segment::kLeastTensorsBytes);
  const uint64_t ring = settings_.weights ? tensor_bytes(share) : 0;
  const uint64_t tensors = std::max(ring, segment::kLeastTensorsBytes);
  SlotPlan plan = {0, 0};
  const uint64_t need = slot_bytes_needed != 0 ? slot_bytes_needed : kUnknownSlotBytes;
  if (settings_.slices && share > fixed + ring) plan = plan_slots(share - fixed - ring, need);
  // At least half of the free memory must stay free.
  if (fixed > free.bytes / 2) return free.limited_by_cgroup ? "memory_limit" : "no_space";

  segment::SegmentRequest request = {settings_.directory, settings_.rank,  fresh_nonce(),
                                     plan.slots,          plan.slot_bytes, tensors};
  segment::Identity identity = identity_of(request);
  request.identity = &identity;
  const char* why = writer_.create(request);
  const auto failed = [&why](const char* word) { return why != nullptr && std::strcmp(why, word) == 0; };
  if (plan.slots > 0 && (failed("no_space") || failed("file_limit") || failed("no_mapping"))) {
    // Another process took the remaining memory, or a limit is near: try again with the fixed part only.
    request.slots = 0;
    request.slot_bytes = 0;
    request.tensor_bytes = segment::kLeastTensorsBytes;
    identity = identity_of(request);
    why = writer_.create(request);
  }
  return why;
}

segment::Identity ProcessState::identity_of(const segment::SegmentRequest& given) const {
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
  // If --every was given without --max-slowdown, the cost never prevents a sample: the limit is 100 %.
  identity.max_slowdown = settings_.every_ignores_cost ? 1 : settings_.max_slowdown;
  identity.fixed_interval = settings_.every;
  identity.local_ranks = static_cast<uint32_t>(settings_.local_ranks);
  return identity;
}

bool ProcessState::create_segment_once(uint64_t slot_bytes_needed, void (*prepare)()) {
  if (is_off() || (hot() & kHotArmed) != 0) return false;
  const pid_t self = getpid();
  // If the parent process forked while one of its threads created a segment, this child has inherited the
  // parent's pid in creating_pid_, but not the thread. So the child goes on.
  pid_t holder = creating_pid_.load(std::memory_order_relaxed);
  if (holder == self || !creating_pid_.compare_exchange_strong(holder, self)) return false;

  const char* why = nullptr;
  const bool is_wanted = read_environment(&settings_);
  // Facts that this process has passed to describe() have priority over the environment.
  if (described_pid_ == self) apply_to_settings(described_);
  if (!is_wanted) {
    off_.store(true, std::memory_order_relaxed);  // no reason needs to be reported
  } else if (!prepare_own_page()) {
    why = "no_mapping";
  } else {
    why = create_segment(slot_bytes_needed);
  }
  if (why != nullptr) off(why);
  if (is_off()) {
    creating_pid_.store(0);
    return false;
  }
  segment_pid_.store(self);
  const uint32_t published = publish_ops(0);
  prepare();  // before the flag kHotArmed is stored, after which other threads use the segment
  const uint32_t generation = generation_.fetch_add(1) + 1;  // the upper bits of the hot word count segments
  own_page()->hot.store(kHotArmed + generation * kHotGeneration, std::memory_order_release);
  // Another thread may have registered an operation since publish_ops(0), and may have seen the flag unset.
  with_ops([&] { return static_cast<int32_t>(publish_ops(published)); });
  drain_local();
  if (on_exit != nullptr) on_exit(note_exit, nullptr);
  creating_pid_.store(0);
  return true;
}

void ProcessState::publish_exit() {
  const int status = g_exit_status.load(std::memory_order_relaxed);
  if (status < 0) return;
  segment::Identity& identity = *writer_.identity();
  identity.exit_status = status;
  std::atomic_ref<uint32_t>(identity.has_exited).store(1, std::memory_order_release);
  writer_.write({{&identity, sizeof identity}});
}

void ProcessState::off(const char* reason) {
  if (off_.exchange(true)) return;
  own_page()->hot.store(0, std::memory_order_relaxed);
  Settings settings = {};
  if (reason[0] == '\0' || !read_environment(&settings)) return;
  char path[512], temporary[512], word[48];
  copy_word(word, sizeof word, reason);
  const int length = std::snprintf(path, sizeof path, "%s/off.%d.%s", settings.directory, getpid(), word);
  if (length <= 0 || length >= static_cast<int>(sizeof path) - 1) return;  // 1: the dot of `temporary`
  std::snprintf(temporary, sizeof temporary, "%s/.off.%d.%s", settings.directory, getpid(), word);
  // The file gets its name once it is complete, because an empty file is attributed to every launcher. If
  // rename() fails, the file is written under its final name, where it may stay empty.
  if (!write_launcher_id(temporary, settings.launcher_id)) return;
  if (rename(temporary, path) == 0) return;
  unlink(temporary);
  write_launcher_id(path, settings.launcher_id);
}

// Returns f(), called with the lock of the operations; -1 if the lock stays taken. Retries while another
// thread holds it, for microseconds. Other functions of the monitor return at once instead, but an operation
// without a number, or without a name in the segment, would be missed for the whole run.
int32_t ProcessState::with_ops(auto f) {
  constexpr int kTries = 100'000;
  for (int n = 0; n < kTries; ++n)
    if (TryLock lock(ops_busy_); lock) return f();
  return -1;
}

// Copies the operations from number `first` on into the segment. Returns the number of all operations.
uint32_t ProcessState::publish_ops(uint32_t first) {
  const uint32_t known = ops_known_.load(std::memory_order_acquire);
  segment::Op* published = writer_.ops() + first;
  std::copy(ops_ + first, ops_ + known, published);
  writer_.write({{published, (known - first) * sizeof *published}});
  return known;
}

int32_t ProcessState::register_op(const char* name, uint32_t pass) {
  if (pass >= segment::kPasses || name == nullptr) return -1;
  return with_ops([=, this] { return add_op(name, pass); });
}

int32_t ProcessState::add_op(const char* name, uint32_t pass) {
  const uint32_t number = ops_known_.load(std::memory_order_relaxed);  // for a new operation
  for (uint32_t n = 0; n < number; ++n)  // returns the number of an operation that is registered already
    if (ops_[n].pass == pass && std::strncmp(ops_[n].name, name, sizeof ops_[n].name - 1) == 0)
      return static_cast<int32_t>(n);
  if (number == segment::kMaxOps) return -1;
  prepare_own_page();  // calls of `name` may now be counted, and a forked child must not inherit the counts
  segment::Op& op = ops_[number];
  copy_text(op.name, sizeof op.name, name);
  op.pass = pass;
  op.ready = 1;
  ops_known_.store(number + 1, std::memory_order_release);
  if ((hot() & kHotArmed) != 0) publish_ops(number);
  return static_cast<int32_t>(number);
}

void ProcessState::apply_to_settings(const segment::Identity& described) {
  if (described.rank >= 0) settings_.rank = described.rank;
  if (described.local_rank >= 0) settings_.local_rank = described.local_rank;
  if (described.world_size >= 0) settings_.world_size = described.world_size;
  if (described.attempt >= 0) settings_.attempt = described.attempt;
}

void ProcessState::describe(const segment::Identity& described) {
  described_ = described;
  described_pid_ = getpid();
  described_is_new_.store(true, std::memory_order_release);
}

void ProcessState::publish_described() {
  if (!described_is_new_.load(std::memory_order_acquire)) return;
  described_is_new_.store(false, std::memory_order_relaxed);
  if (described_pid_ != getpid()) return;
  segment::Identity& identity = *writer_.identity();
  identity.data_parallel = described_.data_parallel;
  identity.tensor_parallel = described_.tensor_parallel;
  identity.pipeline_parallel = described_.pipeline_parallel;
  identity.expert_parallel = described_.expert_parallel;
  copy_text(identity.framework, sizeof identity.framework, described_.framework);
  std::atomic_ref<uint32_t>(identity.late_ready).store(1, std::memory_order_release);
  // The fields after late_ready first: a reader that finds it set then finds them too.
  const auto* end = reinterpret_cast<const char*>(&identity + 1);
  const auto* after = reinterpret_cast<const char*>(&identity.data_parallel);
  writer_.write({{after, static_cast<uint64_t>(end - after)}, {&identity, sizeof identity}});
}

namespace {

// The agent writes advice in microseconds, but may be preempted meanwhile. Then the advice counts as missing.
constexpr int kMostReads = 64;  // reads of unfinished advice until it counts as missing

constexpr size_t kWords = sizeof(segment::Advice) / sizeof(uint64_t);

// Copies the advice. Returns false if the agent has written no advice, or does not finish writing it. Word 0
// is the sequence number: 0 before the first advice, odd while the agent writes. The copy is consistent if
// the number is even and the same after copying. Acquire order of the loads keeps the second read of word 0
// last.
bool copy_whole(const segment::Advice& shared, segment::Advice* copy) {
  using Word [[gnu::may_alias]] = const uint64_t;
  auto* words = reinterpret_cast<Word*>(&shared);
  const auto load = [&](size_t n) { return __atomic_load_n(words + n, __ATOMIC_ACQUIRE); };
  for (int reads = 0; reads < kMostReads; ++reads) {
    uint64_t copied[kWords];
    for (size_t n = 0; n < kWords; ++n) copied[n] = load(n);
    if (copied[0] == 0) return false;
    if (copied[0] % 2 != 0 || load(0) != copied[0]) continue;
    std::memcpy(copy, copied, sizeof *copy);
    return true;
  }
  return false;
}

// Copies text from the shared file, which any process of the user may have written. Terminates the text, and
// replaces spaces and characters that are not printable ASCII by '_'.
template <size_t n>
void copy_printable(const char (&from)[n], char (&to)[n]) {
  size_t i = 0;
  for (; i + 1 < n && from[i] != 0; ++i) to[i] = from[i] > 0x20 && from[i] < 0x7f ? from[i] : '_';
  std::memset(to + i, 0, n - i);
}

}  // namespace

bool read_advice(const segment::Control& control, foreshock_advice* advice) {
  segment::Advice read;
  if (!copy_whole(control.advice, &read) || read.level >= segment::kAdviceLevels) return false;
  advice->level = read.level;
  advice->rank = read.rank;
  advice->since_step = read.since_step;
  advice->from_step = read.from_step;
  advice->score = read.score;
  copy_printable(read.detector, advice->detector);
  copy_printable(read.layer, advice->layer);
  return true;
}

}  // namespace foreshock
