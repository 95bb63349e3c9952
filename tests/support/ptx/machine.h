// Runs kernels on the host that translate.py has translated from PTX: a fiber for each thread of the device,
// in an order that is drawn from a seed. Checks each access and barrier as compute-sanitizer does, and
// reports
//   memcheck:  accesses outside of allocations or of the parameter, and misaligned ones
//   initcheck: reads of global or shared memory that was never written
//   racecheck: accesses that nothing orders. Barriers order the threads of a block. A fence, an atomic
//              operation that another block reads, and a fence there order blocks. A fence also orders stores
//              for the host, which waits for volatile ones
//   synccheck: barriers that ended threads are missing from, or that a warp reaches at two places
// Not modelled: machine code, and weak memory (a missing fence is a race, not a wrong value). Memory is the
// host's. One thread of the host calls all of this.
#ifndef FORESHOCK_TESTS_SUPPORT_PTX_MACHINE_H_
#define FORESHOCK_TESTS_SUPPORT_PTX_MACHINE_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/ptx/operations.h"

namespace ptx {

enum class Space { kParameter, kGlobal, kShared };
enum class Touch { kRead, kWrite, kStrongRead, kStrongWrite, kAtomic };  // strong: volatile

class Thread;
struct Kernel {
  const char* name;
  uint32_t parameter_bytes, most_threads;
  void (*run)(Thread&);
};
struct Place {  // an instruction that touches memory or orders threads
  int line;
  const char *kernel, *text;
};

// The translated code.
struct Code {
  std::span<const Kernel> kernels;
  std::span<const Place> places;          // 0: none
  std::span<const uint32_t> block_sizes;  // instructions of each basic block
};
extern const Code code;
extern bool reached[];  // basic blocks

struct Options {
  uint64_t seed = 1;
  uint32_t interleave = 0;  // n: at each n-th access, on average, another thread goes on; 0: at barriers only
};

// A fault that is planted at one place.
enum class Mutation { kNone, kNoBarrier, kNoFence, kPlainAtomic, kMisalignedParameter };
struct Mutant {
  Mutation mutation = Mutation::kNone;
  uint32_t place = 0;
};
extern Mutant mutant;

// Memory of the device. Addresses are those of the host.
void allocated(uint64_t address, size_t bytes);
void released(uint64_t address);
void written_by_host(uint64_t address, size_t bytes);

// Returns false if there is no such kernel or its launch bounds forbid the launch. `parameter` must have the
// kernel's parameter_bytes. The launch ends early at the first memcheck.
bool launch(const char* kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
            const void* parameter, const Options& options);
const std::vector<std::string>& reports();
const std::vector<bool>& reached_places();

struct Block;
class Launch;

// What translated code calls.
class Thread {
 public:
  struct State;

  Thread(Block& block, uint32_t number);
  ~Thread();

  uint32_t threads() const;
  uint32_t block_index() const;
  uint32_t blocks() const;
  uint32_t shared_bytes() const;
  uint64_t now() const;

  void barrier(uint32_t place);
  void fence(uint32_t place);

  template <Space kSpace, class T, size_t kCount>
  std::array<T, kCount> load(uint64_t address, bool is_strong, uint32_t place) {
    std::array<T, kCount> value;
    std::memcpy(&value,
                touch(kSpace, address, sizeof value, is_strong ? Touch::kStrongRead : Touch::kRead, place),
                sizeof value);
    return value;
  }
  template <Space kSpace, class T, size_t kCount>
  void store(uint64_t address, const std::array<T, kCount>& value, bool is_strong, uint32_t place) {
    std::memcpy(touch(kSpace, address, sizeof value, is_strong ? Touch::kStrongWrite : Touch::kWrite, place),
                &value, sizeof value);
  }
  template <Space kSpace, class T, class F>
  T atomic(uint64_t address, const F& f, uint32_t place) {
    T old;
    const bool is_plain = mutant.mutation == Mutation::kPlainAtomic && mutant.place == place;
    char* at = touch(kSpace, address, sizeof old, is_plain ? Touch::kRead : Touch::kAtomic, place);
    std::memcpy(&old, at, sizeof old);
    const T value = f(old);
    if (is_plain) at = touch(kSpace, address, sizeof old, Touch::kWrite, place);
    std::memcpy(at, &value, sizeof value);
    return old;
  }

  const uint32_t index;

 private:
  friend class Launch;
  friend struct Block;

  // Checks an access and returns the memory.
  char* touch(Space space, uint64_t address, uint32_t bytes, Touch how, uint32_t place);

  Block& block_;
  std::unique_ptr<State> state_;
};

}  // namespace ptx

#endif  // FORESHOCK_TESTS_SUPPORT_PTX_MACHINE_H_
