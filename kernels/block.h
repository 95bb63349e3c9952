// The kernels for devices are written once, as functions of a job and a Block, and compiled twice: by nvcc
// with the block of device_kernels.cu, by the host's compiler with that of tests/support/emulated_block.h, so
// that their bodies run and are tested where no device is.
//
// clang-format off
// A Block is a group of threads with shared memory and barriers:
//   index(), blocks(), threads()    which block of how many, of how many threads; uint32_t
//   shared_bytes()                  that the launch gave each block
//   each(f)                         f(thread) for each of its threads, then a barrier
//   PerThread<T>                    a T of each thread, [thread], that lasts over several each()
//   shared<T>(bytes)                the shared memory from `bytes` on, uninitialised; bytes divides by alignof(T)
//   load<T>(address), store(address, T)   device memory, aligned to T
//   publish(address, uint64_t)      to memory of the host: whoever reads it there finds what this thread stored before
//   fresh(const T*)                 what another block of this launch has written, after last() said so
//   add(T*, T), max(T*, T)          atomic, on shared or device memory, relaxed; T 32 or 64 bits, unsigned
//   last(uint32_t*, uint32_t of)    by one thread: true in the last of `of` calls on this counter, which is zero again
//                                   after it; all that was written before the calls is then seen
//   now()                           ns of the device's clock
// What stands outside of each() is the same for all threads, reads no more than jobs and shared memory, and
// writes nothing.
// clang-format on
#ifndef FORESHOCK_KERNELS_BLOCK_H_
#define FORESHOCK_KERNELS_BLOCK_H_

#include <cstdint>

#ifdef __CUDACC__
#define FORESHOCK_DEVICE __device__
#else
#define FORESHOCK_DEVICE
#endif

namespace foreshock {

inline constexpr uint32_t kMostThreadsOfABlock = 1024;  // on every device

// What a thread loads or stores at a time.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};

// The greatest power of two, at most `most`, that divides `x`.
constexpr uint32_t power_dividing(uint64_t x, uint32_t most) {
  uint32_t power = most;
  while (x % power != 0) power /= 2;
  return power;
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_BLOCK_H_
