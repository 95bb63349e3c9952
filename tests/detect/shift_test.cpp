#include "detect/shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace foreshock {
namespace {

int first_warning(DetectorId id, int count, const std::function<double(int)>& value) {
  Shift shift;
  for (int n = 0; n < count; ++n)
    if (shift.observe(info_of(id), value(n)) >= 1) return n;
  return -1;
}

// A normal logarithm: 6 standard errors are 1e-9 a value.
TEST(Shift, AHealthySeriesIsQuiet) {
  for (uint64_t stream = 0; stream < 100; ++stream) {
    std::mt19937_64 engine(stream);
    std::lognormal_distribution<double> draw(0, 0.3);
    const auto falling = [&](int n) { return 10 * draw(engine) * std::exp(-n / 1000.0); };
    EXPECT_EQ(first_warning(DetectorId::kGradientNorm, 2000, falling), -1) << stream;
    EXPECT_EQ(first_warning(DetectorId::kEntropyDrop, 2000, falling), -1) << stream;
  }
}

TEST(Shift, AJumpIsFoundInItsDirectionOnly) {
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> draw(0, 0.1);
  const auto up = [&](int n) { return (n >= 300 ? 4 : 1) * draw(engine); };
  const auto down = [&](int n) { return (n >= 300 ? 0.25 : 1) * draw(engine); };
  EXPECT_NEAR(first_warning(DetectorId::kGradientNorm, 600, up), 300, 1);
  EXPECT_EQ(first_warning(DetectorId::kGradientNorm, 600, down), -1);
  EXPECT_NEAR(first_warning(DetectorId::kEntropyDrop, 600, down), 302, 2);
  EXPECT_EQ(first_warning(DetectorId::kEntropyDrop, 600, up), -1);
}

// 20 % is far beyond the noise of a series that hardly moves, and nothing to warn of.
TEST(Shift, ACertainButSmallJumpDoesNotWarn) {
  EXPECT_EQ(first_warning(DetectorId::kGradientNorm, 600, [](int n) { return n >= 300 ? 1.2 : 1.0; }), -1);
}

TEST(Shift, NothingIsSaidWhileItLearns) {
  EXPECT_EQ(first_warning(DetectorId::kGradientNorm, 64, [](int n) { return n % 2 == 0 ? 1e-9 : 1e9; }), -1);
}

TEST(Shift, ZeroAndNegativeValuesAreTheSmallest) {
  Shift shift;
  for (int n = 0; n < 100; ++n)
    EXPECT_TRUE(std::isfinite(shift.observe(info_of(DetectorId::kEntropyDrop), -n)));
}

// An alarm that feeds its own baseline must end, though the level stays.
TEST(Shift, ANewLevelBecomesUsual) {
  Shift shift;
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> draw(0, 0.1);
  for (int n = 0; n < 300; ++n) shift.observe(info_of(DetectorId::kGradientNorm), draw(engine));
  double last = 2;
  for (int n = 0; n < 600; ++n) last = shift.observe(info_of(DetectorId::kGradientNorm), 10 * draw(engine));
  EXPECT_LT(last, 0.5);
}

}  // namespace
}  // namespace foreshock
