#include <gtest/gtest.h>

#include <set>
#include <string>

#include "agent/detection.h"
#include "cli/report_text.h"

namespace foreshock::cli {
namespace {

void expect_whole(const ReportText& text, const std::string& of) {
  EXPECT_NE(std::string(text.plain), "") << of;
  for (const std::string sentence : {text.consistent_with, text.not_excluded, text.to_try}) {
    EXPECT_GT(sentence.size(), 20u) << of;
    EXPECT_TRUE(sentence.ends_with('.')) << of << ": " << sentence;
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(sentence[0]))) << of << ": " << sentence;
  }
}

TEST(ReportTexts, EveryDetectorHasItsOwnAndIsFoundByItsName) {
  std::set<std::string> plain;
  for (const DetectorInfo& info : kDetectorTable) {
    expect_whole(text_of(info.id), info.name);
    EXPECT_NE(std::string(why_without_values(info.id)), "") << info.name;
    EXPECT_EQ(detector_of(info.name), info.id);
    plain.insert(text_of(info.id).plain);
  }
  EXPECT_EQ(plain.size(), kDetectors) << "rows out of order";
  EXPECT_EQ(detector_of("nothing"), std::nullopt);
  EXPECT_EQ(std::string(text_of(DetectorId::kGradientGrowth).plain), "the gradient norm grew steadily");
  EXPECT_EQ(std::string(text_of(DetectorId::kWeightShift).plain), "weights moved faster than they used to");
}

TEST(ReportTexts, EveryKindAndEveryClueHasIts) {
  for (int kind = 0; kind < kWatchEventKinds; ++kind)
    expect_whole(text_of(static_cast<WatchEventKind>(kind)), name_of(static_cast<WatchEventKind>(kind)));
  for (int clue = 0; clue < kClues; ++clue)
    expect_whole(text_of(static_cast<Clue>(clue)), "clue " + std::to_string(clue));
  EXPECT_EQ(std::string(text_of(Clue::kMonitorGap).plain), "steps before it were not seen");
}

// The figures come from the results of the benchmark, not from here.
TEST(ReportTexts, WhatWasMeasuredIsSaid) {
  const Measured* measured = measured_of("gradient_growth");
  ASSERT_NE(measured, nullptr)
      << "bench/precursors/results.json has another shape than cmake/measured.cmake reads";
  EXPECT_GT(measured->events, 0);
  EXPECT_LE(measured->hits, measured->events);
  EXPECT_LE(measured->right, measured->alarms);
  EXPECT_TRUE(measured->is_proven());
  EXPECT_FALSE(measured_of("logit_growth")->is_proven());
  EXPECT_EQ(measured_of("of nobody"), nullptr);
  const Measured silent = {9, 0, 0, 0, NAN, NAN, 0, false};
  EXPECT_EQ(how_sure(nullptr), "Experimental: the benchmark has no figure for it.");
  EXPECT_EQ(how_sure(&silent), "Experimental. In the benchmark it warned before none of 9 loss events.");
  const Measured good = {80, 60, 70, 63, 7.91, 9, 0, true};
  EXPECT_EQ(
      how_sure(&good),
      "In the benchmark it warned before 60 of 80 loss events; 63 of its 70 warnings were followed by one, "
      "7.9 times what chance gives.");
  Measured unsure = good;
  unsure.proven = false;
  EXPECT_TRUE(how_sure(&unsure).starts_with("Experimental. "));
}

}  // namespace
}  // namespace foreshock::cli
