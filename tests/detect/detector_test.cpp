#include "detect/detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace foreshock {
namespace {

TEST(Level, RisesAtOnceAndFallsAfterLowScores) {
  LevelRule rule;
  EXPECT_EQ(rule.observe(0.49, 0.5), Level::kQuiet);
  EXPECT_EQ(rule.observe(0.5, 0.5), Level::kWatch);
  EXPECT_EQ(rule.observe(1, 0.5), Level::kWarn);
  for (int n = 1; n < LevelRule::kCalm; ++n) EXPECT_EQ(rule.observe(0.6, 0.5), Level::kWarn);
  EXPECT_EQ(rule.observe(0.6, 0.5), Level::kWatch);
  for (int n = 1; n < LevelRule::kCalm; ++n) EXPECT_EQ(rule.observe(0, 0.5), Level::kWatch);
  EXPECT_EQ(rule.observe(0, 0.5), Level::kQuiet);
}

TEST(Level, AScoreAroundTheThresholdIsOneEvent) {
  LevelRule rule;
  rule.observe(1.1, 0.5);
  for (int n = 0; n < 1000; ++n) EXPECT_EQ(rule.observe(n % 8 == 7 ? 1.1 : 0.1, 0.5), Level::kWarn);
}

TEST(Baseline, FirstValuesGiveThePlainMeanAndSpread) {
  Baseline baseline;
  for (double x : {3.0, 5.0, 10.0}) baseline.add(x, 100, 50);
  EXPECT_NEAR(baseline.mean(), 6, 1e-15);
  EXPECT_NEAR(baseline.std(), std::sqrt((9 + 1 + 16) / 2.0), 1e-14);  // n - 1
}

TEST(Baseline, LaterValuesGiveAWeightedMean) {
  constexpr double kMemory = 8;
  Baseline baseline;
  std::vector<double> weights, values;
  for (int n = 1; n <= 100; ++n) {
    const double x = std::sin(n), share = 1 / std::min<double>(n, kMemory);
    baseline.add(x, kMemory, 1000);
    for (double& weight : weights) weight *= 1 - share;
    weights.push_back(share);
    values.push_back(x);
  }
  double mean = 0, variance = 0;
  for (size_t n = 0; n < values.size(); ++n) mean += weights[n] * values[n];
  for (size_t n = 0; n < values.size(); ++n) variance += weights[n] * std::pow(values[n] - mean, 2);
  EXPECT_NEAR(baseline.mean(), mean, 1e-14);
  EXPECT_NEAR(baseline.std(), std::sqrt(variance * 100 / 99), 1e-14);
}

TEST(Baseline, OneOutlierDoesNotChangeIt) {
  Baseline baseline;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 1);
  for (int n = 0; n < 200; ++n) baseline.add(draw(engine), 128, 64);
  const double before = baseline.std();
  baseline.add(1e9, 128, 64);
  EXPECT_LE(std::fabs(baseline.mean()), 1);
  // Variance grows by at most weight * clip^2 = 16 / 128 of itself.
  EXPECT_LE(baseline.std(), before * std::sqrt(1 + 16.0 / 128) * (1 + 1e-12));
}

TEST(Baseline, LearnsALastingNewLevel) {
  Baseline baseline;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 1e-3);
  for (int n = 0; n < 500; ++n) baseline.add(draw(engine), 128, 64);
  // A million spreads away. The spread grows by 15/256 each, so ln(1e6) / (15/256) = 236 values, then a few
  // memories.
  for (int n = 0; n < 1500; ++n) baseline.add(1000 + draw(engine), 128, 64);
  EXPECT_NEAR(baseline.mean(), 1000, 10);
}

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
TEST(Cusum, FalseAlarmRateMatchesSiegmund) {
  for (double threshold : {3.0, 4.0, 5.0}) {
    const int runs = 4000;
    const double expected = cusum_run_length(0.5, threshold);
    EXPECT_NEAR(simulated_run_length(threshold, 0, runs) / expected, 1, 4 / std::sqrt(runs) + 0.03)
        << threshold;
  }
}

