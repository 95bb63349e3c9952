#include "kernels/histogram.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace foreshock {
namespace {

// Lengths around the 64 bytes that are counted at a time.
class HistogramOfLength : public testing::TestWithParam<size_t> {};

TEST_P(HistogramOfLength, EveryPatternIsCounted) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::vector<char> bytes(2 * GetParam() + 1);
  std::map<uint16_t, uint32_t> expected;
  for (size_t n = 0; n < GetParam(); ++n) {
    const uint16_t pattern = static_cast<uint16_t>(random() % 3 == 0 ? 0x8000 : random());
    std::memcpy(bytes.data() + 1 + 2 * n, &pattern, sizeof pattern);  // unaligned on purpose
    ++expected[pattern];
  }
  std::vector<uint32_t> words(kPatternWords);
  count_patterns(bytes.data() + 1, GetParam(), words.data());
  count_patterns(bytes.data() + 1, GetParam(), words.data());
  for (size_t pattern = 0; pattern < kPatterns; ++pattern) {
    uint32_t counted = 0;
    for (size_t set = 0; set < kPatternSets; ++set) counted += words[set * kPatterns + pattern];
    const auto found = expected.find(static_cast<uint16_t>(pattern));
    ASSERT_EQ(counted, found == expected.end() ? 0 : 2 * found->second) << pattern;
  }
}

TEST_P(HistogramOfLength, EveryBinHasItsCountAndItsSum) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::vector<char> bytes(4 * GetParam() + 1);
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> expected;
  for (size_t n = 0; n < GetParam(); ++n) {
    const uint32_t bits = random() % 3 == 0 ? 0x3f800fffu : static_cast<uint32_t>(random());
    std::memcpy(bytes.data() + 1 + 4 * n, &bits, sizeof bits);
    expected[bits >> 12].first += 2;
    expected[bits >> 12].second += 2 * (bits & 0xfff);
  }
  std::vector<uint64_t> words(kBinWords);
  count_bins(bytes.data() + 1, GetParam(), words.data());
  count_bins(bytes.data() + 1, GetParam(), words.data());
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    const auto found = expected.find(bin);
    const auto [count, sum] = found == expected.end() ? std::pair<uint64_t, uint64_t>{} : found->second;
    ASSERT_EQ(words[bin] >> kBinCountShift, count) << bin;
    ASSERT_EQ(words[bin] & ((uint64_t{1} << kBinCountShift) - 1), sum) << bin;
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, HistogramOfLength,
                         testing::Values(0, 1, 15, 16, 17, 31, 32, 33, 1000, 65537));

TEST(Histogram, WhatSharesABinIsToldApart) {
  // -0 and the smallest subnormal; the infinities and NaNs whose payload is in the lower bits.
  const std::vector<uint32_t> bits{0x80000000, 0x80000000, 0x80000001, 0x7f800000, 0x7f800001,
                                   0xff800000, 0xff800000, 0xff800000, 0xff800fff, 0x00000000};
  std::vector<uint64_t> words(kBinWords);
  count_bins(bits.data(), bits.size(), words.data());
  EXPECT_EQ(words[kMinusZeroWord], 2u);
  EXPECT_EQ(words[kPlusInfinityWord], 1u);
  EXPECT_EQ(words[kMinusInfinityWord], 3u);
  EXPECT_EQ(words[0x80000] >> kBinCountShift, 3u);
  EXPECT_EQ(words[0x7f800] >> kBinCountShift, 2u);
  EXPECT_EQ(words[0xff800] >> kBinCountShift, 4u);
}

// The worst that the words must hold: as many values as allowed, all in one bin, all at its far end.
TEST(Histogram, AFullBinDoesNotOverflow) {
  const std::vector<uint32_t> bits((1 << 20) - 1, 0x3f800fff);
  std::vector<uint64_t> words(kBinWords);
  uint64_t counted = 0;
  while (counted + bits.size() <= kMostBinned) {
    count_bins(bits.data(), bits.size(), words.data());
    counted += bits.size();
  }
  count_bins(bits.data(), kMostBinned - counted, words.data());
  EXPECT_EQ(words[0x3f800] >> kBinCountShift, kMostBinned);
  EXPECT_EQ(words[0x3f800] & ((uint64_t{1} << kBinCountShift) - 1), kMostBinned * 0xfff);
}

}  // namespace
}  // namespace foreshock
