#include "lab/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lab/study.h"

namespace foreshock::lab {
namespace {

std::vector<Point> small_points() {
  std::vector<Point> points;
  for (const char* algorithm : {"plain", "flash2_shipped", "winograd_f4", "cross_entropy_chunked"})
    for (const char* rounding : {"rne", "stochastic"}) {
      Point point;
      point.algorithm = algorithm;
      point.rounding = rounding;
      point.n = point.rows = 12;
      point.d = 8;
      points.push_back(point);
    }
  points[0].backward = true;
  points[1].accumulator = "hopper";
  return points;
}

std::string as_json(const std::vector<Measurement>& measurements) {
  return to_json(Study{{{"custom", nullptr, measurements, {}}}, 0});
}

TEST(Measure, ResultsDoNotDependOnThreads) {
  const std::vector<Point> points = small_points();
  const std::string one = as_json(measure(points, 1));
  EXPECT_EQ(as_json(measure(points, 2)), one);
  EXPECT_EQ(as_json(measure(points, 7)), one);
}

TEST(Measure, PlainHasRatioOneToItself) {
  Point point;
  point.n = 64;
  for (const Measurement& m : measure(std::vector{point}, 1)) {
    EXPECT_EQ(m.ratio_to_plain.mean, 1) << m.tensor;
    EXPECT_EQ(m.max_from_plain.mean, 0) << m.tensor;
  }
}

TEST(Measure, IntervalsHoldTheMeanAndShrinkWithSeeds) {
  Point point;
  point.n = 128;
  point.rows = 16;
  Point many = point;
  many.seeds = 64;
  const auto few = measure(std::vector{point}, 2), more = measure(std::vector{many}, 2);
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_LE(few[i].max_abs.low, few[i].max_abs.mean);
    EXPECT_LT(more[i].relative_l2.high - more[i].relative_l2.low,
              few[i].relative_l2.high - few[i].relative_l2.low);
  }
}

TEST(Measure, ProgressEndsAtOne) {
  double last = 0;
  measure(small_points(), 2, [&](double done) {
    EXPECT_GT(done, last);
    last = done;
  });
  EXPECT_EQ(last, 1);
}

TEST(Measure, RefusesInvalidPoints) {
  const auto refused = [](auto change) {
    Point point;
    change(point);
    return why_not(point);
  };
  EXPECT_EQ(why_not(Point{}), "");
  EXPECT_NE(refused([](Point& p) { p.block_k = 0; }), "");
  EXPECT_NE(refused([](Point& p) { p.block_q = -1; }), "");
  EXPECT_NE(refused([](Point& p) { p.d = 0; }), "");
  EXPECT_NE(refused([](Point& p) { p.seeds = 0; }), "");
  EXPECT_NE(refused([](Point& p) { p.format = "fp17"; }), "");
  EXPECT_NE(refused([](Point& p) { p.algorithm = "flash9"; }), "");
  EXPECT_NE(refused([](Point& p) { p.accumulator = "abacus"; }), "");
  EXPECT_NE(refused([](Point& p) { p.accumulator = "hopper_fp8"; }), "");  // of bf16 operands
  EXPECT_NE(refused([](Point& p) { p.format = "fp64", p.accumulator = "fp32"; }), "");
  EXPECT_NE(refused([](Point& p) { p.format = "e4m3", p.backward = true; }), "");
  EXPECT_NE(refused([](Point& p) { p.algorithm = "direct", p.n = 2; }), "");
  EXPECT_NE(refused([](Point& p) { p.input = "ties:2000"; }), "");
  EXPECT_NE(refused([](Point& p) { p.format = "fp64", p.rounding = "rtz"; }), "");
}

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

TEST(Deviation, CountsNonFiniteValuesAndNeverPasses) {
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