TEST(Cusum, RunLengthsMatchTheLiterature) {
  // Two sides: half of it; table of science: h = 5, 8, 13, 18.
  EXPECT_NEAR(cusum_run_length(0.5, 5) / 2, 470, 10);
  EXPECT_NEAR(cusum_run_length(0.5, 8) / 2, 9.6e3, 100);
  EXPECT_NEAR(cusum_run_length(0.5, 18) / 2, 2.1e8, 1e7);
}

// Siegmund's formula for a drift of d = 1 - 0.5 a value: (exp(-2 d b) + 2 d b - 1) / (2 d^2), b = 18 + 1.166.
// The delay has a spread of sqrt(b / d^3) = 12, its mean of 2000 runs one of 0.28; four of them, and 1 % for
// the formula.
TEST(Cusum, FindsAShiftAfterTheExpectedTime) {
  const double b = 18 + 1.166;
  EXPECT_NEAR(simulated_run_length(18, 1, 2000), (std::exp(-b) + b - 1) / 0.5, 4 * 0.28 + 0.4);
}

TEST(Cusum, IsCappedAndFallsAfterTheShift) {
  Cusum sum;
  for (int n = 0; n < 1000; ++n) sum.add(4, 0.5, 36, 2);
  EXPECT_EQ(sum.sum(), 36);
  EXPECT_EQ(sum.mean(), 2);
  for (int n = 0; n < 72; ++n) sum.add(0, 0.5, 36, 0);
  EXPECT_EQ(sum.sum(), 0);
  EXPECT_EQ(sum.mean(), 0);
}

constexpr const DetectorInfo& kBias = info_of(DetectorId::kBias);
constexpr const DetectorInfo& kDrift = info_of(DetectorId::kOutputErrorDrift);

// The first value that warns; -1: none of `count`.
int first_warning(const DetectorInfo& info, int count,
                  const std::function<std::pair<double, double>(int)>& value) {
  Drift drift;
  for (int n = 0; n < count; ++n) {
    const auto [kernel, control] = value(n);
    if (drift.observe(info, kernel, control) >= 1) return n;
  }
  return -1;
}

// The spread is learned from 32 values, with an error of 1/8 at first. Were it too small by a third for good,
// the slack would be 1/3 and the threshold 12 of true spreads: 1 alarm in 7e4 on two sides
// (cusum_run_length). It is learned on, and heals within a hundred values; of 200 streams of 1000 values none
// may warn.
TEST(Drift, AHealthySeriesOfUnknownSpreadIsQuiet) {
  for (int stream = 0; stream < 200; ++stream) {
    std::mt19937_64 engine(static_cast<uint64_t>(stream));
    std::normal_distribution<double> draw(0, std::pow(10, stream % 9 - 4));
    EXPECT_EQ(first_warning(kDrift, 1000, [&](int) { return std::pair(draw(engine), 0.0); }), -1) << stream;
  }
}

// A spread that falls by a factor of ten over the run, as that of gradients does, and values with heavy
// tails.
TEST(Drift, AChangingSpreadAndHeavyTailsAreQuiet) {
  for (uint64_t stream = 0; stream < 50; ++stream) {
    std::mt19937_64 engine(stream);
    std::student_t_distribution<double> draw(3);
    const auto value = [&](int n) { return std::pair(draw(engine) * std::pow(10, -n / 2000.0), 0.0); };
    EXPECT_EQ(first_warning(kDrift, 2000, value), -1) << stream;
  }
}

// As when a bias that has nothing to do with the gradient makes the products larger, of either sign.
TEST(Drift, TenfoldNoiseIsQuiet) {
  for (uint64_t stream = 0; stream < 200; ++stream) {
    std::mt19937_64 engine(stream);
    std::normal_distribution<double> draw(0, 1);
    const auto value = [&](int n) { return std::pair((n >= 200 ? 10 : 1) * draw(engine), 0.0); };
    EXPECT_EQ(first_warning(kDrift, 600, value), -1) << stream;
  }
}

// A quarter ulp over a noise of 0.03 is 8 spreads, clipped to 4: (18 / 3.5 = 5.1) six values.
TEST(Drift, FindsAQuarterUlpSixSlicesAfterLearning) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 0.03);
  const auto from_the_start = [&](int) { return std::pair(0.25 + draw(engine), 0.0); };
  EXPECT_EQ(first_warning(kBias, 200, from_the_start), 32 + 5);
  const auto later = [&](int n) { return std::pair((n >= 100 ? -0.25 : 0) + draw(engine), 0.0); };
  const int found = first_warning(kBias, 200, later);
  // A jump of d adds d^2 / 8 to the recent variance until the mean has followed: z is about 3 then.
  EXPECT_GE(found, 105);
  EXPECT_LE(found, 112);
}

