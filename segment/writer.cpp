// Creates the files of a segment, and copies slices, step records, tensor records and counters from the image
// of the segment, which is private memory, into its file. A slice, the copied part of an attention call,
// takes one or more slots. Every use of a slot has a number, its ticket.
#include "segment/writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "segment/checksum.h"

namespace foreshock::segment {
namespace {

// Others may write into the run directory. A link of theirs is not followed, and opening a pipe does not wait
// for its other end.
constexpr int kSafeFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

// Gets an fcntl write lock on the whole file, without waiting.
bool lock_whole(int fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

// F_GETLK reports a lock of another process that would prevent a read lock, or F_UNLCK.
bool is_locked_by_other(const char* path) {
  const int fd = open(path, O_RDONLY | kSafeFlags);
  if (fd < 0) return false;
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(fd);
  return locked;
}

// Whether another process holds a lock on a segment of the rank, and so is alive: its end releases the lock.
bool has_live_segment(const char* directory, int rank) {
  DIR* files = opendir(directory);
  if (files == nullptr) return false;
  bool is_live = false;
  while (const dirent* entry = readdir(files)) {
    int its_rank = 0, length = 0;  // length stays 0 unless the whole pattern is matched
    unsigned long long nonce = 0;
    if (std::sscanf(entry->d_name, "%d-%16llx.seg%n", &its_rank, &nonce, &length) != 2) continue;
    if (length == 0 || entry->d_name[length] != '\0' || its_rank != rank) continue;
    char path[512];
    if (std::snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= int(sizeof path)) continue;
    is_live |= is_locked_by_other(path);
  }
  closedir(files);
  return is_live;
}

// Whether an open file still has a name, i.e. no process has unlinked it; true if statx() fails. Not by
// fstat(), which is a symbol only of glibc 2.33 and later.
bool has_name(int fd) {
  struct statx status = {};
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_NLINK, &status) != 0 || status.stx_nlink > 0;
}

// Whether an open file is smaller than `size`; false if statx() fails.
bool is_smaller(int fd, uint64_t size) {
  struct statx status = {};
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE, &status) == 0 && status.stx_size < size;
}

// A lock that a process holds while it looks for a live segment of its rank and creates its own. Without the
// lock, two processes of one rank could both find no segment and create one. It is an fcntl lock on an empty
// file, which is removed afterwards. Never waits.
class RankLock {
 public:
  RankLock() = default;
  RankLock(const RankLock&) = delete;
  RankLock& operator=(const RankLock&) = delete;
  ~RankLock();

  // Returns 0 on success, EBUSY if another process has a live segment of the rank or is creating one, or
  // another errno. Must be called before this process has a segment: take() opens and closes every segment of
  // the rank, and closing any descriptor of a file releases all fcntl locks of the process on that file.
  int take(const char* directory, int rank);

 private:
  // Tries once. Returns 0, EBUSY, ESTALE if another process has just removed the file, or another errno.
  int lock();

  char path_[512];
  int fd_ = -1;
};

RankLock::~RankLock() {
  if (fd_ < 0) return;
  unlink(path_);  // while locked, so others that opened the file see that it has no name
  close(fd_);
}

int RankLock::lock() {
  fd_ = open(path_, O_RDWR | O_CREAT | kSafeFlags, 0600);
  if (fd_ < 0) return errno;
  int error = lock_whole(fd_) ? 0 : errno;
  if (error == EAGAIN || error == EACCES) error = EBUSY;  // fcntl(): another process holds the lock
  if (error == 0 && !has_name(fd_)) error = ESTALE;
  if (error == 0) return 0;
  close(fd_);
  fd_ = -1;
  return error;
}

int RankLock::take(const char* directory, int rank) {
  constexpr int kTries = 100;
  if (std::snprintf(path_, sizeof path_, "%s/%d.rank", directory, rank) >= int(sizeof path_))
    return ENAMETOOLONG;
  int error = ESTALE;
  for (int tried = 0; tried < kTries && error == ESTALE; ++tried) error = lock();
  if (error != 0) return error == ESTALE ? EBUSY : error;
  return has_live_segment(directory, rank) ? EBUSY : 0;
}

constexpr uint64_t kPage = 4096;  // unit of the file's layout, whatever the pages of memory

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes of a page of memory, which is more than kPage on some ARM systems. A device pins whole pages.
uint64_t pinned_page() { return std::max(static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), kPage); }

