// Counts the values of a packed array by their bit patterns: its whole distribution in one pass. No heap, no
// statics: safe inside a trainer. The counters are the caller's, zeroed once; every call adds to them.
#ifndef FORESHOCK_KERNELS_HISTOGRAM_H_
#define FORESHOCK_KERNELS_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// 16-bit formats: a counter for each of the 65,536 patterns, so NaN, the infinities and -0 are told apart and
// nothing is lost. Four sets of counters, the count of a pattern being the sum over them: neighbours that are
// equal then do not wait for each other's store.
inline constexpr size_t kPatterns = size_t{1} << 16;
inline constexpr size_t kPatternSets = 4;
inline constexpr size_t kPatternWords = kPatternSets * kPatterns;
inline constexpr uint64_t kMostPatterns = 0xffffffffu;  // values that the counters hold, over all calls

void count_patterns(const void* data, size_t count, uint32_t* words);

// fp32: a bin is what shares sign, exponent and the upper 11 bits of the fraction; 2^20 bins. Its word holds
// the number of values (from kBinCountShift up) and the sum of their lower 12 bits, so the mean of every bin
// is known exactly. Three more words count what shares a bin with other values: -0, +infinity, -infinity.
inline constexpr size_t kBins = size_t{1} << 20;
inline constexpr int kBinResidualBits = 12;
inline constexpr int kBinCountShift = 38;
inline constexpr size_t kMinusZeroWord = kBins, kPlusInfinityWord = kBins + 1, kMinusInfinityWord = kBins + 2;
inline constexpr size_t kBinWords = kBins + 3;
inline constexpr uint64_t kMostBinned =
    (uint64_t{1} << 26) - 1;  // values that the words hold, over all calls

void count_bins(const void* data, size_t count, uint64_t* words);

// Most counters are 0, so they are looked at in runs of so many, which divide all sets.
inline constexpr size_t kCounterRun = 64;
static_assert(kBins % kCounterRun == 0 && kPatterns % kCounterRun == 0);

// Whether one of the run that begins at `words` is not 0.
template <class Word>
bool any_in_run(const Word* words) {
  Word all = 0;
  for (size_t n = 0; n < kCounterRun; ++n) all |= words[n];
  return all != 0;
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_HISTOGRAM_H_