// 0.02 ulp lasts long enough to be certain, and is below what the alarm is about.
TEST(Drift, ACertainButSmallBiasDoesNotWarn) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0.02, 0.01);
  EXPECT_EQ(first_warning(kBias, 2000, [&](int) { return std::pair(draw(engine), 0.0); }), -1);
}

TEST(Drift, ABiasOfTheRoundedReferenceIsQuiet) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(0, 0.03);
  const auto both = [&](int) { return std::pair(0.25 + draw(engine), 0.25 + draw(engine)); };
  EXPECT_EQ(first_warning(kBias, 1000, both), -1);
}

TEST(Drift, AConstantSeriesIsQuiet) {
  EXPECT_EQ(first_warning(kDrift, 1000, [](int) { return std::pair(1.0, 0.0); }), -1);
}

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

TEST(Shift, FindsAJumpInItsDirectionOnly) {
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

TEST(Shift, IsQuietWhileLearning) {
  EXPECT_EQ(first_warning(DetectorId::kGradientNorm, 64, [](int n) { return n % 2 == 0 ? 1e-9 : 1e9; }), -1);
}

TEST(Shift, ZeroAndNegativeValuesCountAsTheSmallest) {
  Shift shift;
  for (int n = 0; n < 100; ++n)
    EXPECT_TRUE(std::isfinite(shift.observe(info_of(DetectorId::kEntropyDrop), -n)));
}

// An alarm that feeds its own baseline must end, though the level stays.
TEST(Shift, LearnsANewLevel) {
  Shift shift;
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> draw(0, 0.1);
  for (int n = 0; n < 300; ++n) shift.observe(info_of(DetectorId::kGradientNorm), draw(engine));
  double last = 2;
  for (int n = 0; n < 600; ++n) last = shift.observe(info_of(DetectorId::kGradientNorm), 10 * draw(engine));
  EXPECT_LT(last, 0.5);
}

TEST(Limit, IsTheSecondLargestOfTheLastValues) {
  for (DetectorId id : {DetectorId::kMaxLogit, DetectorId::kDeviationForward}) {
    const DetectorInfo& info = info_of(id);
    std::mt19937_64 engine(1);
    std::uniform_real_distribution<double> draw(0, 300);
    Limit limit;
    std::vector<double> values;
    for (int n = 0; n < 300; ++n) {
      values.push_back(draw(engine));
      const double score = limit.observe(info, values.back());
      std::vector<double> last(values.end() - std::min<int64_t>(n + 1, static_cast<int64_t>(info.learning)),
                               values.end());
      std::sort(last.rbegin(), last.rend());
      EXPECT_EQ(score, last.size() < 2 ? 0 : last[1] / info.warn);
    }
  }
}

TEST(Limit, OneSliceBeyondDoesNotWarn) {
  Limit limit;
  const DetectorInfo& info = info_of(DetectorId::kDeviationForward);
  double most = 0;
  for (int n = 0; n < 200; ++n) most = std::max(most, limit.observe(info, n == 100 ? 50 : 0.9));
  EXPECT_LT(most, 0.5);
}

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

TEST(Growth, ForecastsLogitsThatReachTheLimit) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> noise(0, 1);
  const auto at = [&](double slope) { return [&, slope](int n) { return 30 + slope * n + noise(engine); }; };
  EXPECT_GE(last_score(DetectorId::kLogitGrowth, 100, at(0.6)), 1);     // at 90, 17 steps away
  EXPECT_LT(last_score(DetectorId::kLogitGrowth, 100, at(0.05)), 0.5);  // at 35: hundreds of steps
  EXPECT_LT(last_score(DetectorId::kLogitGrowth, 100, at(0)), 0.5);
  EXPECT_EQ(last_score(DetectorId::kLogitGrowth, 100, at(-0.2)), 0);
}

