#include "detect/detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>

namespace foreshock {
namespace {

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

TEST(Detector, WhatIsNotFiniteChangesNothing) {
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
TEST(Detector, NoFiniteValueMakesTheScoreAnythingButANumber) {
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

TEST(Detector, ARestoredOneGoesOnAsIfNothingHadHappened) {
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
