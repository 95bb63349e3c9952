#include <gtest/gtest.h>

#include <cmath>

#include "shadow/histogram.h"
#include "tests/shadow/weights.h"

namespace foreshock {
namespace {

using test::Values;

Histogram example(DType type) {
  Values values = test::normal(1, 20000);
  for (double x : Values{NAN, INFINITY, -INFINITY, -0.0, 3e38, -3e38}) values.push_back(x);
  return test::histogram_of(type, &values);
}

TEST(StoredHistogram, ComesBackAsItWas) {
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
TEST(StoredHistogram, NothingInItIsTrusted) {
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
