// Defines the interface of a Block: the threads of one block of a device kernel. Device kernels are written
// once, as functions of a job (the kernel's parameters, device_jobs.h) and a Block, and compiled twice. nvcc
// uses the Block of device_kernels.cu. The host's compiler uses the Block of tests/support/emulated_block.h,
// so that the kernels can be tested without a device.
//
// clang-format off
// Members of a Block:
//   index(), blocks(), threads()   number of this block, of blocks, and of threads per block; uint32_t
//   shared_bytes()                 bytes of shared memory per block
//   each(f)                        calls f(thread) for each thread of this block, and waits until all return
//   PerThread<T>                   one T per thread, indexed [thread], that lasts over several each()
//   shared<T>(offset, count = 1)   uninitialised shared memory for `count` values, from `offset` (in bytes)
//   load<T>(address), store(address, T)   device memory, aligned to T
//   publish(address, uint64_t)     stores to host memory; the host then sees this thread's earlier stores too
//   fresh(const T*)                reads what another block of this launch wrote; only after last() gave true
//   add(T*, T)                     atomic, relaxed; returns the old value; T is uint32_t or uint64_t
//   max(uint64_t*, uint64_t)       atomic, relaxed; returns the old value
//   last(uint32_t*, uint32_t n)    one thread of each block calls it. Returns true in the n-th call on this
//                                  counter and sets it to zero; fresh() then reads what all blocks wrote
//   now()                          ns of the device's clock
// Code outside of each() runs in every thread on a device, but once per block on the host. So this code must
// do the same in all threads, read nothing but jobs and shared memory, and write nothing.
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

inline constexpr uint32_t kMostThreadsOfABlock = 1024;  // limit of every CUDA device

// The widest unit that a thread loads or stores.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};

// Returns the largest power of two that divides `x` and is at most `most`. `most` must be a power of two.
constexpr uint32_t power_dividing(uint64_t x, uint32_t most) {
  uint32_t power = most;
  while (x % power != 0) power /= 2;
  return power;
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_BLOCK_H_
