#include "shadow/elementary.h"

#include <gtest/gtest.h>
#include <quadmath.h>

#include <random>

namespace foreshock {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ulps_off(double got, __float128 exact) {
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(static_cast<double>(exact)), -1022) - 52);
  return std::fabs(static_cast<double>((got - exact) / spacing));
}

// Three half-ulp roundings remain after the reduction (r, the last fused step, + 1), the one of r enlarged by
// at most 1 / (1 - ln 2 / 2) where the result is least; 3 ulp covers them with the truncation of 1/7 ulp.
TEST(Exp, WithinThreeUlpOfBinary128) {
  std::mt19937_64 engine(3);
  double worst = 0;
  for (const double low : {-1e-3, -1.0, -20.0, -708.0}) {
    std::uniform_real_distribution<double> draw(low, 0);
    for (int i = 0; i < 50000; ++i) {
      const double x = draw(engine);
      worst = std::max(worst, ulps_off(exp_nonpositive(x), expq(x)));
    }
  }
  EXPECT_LT(worst, 3);
  RecordProperty("worst_ulp", std::to_string(worst));
}

// Subnormal results are rounded once: at most half a spacing on top of the error of the mantissa, which down
// there is less than that spacing.
TEST(Exp, SubnormalResultsAreRoundedOnce) {
  std::uniform_real_distribution<double> draw(-745.5, -708.0);
  std::mt19937_64 engine(4);
  for (int i = 0; i < 50000; ++i) {
    const double x = draw(engine);
    EXPECT_LE(std::fabs(static_cast<double>((exp_nonpositive(x) - expq(x)) / 0x1p-1074)),
              0.5 + static_cast<double>(3 * expq(x) / 0x1p-1022));
  }
}

TEST(Exp, Ends) {
  EXPECT_EQ(exp_nonpositive(0), 1);
  EXPECT_EQ(exp_nonpositive(-0.0), 1);
  EXPECT_EQ(exp_nonpositive(-745.1), 0x1p-1074);
  EXPECT_EQ(exp_nonpositive(-745.2), 0);
  EXPECT_EQ(exp_nonpositive(-1e300), 0);
  EXPECT_EQ(exp_nonpositive(-kInfinity), 0);
  EXPECT_FALSE(std::signbit(exp_nonpositive(-kInfinity)));
  EXPECT_TRUE(std::isnan(exp_nonpositive(kNaN)));
}

TEST(Log, WithinTwoUlpOfBinary128) {
  std::mt19937_64 engine(5);
  std::uniform_real_distribution<double> exponent(-30, 60);
  double worst = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = std::exp2(exponent(engine));
    worst = std::max(worst, ulps_off(log_nonnegative(x), logq(x)));
  }
  EXPECT_LT(worst, 2);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Log, Ends) {
  EXPECT_EQ(log_nonnegative(1), 0);
  EXPECT_EQ(log_nonnegative(0), -kInfinity);
  EXPECT_EQ(log_nonnegative(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(log_nonnegative(kNaN)));
  EXPECT_TRUE(std::isnan(log_nonnegative(-1)));
}

}  // namespace
}  // namespace foreshock
