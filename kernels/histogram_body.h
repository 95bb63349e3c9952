// The device code of the kernels kCountPatterns and kCountBins, which count the values of a dense tensor
// (histogram.h). kCountPatterns counts each of the 65,536 patterns of a 16-bit format. kCountBins counts fp32
// values by their upper bits, the bin. Block is the interface of block.h: the threads of one device block.
#ifndef FORESHOCK_KERNELS_HISTOGRAM_BODY_H_
#define FORESHOCK_KERNELS_HISTOGRAM_BODY_H_

#include "kernels/block.h"
#include "kernels/device_jobs.h"
#include "kernels/histogram.h"

namespace foreshock {

// The kUnitsOfARound of callers that need no barrier between rounds.
inline constexpr uint64_t kOneRound = ~uint64_t{0};

// Calls visit(thread, bits) for each of `count` adjacent values at address `from`. The aligned part is read
// in units of 16 bytes. A round is one block.each(), which ends with a barrier; in a round, a thread reads at
// most kUnitsOfARound units. The first threads of the first block read the unaligned ends: `head` values
// before the first unit, and those from index `tail` on.
template <class Value, uint64_t kUnitsOfARound, class Block, class Visit>
FORESHOCK_DEVICE void for_each_value(uint64_t from, uint64_t count, Block& block, const Visit& visit) {
  constexpr uint64_t kInUnit = sizeof(Bytes16) / sizeof(Value);
  const uint64_t to_aligned = (0 - from) % sizeof(Bytes16) / sizeof(Value);  // values before the first unit
  const uint64_t head = to_aligned < count ? to_aligned : count;
  const uint64_t units = (count - head) / kInUnit, tail = head + units * kInUnit;
  const uint64_t step = uint64_t{block.blocks()} * block.threads();  // number of threads of all blocks
  const auto visit_units = [&](uint32_t thread, uint64_t begin, uint64_t end) {
    const uint64_t first = uint64_t{block.index()} * block.threads() + thread;
    for (uint64_t unit = begin + first; unit < end; unit += step) {
      const Bytes16 bytes =
          block.template load<Bytes16>(from + head * sizeof(Value) + unit * sizeof(Bytes16));
      for (const uint32_t word : bytes.word) {
        visit(thread, sizeof(Value) == 2 ? word & 0xffff : word);
        if constexpr (sizeof(Value) == 2) visit(thread, word >> 16);
      }
    }
  };
  const auto visit_ends = [&](uint32_t thread) {
    const uint64_t first = uint64_t{block.index()} * block.threads() + thread;
    const auto visit_value = [&](uint64_t n) {
      visit(thread, uint32_t{block.template load<Value>(from + n * sizeof(Value))});
    };
    for (uint64_t n = first; n < head; n += step) visit_value(n);
    for (uint64_t n = tail + first; n < count; n += step) visit_value(n);
  };
  uint64_t begin = 0;
  if constexpr (kUnitsOfARound != kOneRound)
    for (const uint64_t of_a_round = kUnitsOfARound * step; units - begin > of_a_round; begin += of_a_round)
      block.each([&](uint32_t thread) { visit_units(thread, begin, begin + of_a_round); });
  block.each([&](uint32_t thread) {
    visit_units(thread, begin, units);
    visit_ends(thread);
  });
}

// Successive values of a thread that have the same bin or pattern. At the end of such a run they are added to
// the word of the bin in device memory, all at once: in a tensor of zeros, the threads would otherwise wait
// for the same word at every value.
template <class Word>
struct Run {
  uint32_t bin;
  Word pending;  // to be added to this word: number of values; in count_bins_body() also their lower bits
};

// Shared memory has room for 65,536 counters only if they have 16 bits, so two share a word. Before a counter
// overflows into its neighbour, its count is moved to device memory in portions: the thread whose value
// completes a portion of kPortion subtracts the portion from the counter and adds it to the words of the job.
// Subtracting a portion does not change a counter modulo kPortion, so exactly one value completes each
// portion. The subtraction may be delayed until the next barrier. So a counter holds at most kPortion - 1,
// which is what the last barrier left, plus the values of one round. That is below 0x10000. A counter never
// borrows from its neighbour, since all values of a portion are counted before the portion is subtracted.
inline constexpr uint32_t kPortion = 0x1000;
inline constexpr uint64_t kPatternUnitsOfARound = 7;  // the largest number that the assertion below allows
inline constexpr uint64_t kMostPatternsOfARound =     // 14: most values in both unaligned ends, 7 in each
    kMostThreadsOfABlock * kPatternUnitsOfARound * (sizeof(Bytes16) / sizeof(uint16_t)) + 14;
static_assert(kPortion - 1 + kMostPatternsOfARound < 0x10000);

// Counts one value in shared memory. `shift` selects its half of a word of `counters`. If the value completes
// a portion, the portion is moved to `words`, which are in device memory.
template <class Block>
FORESHOCK_DEVICE void count_shared(uint32_t* counters, uint32_t* words, uint32_t pattern, Block& block) {
  const uint32_t shift = pattern % 2 * 16;
  const uint32_t before = block.add(&counters[pattern / 2], uint32_t{1} << shift);
  if ((before >> shift) % kPortion != kPortion - 1) return;
  block.add(&counters[pattern / 2], 0 - (kPortion << shift));
  block.add(&words[pattern], kPortion);
}

template <class Block>
FORESHOCK_DEVICE void count_patterns_shared(const HistogramJob& job, Block& block) {
  uint32_t* words = reinterpret_cast<uint32_t*>(job.words);
  uint32_t* counters = block.template shared<uint32_t>(0, kPatterns / 2);
  const auto each_counter = [&](const auto& visit) {  // calls visit(n) for each word, which has two counters
    block.each([&](uint32_t thread) {
      for (uint32_t n = thread; n < kPatterns / 2; n += block.threads()) visit(n);
    });
  };
  each_counter([&](uint32_t n) { counters[n] = 0; });
  for_each_value<uint16_t, kPatternUnitsOfARound>(
      job.from, job.count, block,
      [&](uint32_t, uint32_t pattern) { count_shared(counters, words, pattern, block); });
  each_counter([&](uint32_t n) {
    const uint32_t both = counters[n];
    if (both & 0xffff) block.add(&words[2 * n], both & 0xffff);
    if (both >> 16) block.add(&words[2 * n + 1], both >> 16);
  });
}

// Counts in device memory, for devices with too little shared memory per block.
template <class Block>
FORESHOCK_DEVICE void count_patterns_direct(const HistogramJob& job, Block& block) {
  uint32_t* words = reinterpret_cast<uint32_t*>(job.words);
  typename Block::template PerThread<Run<uint32_t>> run;
  block.each([&](uint32_t thread) { run[thread] = {.bin = 0, .pending = 0}; });
  for_each_value<uint16_t, kOneRound>(job.from, job.count, block, [&](uint32_t thread, uint32_t pattern) {
    if (pattern != run[thread].bin) {
      if (run[thread].pending > 0) block.add(&words[run[thread].bin], run[thread].pending);
      run[thread] = {.bin = pattern, .pending = 0};
    }
    ++run[thread].pending;
  });
  block.each([&](uint32_t thread) {
    if (run[thread].pending > 0) block.add(&words[run[thread].bin], run[thread].pending);
  });
}

// Counts in shared memory if the launch provides it, else in device memory.
template <class Block>
FORESHOCK_DEVICE void count_patterns_body(const HistogramJob& job, Block& block) {
  if (block.shared_bytes() >= kPatternSharedBytes) return count_patterns_shared(job, block);
  count_patterns_direct(job, block);
}

// Counts fp32 values like count_bins() (histogram.h). From bit kBinCountShift on, the word of a bin has the
// number of its values, below that the sum of their residuals, i.e. of their lower kBinResidualBits bits.
template <class Block>
FORESHOCK_DEVICE void count_bins_body(const HistogramJob& job, Block& block) {
  constexpr uint32_t kMinusZero = 0x80000000u, kPlusInfinity = 0x7f800000u, kMinusInfinity = 0xff800000u;
  constexpr uint64_t kOne = uint64_t{1} << kBinCountShift;
  constexpr uint32_t kResidual = (1u << kBinResidualBits) - 1;
  struct Counted {
    Run<uint64_t> run;
    uint64_t minus_zero, plus_infinity, minus_infinity;
  };
  uint64_t* words = reinterpret_cast<uint64_t*>(job.words);
  typename Block::template PerThread<Counted> counted;
  block.each([&](uint32_t thread) { counted[thread] = {}; });
  for_each_value<uint32_t, kOneRound>(job.from, job.count, block, [&](uint32_t thread, uint32_t bits) {
    Counted& here = counted[thread];
    const uint32_t bin = bits >> kBinResidualBits;
    if (bin != here.run.bin) {
      if (here.run.pending > 0) block.add(&words[here.run.bin], here.run.pending);
      here.run = {.bin = bin, .pending = 0};
    }
    here.run.pending += kOne | (bits & kResidual);
    here.minus_zero += bits == kMinusZero;
    here.plus_infinity += bits == kPlusInfinity;
    here.minus_infinity += bits == kMinusInfinity;
  });
  block.each([&](uint32_t thread) {
    const Counted& here = counted[thread];
    if (here.run.pending > 0) block.add(&words[here.run.bin], here.run.pending);
    if (here.minus_zero > 0) block.add(&words[kMinusZeroWord], here.minus_zero);
    if (here.plus_infinity > 0) block.add(&words[kPlusInfinityWord], here.plus_infinity);
    if (here.minus_infinity > 0) block.add(&words[kMinusInfinityWord], here.minus_infinity);
  });
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_HISTOGRAM_BODY_H_
