#include "kernels/histogram.h"

#include <cstring>

namespace foreshock {
namespace {

// The counters take the cache's attention away from the stream of data, so it is asked for ahead.
constexpr size_t kAhead = 1024;

template <class Word>
Word load(const char* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

constexpr uint32_t kMinusZero = 0x80000000u, kPlusInfinity = 0x7f800000u, kMinusInfinity = 0xff800000u;

constexpr size_t bin_of(uint32_t bits) { return bits >> kBinResidualBits; }

// How many words of the bins that hold more than one kind of value have changed hands.
uint64_t in_shared_bins(const uint64_t* words) {
  return words[bin_of(kMinusZero)] + words[bin_of(kPlusInfinity)] + words[bin_of(kMinusInfinity)];
}

void count_special(const char* data, size_t count, uint64_t* words) {
  uint64_t minus_zero = 0, plus_infinity = 0, minus_infinity = 0;
  for (size_t n = 0; n < count; ++n) {
    const uint32_t bits = load<uint32_t>(data + 4 * n);
    minus_zero += bits == kMinusZero;
    plus_infinity += bits == kPlusInfinity;
    minus_infinity += bits == kMinusInfinity;
  }
  words[kMinusZeroWord] += minus_zero;
  words[kPlusInfinityWord] += plus_infinity;
  words[kMinusInfinityWord] += minus_infinity;
}

}  // namespace

void count_patterns(const void* data, size_t count, uint32_t* words) {
  const char* at = static_cast<const char*>(data);
  uint32_t *set0 = words, *set1 = set0 + kPatterns, *set2 = set1 + kPatterns, *set3 = set2 + kPatterns;
  const auto count_four = [&](uint64_t four) {
    ++set0[four & 0xffff];
    ++set1[four >> 16 & 0xffff];
    ++set2[four >> 32 & 0xffff];
    ++set3[four >> 48];
  };
  constexpr size_t kLine = 64, kInLine = kLine / sizeof(uint16_t);
  for (; count >= kInLine; count -= kInLine, at += kLine) {
    __builtin_prefetch(at + kAhead);
    for (size_t n = 0; n < kLine; n += sizeof(uint64_t)) count_four(load<uint64_t>(at + n));
  }
  for (; count > 0; --count, at += sizeof(uint16_t)) ++set0[load<uint16_t>(at)];
}

void count_bins(const void* data, size_t count, uint64_t* words) {
  const char* at = static_cast<const char*>(data);
  const uint64_t before = in_shared_bins(words);
  constexpr uint64_t kOne = uint64_t{1} << kBinCountShift, kResidual = (1u << kBinResidualBits) - 1;
  const auto count_one = [&](uint32_t bits) { words[bin_of(bits)] += kOne | (bits & kResidual); };
  constexpr size_t kLine = 64, kInLine = kLine / sizeof(uint32_t);
  size_t left = count;
  for (; left >= kInLine; left -= kInLine, at += kLine) {
    __builtin_prefetch(at + kAhead);
    for (size_t n = 0; n < kLine; n += sizeof(uint64_t)) {
      const uint64_t two = load<uint64_t>(at + n);
      count_one(static_cast<uint32_t>(two));
      count_one(static_cast<uint32_t>(two >> 32));
    }
  }
  for (; left > 0; --left, at += sizeof(uint32_t)) count_one(load<uint32_t>(at));
  if (in_shared_bins(words) != before) count_special(static_cast<const char*>(data), count, words);
}

}  // namespace foreshock
