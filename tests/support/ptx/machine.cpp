#include "tests/support/ptx/machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <unordered_map>

namespace ptx {

Mutant mutant;

namespace {

constexpr uint32_t kSeveral = 2047;  // in the place of a thread's number; so blocks and threads are fewer
constexpr size_t kStackBytes = 128 << 10;
constexpr uint32_t kWarp = 32, kMostShared = 227 << 10;  // of a block on sm_90
constexpr uint32_t kResident = 4;                        // blocks that run at a time
constexpr uint32_t kMostEpoch = (1 << 18) - 1, kMostFences = 15;

// Who touched a byte and when: after how many barriers of its block, and how many of its own fences since the
// last.
struct Stamp {
  uint64_t is_set : 1 = 0, is_strong : 1 = 0, block : 11 = 0, thread : 11 = 0, epoch : 18 = 0, fences : 4 = 0,
                    place : 16 = 0;
};
struct Cell {
  Stamp write, read;  // the last ones
};

// What is known to have happened in a block: everything before an epoch and, in this epoch, what one thread
// did before one of its fences.
struct Known {
  uint32_t epoch = 0;
  uint16_t thread = 0, fences = 0;
};
using Clock = std::vector<Known>;  // by block

void join(Clock& to, const Clock& from) {
  to.resize(from.size());
  for (size_t n = 0; n < to.size(); ++n) {
    if (from[n].epoch > to[n].epoch)
      to[n] = from[n];
    else if (from[n].epoch == to[n].epoch && from[n].thread == to[n].thread)
      to[n].fences = std::max(to[n].fences, from[n].fences);
  }
}

// An allocation: which bytes hold a value, and who touched each in this launch.
struct Region {
  uint64_t base;
  size_t bytes;
  std::vector<uint8_t> is_valid;
  Cell* cells;
  bool is_touched = false;

  // The cells of an allocation take 16 times its bytes: only those that are touched get memory.
  Region(uint64_t at, size_t size) : base(at), bytes(size), is_valid(size) {
    cells = static_cast<Cell*>(mmap(nullptr, size * sizeof(Cell) + 1, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (cells == MAP_FAILED) std::abort();
  }
  Region(const Region&) = delete;
  ~Region() { munmap(cells, bytes * sizeof(Cell) + 1); }
  bool holds(uint64_t address, size_t size) const {
    return address - base < bytes && bytes - (address - base) >= size;
  }
  void forget_accesses() {
    if (is_touched) madvise(cells, bytes * sizeof(Cell) + 1, MADV_DONTNEED);
    is_touched = false;
  }
};

std::map<uint64_t, std::unique_ptr<Region>> regions;
std::vector<std::string> found;
std::vector<bool> places_reached;

Region* region_at(uint64_t address) {
  const auto next = regions.upper_bound(address);
  return next == regions.begin() ? nullptr : std::prev(next)->second.get();
}

struct Stopped {};  // thrown through translated code

std::string text_of(uint32_t place) {
  const Place& at = code.places[place];
  return std::string(at.kernel) + ", line " + std::to_string(at.line) + " `" + at.text + "`";
}

}  // namespace

struct Block {
  Launch& launch;
  uint32_t index, epoch = 1, ended = 0;
  Clock clock;  // of what happened in other blocks
  std::vector<char> shared;
  Region about_shared;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<uint32_t> ready, waiting;  // waiting: at a barrier

  Block(Launch& of, uint32_t number, uint32_t thread_count, uint32_t block_count, uint32_t shared_bytes)
      : launch(of),
        index(number),
        clock(block_count),
        shared(shared_bytes + 1, '\xa5'),
        about_shared(0, shared_bytes),
        ready(thread_count) {
    for (uint32_t n = 0; n < thread_count; ++n) threads.push_back(std::make_unique<Thread>(*this, n));
    std::iota(ready.begin(), ready.end(), 0u);
  }
};

struct Thread::State {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint32_t barrier_place = 0, fences = 0;
  bool has_ended = false, has_stored = false;  // has_stored: since its last fence
  // What this thread knows of other blocks beyond its block's clock; what it read with atomics and will know
  // after its next fence; and what it published with its last fence. Empty: nothing.
  Clock acquired, pending, fenced;
};

class Launch {
 public:
  Launch(const Kernel& kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
         const void* parameter, const Options& options)
      : kernel_(kernel),
        blocks_(blocks),
        threads_(threads),
        shared_bytes_(shared_bytes),
        options_(options),
        random_(options.seed) {
    std::memcpy(parameter_, parameter, kernel.parameter_bytes);
  }