// From far below its own mean square, as before a spike of Adam; and what grows from above it is no secret.
TEST(Growth, FindsAGrowingGradientUnderNoise) {
  std::mt19937_64 engine(1);
  std::lognormal_distribution<double> noise(0, 0.05);
  const auto quiet = [&](int n) { return n < 300 ? noise(engine) : 1e-4 * noise(engine); };
  EXPECT_LT(last_score(DetectorId::kGradientGrowth, 400, quiet), 0.5);
  const auto grows = [&](int n) { return quiet(n) * std::exp(0.12 * std::max(n - 340, 0)); };
  EXPECT_GE(last_score(DetectorId::kGradientGrowth, 400, grows), 1);  // e^7.2 of 1e-4: still below
  const auto open = [&](int n) { return noise(engine) * std::exp(0.12 * std::max(n - 340, 0)); };
  EXPECT_EQ(last_score(DetectorId::kGradientGrowth, 400, open), 0);
}

TEST(Growth, AcceptsStepNumbersOfAnySize) {
  Growth growth;
  for (int64_t step : {INT64_MIN, INT64_MAX, int64_t{0}, INT64_MAX, INT64_MIN, int64_t{5}})
    for (int n = 0; n < 20; ++n)
      EXPECT_TRUE(std::isfinite(growth.observe(info_of(DetectorId::kLogitGrowth), step, n)));
}

TEST(DetectorTable, IsInOrderAndItsNamesDiffer) {
  std::set<std::string> names;
  for (size_t n = 0; n < kDetectors; ++n) {
    const DetectorInfo& info = kDetectorTable[n];
    EXPECT_EQ(static_cast<size_t>(info.id), n);
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_GT(info.warn, 0) << info.name;
    EXPECT_GT(info.watch, 0) << info.name;
    EXPECT_LE(info.watch, 1) << info.name;
    const bool is_limit = info.look == Look::kLimit;
    EXPECT_TRUE(is_limit ? info.learning <= 64 : info.memory > 2) << info.name;
  }
}

TEST(Detector, IgnoresNonFiniteValues) {
  for (const DetectorInfo& info : kDetectorTable) {
    Detector with(info.id), without(info.id);
    std::mt19937_64 engine(1);
    std::lognormal_distribution<double> draw(0, 1);
    for (int n = 0; n < 500; ++n) {
      const double x = draw(engine) * (n > 300 ? 30 : 1);
      for (double bad : {NAN, INFINITY, -INFINITY}) EXPECT_EQ(with.observe(n, bad).score, 0);
      EXPECT_EQ(with.observe(n, x, NAN).score, 0);
      const Reading a = with.observe(n, x), b = without.observe(n, x);
      EXPECT_EQ(a.score, b.score) << info.name;
      EXPECT_EQ(a.level, b.level) << info.name;
    }
  }
}

// The values of doubles at the ends of their range, in any order.
TEST(Detector, FiniteValuesGiveFiniteScores) {
  const double values[] = {0, -0.0, 1e308, -1e308, 5e-324, 1, -1, 1e154, -1e154};
  for (const DetectorInfo& info : kDetectorTable) {
    Detector detector(info.id);
    std::mt19937_64 engine(1);
    for (int n = 0; n < 5000; ++n) {
      const Reading reading =
          detector.observe(static_cast<int64_t>(engine()), values[engine() % std::size(values)]);
      EXPECT_GE(reading.score, 0) << info.name;  // false for NaN
    }
  }
}

TEST(Detector, ARestoredDetectorContinuesUnchanged) {
  for (const DetectorInfo& info : kDetectorTable) {
    Detector whole(info.id), part(info.id);
    std::mt19937_64 engine(1);
    std::lognormal_distribution<double> draw(0, 1);
    for (int n = 0; n < 400; ++n) {
      const double x = draw(engine) * (n > 250 ? 20 : 1);
      if (n % 37 == 0) {
        StateWriter writer;
        part.fields(writer);
        StateReader reader(writer.bytes());
        Detector again(info.id);
        again.fields(reader);
        ASSERT_TRUE(reader.good() && reader.at_end());
        part = again;
      }
      const Reading a = whole.observe(n, x), b = part.observe(n, x);
      EXPECT_EQ(a.score, b.score) << info.name << n;
      EXPECT_EQ(a.level, b.level) << info.name << n;
    }
  }
}

}  // namespace
}  // namespace foreshock
