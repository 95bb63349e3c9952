// Counts the values of an array by their bits on the host, packs and unpacks the counters. 16-bit values have
// one counter for each bit pattern. For fp32 values, the upper bits select a bin; the kBinResidualBits lowest
// bits are the value's residual. The word of a bin has the number of values from bit kBinCountShift on, and
// below it the sum of their residuals. Further words count -0 and the infinities, which are in bins too.
#include "kernels/histogram.h"

#include "kernels/dtype.h"

namespace foreshock {
namespace {

// Distance of prefetches. The hardware prefetcher misses the data, because of scattered accesses to counters.
constexpr size_t kPrefetchBytes = 1024;

constexpr uint32_t kMinusZero = 0x80000000u, kPlusInfinity = 0x7f800000u, kMinusInfinity = 0xff800000u;

constexpr size_t bin_of(uint32_t bits) { return bits >> kBinResidualBits; }

// Returns the sum of the three bins that hold -0 or an infinity beside other values. If the first pass of
// count_bins() has not changed this sum, the array has no -0 and no infinity, so a second pass is not needed.
uint64_t in_shared_bins(const uint64_t* words) {
  return words[bin_of(kMinusZero)] + words[bin_of(kPlusInfinity)] + words[bin_of(kMinusInfinity)];
}

// The second pass: counts -0 and the infinities.
void count_special(const char* data, size_t count, uint64_t* words) {
  uint64_t minus_zero = 0, plus_infinity = 0, minus_infinity = 0;
  for (size_t n = 0; n < count; ++n) {
    const uint32_t bits = load_unaligned<uint32_t>(data + 4 * n);
    minus_zero += bits == kMinusZero;
    plus_infinity += bits == kPlusInfinity;
    minus_infinity += bits == kMinusInfinity;
  }
  words[kMinusZeroWord] += minus_zero;
  words[kPlusInfinityWord] += plus_infinity;
  words[kMinusInfinityWord] += minus_infinity;
}

}  // namespace

// Neighbouring values use different sets of counters: equal values then need not wait for each other's store.
void count_patterns(const void* data, size_t count, uint32_t* words) {
  const char* next = static_cast<const char*>(data);
  uint32_t *set0 = words, *set1 = set0 + kPatterns, *set2 = set1 + kPatterns, *set3 = set2 + kPatterns;
  const auto count_four = [&](uint64_t four) {
    ++set0[four & 0xffff];
    ++set1[four >> 16 & 0xffff];
    ++set2[four >> 32 & 0xffff];
    ++set3[four >> 48];
  };
  constexpr size_t kLine = 64, kInLine = kLine / sizeof(uint16_t);
  for (; count >= kInLine; count -= kInLine, next += kLine) {
    __builtin_prefetch(next + kPrefetchBytes);
    for (size_t n = 0; n < kLine; n += sizeof(uint64_t)) count_four(load_unaligned<uint64_t>(next + n));
  }
  for (; count > 0; --count, next += sizeof(uint16_t)) ++set0[load_unaligned<uint16_t>(next)];
}

void count_bins(const void* data, size_t count, uint64_t* words) {
  const char* next = static_cast<const char*>(data);
  const uint64_t before = in_shared_bins(words);
  constexpr uint64_t kOne = uint64_t{1} << kBinCountShift, kLowBits = (1u << kBinResidualBits) - 1;
  const auto count_one = [&](uint32_t bits) { words[bin_of(bits)] += kOne | (bits & kLowBits); };
  constexpr size_t kLine = 64, kInLine = kLine / sizeof(uint32_t);
  size_t left = count;
  for (; left >= kInLine; left -= kInLine, next += kLine) {
    __builtin_prefetch(next + kPrefetchBytes);
    for (size_t n = 0; n < kLine; n += sizeof(uint64_t)) {
      const uint64_t two = load_unaligned<uint64_t>(next + n);
      count_one(static_cast<uint32_t>(two));
      count_one(static_cast<uint32_t>(two >> 32));
    }
  }
  for (; left > 0; --left, next += sizeof(uint32_t)) count_one(load_unaligned<uint32_t>(next));
  if (in_shared_bins(words) != before) count_special(static_cast<const char*>(data), count, words);
}

namespace {

constexpr uint64_t kResidualSum = (uint64_t{1} << kBinCountShift) - 1;  // mask of the sum in a bin's word
constexpr uint64_t kMostResidual = (1u << kBinResidualBits) - 1;        // of one value

// Writes a list of the counters that are not 0: for each of them the distance of its index from the one
// before (first: from -1), its count, and for a bin the sum of residuals. A distance of 0 ends the list.
// Numbers are varints (seven bits a byte). If fewer than kLongestVarint bytes are left, the packer fails.
class Packer {
 public:
  Packer(char* bytes, size_t room) : begin_(bytes), position_(bytes), end_(bytes + room) {}
  void put(uint64_t number) {
    if (static_cast<size_t>(end_ - position_) < kLongestVarint)
      failed_ = true;
    else
      position_ = put_varint(number, position_);
  }
  void put_index(size_t index) {
    put(index + 1 - next_index_);
    next_index_ = index + 1;
  }
  size_t finish() {
    put(0);
    return failed_ ? kPackFailed : static_cast<size_t>(position_ - begin_);
  }

