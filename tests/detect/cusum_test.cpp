#include "detect/cusum.h"

#include <gtest/gtest.h>

#include <random>

namespace foreshock {
namespace {

// Mean of `runs` run lengths. They are about exponential, so its standard error is mean / sqrt(runs).
double simulated_run_length(double threshold, double shift, int runs) {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> draw(shift, 1);
  double total = 0;
  for (int run = 0; run < runs; ++run) {
    Cusum sum;
    do {
      const double z = draw(engine);
      sum.add(z, 0.5, 1e9, z);
      total += 1;
    } while (sum.sum() < threshold);
  }
  return total / runs;
}

// Four standard errors, and 3 % for the formula itself (its own error at these thresholds: 1 to 2 %).
TEST(Cusum, FalseAlarmsComeAsOftenAsSiegmundSays) {
  for (double threshold : {3.0, 4.0, 5.0}) {
    const int runs = 4000;
    const double expected = cusum_run_length(0.5, threshold);
    EXPECT_NEAR(simulated_run_length(threshold, 0, runs) / expected, 1, 4 / std::sqrt(runs) + 0.03)
        << threshold;
  }
}

TEST(Cusum, RunLengthsOfTheLiterature) {
  // Two sides: half of it; table of science: h = 5, 8, 13, 18.
  EXPECT_NEAR(cusum_run_length(0.5, 5) / 2, 470, 10);
  EXPECT_NEAR(cusum_run_length(0.5, 8) / 2, 9.6e3, 100);
  EXPECT_NEAR(cusum_run_length(0.5, 18) / 2, 2.1e8, 1e7);
}

// Siegmund's formula for a drift of d = 1 - 0.5 a value: (exp(-2 d b) + 2 d b - 1) / (2 d^2), b = 18 + 1.166.
// The delay has a spread of sqrt(b / d^3) = 12, its mean of 2000 runs one of 0.28; four of them, and 1 % for
// the formula.
TEST(Cusum, AShiftIsFoundWhenItShouldBe) {
  const double b = 18 + 1.166;
  EXPECT_NEAR(simulated_run_length(18, 1, 2000), (std::exp(-b) + b - 1) / 0.5, 4 * 0.28 + 0.4);
}

TEST(Cusum, HoldsAtItsCapAndForgetsWhenItIsOver) {
  Cusum sum;
  for (int n = 0; n < 1000; ++n) sum.add(4, 0.5, 36, 2);
  EXPECT_EQ(sum.sum(), 36);
  EXPECT_EQ(sum.mean(), 2);
  for (int n = 0; n < 72; ++n) sum.add(0, 0.5, 36, 0);
  EXPECT_EQ(sum.sum(), 0);
  EXPECT_EQ(sum.mean(), 0);
}

}  // namespace
}  // namespace foreshock