// Computes the offsets of all regions, each at a multiple of kPage. The regions that a device writes to begin
// on a page of their own. Returns the size of the file.
uint64_t lay_out(Region* regions, uint32_t slots, uint64_t slot_bytes, uint64_t tensor_bytes) {
  uint64_t end = kPage;  // the header takes the first page
  const auto add_region = [&](RegionId id, uint64_t record_size, uint64_t count) {
    if (id == kProgress || id == kSlots) end = round_up(end, pinned_page());
    regions[id] = {end, record_size, count};
    end = round_up(end + record_size * count, kPage);
  };
  add_region(kIdentity, sizeof(Identity), 1);
  add_region(kOps, sizeof(Op), kMaxOps);
  add_region(kThreads, sizeof(ThreadBlock), kThreadBlocks);
  add_region(kSteps, sizeof(StepRecord), kStepRecords);
  add_region(kLayers, sizeof(Layer), kMaxLayers);
  add_region(kProgress, sizeof(Progress), 1);
  add_region(kScalarNames, sizeof(ScalarName), kMaxScalars);
  add_region(kUnseenNames, sizeof(UnseenName), kMaxUnseen);
  add_region(kCoverage, sizeof(Coverage), 1);
  if (tensor_bytes > 0) add_region(kTensors, round_up(tensor_bytes, 64), 1);
  add_region(kSlots, round_up(slot_bytes, 64), slots);
  return end;
}

// Paths of a file. It is created under the temporary one, which the agent ignores, and renamed when complete.
struct FilePaths {
  char final_path[512];
  char temporary_path[512];
};

bool make_paths(const SegmentRequest& request, const char* suffix, FilePaths* paths) {
  const int final_length =
      std::snprintf(paths->final_path, sizeof paths->final_path, "%s/%d-%016llx.%s", request.directory,
                    request.rank, static_cast<unsigned long long>(request.nonce), suffix);
  const int temporary_length =
      std::snprintf(paths->temporary_path, sizeof paths->temporary_path, "%s/.%d-%016llx.%s.new",
                    request.directory, request.rank, static_cast<unsigned long long>(request.nonce), suffix);
  return final_length > 0 && final_length < static_cast<int>(sizeof paths->final_path) &&
         temporary_length > 0 && temporary_length < static_cast<int>(sizeof paths->temporary_path);
}

// Reserves `size` bytes for a file. Returns false and sets errno on failure. Reserves in parts, since on
// tmpfs before Linux 6.18 a signal ends fallocate, which then frees all that the call had reserved. While a
// profiler's timer sends signals, one call for a large file would never succeed.
bool reserve(int fd, uint64_t size) {
  constexpr uint64_t kPart = uint64_t{1} << 20;
  constexpr int kTries = 100;  // per part
  for (uint64_t done = 0; done < size; done += kPart) {
    const uint64_t part = std::min(kPart, size - done);
    int error = EINTR;
    for (int tried = 0; tried < kTries && error == EINTR; ++tried)
      error = posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(part));
    if (error != 0) {
      errno = error == EINTR ? ENOSPC : error;  // still interrupted after all tries
      return false;
    }
  }
  return true;
}

// Whether a file of this size exceeds RLIMIT_FSIZE. Must be checked before the file is enlarged, because the
// kernel then sends SIGXFSZ, which ends the process.
bool is_beyond_limit(uint64_t size) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur;
}

// Returns the word by which SegmentWriter::create() reports an errno.
const char* reason_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "no_space";
    case EFBIG:
      return "file_limit";
    case EMFILE:
    case ENFILE:
      return "no_descriptor";
    case ENOMEM:
    case EAGAIN:
      return "no_mapping";
    case EPERM:
    case ENOSYS:
      return "not_permitted";
    default:
      return "no_directory";
  }
}

// Creates a file whose descriptor is above 2. In a daemon that has closed its standard streams, open() would
// return 0, 1 or 2, and a library that prints would overwrite the segment.
int create_above_streams(const char* path) {
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  if (above < 0) unlink(path);
  errno = error;
  return above;
}

// Creates a file of `size` reserved bytes under its temporary name. Returns -1 and sets errno on failure.
int create_reserved(const FilePaths& paths, uint64_t size) {
  if (is_beyond_limit(size)) {
    errno = EFBIG;
    return -1;
  }
  const int fd = create_above_streams(paths.temporary_path);
  if (fd < 0) return -1;
  // Reserved, not only resized: a write into a hole fails if the tmpfs is full.
  if (reserve(fd, size)) return fd;
  const int error = errno;
  close(fd);
  unlink(paths.temporary_path);
  errno = error;
  return -1;
}