  void run() {
    current = this;
    std::vector<uint32_t> order(blocks_);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<std::unique_ptr<Block>> resident;
    while (!is_stopped_ && (!order.empty() || !resident.empty())) {
      while (!order.empty() && resident.size() < kResident) {
        resident.push_back(std::make_unique<Block>(*this, order.back(), threads_, blocks_, shared_bytes_));
        order.pop_back();
      }
      const size_t n = random_() % resident.size();
      Block& block = *resident[n];
      if (!block.ready.empty())
        resume_one(block);
      else if (block.ended == threads_)
        resident.erase(resident.begin() + static_cast<ptrdiff_t>(n));
      else
        meet(block);
    }
  }

 private:
  friend class Thread;

  // One thread of the block runs until it waits, ends or is interrupted.
  void resume_one(Block& block) {
    std::swap(block.ready[random_() % block.ready.size()], block.ready.back());
    Thread& thread = *block.threads[block.ready.back()];
    block.ready.pop_back();
    Thread::State& state = *thread.state_;
    if (!state.stack) {
      if (free_stacks_.empty()) free_stacks_.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
      state.stack = std::move(free_stacks_.back());
      free_stacks_.pop_back();
      getcontext(&state.context);
      state.context.uc_stack.ss_sp = state.stack.get();
      state.context.uc_stack.ss_size = kStackBytes;
      state.context.uc_link = &scheduler_;
      makecontext(&state.context, &Launch::begin, 0);
    }
    running_ = &thread;
    swapcontext(&scheduler_, &state.context);
    if (!state.has_ended) return;
    ++block.ended;
    free_stacks_.push_back(std::move(state.stack));
  }
  static void begin() {
    Thread& thread = *current->running_;
    try {
      current->kernel_.run(thread);
    } catch (const Stopped&) {
      current->is_stopped_ = true;
    } catch (const std::runtime_error& error) {
      found.push_back(std::string(current->kernel_.name) + ": " + error.what());
      current->is_stopped_ = true;
    }
    thread.state_->has_ended = true;
  }
  void interrupt(Thread& thread) { swapcontext(&thread.state_->context, &scheduler_); }

  // All threads of the block wait or have ended.
  void meet(Block& block) {
    if (block.ended > 0)
      report("synccheck", block.threads[block.waiting[0]]->state_->barrier_place, 0,
             std::to_string(block.ended) + " threads have ended, others wait at a barrier");
    std::vector<uint32_t> place_of_warp(threads_ / kWarp + 1);
    for (const uint32_t n : block.waiting) {
      Thread::State& state = *block.threads[n]->state_;
      uint32_t& place = place_of_warp[n / kWarp];
      if (place != 0 && place != state.barrier_place)
        report("synccheck", state.barrier_place, place,
               "a warp waits at another barrier too: " + text_of(place));
      place = state.barrier_place;
      if (!state.acquired.empty()) join(block.clock, state.acquired);
      state.acquired.clear();
      state.fences = 0;
    }
    if (++block.epoch > kMostEpoch) throw std::runtime_error("more barriers than a Stamp counts");
    std::swap(block.ready, block.waiting);
  }

  // -- reports --

  static void report(const char* check, uint32_t place, uint32_t other, const std::string& what) {
    static std::set<std::tuple<std::string, uint32_t, uint32_t>> known;
    if (!known.emplace(check, place, other).second) return;
    found.push_back(std::string(check) + ": " + text_of(place) + ": " + what);
  }
  static std::string where(const Thread& thread, Space space, uint64_t address, uint32_t bytes) {
    const Region* region = space == Space::kGlobal ? region_at(address) : nullptr;
    return "thread " + std::to_string(thread.index) + " of block " + std::to_string(thread.block_.index) +
           ", " + std::to_string(bytes) + " bytes at " +
           std::to_string(address - (region ? region->base : 0)) +
           (region                       ? " of an allocation of " + std::to_string(region->bytes)
            : space == Space::kParameter ? " of the parameter"
            : space == Space::kShared    ? " of shared memory"
                                         : " of the host");
  }
  [[noreturn]] static void fault(const Thread& thread, const char* what, Space space, uint64_t address,
                                 uint32_t bytes, uint32_t place) {
    report("memcheck", place, 0, std::string(what) + ", " + where(thread, space, address, bytes));
    throw Stopped();
  }

