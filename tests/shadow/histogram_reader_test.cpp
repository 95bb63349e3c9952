#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "kernels/histogram.h"
#include "shadow/histogram.h"

namespace foreshock {
namespace {

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

TEST(HistogramReader, BytesOfAnotherNumberOfValuesAreRefusedAndLeaveNothing) {
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

}  // namespace
}  // namespace foreshock
