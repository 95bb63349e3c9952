#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/sums.h"

namespace foreshock {
namespace {

// Sums of 1001 terms in two orders differ by at most 1001 * 2^-53 relative, 1.2e-13.
constexpr double kOrder = 2e-13;

TEST(Update, Fp32EqualsTheSumsInOrder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> before(1001), after(1001);
  double magnitude = 0, squares = 0, after_squares = 0, most = 0;
  for (size_t n = 0; n < before.size(); ++n) {
    before[n] = normal(random);
    after[n] = before[n] + 1e-3f * normal(random);
    const double d = double{after[n]} - double{before[n]};
    magnitude += std::fabs(d);
    squares += d * d;
    after_squares += double{after[n]} * double{after[n]};
    most = std::max(most, std::fabs(d));
  }
  const Update update = update_between(before.data(), after.data(), DType::kFp32, before.size());
  EXPECT_NEAR(update.sum_magnitude, magnitude, kOrder * magnitude);
  EXPECT_NEAR(update.sum_squares, squares, kOrder * squares);
  EXPECT_NEAR(update.sum_squares_after, after_squares, kOrder * after_squares);
  EXPECT_EQ(update.max_magnitude, most);
}

TEST(Update, SixteenBitFormatsAreExact) {
  const uint16_t bf16_before[] = {0x3f80, 0xbf80}, bf16_after[] = {0x4000, 0xbf80};  // 1, -1 -> 2, -1
  const Update update = update_between(bf16_before, bf16_after, DType::kBf16, 2);
  EXPECT_EQ(update.sum_magnitude, 1);
  EXPECT_EQ(update.sum_squares_after, 5);
  const uint16_t fp16_before[] = {0x3c00}, fp16_after[] = {0x3800};  // 1 -> 0.5
  EXPECT_EQ(update_between(fp16_before, fp16_after, DType::kFp16, 1).max_magnitude, 0.5);
}

TEST(Update, WhatIsNotFiniteShows) {
  const float before[] = {1, 1, 1}, after[] = {1, NAN, 3};
  const Update update = update_between(before, after, DType::kFp32, 3);
  EXPECT_TRUE(std::isnan(update.sum_magnitude));
  EXPECT_TRUE(std::isnan(update.max_magnitude));
  EXPECT_TRUE(std::isnan(update.sum_squares_after));
}

}  // namespace
}  // namespace foreshock
