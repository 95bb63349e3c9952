// Defines the kernels of kernels/device_code.h. Each kernel runs a body (..._body.h), a template over a
// Block (block.h), with a job (the kernel's parameters). As a __grid_constant__ the job stays in constant
// memory, where all threads of a warp can read it at once.
#include "kernels/gather_body.h"
#include "kernels/histogram_body.h"
#include "kernels/key_gather_body.h"
#include "kernels/sums_body.h"

namespace foreshock {

extern __shared__ Bytes16 shared_memory[];  // its size is set by the launch; Bytes16: aligned to 16 bytes

// The Block of block.h on a device.
class DeviceBlock {
 public:
  // On a device every thread has its own object, so the index is not needed.
  template <class T>
  class PerThread {
   public:
    __device__ T& operator[](uint32_t /*thread*/) { return value_; }

   private:
    T value_;
  };

  __device__ uint32_t index() const { return blockIdx.x; }
  __device__ uint32_t blocks() const { return gridDim.x; }
  __device__ uint32_t threads() const { return blockDim.x; }

  __device__ uint32_t shared_bytes() const {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
  }

  template <class F>
  __device__ void each(const F& f) {
    f(threadIdx.x);
    __syncthreads();
  }

  template <class T>
  __device__ T* shared(uint32_t offset, uint32_t /*count*/ = 1) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(shared_memory) + offset);
  }

  template <class T>
  __device__ T load(uint64_t address) const {
    return *reinterpret_cast<const T*>(address);
  }
  template <class T>
  __device__ void store(uint64_t address, const T& value) {
    *reinterpret_cast<T*>(address) = value;
  }

  // The fence orders writes for the host too. The compiler neither splits nor removes a volatile store.
  __device__ void publish(uint64_t address, uint64_t value) {
    __threadfence_system();
    *reinterpret_cast<volatile unsigned long long*>(address) = value;
  }

  // Bypasses the L1 cache, which may hold values from before another block's write.
  template <class T>
  __device__ T fresh(const T* address) const {
    static_assert(sizeof(T) % sizeof(unsigned long long) == 0);
    T value;
    for (uint32_t n = 0; n < sizeof(T) / sizeof(unsigned long long); ++n)
      reinterpret_cast<unsigned long long*>(&value)[n] =
          __ldcg(reinterpret_cast<const unsigned long long*>(address) + n);
    return value;
  }

  __device__ uint32_t add(uint32_t* sum, uint32_t value) { return atomicAdd(sum, value); }
  __device__ uint64_t add(uint64_t* sum, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
  }
  __device__ uint64_t max(uint64_t* largest, uint64_t value) {
    return atomicMax(reinterpret_cast<unsigned long long*>(largest), static_cast<unsigned long long>(value));
  }

  // Counts the calls in *counter. Returns true, and resets the counter, for the last of `callers` calls. The
  // __syncthreads() of each() before this call orders the writes of this block's other threads before the
  // first fence. The second fence orders the reads of the last block after the counter.
  __device__ bool last(uint32_t* counter, uint32_t callers) {
    __threadfence();
    const bool is_last = atomicAdd(counter, 1u) + 1 == callers;
    __threadfence();
    if (is_last) *counter = 0;
    return is_last;
  }

  __device__ uint64_t now() const {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
};

}  // namespace foreshock

extern "C" {

// Defines the kernel foreshock_<name>, which runs <name>_body(). `threads`: most threads of a block, those of
// its launch in device_jobs.h.
#define FORESHOCK_KERNEL(threads, name, Job)                                                                \
  __global__ void __launch_bounds__(threads) foreshock_##name(const __grid_constant__ foreshock::Job job) { \
    foreshock::DeviceBlock block;                                                                           \
    foreshock::name##_body(job, block);                                                                     \
  }

FORESHOCK_KERNEL(256, gather, GatherJob)
FORESHOCK_KERNEL(256, packed_gather, PackedGatherJob)
FORESHOCK_KERNEL(1024, count_patterns, HistogramJob)
FORESHOCK_KERNEL(256, count_bins, HistogramJob)
FORESHOCK_KERNEL(foreshock::kSumLanes, gradient_sums, GradientSumsJob)
FORESHOCK_KERNEL(foreshock::kSumLanes, adam_sums, AdamSumsJob)
FORESHOCK_KERNEL(256, checksum, ChecksumJob)
FORESHOCK_KERNEL(256, key_gather, KeyGatherJob)
FORESHOCK_KERNEL(128, scalars, ScalarsJob)

}  // extern "C"