  // -- order of accesses --

  static bool is_ordered(const Stamp& before, const Thread& thread) {
    const Block& block = thread.block_;
    if (before.block == block.index && (before.thread == thread.index || before.epoch < block.epoch))
      return true;
    const Clock& acquired = thread.state_->acquired;
    const Known& known = (acquired.empty() ? block.clock : acquired)[before.block];
    return before.epoch < known.epoch ||
           (before.epoch == known.epoch && before.thread == known.thread && before.fences < known.fences);
  }

  // Compares an access to one byte with the last ones and takes their place. A byte that several threads of a
  // block touched since its last barrier is ordered with none of them.
  static void note(Cell& cell, const Thread& thread, Space space, uint64_t address, bool writes, Stamp me) {
    const auto check = [&](const Stamp& before, const char* kind) {
      if (!before.is_set || (before.is_strong && me.is_strong) || is_ordered(before, thread)) return;
      report("racecheck", me.place, before.place,
             std::string(kind) + " by block " + std::to_string(before.block) + " at " +
                 text_of(before.place) + ", " + where(thread, space, address, 1));
    };
    check(cell.write, writes ? "a write after a write" : "a read after a write");
    if (writes) check(cell.read, "a write after a read");
    Stamp& last = writes ? cell.write : cell.read;
    if (last.is_set && last.block == me.block && last.epoch == me.epoch && last.thread != me.thread) {
      me.thread = kSeveral;
      me.is_strong &= last.is_strong;
    }
    last = me;
    if (writes) cell.read = {};
  }

  static inline Launch* current = nullptr;
  static inline std::vector<std::unique_ptr<char[]>> free_stacks_;

