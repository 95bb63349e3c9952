#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/histogram.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

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

TEST(PackedCounters, BinsComeBackAsTheyWere) {
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

TEST(PackedCounters, PatternsComeBackSummedOverTheirSets) {
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

TEST(PackedCounters, WithoutRoomNothingIsKeptAndTheCountersAreZero) {
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
TEST(PackedCounters, ChangedBytesNeverGiveMoreThanWasSaid) {
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
