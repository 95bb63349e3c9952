// Counts the values of a dense array by their bit patterns in one pass, and packs the counters into bytes.
// Uses neither heap nor static variables, so it is safe inside a trainer. The caller owns the counters
// (`words`) and must zero them once; every call of count_patterns() or count_bins() adds to them.
#ifndef FORESHOCK_KERNELS_HISTOGRAM_H_
#define FORESHOCK_KERNELS_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreshock {

// Counts 16-bit values with a counter for each of the 65,536 patterns, so the distribution is exact and NaN,
// the infinities and -0 are counted separately. Successive values use four sets of counters in turn: equal
// neighbours then do not wait for each other's store. The count of a pattern is the sum over the sets.
inline constexpr size_t kPatterns = size_t{1} << 16;
inline constexpr size_t kPatternSets = 4;
inline constexpr size_t kPatternWords = kPatternSets * kPatterns;
inline constexpr uint64_t kMostPatterns = 0xffffffffu;  // most values over all calls: counters have 32 bits

void count_patterns(const void* data, size_t count, uint32_t* words);  // words: [kPatternWords]

// Counts fp32 values in 2^20 bins. The values of a bin share sign, exponent and the upper 11 bits of the
// fraction. The word of a bin holds the number of its values (from bit kBinCountShift on) and the sum of
// their lower 12 bits (the residuals), so the mean of every bin is exact. Three more words count -0,
// +infinity and -infinity, whose bins hold other values too.
inline constexpr size_t kBins = size_t{1} << 20;
inline constexpr int kBinResidualBits = 12;
inline constexpr int kBinCountShift = 38;  // the sum of kMostBinned (26 bits) residuals has at most 38 bits
inline constexpr size_t kMinusZeroWord = kBins, kPlusInfinityWord = kBins + 1, kMinusInfinityWord = kBins + 2;
inline constexpr size_t kBinWords = kBins + 3;
inline constexpr uint64_t kMostBinned = (uint64_t{1} << 26) - 1;  // most values: counts have 26 bits

void count_bins(const void* data, size_t count, uint64_t* words);  // words: [kBinWords]

// Most counters are 0, so kCounterRun counters are tested at a time.
inline constexpr size_t kCounterRun = 64;
static_assert(kBins % kCounterRun == 0 && kPatterns % kCounterRun == 0);

// Whether any of the kCounterRun counters at `words` is not 0.
template <class Word>
bool any_in_run(const Word* words) {
  Word bits = 0;
  for (size_t n = 0; n < kCounterRun; ++n) bits |= words[n];
  return bits != 0;
}

// Packed counters take a few bytes for each counter that is not zero. Every number is a variable-length
// integer, seven bits a byte, lowest first. For each counter that is not zero, in order, the bytes hold its
// distance (>= 1) from the previous such counter (for the first: from index -1), its count, and for a bin the
// sum of its residuals. A distance of 0 ends the list; another list of the same tensor may follow.
inline constexpr size_t kPackFailed = ~size_t{0};

// Both functions pack the counters as one list with its end mark, and zero the counters. They return the
// number of bytes written, or kPackFailed if `room` bytes are too few. pack_patterns() first adds up the
// counters of each pattern in `sets` sets.
size_t pack_patterns(uint32_t* words, char* to, size_t room, size_t sets = kPatternSets);
size_t pack_bins(uint64_t* words, char* to, size_t room);

// Both functions unpack one list into counters that must be zero, and advance *bytes past the list. The bytes
// are untrusted. If counting at most `most` values cannot have produced them, the functions return false and
// the counters are undefined.
bool unpack_patterns(std::span<const std::byte>* bytes, uint64_t most, uint32_t* words);
bool unpack_bins(std::span<const std::byte>* bytes, uint64_t most, uint64_t* words);

inline constexpr size_t kLongestVarint = 10;  // bytes of the longest variable-length integer

// Writes the number in at most kLongestVarint bytes and returns their end.
inline char* put_varint(uint64_t number, char* to) {
  for (; number >= 0x80; number >>= 7) *to++ = static_cast<char>(number | 0x80);
  *to++ = static_cast<char>(number);
  return to;
}

// Reads a number from the front of *bytes and advances *bytes past it. Each number has one valid form,
// without a last byte of 0, so that equal numbers have equal bytes. Returns false for an invalid form.
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