  const Kernel& kernel_;
  uint32_t blocks_, threads_, shared_bytes_;
  alignas(16) char parameter_[4096 + 16] = {};
  Options options_;
  std::mt19937_64 random_;
  std::vector<Region*> regions_{code.places.size()};  // by place: the last one
  std::unordered_map<uint64_t, Clock> releases_;      // by address: what was published with its value
  ucontext_t scheduler_;
  Thread* running_ = nullptr;
  bool is_stopped_ = false;
};

Thread::Thread(Block& block, uint32_t number)
    : index(number), block_(block), state_(std::make_unique<State>()) {}
Thread::~Thread() = default;
uint32_t Thread::threads() const { return block_.launch.threads_; }
uint32_t Thread::block_index() const { return block_.index; }
uint32_t Thread::blocks() const { return block_.launch.blocks_; }
uint32_t Thread::shared_bytes() const { return block_.launch.shared_bytes_; }
uint64_t Thread::now() const {
  static uint64_t reads = 0;
  return ++reads;
}

void Thread::barrier(uint32_t place) {
  places_reached[place] = true;
  if (mutant.mutation == Mutation::kNoBarrier && mutant.place == place) return;
  state_->barrier_place = place;
  block_.waiting.push_back(index);
  block_.launch.interrupt(*this);
}

// After it the thread knows what was published with the values that it read before. With values that it
// writes later it publishes what it knows and what it did.
void Thread::fence(uint32_t place) {
  places_reached[place] = true;
  if (mutant.mutation == Mutation::kNoFence && mutant.place == place) return;
  if (!state_->pending.empty()) {
    if (state_->acquired.empty()) state_->acquired = block_.clock;
    join(state_->acquired, state_->pending);
  }
  state_->has_stored = false;
  state_->fences = std::min(state_->fences + 1, kMostFences);
  state_->fenced = state_->acquired.empty() ? block_.clock : state_->acquired;
  state_->fenced[block_.index] = {block_.epoch, static_cast<uint16_t>(index),
                                  static_cast<uint16_t>(state_->fences)};
}

char* Thread::touch(Space space, uint64_t address, uint32_t bytes, Touch how, uint32_t place) {
  Launch& launch = block_.launch;
  places_reached[place] = true;
  if (space == Space::kParameter) {
    if (mutant.mutation == Mutation::kMisalignedParameter && mutant.place == place) ++address;
    if (address % bytes != 0) Launch::fault(*this, "misaligned", space, address, bytes, place);
    if (address + bytes > launch.kernel_.parameter_bytes)
      Launch::fault(*this, "beyond the parameter", space, address, bytes, place);
    return launch.parameter_ + address;
  }
  if (launch.options_.interleave != 0 && launch.random_() % launch.options_.interleave == 0) {
    block_.ready.push_back(index);
    launch.interrupt(*this);
  }
  Region*& cached = launch.regions_[place];
  if (space == Space::kGlobal && (cached == nullptr || !cached->holds(address, bytes)))
    cached = region_at(address);
  Region* region = space == Space::kShared ? &block_.about_shared : cached;
  if (region == nullptr || !region->holds(address, bytes))
    Launch::fault(*this, "out of bounds", space, address, bytes, place);
  if (address % bytes != 0) Launch::fault(*this, "misaligned", space, address, bytes, place);
  const size_t offset = address - region->base;
  const bool writes = how != Touch::kRead && how != Touch::kStrongRead;
  const bool reads = !writes || how == Touch::kAtomic;
  if (reads && std::memchr(&region->is_valid[offset], 0, bytes))
    Launch::report("initcheck", place, 0, "never written, " + Launch::where(*this, space, address, bytes));
  if (writes) std::memset(&region->is_valid[offset], 1, bytes);

  Stamp me;
  me.is_set = 1, me.is_strong = how != Touch::kRead && how != Touch::kWrite;
  me.block = block_.index & 2047, me.thread = index & 2047, me.epoch = block_.epoch & kMostEpoch;
  me.fences = state_->fences & kMostFences, me.place = place & 0xffff;
  region->is_touched = true;
  for (uint32_t n = 0; n < bytes; ++n)
    Launch::note(region->cells[offset + n], *this, space, address + n, writes, me);

  if (how == Touch::kStrongWrite && state_->has_stored)
    Launch::report("racecheck", place, 0, "the host may see this store before an earlier one");
  if (space == Space::kGlobal && how == Touch::kWrite) state_->has_stored = true;
  if (space == Space::kGlobal && me.is_strong) {
    const auto at = launch.releases_.find(address);
    if (reads && at != launch.releases_.end()) join(state_->pending, at->second);
    if (writes && !state_->fenced.empty()) join(launch.releases_[address], state_->fenced);
  }
  return space == Space::kShared ? block_.shared.data() + address : reinterpret_cast<char*>(address);
}

void allocated(uint64_t address, size_t bytes) {
  regions[address] = std::make_unique<Region>(address, bytes);
}
void released(uint64_t address) { regions.erase(address); }
void written_by_host(uint64_t address, size_t bytes) {
  Region* region = region_at(address);
  if (region == nullptr || !region->holds(address, bytes)) throw std::runtime_error("a copy out of bounds");
  std::memset(&region->is_valid[address - region->base], 1, bytes);
}

bool launch(const char* name, uint32_t blocks, uint32_t threads, uint32_t shared_bytes, const void* parameter,
            const Options& options) {
  const auto kernel = std::find_if(code.kernels.begin(), code.kernels.end(),
                                   [&](const Kernel& known) { return std::strcmp(known.name, name) == 0; });
  if (kernel == code.kernels.end() || threads < 1 || threads > kernel->most_threads || blocks < 1 ||
      blocks >= kSeveral || shared_bytes > kMostShared)
    return false;
  for (auto& [base, region] : regions) region->forget_accesses();
  places_reached.resize(code.places.size());
  Launch(*kernel, blocks, threads, shared_bytes, parameter, options).run();
  return true;
}

const std::vector<std::string>& reports() { return found; }
const std::vector<bool>& reached_places() { return places_reached; }

}  // namespace ptx
