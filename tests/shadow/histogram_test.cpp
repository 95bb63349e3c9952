#include "shadow/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

TEST_P(HistogramOf, EveryValueIsInItsBin) {
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

TEST_P(HistogramOf, WhatIsNoFiniteNumberIsToldApart) {
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
TEST_P(HistogramOf, ShardsMergedAreTheWhole) {
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

TEST(Histogram, CountersAreZeroAfterwards) {
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

}  // namespace
}  // namespace foreshock
