#include "shadow/histogram_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/histogram.h"
#include "kernels/packed_counters.h"

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

}  // namespace
}  // namespace foreshock
