#include <gtest/gtest.h>

#include <cmath>

#include "cli/report_model.h"

namespace foreshock::cli {
namespace {

WatchReading reading(const std::string& place, int64_t step, double value, double score) {
  return {DetectorId::kWeightShift, place, step, value, {Level::kQuiet, score}};
}

TEST(ReportSignals, OfTheTensorsOfALayerTheLoudestBeforeTheEvent) {
  Signals signals;
  for (int64_t step = 1; step <= 10; ++step) {
    signals.take("003", {reading("a", step, 1, 0.1)});
    signals.take("003", {reading("b", step, 2, step == 5 ? 0.9 : 0)});
    signals.take("003", {reading("c", step, 3, step == 9 ? 5 : 0)});  // after the event
    signals.take("004", {reading("d", step, 4, 7)});
  }
  signals.take("003", {reading("b", 6, NAN, 0)});
  const auto points = signals.around(DetectorId::kWeightShift, "003", 3, 6, 8);
  ASSERT_EQ(points.size(), 6u);
  EXPECT_EQ(points.front().step, 3);
  EXPECT_EQ(points.back().step, 8);
  EXPECT_EQ(points.back().value, 2);
  EXPECT_TRUE(signals.around(DetectorId::kBias, "003", 3, 6, 8).empty());
  EXPECT_TRUE(signals.around(DetectorId::kWeightShift, "003", 30, 60, 80).empty());
}

TEST(ReportSignals, LayersAreKnownAfterTheirPointsAreForgotten) {
  Signals signals;
  signals.take("003", {reading("a", 1, 1, 0)});
  signals.take("", {reading("b", 1, 1, 0)});
  signals.forget_points();
  EXPECT_EQ(signals.layers(), std::set<std::string>{"003"});
  EXPECT_TRUE(signals.layers(DetectorId::kBias).empty());
  EXPECT_TRUE(signals.around(DetectorId::kWeightShift, "003", 0, 9, 9).empty());
}

TEST(ReportSignals, TensorsLeaveRoomForLayers) {
  Signals signals;
  for (size_t n = 0; n < 2 * Signals::kMostSeries; ++n)
    signals.take("", {reading(std::to_string(n), 1, 1, 0)});
  signals.take("003", {{DetectorId::kBias, "003", 1, 2, {Level::kWarn, 1}}});
  EXPECT_EQ(signals.around(DetectorId::kBias, "003", 1, 1, 1).size(), 1u);
}

}  // namespace
}  // namespace foreshock::cli