// Whether the directory has the set-group-id bit: the agent then runs as another user of its group.
bool is_shared_with_group(const char* directory) {
  // Uses statx(), since stat() is a symbol only of glibc 2.33 and later.
  struct statx status = {};
  return syscall(SYS_statx, AT_FDCWD, directory, 0, STATX_MODE, &status) == 0 &&
         (status.stx_mode & S_ISGID) != 0;
}

// The regions that publish_facts() writes, and the end of the last of them. The region of tensors counts with
// its head only.
constexpr RegionId kFacts[] = {kIdentity, kOps, kLayers, kScalarNames, kUnseenNames, kCoverage, kTensors};
uint64_t end_of_facts(const Region* regions) {
  const Region& coverage = regions[kCoverage];
  return std::max(coverage.offset + coverage.record_size, regions[kTensors].offset + sizeof(TensorRing));
}

// The header and the identity, which are written before the file gets its name.
constexpr ssize_t kFirstBytes = 2 * kPage;
static_assert(sizeof(Identity) <= kPage);

// The position of the file's descriptor, far beyond its end, but within what any file system allows. Another
// descriptor does not have it by chance.
off_t position_of(uint64_t nonce) {
  constexpr uint64_t kBegin = uint64_t{1} << 42;
  return static_cast<off_t>(kBegin + nonce % kBegin);
}

// Zeroed memory of this process. A forked child finds zeros there, so neither copies the other's pages. Pages
// are allocated at first use, and not as huge pages, as most of the image stays unused. Null: none is left.
char* private_memory(uint64_t bytes) {
  void* map =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  madvise(map, bytes, MADV_WIPEONFORK);
  madvise(map, bytes, MADV_NOHUGEPAGE);
  return static_cast<char*>(map);
}

// The first content of the control file. Later only the agent and the command `foreshock pause` write it.
Control first_control(uint64_t nonce) {
  Control control = {};
  std::memcpy(control.magic, kControlMagic, sizeof control.magic);
  control.layout_version = kLayoutVersion;
  control.agent_switch = 1;
  control.command_switch = 1;
  control.nonce = nonce;
  return control;
}

}  // namespace

uint64_t segment_bytes(uint32_t slots, uint64_t slot_bytes, uint64_t tensor_bytes) {
  Region regions[kRegions] = {};
  return lay_out(regions, slots, slot_bytes, tensor_bytes);
}

const char* SegmentWriter::create(const SegmentRequest& request) {
  FilePaths segment, control;
  if (request.slots > kMaxSlots || !make_paths(request, "seg", &segment) ||
      !make_paths(request, "ctl", &control))
    return "no_directory";
  if (access(request.directory, W_OK | X_OK) != 0) return "no_directory";
  RankLock rank;  // taken first, so that an agent never sees two live segments of one rank
  if (const int error = rank.take(request.directory, request.rank); error != 0)
    return error == EBUSY ? "rank_taken" : reason_of(error);

  Header header = {};
  std::memcpy(header.magic, kSegmentMagic, sizeof header.magic);
  header.layout_version = kLayoutVersion;
  header.nonce = request.nonce;
  header.file_size = lay_out(header.regions, request.slots, request.slot_bytes, request.tensor_bytes);

  const int control_fd = create_reserved(control, kControlBytes);
  if (control_fd < 0) return reason_of(errno);
  const int segment_fd = create_reserved(segment, header.file_size);
  const uint64_t facts = end_of_facts(header.regions);
  char *image = nullptr, *published = nullptr;
  const auto undo = [&](const char* reason) {
    if (segment_fd >= 0) close(segment_fd);
    close(control_fd);
    if (image != nullptr) munmap(image, header.file_size);
    if (published != nullptr) munmap(published, facts);
    for (const char* path :
         {segment.temporary_path, segment.final_path, control.temporary_path, control.final_path})
      unlink(path);
    return reason;
  };
  if (segment_fd < 0) return undo(reason_of(errno));

  if (is_shared_with_group(request.directory)) {
    fchmod(control_fd, 0660);
    fchmod(segment_fd, 0660);
  }
  const Control first = first_control(request.nonce);
  image = private_memory(header.file_size);
  published = private_memory(facts);
  if (image == nullptr || published == nullptr) return undo("no_mapping");
  std::memcpy(image, &header, sizeof header);
  if (request.identity != nullptr)
    std::memcpy(image + header.regions[kIdentity].offset, request.identity, sizeof(Identity));
  errno = ENOSPC;  // of a write that is cut short
  if (pwrite(control_fd, &first, sizeof first, 0) != sizeof first ||
      pwrite(segment_fd, image, kFirstBytes, 0) != kFirstBytes ||
      lseek(segment_fd, position_of(request.nonce), SEEK_SET) < 0)
    return undo(reason_of(errno));

  // The agent looks for .seg files. When it finds this one, the file is locked and its .ctl file exists.
  if (!lock_whole(segment_fd) || rename(control.temporary_path, control.final_path) != 0 ||
      rename(segment.temporary_path, segment.final_path) != 0)
    return undo(reason_of(errno));

  base_ = image;
  published_facts_ = published;
  size_ = header.file_size;
  segment_file_ = segment_fd;
  control_file_ = control_fd;
  control_ = first;
  std::copy_n(header.regions, kRegions, regions_);
  // A forked child may have inherited them while a thread of its parent held them.
  control_busy_.clear();
  facts_busy_.clear();
  shared_ = nullptr;
  failed_writes_.store(0, std::memory_order_relaxed);
  shared_counted_.store(0, std::memory_order_relaxed);
  for (std::atomic<uint64_t>& sequence : sequences_) sequence.store(0, std::memory_order_relaxed);
  threads_ = at<ThreadBlock>(kThreads);
  steps_ = at<StepRecord>(kSteps);
  steps_written_.store(0, std::memory_order_relaxed);
  return nullptr;
}

