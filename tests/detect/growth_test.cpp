#include "detect/growth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace foreshock {
namespace {

// The weighted least squares of the textbook, in one go.
TEST(Line, IsTheWeightedLeastSquaresLine) {
  constexpr double kMemory = 10;
  const double origin = 1e9;  // steps of a long run cost no digits
  std::mt19937_64 engine(1);
  std::normal_distribution<double> noise(0, 1);
  Line line;
  std::vector<double> x, y;
  for (int n = 0; n < 60; ++n) {
    x.push_back(3 * n);
    y.push_back(5 + 0.25 * x.back() + noise(engine));
    line.add(origin + x.back(), y.back(), kMemory);
  }
  double w = 0, mx = 0, my = 0, xx = 0, xy = 0, yy = 0;
  const auto weight = [&](size_t n) {
    return std::pow(1 - 1 / kMemory, static_cast<double>(x.size() - 1 - n));
  };
  for (size_t n = 0; n < x.size(); ++n) w += weight(n), mx += weight(n) * x[n], my += weight(n) * y[n];
  mx /= w, my /= w;
  for (size_t n = 0; n < x.size(); ++n) {
    xx += weight(n) * (x[n] - mx) * (x[n] - mx);
    xy += weight(n) * (x[n] - mx) * (y[n] - my);
    yy += weight(n) * (y[n] - my) * (y[n] - my);
  }
  EXPECT_NEAR(line.slope(), xy / xx, 1e-7);  // steps near 1e9 are exact, their running mean to 1e-7
  EXPECT_NEAR(line.at(origin + 200), my + xy / xx * (200 - mx), 1e-5);
  EXPECT_NEAR(line.t(), xy / xx / std::sqrt((yy - xy * xy / xx) / (w - 2) / xx), 1e-4);
}

double last_score(DetectorId id, int count, const std::function<double(int)>& value) {
  Growth growth;
  double score = 0;
  for (int n = 0; n < count; ++n) score = growth.observe(info_of(id), n, value(n));
  return score;
}

TEST(Growth, LogitsThatWillMeetTheLimitAreForecast) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> noise(0, 1);
  const auto at = [&](double slope) { return [&, slope](int n) { return 30 + slope * n + noise(engine); }; };
  EXPECT_GE(last_score(DetectorId::kLogitGrowth, 100, at(0.6)), 1);     // at 90, 17 steps away
  EXPECT_LT(last_score(DetectorId::kLogitGrowth, 100, at(0.05)), 0.5);  // at 35: hundreds of steps
  EXPECT_LT(last_score(DetectorId::kLogitGrowth, 100, at(0)), 0.5);
  EXPECT_EQ(last_score(DetectorId::kLogitGrowth, 100, at(-0.2)), 0);
}

// From far below its own mean square, as before a spike of Adam; and what grows from above it is no secret.
TEST(Growth, AHiddenGrowthOfTheGradientIsSeen) {
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> noise(0, 0.05);
  const auto quiet = [&](int n) { return n < 300 ? noise(engine) : 1e-4 * noise(engine); };
  EXPECT_LT(last_score(DetectorId::kGradientGrowth, 400, quiet), 0.5);
  const auto grows = [&](int n) { return quiet(n) * std::exp(0.12 * std::max(n - 340, 0)); };
  EXPECT_GE(last_score(DetectorId::kGradientGrowth, 400, grows), 1);  // e^7.2 of 1e-4: still below
  const auto open = [&](int n) { return noise(engine) * std::exp(0.12 * std::max(n - 340, 0)); };
  EXPECT_EQ(last_score(DetectorId::kGradientGrowth, 400, open), 0);
}

TEST(Growth, StepsOfAnySizeOverflowNothing) {
  Growth growth;
  for (int64_t step : {INT64_MIN, INT64_MAX, int64_t{0}, INT64_MAX, INT64_MIN, int64_t{5}})
    for (int n = 0; n < 20; ++n)
      EXPECT_TRUE(std::isfinite(growth.observe(info_of(DetectorId::kLogitGrowth), step, n)));
}

}  // namespace
}  // namespace foreshock
