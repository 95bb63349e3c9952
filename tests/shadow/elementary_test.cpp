#include "shadow/elementary.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/shadow/binary128.h"

namespace foreshock {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ulps_off(double got, Binary128 exact) {
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

// The derivation beside soft_capped() has 16 u = 2^-49, relative.
TEST(SoftCap, WithinToleranceOfBinary128) {
  std::mt19937_64 engine(6);
  const double cap = 30;
  double worst_score = 0, worst_slope = 0;
  for (const double high : {1e-6, 0.3, 2.0, 40.0}) {
    std::uniform_real_distribution<double> draw(-high, high);
    for (int i = 0; i < 50000; ++i) {
      const double product = cap * draw(engine);
      const CappedScore got = soft_capped(product, cap);
      const Binary128 y = static_cast<Binary128>(product) / cap, tanh = tanhq(y), cosh = coshq(y);
      worst_score = std::max(worst_score, static_cast<double>(fabsq(got.score / (cap * tanh) - 1)));
      worst_slope = std::max(worst_slope, static_cast<double>(fabsq(got.slope * cosh * cosh - 1)));
    }
  }
  EXPECT_LT(worst_score, 0x1p-49);
  // The rounding of product / cap, up to 40, adds 2 |product / cap| u to the slope.
  EXPECT_LT(worst_slope, 0x1p-49 + 80 * 0x1p-53);
  RecordProperty("worst_score", std::to_string(worst_score));
}

TEST(SoftCap, Ends) {
  for (const double sign : {1.0, -1.0}) {
    EXPECT_EQ(soft_capped(sign * kInfinity, 30).score, sign * 30);
    EXPECT_EQ(soft_capped(sign * kInfinity, 30).slope, 0);
    EXPECT_EQ(soft_capped(sign * 1e300, 30).score, sign * 30);
    EXPECT_EQ(soft_capped(sign * 1e-300, 30).score, sign * 1e-300);
    EXPECT_EQ(std::signbit(soft_capped(sign * 0.0, 30).score), sign < 0);
    EXPECT_EQ(soft_capped(sign * 0.0, 30).slope, 1);
  }
  EXPECT_TRUE(std::isnan(soft_capped(kNaN, 30).score));
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
