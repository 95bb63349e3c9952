// Counts the values of a packed array by their bit patterns: its whole distribution in one pass. No heap, no
// statics: safe inside a trainer. The counters are the caller's, zeroed once; every call adds to them.
#ifndef FORESHOCK_KERNELS_HISTOGRAM_H_
#define FORESHOCK_KERNELS_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <span>

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

// Packed counters: a few bytes for each counter that is not zero.
//
// Every number as a variable-length integer, seven bits a byte, lowest first. For each counter that is not
// zero, in their order: its distance (>= 1) from the one before, or from -1; the count; of a bin also the sum
// of its residuals. A distance of 0 ends a set of counters; what follows is another one of the same tensor.

inline constexpr size_t kPackFailed = ~size_t{0};

// Pack one set, its end included, and zero it. Returns the bytes written, or kPackFailed when `room` is too
// small; the counters are zero then too. Patterns may be in fewer sets of counters than count_patterns()
// makes.
size_t pack_patterns(uint32_t* words, char* to, size_t room, size_t sets = kPatternSets);
size_t pack_bins(uint64_t* words, char* to, size_t room);

// Add one set to counters that are zero and move *bytes behind it. False for anything that cannot have been
// packed from counters of at most `most` values; the counters may hold anything then. Nothing is trusted.
bool unpack_patterns(std::span<const std::byte>* bytes, uint64_t most, uint32_t* words);
bool unpack_bins(std::span<const std::byte>* bytes, uint64_t most, uint64_t* words);

// Variable-length integers: seven bits a byte, lowest first.

inline constexpr size_t kLongestVarint = 10;  // bytes

// Writes at most kLongestVarint bytes; returns their end.
inline char* put_varint(uint64_t number, char* to) {
  for (; number >= 0x80; number >>= 7) *to++ = static_cast<char>(number | 0x80);
  *to++ = static_cast<char>(number);
  return to;
}

// Reads from the front of *bytes. One form per number, so that equal numbers are equal bytes: false for any
// other, and for what ends in the middle; *bytes is then somewhere within it.
inline bool get_varint(std::span<const std::byte>* bytes, uint64_t* number) {
  *number = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint64_t>(bytes->front());
    *bytes = bytes->subspan(1);
    if (shift == 63 && byte > 1) return false;
    *number |= (byte & 0x7f) << shift;
    if (byte < 0x80) return byte != 0 || shift == 0;
  }
  return false;
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_HISTOGRAM_H_
