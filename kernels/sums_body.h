// The bodies of four device kernels. kGradientSums and kAdamSums sum over many tensors in a fixed order;
// kChecksum is the checksum of one tensor; kScalars copies single numbers to the host. The formulas are in
// sums.h, the jobs (a kernel's parameters) in device_jobs.h. Block is the interface of block.h: the threads
// of one device block. each(f) calls f(thread) for each thread, then waits for all. A lane of the first two
// kernels is a thread with its sums in shared memory; a block has kSumLanes = 256 lanes.
#ifndef FORESHOCK_KERNELS_SUMS_BODY_H_
#define FORESHOCK_KERNELS_SUMS_BODY_H_

#include "kernels/block.h"
#include "kernels/device_jobs.h"
#include "kernels/dtype.h"
#include "kernels/sums.h"

namespace foreshock {

// Number of consecutive elements (a group) that a lane loads at once: 16 bytes in a 16-bit format.
inline constexpr uint32_t kSumGroup = 8;

// Loads `count` values of the array at address `data`, from index `first` on, and converts them exactly to
// fp64. Sets the rest of `group` to 0. If the group is complete and aligned, loads 16 bytes at a time.
template <DType kType, class Block>
FORESHOCK_DEVICE void load_group(uint64_t data, uint64_t first, uint32_t count, const Block& block,
                                 double (&group)[kSumGroup]) {
  constexpr uint32_t kBytes = static_cast<uint32_t>(size_of(kType)), kWords = kSumGroup * kBytes / 4;
  const auto decode = [&](uint32_t n, uint64_t bits) {
    if constexpr (kType == DType::kFp64) group[n] = std::bit_cast<double>(bits);
    if constexpr (kType == DType::kFp32) group[n] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if constexpr (kType == DType::kBf16) group[n] = bf16_to_float(static_cast<uint16_t>(bits));
    if constexpr (kType == DType::kFp16) group[n] = fp16_to_float(static_cast<uint16_t>(bits));
  };
  const uint64_t address = data + first * kBytes;
  if (data % sizeof(Bytes16) == 0 && count == kSumGroup) {
    uint32_t word[kWords];
    for (uint32_t n = 0; n < kWords / 4; ++n) {
      const Bytes16 unit = block.template load<Bytes16>(address + n * sizeof(Bytes16));
      for (uint32_t k = 0; k < 4; ++k) word[4 * n + k] = unit.word[k];
    }
    for (uint32_t n = 0; n < kSumGroup; ++n) {
      if constexpr (kBytes == 8) decode(n, uint64_t{word[2 * n + 1]} << 32 | word[2 * n]);
      if constexpr (kBytes == 4) decode(n, word[n]);
      if constexpr (kBytes == 2) decode(n, word[n / 2] >> 16 * (n % 2) & 0xffff);
    }
    return;
  }
  for (uint32_t n = 0; n < kSumGroup; ++n) {
    if (n >= count) {
      group[n] = 0;
      continue;
    }
    if constexpr (kBytes == 8) decode(n, block.template load<uint64_t>(address + n * kBytes));
    if constexpr (kBytes == 4) decode(n, block.template load<uint32_t>(address + n * kBytes));
    if constexpr (kBytes == 2) decode(n, block.template load<uint16_t>(address + n * kBytes));
  }
}

// The same for a format known at run time; 0 if it is not floating.
template <class Block>
FORESHOCK_DEVICE void load_group(DType type, uint64_t data, uint64_t first, uint32_t count,
                                 const Block& block, double (&group)[kSumGroup]) {
  if (type == DType::kFp64) return load_group<DType::kFp64>(data, first, count, block, group);
  if (type == DType::kFp32) return load_group<DType::kFp32>(data, first, count, block, group);
  if (type == DType::kBf16) return load_group<DType::kBf16>(data, first, count, block, group);
  if (type == DType::kFp16) return load_group<DType::kFp16>(data, first, count, block, group);
  for (double& x : group) x = 0;
}

// Adds the Sums of all lanes into lane 0, pairwise: lane l adds lane l + 128, then l + 64, down to l + 1.
template <class Sums, class Block>
FORESHOCK_DEVICE void fold_lanes(Sums* lane, Block& block) {
  for (uint32_t half = kSumLanes / 2; half > 0; half /= 2) {
    block.each([&](uint32_t thread) {
      if (thread < half) lane[thread].add(lane[thread + half]);
    });
  }
}

// Sums a chunk (at most kSumChunk elements) into lane 0. Lane l adds groups l, l + 256, ... with the
// add_group() of the tensor's type, which is defined below; then the lanes are added.
template <class Sums, class Tensor, class Block>
FORESHOCK_DEVICE void sum_chunk(const Tensor& tensor, uint64_t chunk, Sums* lane, Block& block) {
  const uint64_t begin = chunk * kSumChunk, left = tensor.count - begin;
  const uint64_t end = begin + (left < kSumChunk ? left : kSumChunk);
  block.each([&](uint32_t thread) {
    Sums own = {};
    for (uint64_t first = begin + thread * kSumGroup; first < end; first += kSumLanes * kSumGroup) {
      const uint64_t more = end - first;
      add_group(tensor, first, more < kSumGroup ? static_cast<uint32_t>(more) : kSumGroup, block, &own);
    }
    lane[thread] = own;
  });
  fold_lanes(lane, block);
}

// Adds the sums of a tensor's chunks; fresh() reads those of other blocks. Lane l adds chunks l, l + 256, ...
template <class Sums, class Block>
FORESHOCK_DEVICE void sum_partials(const Sums* partial, uint64_t chunks, Sums* lane, Block& block) {
  block.each([&](uint32_t thread) {
    Sums own = {};
    for (uint64_t n = thread; n < chunks; n += kSumLanes) own.add(block.fresh(&partial[n]));
    lane[thread] = own;
  });
  fold_lanes(lane, block);
}

// Sums all tensors of a job. The blocks sum chunks into job.partials. The block that ends last, as counted in
// job.arrived, adds the chunks of each tensor into job.results. The launch must have the shape
// launch_of(job).
template <class Sums, class Job, class Block>
FORESHOCK_DEVICE void sum_tensors(const Job& job, Block& block) {
  Sums* results = reinterpret_cast<Sums*>(job.results);
  Sums* partials = reinterpret_cast<Sums*>(job.partials);
  uint32_t* is_last = block.template shared<uint32_t>(0);  // shared<T>(offset in bytes, number of T)
  Sums* lane = block.template shared<Sums>(sizeof(Bytes16), kSumLanes);
  for (uint64_t chunk = block.index(); chunk < job.chunks; chunk += block.blocks()) {
    uint32_t owner = 0;  // the tensor to which the chunk belongs
    while (owner + 1 < job.tensors && job.tensor[owner + 1].first_chunk <= chunk) ++owner;
    sum_chunk(job.tensor[owner], chunk - job.tensor[owner].first_chunk, lane, block);
    block.each([&](uint32_t thread) {
      if (thread == 0) partials[chunk] = lane[0];
    });
  }
  block.each([&](uint32_t thread) {
    if (thread == 0) *is_last = block.last(reinterpret_cast<uint32_t*>(job.arrived), block.blocks());
  });
  if (!*is_last) return;
  for (uint32_t n = 0; n < job.tensors; ++n) {
    sum_partials(partials + job.tensor[n].first_chunk, sum_chunks(job.tensor[n].count), lane, block);
    block.each([&](uint32_t thread) {
      if (thread == 0) results[n] = lane[0];
    });
  }
}

template <class Block>
FORESHOCK_DEVICE void add_group(const GradientTensor& tensor, uint64_t first, uint32_t count,
                                const Block& block, GradientSums* sums) {
  double g[kSumGroup];
  load_group(static_cast<DType>(tensor.dtype), tensor.data, first, count, block, g);
  for (uint32_t n = 0; n < kSumGroup; ++n)
    if (n < count) sums->add(g[n]);
}

template <class Block>
FORESHOCK_DEVICE void gradient_sums_body(const GradientSumsJob& job, Block& block) {
  sum_tensors<GradientSums>(job, block);
}

// Adds one element with gradient g and Adam's second moment v.
constexpr void add_element(double g, double v, const AdamConstants& c, AdamSums* sums) {
  const AdamElement element = adam_element(g, v, c);
  const bool counted = is_counted(element.corrected);
  sums->counted += counted;
  if (!counted) {
    sums->nonfinite_gradient += g * 0 != 0;
    sums->unusable_state += !is_usable(0, v);  // with g = 0 only v is tested
  }
  // square: g^2; corrected: v with Adam's bias correction. If not counted: 0 and DBL_MAX, which add nothing.
  sums->staleness += staleness_of(element.square, element.corrected, c);
  sums->epsilon_dominated += element.corrected < c.eps_squared;
  sums->gradient_squares += element.square;
  if (c.old_moment_factor > 0) {  // v has a part from earlier steps, with which g^2 is compared
    sums->surprised += is_surprising(element.square, element.moment, c);
    sums->surprise_counted += counted;
  }
}

template <class Block>
FORESHOCK_DEVICE void add_group(const AdamTensor& tensor, uint64_t first, uint32_t count, const Block& block,
                                AdamSums* sums) {
  double g[kSumGroup], v[kSumGroup];
  load_group(static_cast<DType>(tensor.gradient_dtype), tensor.gradient, first, count, block, g);
  load_group(static_cast<DType>(tensor.moment_dtype), tensor.moment, first, count, block, v);
  for (uint32_t n = 0; n < kSumGroup; ++n)
    if (n < count) add_element(g[n], v[n], tensor.constants, sums);
}

template <class Block>
FORESHOCK_DEVICE void adam_sums_body(const AdamSumsJob& job, Block& block) {
  sum_tensors<AdamSums>(job, block);
}

// Returns the value at address `from` in the format `dtype`. If `dtype` is kSumOfSquares, `from` is the
// address of a GradientSums, and the value is its sum of squares, or NaN if an element was not finite.
template <class Block>
FORESHOCK_DEVICE double scalar_at(uint64_t from, uint32_t dtype, const Block& block) {
  if (dtype != kSumOfSquares) {
    double value[kSumGroup];
    load_group(static_cast<DType>(dtype), from, 0, 1, block, value);
    return value[0];
  }
  constexpr uint64_t kNan = 0x7ff8000000000000;
  const uint64_t nonfinite = block.template load<uint64_t>(from + offsetof(GradientSums, nonfinite));
  const uint64_t squares = block.template load<uint64_t>(from + offsetof(GradientSums, squares));
  return std::bit_cast<double>(nonfinite == 0 ? squares : kNan);
}

// Writes value n to its cell in host memory. The cell's number comes last: the host waits for it.
template <class Block>
FORESHOCK_DEVICE void scalars_body(const ScalarsJob& job, Block& block) {
  block.each([&](uint32_t thread) {
    for (uint32_t n = thread; n < job.count; n += block.threads()) {
      const uint64_t cell = job.cells + cell_of(job.first + n) * sizeof(ScalarCell);
      block.store(cell + offsetof(ScalarCell, value), scalar_at(job.from[n], job.dtype, block));
      block.publish(cell + offsetof(ScalarCell, number), job.first + n);
    }
  });
}

// Returns 32-bit word `n` of the tensor, with 0 for bytes past its end. job.from must be aligned to Unit.
template <class Unit, class Block>
FORESHOCK_DEVICE uint32_t checksum_word(const ChecksumJob& job, uint64_t n, const Block& block) {
  if constexpr (sizeof(Unit) == sizeof(uint32_t)) {
    if (4 * n + 4 <= job.bytes) return block.template load<uint32_t>(job.from + 4 * n);
    return checksum_word<uint8_t>(job, n, block);
  } else {
    uint32_t word = 0;
    for (uint32_t byte = 0; byte < 4; byte += sizeof(Unit)) {
      if (4 * n + byte + sizeof(Unit) <= job.bytes)
        word |= uint32_t{block.template load<Unit>(job.from + 4 * n + byte)} << 8 * byte;
    }
    return word;
  }
}

// Adds word n times checksum_factor(n), for all n, to *job.to, modulo 2^64, in any order.
template <class Unit, class Block>
FORESHOCK_DEVICE void checksum_words(const ChecksumJob& job, Block& block) {
  const uint64_t words = (job.bytes + 3) / 4;
  uint64_t* sum = block.template shared<uint64_t>(0);
  block.each([&](uint32_t thread) {
    if (thread == 0) *sum = 0;
  });
  block.each([&](uint32_t thread) {
    uint64_t own = 0;
    for (uint64_t n = uint64_t{block.index()} * block.threads() + thread; n < words;
         n += uint64_t{block.blocks()} * block.threads())
      own += uint64_t{checksum_word<Unit>(job, n, block)} * checksum_factor(n);
    block.add(sum, own);
  });
  block.each([&](uint32_t thread) {
    if (thread == 0 && *sum != 0) block.add(reinterpret_cast<uint64_t*>(job.to), *sum);
  });
}

template <class Block>
FORESHOCK_DEVICE void checksum_body(const ChecksumJob& job, Block& block) {
  const uint32_t alignment = power_dividing(job.from, 4);  // of the tensor's address, at most 4
  if (alignment == 4) return checksum_words<uint32_t>(job, block);
  // An odd number of bytes cannot be read in uint16_t: the last byte would be left out.
  if (alignment == 2 && job.bytes % 2 == 0) return checksum_words<uint16_t>(job, block);
  checksum_words<uint8_t>(job, block);
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_SUMS_BODY_H_