// -- writing into the file --

namespace {

// Keeps errno, which the trainer's code may read after a hook.
class ErrnoGuard {
 public:
  ErrnoGuard() = default;
  ~ErrnoGuard() { errno = saved_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  int saved_ = errno;
};

// Whether the file can be read completely at this place. Does not wait: files of a tmpfs are memory.
bool read_at(int fd, void* to, uint64_t bytes, uint64_t offset) {
  const ErrnoGuard guard;
  return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Copies words, each whole, as other threads may change them at the same time. Not checked for data races: a
// value that is copied before it is complete is copied again later. Returns whether any word differed.
__attribute__((no_sanitize("thread"))) bool copy_changed(const char* from, uint64_t bytes, char* to) {
  using Word [[gnu::may_alias]] = uint64_t;
  bool has_changed = false;
  for (uint64_t at = 0; at < bytes; at += sizeof(Word)) {
    const Word now = __atomic_load_n(reinterpret_cast<const Word*>(from + at), __ATOMIC_RELAXED);
    auto* before = reinterpret_cast<Word*>(to + at);
    if (*before == now) continue;
    *before = now;
    has_changed = true;
  }
  return has_changed;
}

}  // namespace

// Whether the descriptor is still that of the segment, and a write below the file's size raises no signal. A
// trainer may have closed all descriptors, and opened another file that has got this number: a write would
// then change that file. The position of ours, which nothing else moves, distinguishes them. RLIMIT_FSIZE was
// large enough when the file was created; a write beyond it would raise SIGXFSZ.
bool SegmentWriter::may_write() const {
  if (lseek(segment_file_, 0, SEEK_CUR) != position_of(reinterpret_cast<const Header*>(base_)->nonce))
    return false;
  return !is_beyond_limit(size_);
}

// Must be called after may_write().
void SegmentWriter::put(const void* from, uint64_t bytes) const {
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(from) - base_);
  if (bytes == 0 || offset > size_ || bytes > size_ - offset) return;
  if (pwrite(segment_file_, from, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
    failed_writes_.fetch_add(1, std::memory_order_relaxed);
}

void SegmentWriter::write(std::initializer_list<Range> ranges) const {
  const ErrnoGuard guard;
  if (base_ == nullptr) return;
  if (!may_write()) {
    failed_writes_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  for (const Range& range : ranges) put(range.from, range.bytes);
}

// The blocks are claimed in order, and the last one is shared by all threads that found no other.
SegmentWriter::Range SegmentWriter::claimed_threads() const {
  uint32_t claimed = 0;
  while (claimed < kThreadBlocks - 1 && word(threads_[claimed].claimed).load(std::memory_order_relaxed) != 0)
    ++claimed;
  return {threads_, claimed * sizeof(ThreadBlock)};
}

SegmentWriter::Range SegmentWriter::shared_threads() const {
  ThreadBlock& last = threads_[kThreadBlocks - 1];
  const uint64_t counted = word(last.all_calls).load(std::memory_order_relaxed) +
                           word(last.hook_ns).load(std::memory_order_relaxed) +
                           word(last.step_ns).load(std::memory_order_relaxed);
  const bool is_new = shared_counted_.exchange(counted, std::memory_order_relaxed) != counted;
  return {&last, is_new ? sizeof last : 0};
}

// Bytes of a region of facts up to the first record that is not in use.
uint64_t SegmentWriter::used_bytes(RegionId id) const {
  const Region& region = regions_[id];
  if (id == kTensors) return region.count > 0 ? sizeof(TensorRing) : 0;
  if (id != kLayers) return region.record_size * region.count;
  uint64_t used = 0;
  while (used < region.count && word(layers()[used].ready).load(std::memory_order_acquire) != 0) ++used;
  return region.record_size * used;
}

void SegmentWriter::publish_facts() const {
  if (facts_busy_.test_and_set(std::memory_order_acquire)) return;
  const ErrnoGuard guard;
  if (is_smaller(segment_file_, size_)) {
    // What another process has cut off reads as zeros once the file has its size again. So all words that are
    // not zero count as changed.
    failed_writes_.fetch_add(1, std::memory_order_relaxed);
    std::memset(published_facts_, 0, end_of_facts(regions_));
    write({{base_ + size_ - 1, 1}});
  }
  word(coverage()->writes_failed).store(static_cast<uint32_t>(failed_writes()), std::memory_order_relaxed);
  for (const RegionId id : kFacts) {
    const uint64_t offset = regions_[id].offset, bytes = used_bytes(id);
    if (copy_changed(base_ + offset, bytes, published_facts_ + offset)) write({{base_ + offset, bytes}});
  }
  facts_busy_.clear(std::memory_order_release);
}

// -- the control file --

void SegmentWriter::read_control(Control* control) const {
  const auto& header = *reinterpret_cast<const Header*>(base_);
  if (!read_at(control_file_, control, sizeof *control, 0) ||
      std::memcmp(control->magic, kControlMagic, sizeof kControlMagic) != 0 || control->nonce != header.nonce)
    *control = first_control(header.nonce);
}

// Stores word by word, since other threads load the words.
void SegmentWriter::refresh_control() const {
  Control now;
  read_control(&now);
  if (control_busy_.test_and_set(std::memory_order_acquire)) return;  // another thread stores as new a copy
  uint64_t words[sizeof now / sizeof(uint64_t)];
  std::memcpy(words, &now, sizeof now);
  using Word [[gnu::may_alias]] = uint64_t;
  auto* to = reinterpret_cast<Word*>(&control_);
  for (size_t n = 0; n < std::size(words); ++n) __atomic_store_n(to + n, words[n], __ATOMIC_RELEASE);
  control_busy_.clear(std::memory_order_release);
}

uint64_t SegmentWriter::consumed(uint32_t index) const {
  uint64_t ticket = 0;
  const uint64_t offset = kConsumptionOffset + index * sizeof(Consumption) + offsetof(Consumption, consumed);
  return read_at(control_file_, &ticket, sizeof ticket, offset) ? ticket : 0;
}

uint32_t SegmentWriter::free_slots() const {
  Consumption records[kMaxSlots] = {};
  const uint64_t bytes = slots() * sizeof(Consumption);
  if (!read_at(control_file_, records, bytes, kConsumptionOffset))
    std::fill_n(records, kMaxSlots, Consumption{});
  uint32_t free = 0;
  for (uint32_t n = 0; n < slots(); ++n)
    free += sequences_[n].load(std::memory_order_relaxed) == 2 * records[n].consumed;
  return free;
}

// -- slices --

// What orders the uses of a slot on a processor that reorders loads and stores (ARM):
// - A slot passes from one thread to the next through the agent: claim() needs the consumed ticket, which the
//   agent writes after it has read the sequence that publish() wrote last. The locks of the files order these
//   system calls (SEGMENT.md), so the first thread's last access to the slot is before the next one's first.
// - A slot that release() gives back passes directly: its store of sequences_ releases, and the exchange in
//   claim() acquires.
// - A thread that still reads the device times of the slot's last use detects the next use: claim() stores
// the
//   odd sequence, a release fence, then the times; CopyTiming::collect() (libmonitor/device_sampler.cpp)
//   loads the times, an acquire fence, then the sequence again.
Slot* SegmentWriter::claim(uint64_t ticket) const {
  const uint32_t index = static_cast<uint32_t>(ticket % slots());
  Slot* slot = this->slot(index);
  // The sequence if the slot is free; 0 if it was never used. A consumed ticket that this slot never had,
  // which only a faulty agent reports, equals no sequence.
  const uint64_t free = 2 * consumed(index);
  uint64_t expected = free;
  if (!sequences_[index].compare_exchange_strong(expected, 2 * ticket - 1, std::memory_order_acq_rel))
    return nullptr;
  before_claim_[index] = free;
  word(slot->sequence).store(2 * ticket - 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // the sequence is odd before any header byte changes
  char* begin = reinterpret_cast<char*>(slot);
  // The header is zeroed except the sequence. The two device times in the middle are stored atomically,
  // because the thread that used the slot last may still read them (libmonitor/device_sampler.h).
  constexpr size_t kTimes = offsetof(Slot, device_begin_ns), kAfterTimes = offsetof(Slot, first_ticket);
  std::memset(begin + sizeof slot->sequence, 0, kTimes - sizeof slot->sequence);
  std::memset(begin + kAfterTimes, 0, sizeof(Slot) - kAfterTimes);
  word(slot->device_begin_ns).store(0, std::memory_order_relaxed);
  word(slot->device_end_ns).store(0, std::memory_order_relaxed);
  slot->ticket = ticket;
  return slot;
}

// Restores the sequence that the slot had before claim().
void SegmentWriter::release(uint64_t ticket) const {
  const uint32_t index = static_cast<uint32_t>(ticket % slots());
  const uint64_t before = before_claim_[index];
  word(slot(index)->sequence).store(before, std::memory_order_release);
  sequences_[index].store(before, std::memory_order_release);  // last: another thread may now claim the slot
}

namespace {

// Copies the fields that a slice has the same in all its slots.
void copy_header(const Slot& header, Slot* slot) {
  // All fields from `step` to the last one before the device's times are copied at once.
  constexpr size_t kBegin = offsetof(Slot, step), kEnd = offsetof(Slot, device_begin_ns);
  std::memcpy(reinterpret_cast<char*>(slot) + kBegin, reinterpret_cast<const char*>(&header) + kBegin,
              kEnd - kBegin);
  slot->without_out = header.without_out;
  slot->packed = header.packed;
  slot->columns = header.columns;
  slot->columns_skip = header.columns_skip;
}

}  // namespace

bool SegmentWriter::claim(uint64_t ticket, uint32_t count, Slot** slots, const Slot& header) const {
  if (count == 0 || count > this->slots()) return false;
  for (uint32_t part = 0; part < count; ++part) {
    slots[part] = claim(ticket + part);
    if (slots[part] == nullptr) {
      give_back(ticket, part);
      return false;
    }
    copy_header(header, slots[part]);
    if (count == 1) break;  // the part numbers stay 0: one slot holds the whole slice
    slots[part]->first_ticket = ticket;
    slots[part]->part = part;
    slots[part]->parts = count;
  }
  return true;
}

void SegmentWriter::give_back(uint64_t ticket, uint32_t count) const {
  // The first part is released last. While its sequence is odd, a reader counts the other parts as parts of
  // an unfinished slice. Otherwise the reader would count them as a slice whose first part is lost.
  for (uint32_t part = count; part-- > 0;) release(ticket + part);
}

// Each slot is written with its odd sequence first: a trainer that dies in the middle leaves it torn.
void SegmentWriter::publish(Slot* const* slots, uint64_t ticket, uint32_t count) const {
  // First, since the agent may consume the slots at once.
  for (uint64_t of_part = ticket; of_part < ticket + count; ++of_part)
    sequences_[of_part % this->slots()].store(2 * of_part, std::memory_order_release);
  const ErrnoGuard guard;
  const bool is_writable = may_write();
  if (!is_writable) failed_writes_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t part = 0; part < count; ++part) {
    Slot* slot = slots[part];
    slot->checksum = checksum_of(*slot, reinterpret_cast<const char*>(slot), slot_bytes());
    if (is_writable) put(slot, end_of_payloads(*slot, slot_bytes()));
  }
  // The first part is published last: if its sequence is even, all other parts are complete too.
  for (uint32_t part = count; part-- > 0;) {
    word(slots[part]->sequence).store(2 * (ticket + part), std::memory_order_release);
    if (is_writable) put(&slots[part]->sequence, sizeof slots[part]->sequence);
  }
  word(progress()->published).fetch_add(1);
  if (is_writable) put(&progress()->published, sizeof progress()->published);
}

// -- slices that a device stores --

bool SegmentWriter::map_for_devices() const {
  if (shared_ != nullptr) return true;
  void* map = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, segment_file_, 0);
  if (map == MAP_FAILED) return false;
  shared_ = static_cast<char*>(map);
  return true;
}

void SegmentWriter::leave_to_device(Slot* const* slots, uint64_t ticket, uint32_t count) const {
  for (uint32_t part = 0; part < count; ++part) {
    sequences_[(ticket + part) % this->slots()].store(2 * (ticket + part), std::memory_order_release);
    write({{slots[part], sizeof(Slot)}});
  }
}

void SegmentWriter::read_back(Slot* slot) const {
  Slot now;
  const auto offset = static_cast<uint64_t>(reinterpret_cast<const char*>(slot) - base_);
  if (!read_at(segment_file_, &now, sizeof now, offset)) return;
  // Only the sequence that the device was to store is taken. The device stores the times before it.
  if (now.sequence == 0 || now.sequence != sequences_[index_of(slot)].load(std::memory_order_acquire)) return;
  word(slot->device_begin_ns).store(now.device_begin_ns, std::memory_order_relaxed);
  word(slot->device_end_ns).store(now.device_end_ns, std::memory_order_relaxed);
  // Not if a thread has claimed the slot again meanwhile.
  uint64_t before = now.sequence - 1;
  word(slot->sequence).compare_exchange_strong(before, now.sequence, std::memory_order_acq_rel);
}

void SegmentWriter::read_back_progress() const {
  Progress now;
  if (!read_at(segment_file_, &now, sizeof now, regions_[kProgress].offset)) return;
  for (uint32_t n = 0; n < kDeviceProgress; ++n)
    word(progress()->by_device[n]).store(now.by_device[n], std::memory_order_release);
}

// -- counts and steps --

void SegmentWriter::count(uint64_t Coverage::*counter, uint64_t amount) {
  word(coverage()->*counter).fetch_add(amount, std::memory_order_relaxed);
}

void SegmentWriter::count_skipped_numbers(uint32_t reason, uint64_t amount) {
  word(coverage()->numbers_skipped[reason]).fetch_add(amount, std::memory_order_relaxed);
}

uint64_t SegmentWriter::steps_ahead() const {
  const uint64_t written = steps_written_.load(std::memory_order_relaxed);
  const uint64_t cursor = word(control_.step_cursor).load(std::memory_order_relaxed);
  return written - std::min(cursor, written);  // 0 if the cursor is invalid, i.e. beyond `written`
}

// Most steps have no scalars. Their arrays are then neither stored nor written, which saves four cache lines.
constexpr uint64_t bytes_of(const StepRecord& record) {
  return record.scalars_given != 0 ? sizeof(StepRecord) : offsetof(StepRecord, scalars);
}

uint64_t SegmentWriter::append_step(const StepRecord& record) {
  const uint64_t number = steps_written_.load(std::memory_order_relaxed) + 1;
  StepRecord* to = step(number);
  std::memcpy(to, &record, bytes_of(record));
  to->sequence = 2 * number;
  to->checksum = checksum_of(*to);
  write({{to, bytes_of(record)}, claimed_threads(), shared_threads()});
  steps_written_.store(number, std::memory_order_relaxed);
  return number;
}

// The sequence stays unchanged. One write changes the record, so that it is pending or complete if the
// trainer dies in this function.
void SegmentWriter::complete_step(uint64_t number, const StepRecord& record) {
  const uint64_t written = steps_written_.load(std::memory_order_relaxed);
  if (number == 0 || number > written || written - number >= kStepRecords) return;  // overwritten
  StepRecord* to = step(number);
  to->loss = record.loss;
  to->gradient_norm = record.gradient_norm;
  to->loss_source = record.loss_source;
  to->skipped_steps = record.skipped_steps;
  to->given = record.given & ~kNumbersPending;
  to->checksum = checksum_of(*to);
  write({{to, bytes_of(*to)}});
}

namespace {

// Stores atomically, since publish_facts() may load these words in another thread.
void store(uint64_t& word, uint64_t value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<uint64_t>(word).store(value, order);
}

}  // namespace

void TensorWriter::attach(TensorRing* ring, uint64_t bytes, const SegmentWriter* segment) {
  attach(ring, bytes, segment->control());
  segment_ = segment;
}

void TensorWriter::attach(TensorRing* ring, uint64_t bytes, const Control* control) {
  const bool is_usable = ring != nullptr && bytes > kLeastTensorsBytes;  // else no ring, or only counters
  ring_ = ring;
  counts_ = {};
  data_ = reinterpret_cast<char*>(ring) + sizeof(TensorRing);
  room_ = is_usable ? (bytes - sizeof(TensorRing)) / kTensorAlign * kTensorAlign : 0;
  control_ = control;
  segment_ = nullptr;
  filler_ = granted_ = 0;
}

uint64_t TensorWriter::consumed() const {
  if (segment_ != nullptr) segment_->refresh_control();
  auto& control = const_cast<Control&>(*control_);  // atomic_ref needs it; this function only loads
  return std::atomic_ref<uint64_t>(control.tensor_cursor).load(std::memory_order_acquire);
}

TensorRecord* TensorWriter::begin(uint64_t least, uint64_t* bytes) {
  granted_ = 0;
  const uint64_t written = counts_.written, cursor = consumed(), used = written - cursor;
  if (cursor > written || used > room_) return nullptr;  // the agent's cursor is invalid
  const uint64_t free = room_ - used, to_end = room_ - written % room_;
  filler_ = 0;
  *bytes = std::min(free, to_end);
  // A record does not wrap around the ring's end. If the range up to the end is shorter than `least` or a
  // quarter of the ring, and the free range at the start (free - to_end bytes) is longer, a filler takes the
  // range up to the end and the record begins at the start.
  if ((*bytes < room_ / 4 || *bytes < least) && free > 2 * to_end) {
    filler_ = to_end;
    *bytes = free - to_end;
  }
  if (*bytes < least) return nullptr;
  granted_ = *bytes;
  return reinterpret_cast<TensorRecord*>(at(written + filler_));
}

void TensorWriter::publish_snapshot(const TensorRecord* record) {
  if (fits(*record)) add(&TensorRing::snapshots_taken, 1);
  publish_uncounted(record);
}

// Bytes of a filler that mean something: its length and its kind.
constexpr uint64_t kFillerBytes = 16;
static_assert(offsetof(TensorRecord, kind) + sizeof(TensorRecord::kind) <= kFillerBytes);

void TensorWriter::publish_uncounted(const TensorRecord* record) {
  if (!fits(*record)) return;
  const uint64_t written = counts_.written, bytes = record->bytes;
  granted_ = 0;
  if (char* to = at(written + filler_); to != reinterpret_cast<const char*>(record))
    std::memcpy(to, record, sizeof *record);
  if (filler_ > 0) {
    // Only the first kFillerBytes of this record are stored, since no more may fit.
    auto* filler = reinterpret_cast<TensorRecord*>(at(written));
    filler->bytes = filler_;
    filler->kind = TensorKind::kFiller;
  }
  if (segment_ != nullptr)
    segment_->write({{at(written), filler_ > 0 ? kFillerBytes : 0}, {at(written + filler_), bytes}});
  counts_.written = written + filler_ + bytes;
  store(ring_->written, counts_.written, std::memory_order_release);
  if (segment_ != nullptr) segment_->write({{ring_, sizeof *ring_}});
}

void TensorWriter::add(uint64_t TensorRing::*counter, uint64_t amount) {
  store(ring_->*counter, counts_.*counter += amount);
}

void TensorWriter::count_due(uint64_t tensors) { add(&TensorRing::due, tensors); }

void TensorWriter::count_skipped(TensorSkip reason, uint64_t tensors) {
  store(ring_->skipped[reason], counts_.skipped[reason] += tensors);
}

void TensorWriter::set_awaited(uint64_t tensors) { store(ring_->awaited, counts_.awaited = tensors); }

void TensorWriter::set_interval(uint64_t steps) { store(ring_->interval, counts_.interval = steps); }

void TensorWriter::set_named(uint64_t tensors, uint64_t elements, const uint64_t* unfollowed) {
  store(ring_->tensors, tensors);
  store(ring_->elements, elements);
  for (uint32_t reason = 0; reason < kTensorUnfollowed; ++reason)
    store(ring_->unfollowed[reason], unfollowed[reason]);
}

}  // namespace foreshock::segment