 private:
  char *begin_, *position_, *end_;
  size_t next_index_ = 0;  // index after the last one put
  bool failed_ = false;
};

// Reads the index and count of the next counter. Sets *index to `end` at the end of the list. Returns false
// for invalid bytes, and for a count of 0 or above `most`.
bool get_index(std::span<const std::byte>* bytes, size_t end, uint64_t most, size_t* index, uint64_t* count) {
  uint64_t distance = 0;
  if (!get_varint(bytes, &distance)) return false;
  if (distance == 0) {
    *index = end;
    return true;
  }
  // Before the first counter *index is ~0, so that adding a distance of 1 gives 0.
  if (distance > end || *index + distance >= end || !get_varint(bytes, count)) return false;
  *index += distance;
  return *count > 0 && *count <= most;
}

}  // namespace

// Like pack_bins(), this also sets all counters to 0. `sets`: number of sets of counters (count_patterns()).
size_t pack_patterns(uint32_t* words, char* to, size_t room, size_t sets) {
  Packer packer(to, room);
  for (size_t first = 0; first < kPatterns; first += kCounterRun) {
    bool used = false;
    for (size_t set = 0; set < sets; ++set) used |= any_in_run(words + set * kPatterns + first);
    if (!used) continue;
    for (size_t n = first; n < first + kCounterRun; ++n) {
      uint64_t count = 0;
      for (size_t set = 0; set < sets; ++set) {
        count += words[set * kPatterns + n];
        words[set * kPatterns + n] = 0;
      }
      if (count == 0) continue;
      packer.put_index(n);
      packer.put(count);
    }
  }
  return packer.finish();
}

size_t pack_bins(uint64_t* words, char* to, size_t room) {
  Packer packer(to, room);
  const auto pack_word = [&](size_t n, uint64_t count, uint64_t residual) {
    words[n] = 0;
    packer.put_index(n);
    packer.put(count);
    packer.put(residual);
  };
  for (size_t first = 0; first < kBins; first += kCounterRun) {
    if (!any_in_run(words + first)) continue;
    for (size_t n = first; n < first + kCounterRun; ++n)
      if (words[n] != 0) pack_word(n, words[n] >> kBinCountShift, words[n] & kResidualSum);
  }
  for (size_t n = kBins; n < kBinWords; ++n)
    if (words[n] != 0) pack_word(n, words[n], 0);
  return packer.finish();
}

// The bytes are untrusted. `most`: number of counted values. `left`: those that no counter has counted yet.
bool unpack_patterns(std::span<const std::byte>* bytes, uint64_t most, uint32_t* words) {
  uint64_t left = most < kMostPatterns ? most : kMostPatterns, count = 0;
  for (size_t index = ~size_t{0};;) {
    if (!get_index(bytes, kPatterns, left, &index, &count)) return false;
    if (index == kPatterns) return true;
    words[index] = static_cast<uint32_t>(count);
    left -= count;
  }
}

bool unpack_bins(std::span<const std::byte>* bytes, uint64_t most, uint64_t* words) {
  uint64_t left = most < kMostBinned ? most : kMostBinned, count = 0, residual = 0;
  for (size_t index = ~size_t{0};;) {
    // Not `left`: it limits only the counts of bins, see below.
    if (!get_index(bytes, kBinWords, kMostBinned, &index, &count)) return false;
    if (index == kBinWords) break;
    if (!get_varint(bytes, &residual)) return false;
    if (index >= kBins) {  // the count of -0 or of an infinity; their bins count them too, so `left` stays
      if (residual != 0) return false;
      words[index] = count;
      continue;
    }
    if (count > left || residual > count * kMostResidual) return false;
    words[index] = count << kBinCountShift | residual;
    left -= count;
  }
  // The bins of -0 and of the infinities must count at least these values. The residual of -0 is 0, so only
  // the other values of its bin add to the sum of residuals.
  const auto count_with = [words](uint32_t bits) { return words[bin_of(bits)] >> kBinCountShift; };
  const uint64_t minus_zeros = words[kMinusZeroWord], in_its_bin = count_with(kMinusZero);
  return minus_zeros <= in_its_bin &&
         (words[bin_of(kMinusZero)] & kResidualSum) <= (in_its_bin - minus_zeros) * kMostResidual &&
         words[kPlusInfinityWord] <= count_with(kPlusInfinity) &&
         words[kMinusInfinityWord] <= count_with(kMinusInfinity);
}

}  // namespace foreshock
