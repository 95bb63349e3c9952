#include "kernels/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "tests/support/variations.h"

namespace foreshock {
namespace {

// Lengths around the 64 bytes that are counted at a time.
class HistogramOfLength : public testing::TestWithParam<size_t> {};

TEST_P(HistogramOfLength, CountsEveryPattern) {
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

TEST_P(HistogramOfLength, CountsAndSumsEveryBin) {
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

TEST(Histogram, SeparatesValuesThatShareABin) {
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

std::span<const std::byte> as_bytes(const std::vector<char>& packed, size_t size) {
  return {reinterpret_cast<const std::byte*>(packed.data()), size};
}

std::vector<float> some_values(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  const float odd[] = {0.f,
                       -0.f,
                       -0.f,
                       1e-40f,
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  std::copy(std::begin(odd), std::end(odd), values.begin());
  return values;
}

TEST(PackedCounters, RoundTripBins) {
  const std::vector<float> values = some_values(20000);
  std::vector<uint64_t> words(kBinWords), back(kBinWords);
  count_bins(values.data(), values.size(), words.data());
  const std::vector<uint64_t> before = words;
  std::vector<char> packed(1 << 20);
  const size_t size = pack_bins(words.data(), packed.data(), packed.size());
  ASSERT_NE(size, kPackFailed);
  EXPECT_TRUE(std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; }));
  auto bytes = as_bytes(packed, size);
  ASSERT_TRUE(unpack_bins(&bytes, values.size(), back.data()));
  EXPECT_TRUE(bytes.empty());
  EXPECT_TRUE(back == before);
}

TEST(PackedCounters, RoundTripPatternsSummedOverSets) {
  std::mt19937 random(3);
  std::vector<uint16_t> values(30001);
  for (uint16_t& value : values) value = static_cast<uint16_t>(random() % 5000 * 13);
  std::vector<uint32_t> words(kPatternWords), back(kPatternWords), expected(kPatterns);
  count_patterns(values.data(), values.size(), words.data());
  for (uint16_t value : values) ++expected[value];
  std::vector<char> packed(1 << 20);
  const size_t size = pack_patterns(words.data(), packed.data(), packed.size());
  ASSERT_NE(size, kPackFailed);
  auto bytes = as_bytes(packed, size);
  ASSERT_TRUE(unpack_patterns(&bytes, values.size(), back.data()));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), back.begin()));
  EXPECT_TRUE(std::all_of(words.begin(), words.end(), [](uint32_t word) { return word == 0; }));
}

TEST(PackedCounters, AreEmptyWithoutRoom) {
  const std::vector<float> values = some_values(2000);
  std::vector<uint64_t> words(kBinWords);
  count_bins(values.data(), values.size(), words.data());
  std::vector<char> packed(100, 'x');
  EXPECT_EQ(pack_bins(words.data(), packed.data(), 64), kPackFailed);
  EXPECT_TRUE(std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; }));
  EXPECT_TRUE(std::all_of(packed.begin() + 64, packed.end(), [](char c) { return c == 'x'; }));
}

// Every way in which one byte can differ gives either a refusal or counters that no more values could have
// made.
TEST(PackedCounters, DamagedBytesNeverGiveMoreValuesThanStated) {
  const std::vector<float> values = some_values(200);
  std::vector<uint64_t> words(kBinWords), back(kBinWords);
  count_bins(values.data(), values.size(), words.data());
  std::vector<char> packed(1 << 16);
  const size_t size = pack_bins(words.data(), packed.data(), packed.size());
  ASSERT_NE(size, kPackFailed);
  size_t refused = 0;
  for (size_t n = 0; n < size; n += test::kVariationStep) {
    std::vector<char> changed = packed;
    changed[n] = static_cast<char>(changed[n] ^ (1 << n % 8));
    std::fill(back.begin(), back.end(), 0);
    auto bytes = as_bytes(changed, size);
    if (!unpack_bins(&bytes, values.size(), back.data())) {
      ++refused;
      continue;
    }
    uint64_t counted = 0;
    for (size_t bin = 0; bin < kBins; ++bin) counted += back[bin] >> kBinCountShift;
    ASSERT_LE(counted, values.size());
  }
  EXPECT_GT(refused, 0u);
  for (size_t length = 0; length < size; length += test::kVariationStep) {
    auto bytes = as_bytes(packed, length);
    std::fill(back.begin(), back.end(), 0);
    ASSERT_FALSE(unpack_bins(&bytes, values.size(), back.data())) << length;
  }
}

}  // namespace
}  // namespace foreshock
