#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lab/measure.h"

namespace foreshock::lab {
namespace {

Tensor row(std::vector<double> values) {
  Tensor x(1, static_cast<int>(values.size()));
  x.data = std::move(values);
  return x;
}

TEST(Deviation, ByHand) {
  const NumberFormat bf16 = *parse_format("bf16");
  // Differences +1/128 and -2/128; both references lie in [1, 2), where the spacing is 1/128.
  const Deviation d = deviation_of(row({1 + 0x1p-7, 1.5 - 0x1p-6}), row({1, 1.5}), bf16);
  EXPECT_EQ(d.max_abs, 0x1p-6);
  EXPECT_EQ(d.mean_abs, 1.5 * 0x1p-7);
  EXPECT_EQ(d.std_abs, 0.5 * 0x1p-7);
  EXPECT_DOUBLE_EQ(d.relative_l2, std::sqrt(5.0) * 0x1p-7 / std::sqrt(3.25));
  EXPECT_EQ(d.bias_ulp, -0.5);
  EXPECT_EQ(d.signed_sum, -0x1p-7);
  EXPECT_DOUBLE_EQ(d.over_roundoff, 0x1p-6 / (0x1p-8 * 1.5));
}

TEST(Deviation, BiasIsAwayFromZeroOnBothSides) {
  const NumberFormat bf16 = *parse_format("bf16");
  EXPECT_EQ(deviation_of(row({1 + 0x1p-7, -1 - 0x1p-7}), row({1, -1}), bf16).bias_ulp, 1);
}

TEST(Deviation, NonFiniteIsCountedAndNeverPasses) {
  const NumberFormat bf16 = *parse_format("bf16");
  const Deviation d = deviation_of(row({NAN, INFINITY, 1}), row({1, 1, 1}), bf16);
  EXPECT_EQ(d.non_finite, 2);
  EXPECT_TRUE(std::isnan(d.max_abs));
  EXPECT_FALSE(d.relative_l2 < 1);
}

TEST(Interval, StudentByHand) {
  // Mean 2, sd 1, n 3: the half width is 4.303 / sqrt(3).
  const std::vector<double> values{1, 2, 3};
  const Interval interval = interval_of(values);
  EXPECT_EQ(interval.mean, 2);
  EXPECT_NEAR(interval.high - 2, 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(2 - interval.low, 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(z_of(values), 2 * std::sqrt(3.0), 1e-12);
}

TEST(Interval, OneValueIsItsOwnInterval) {
  const std::vector<double> one{5};
  EXPECT_EQ(interval_of(one).low, 5);
  EXPECT_EQ(interval_of(one).high, 5);
  EXPECT_EQ(z_of(one), 0);
}

}  // namespace
}  // namespace foreshock::lab
