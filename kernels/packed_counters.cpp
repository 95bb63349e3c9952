#include "kernels/packed_counters.h"

#include "kernels/histogram.h"
#include "kernels/varint.h"

namespace foreshock {
namespace {

constexpr uint64_t kResiduals = (uint64_t{1} << kBinCountShift) - 1;
constexpr uint64_t kMostResidual = (1u << kBinResidualBits) - 1;

class Packer {
 public:
  Packer(char* to, size_t room) : first_(to), at_(to), end_(to + room) {}
  void put(uint64_t number) {
    if (static_cast<size_t>(end_ - at_) < kLongestVarint)
      failed_ = true;
    else
      at_ = put_varint(number, at_);
  }
  void put_place(size_t index) {
    put(index + 1 - next_);
    next_ = index + 1;
  }
  size_t finish() {
    put(0);
    return failed_ ? kPackFailed : static_cast<size_t>(at_ - first_);
  }

 private:
  char *first_, *at_, *end_;
  size_t next_ = 0;
  bool failed_ = false;
};

// The next counter's place and count. *index beyond `end`: the set has ended.
bool get_place(std::span<const std::byte>* bytes, size_t end, uint64_t most, size_t* index, uint64_t* count) {
  uint64_t distance = 0;
  if (!get_varint(bytes, &distance)) return false;
  if (distance == 0) {
    *index = end;
    return true;
  }
  // *index is -1, as a size_t, before the first one.
  if (distance > end || *index + distance >= end || !get_varint(bytes, count)) return false;
  *index += distance;
  return *count > 0 && *count <= most;
}

}  // namespace

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
      packer.put_place(n);
      packer.put(count);
    }
  }
  return packer.finish();
}

size_t pack_bins(uint64_t* words, char* to, size_t room) {
  Packer packer(to, room);
  const auto pack_word = [&](size_t n, uint64_t count, uint64_t residual) {
    words[n] = 0;
    packer.put_place(n);
    packer.put(count);
    packer.put(residual);
  };
  for (size_t first = 0; first < kBins; first += kCounterRun) {
    if (!any_in_run(words + first)) continue;
    for (size_t n = first; n < first + kCounterRun; ++n)
      if (words[n] != 0) pack_word(n, words[n] >> kBinCountShift, words[n] & kResiduals);
  }
  for (size_t n = kBins; n < kBinWords; ++n)
    if (words[n] != 0) pack_word(n, words[n], 0);
  return packer.finish();
}

bool unpack_patterns(std::span<const std::byte>* bytes, uint64_t most, uint32_t* words) {
  uint64_t left = most < kMostPatterns ? most : kMostPatterns, count = 0;
  for (size_t index = ~size_t{0};;) {
    if (!get_place(bytes, kPatterns, left, &index, &count)) return false;
    if (index == kPatterns) return true;
    words[index] = static_cast<uint32_t>(count);
    left -= count;
  }
}

bool unpack_bins(std::span<const std::byte>* bytes, uint64_t most, uint64_t* words) {
  uint64_t left = most < kMostBinned ? most : kMostBinned, count = 0, residual = 0;
  for (size_t index = ~size_t{0};;) {
    if (!get_place(bytes, kBinWords, kMostBinned, &index, &count)) return false;
    if (index == kBinWords) break;
    if (!get_varint(bytes, &residual)) return false;
    if (index >= kBins) {  // counts once more what lies in a bin with others
      if (residual != 0) return false;
      words[index] = count;
      continue;
    }
    if (count > left || residual > count * kMostResidual) return false;
    words[index] = count << kBinCountShift | residual;
    left -= count;
  }
  const auto word_of = [words](uint32_t bits) { return words[bits >> kBinResidualBits]; };
  const uint64_t zeros = word_of(0x80000000u) >> kBinCountShift;
  if (words[kMinusZeroWord] > zeros ||
      (word_of(0x80000000u) & kResiduals) > (zeros - words[kMinusZeroWord]) * kMostResidual)
    return false;
  return words[kPlusInfinityWord] <= word_of(0x7f800000u) >> kBinCountShift &&
         words[kMinusInfinityWord] <= word_of(0xff800000u) >> kBinCountShift;
}

}  // namespace foreshock
