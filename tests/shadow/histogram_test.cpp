#include "shadow/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/histogram.h"
#include "tests/shadow/weights.h"

namespace foreshock {
namespace {

using test::histogram_of;
using test::Values;

constexpr DType kTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};
constexpr uint32_t kFirstFinite = 0x800, kEndFinite = (1 << 20) - 0x800;

TEST(Histogram, BinsTileTheLine) {
  for (uint32_t index = kFirstFinite; index < kEndFinite; ++index) {
    ASSERT_LT(lower_edge(index), upper_edge(index));
    if (index + 1 < kEndFinite) {
      ASSERT_EQ(upper_edge(index), lower_edge(index + 1));
    }
  }
  EXPECT_EQ(lower_edge(kFirstFinite), -0x1p128);
  EXPECT_EQ(lower_edge(1 << 19), 0);
  EXPECT_EQ(upper_edge(kEndFinite - 1), 0x1p128);
}

class HistogramOf : public testing::TestWithParam<DType> {};

TEST_P(HistogramOf, PutsEveryValueIntoItsBin) {
  Values values = test::normal(1, 5000, 3);
  for (double x : {0.0, 1.0, -1.0, 65504.0, -65504.0, 6e-8, -6e-8}) values.push_back(x);
  const Histogram histogram = histogram_of(GetParam(), &values);
  EXPECT_EQ(histogram.finite, values.size());
  size_t seen = 0;
  for (const HistogramBin& bin : histogram.bins) {
    const double low = lower_edge(bin.index), high = upper_edge(bin.index);
    // The edge nearer to 0 belongs to the bin.
    const auto inside = [&](double x) {
      return low >= 0 ? x >= low && x < high : x > low && x <= high && x != 0;
    };
    uint64_t count = 0;
    double distance = 0;
    for (double x : values) {
      if (!inside(x)) continue;
      ++count;
      distance += low >= 0 ? x - low : high - x;
    }
    EXPECT_EQ(bin.count, count);
    EXPECT_EQ(static_cast<double>(bin.residual), distance / (high - low) * 4096);
    seen += count;
  }
  EXPECT_EQ(seen, values.size());
}

TEST_P(HistogramOf, CountsNonFiniteValuesSeparately) {
  Values values{NAN, NAN, NAN, INFINITY, INFINITY, -INFINITY, -0.0, -0.0, -0.0, -0.0, 0.0, 1.0};
  const Histogram histogram = histogram_of(GetParam(), &values);
  EXPECT_EQ(histogram.not_a_number, 3u);
  EXPECT_EQ(histogram.plus_infinity, 2u);
  EXPECT_EQ(histogram.minus_infinity, 1u);
  EXPECT_EQ(histogram.minus_zero, 4u);
  EXPECT_EQ(histogram.finite, 6u);
  EXPECT_EQ(histogram.non_finite(), 6u);
  ASSERT_EQ(histogram.bins.size(), 2u);
  EXPECT_EQ(histogram.bins[0], (HistogramBin{1 << 19, 5, 0}));  // -0 is 0
}

// Shards merged in any order are the whole, bit for bit.
TEST_P(HistogramOf, MergedShardsEqualTheWhole) {
  Values values = test::normal(2, 30000);
  values[7] = NAN;
  values[20000] = -INFINITY;
  const std::vector<char> bytes = test::stored(GetParam(), &values);
  const Histogram whole = histogram_of(GetParam(), bytes.data(), values.size());
  for (size_t shards : {2, 7, 30}) {
    std::vector<Histogram> parts;
    for (size_t s = 0; s < shards; ++s) {
      const size_t first = values.size() * s / shards, end = values.size() * (s + 1) / shards;
      parts.push_back(histogram_of(GetParam(), bytes.data() + first * size_of(GetParam()), end - first));
    }
    Histogram upwards, downwards;
    for (const Histogram& part : parts) merge(part, &upwards);
    std::reverse(parts.begin(), parts.end());
    for (const Histogram& part : parts) merge(part, &downwards);
    EXPECT_EQ(upwards, whole);
    EXPECT_EQ(downwards, whole);
  }
}

// The sum of every bin is exact, so the mean is that of the values: 2^-50 is the header's bound; the truth
// here is a sum in long double of 2^14 terms, 2^14 * 2^-64 = 2^-50.
TEST_P(HistogramOf, MeanMagnitude) {
  Values values = test::normal(3, 1 << 14);
  const Histogram histogram = histogram_of(GetParam(), &values);
  long double sum = 0;
  for (double x : values) sum += std::fabs(x);
  const double mean = static_cast<double>(sum / values.size());
  EXPECT_NEAR(mean_magnitude(histogram), mean, 2 * 0x1p-50 * mean);
  EXPECT_TRUE(std::isnan(mean_magnitude(Histogram{})));
}

INSTANTIATE_TEST_SUITE_P(Formats, HistogramOf, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Histogram, LeavesTheCountersAtZero) {
  const std::vector<float> values{1, -2, NAN, INFINITY, -0.0f, 1e-40f};
  std::vector<uint64_t> words(kBinWords);
  count_bins(values.data(), values.size(), words.data());
  Histogram histogram;
  take_bins(words.data(), &histogram);
  EXPECT_EQ(words, std::vector<uint64_t>(kBinWords));
  std::vector<uint32_t> patterns(kPatternWords);
  count_patterns(values.data(), 2 * values.size(), patterns.data());
  take_patterns(patterns.data(), DType::kBf16, &histogram);
  EXPECT_EQ(patterns, std::vector<uint32_t>(kPatternWords));
}

// A 16-bit format and fp32 have the same histogram of the same values.
TEST(Histogram, FormatsAgree) {
  for (DType type : {DType::kBf16, DType::kFp16}) {
    Values values = test::normal(4, 10000, 1);
    values.push_back(-0.0);
    values.push_back(0x1p-24);  // a subnormal of fp16
    const Histogram narrow = histogram_of(type, &values);
    EXPECT_EQ(histogram_of(DType::kFp32, &values), narrow);
  }
}

std::vector<float> some_values(size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  values[0] = -0.f;
  values[1] = INFINITY;
  values[2] = NAN;
  return values;
}

Histogram counted(const std::vector<float>& values) {
  std::vector<uint64_t> words(kBinWords);
  Histogram histogram;
  count_bins(values.data(), values.size(), words.data());
  take_bins(words.data(), &histogram);
  return histogram;
}

TEST(HistogramReader, ValuesAndCountersGiveTheSameHistogram) {
  const auto values = some_values(3000);
  const Histogram expected = counted(values);
  HistogramReader reader;
  Histogram read;
  ASSERT_TRUE(reader.read_values(std::as_bytes(std::span(values)), DType::kFp32, values.size(), &read));
  EXPECT_TRUE(read == expected);
  std::vector<uint64_t> words(kBinWords);
  std::vector<char> packed(1 << 18);
  size_t size = 0;
  for (size_t half : {0, 1}) {  // two sets of counters, as of a tensor that is too large for one
    count_bins(values.data() + 1500 * half, 1500, words.data());
    size += pack_bins(words.data(), packed.data() + size, packed.size() - size);
  }
  const auto bytes = std::as_bytes(std::span(packed)).first(size);
  ASSERT_TRUE(reader.read_counters(bytes, DType::kFp32, values.size(), &read));
  EXPECT_TRUE(read == expected);
}

// Few values are sorted, many are counted: each 16-bit pattern a different number of times, and fp32 values
// of all magnitudes, on both sides of the border.
TEST(HistogramReader, SortedValuesAndCountedValuesGiveTheSameHistogram) {
  std::mt19937 random(5);
  HistogramReader reader;
  for (const DType type : {DType::kBf16, DType::kFp16}) {
    std::vector<uint16_t> values;
    for (size_t n = 0; n < 32768; ++n) values.push_back(static_cast<uint16_t>(random()));
    values.insert(values.end(), {0x8000, 0x8000, 0, 0x7c00, 0xfc00, 0x7f80, 0xff80, 0x7e01});
    for (const size_t count : {size_t{1}, size_t{777}, values.size()}) {
      const uint16_t* first = values.data() + values.size() - count;
      std::vector<uint32_t> words(kPatternWords);
      Histogram expected, read;
      count_patterns(first, count, words.data());
      take_patterns(words.data(), type, &expected);
      ASSERT_TRUE(reader.read_values(std::as_bytes(std::span(first, count)), type, count, &read));
      EXPECT_TRUE(read == expected) << count;
    }
  }
  std::vector<float> values;
  for (size_t n = 0; n < 40000; ++n) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  values.insert(values.end(), {0.f, -0.f, -0.f, INFINITY, -INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f});
  for (const size_t count : {size_t{9}, size_t{5000}, size_t{32768}, values.size()}) {
    const std::vector<float> last(values.end() - static_cast<std::ptrdiff_t>(count), values.end());
    Histogram read;
    ASSERT_TRUE(reader.read_values(std::as_bytes(std::span(last)), DType::kFp32, count, &read));
    EXPECT_TRUE(read == counted(last)) << count;
  }
}

TEST(HistogramReader, RefusesBytesOfAnotherNumberOfValues) {
  const auto values = some_values(500);
  HistogramReader reader;
  Histogram read;
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_FALSE(reader.read_values(bytes, DType::kFp32, 499, &read));
  EXPECT_FALSE(reader.read_values(bytes, DType::kBf16, 500, &read));
  std::vector<uint64_t> words(kBinWords);
  std::vector<char> packed(1 << 16);
  count_bins(values.data(), values.size(), words.data());
  const size_t size = pack_bins(words.data(), packed.data(), packed.size());
  const auto counters = std::as_bytes(std::span(packed)).first(size);
  EXPECT_FALSE(reader.read_counters(counters, DType::kFp32, 501, &read));
  EXPECT_FALSE(reader.read_counters(counters, DType::kFp32, 499, &read));
  EXPECT_FALSE(reader.read_counters(counters.first(size / 2), DType::kFp32, 500, &read));
  ASSERT_TRUE(reader.read_counters(counters, DType::kFp32, 500, &read));
  EXPECT_TRUE(read == counted(values));
}

// Each set of counters costs a look at a million of them, so bytes must not ask for any number of sets.
TEST(HistogramReader, EmptySetsAndMoreSetsThanValuesNeedAreRefused) {
  HistogramReader reader;
  Histogram read;
  const std::vector<std::byte> zeros(1 << 20);
  EXPECT_FALSE(reader.read_counters(zeros, DType::kFp32, 1, &read));
  EXPECT_FALSE(reader.read_counters(zeros, DType::kBf16, 0, &read));
  const float one = 1;
  std::vector<uint64_t> words(kBinWords);
  std::vector<char> set(64);
  count_bins(&one, 1, words.data());
  set.resize(pack_bins(words.data(), set.data(), set.size()));
  const auto read_sets = [&](size_t sets, const std::vector<char>& end) {
    std::vector<char> bytes;
    for (size_t n = 0; n < sets; ++n) bytes.insert(bytes.end(), set.begin(), set.end());
    bytes.insert(bytes.end(), end.begin(), end.end());
    return reader.read_counters(std::as_bytes(std::span(bytes)), DType::kFp32, sets, &read);
  };
  EXPECT_TRUE(read_sets(1, {}));
  EXPECT_FALSE(read_sets(1, {0})) << "all values, then an empty set";
  EXPECT_TRUE(read_sets(2, {}));
  EXPECT_FALSE(read_sets(1000, {}));
}

using test::Values;

Histogram example(DType type) {
  Values values = test::normal(1, 20000);
  for (double x : Values{NAN, INFINITY, -INFINITY, -0.0, 3e38, -3e38}) values.push_back(x);
  return test::histogram_of(type, &values);
}

TEST(StoredHistogram, RoundTrips) {
  for (DType type : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    const Histogram histogram = example(type);
    Histogram read;
    ASSERT_TRUE(restore(store(histogram), &read));
    EXPECT_EQ(read, histogram);
  }
  Histogram empty = example(DType::kBf16);
  ASSERT_TRUE(restore(store(Histogram{}), &empty));
  EXPECT_EQ(empty, Histogram{});
}

// Four million weights, as a large layer has: about 6,000 patterns, at most 64 KiB.
TEST(StoredHistogram, IsSmall) {
  Values values = test::normal(2, 1 << 22);
  EXPECT_LE(store(test::histogram_of(DType::kBf16, &values)).size(), 64u << 10);
}

// Damage anywhere: refused, or a histogram that is sound. Every cut is refused.
TEST(StoredHistogram, RefusesDamagedText) {
  Values values = test::normal(3, 300);
  const std::string bytes = store(test::histogram_of(DType::kFp32, &values));
  Histogram read;
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(restore(bytes.substr(0, length), &read));
  EXPECT_FALSE(restore(bytes + '\0', &read));
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 1 + round % 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    Histogram sound;
    if (!restore(damaged, &sound)) continue;
    ++accepted;
    uint64_t sum = 0;
    uint32_t before = 0;
    for (const HistogramBin& bin : sound.bins) {
      EXPECT_GT(bin.index, before);
      EXPECT_LE(bin.residual, bin.count * 4095);
      before = bin.index;
      sum += bin.count;
    }
    EXPECT_EQ(sum, sound.finite);
    EXPECT_EQ(wasserstein(sound, sound).low, 0);
  }
  EXPECT_GT(accepted, 0);
}

TEST(StoredHistogram, RefusesHugeAndIllFormedNumbers) {
  Histogram read;
  const std::string eleven_bytes(11, '\xff');
  EXPECT_FALSE(restore("\x01" + eleven_bytes, &read));
  EXPECT_FALSE(restore(std::string("\x02\0\0\0\0\0\0", 7), &read));      // another version
  EXPECT_FALSE(restore(std::string("\x01\x80\0\0\0\0\0\0", 8), &read));  // 0 in two bytes
  EXPECT_FALSE(
      restore(std::string("\x01\0\0\0\0\0\xff\xff\xff\xff\x0f", 11), &read));  // bins that are not there
}

}  // namespace
}  // namespace foreshock
