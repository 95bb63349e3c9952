#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/report_text.h"
#include "told_run.h"

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;
using ReportJson = ToldRun;

TEST_F(ReportJson, ALongRunWithManyEventsStaysSmall) {
  constexpr int64_t kSteps = 100'000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    StepLine line =
        step_line(step, step % 1000 < 3 && step > 1000 ? 9.0 + static_cast<double>(step) : usual_loss(step));
    line.gradient_norm = 1 + 1e-3 * std::cos(static_cast<double>(step));
    take(line);
  }
  const std::string json = report_json(builder_.finish());
  const Json report = Json::parse(json);
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["loss_events"].size(), 98u) << "from step 2000 on, one in 1000";
  EXPECT_LE(report["timeline"]["loss"].size(), 1024u);
  EXPECT_LE(report["loss_events"][0]["loss"].size(), 162u) << "two a stretch, and the last";
  EXPECT_LT(report_page(json).size(), 2'000'000u);
}

TEST_F(ReportJson, ThinningKeepsWhatSticksOut) {
  steps(1, 300);
  spike(301);
  const Json report = Json::parse(report_json(builder_.finish()));
  double highest = 0;
  for (const Json& point : report["loss_events"][0]["loss"])
    highest = std::max(highest, point[1].get<double>());
  EXPECT_EQ(highest, 9);
}

TEST_F(ReportJson, AttentionHasItsCurveAndItsLayers) {
  steps(1, 10);
  for (const int64_t step : {4, 8}) {
    SampleLine line = sample_line(step, "003");
    line.fused_ratio = 5;
    take(line);
  }
  const Json attention = Json::parse(report_json(builder_.finish()))["attention"];
  EXPECT_EQ(attention["first_step"], 4);
  EXPECT_EQ(attention["forward"], Json({2.5, nullptr, nullptr, nullptr, 2.5}));
  EXPECT_EQ(attention["layers"][0]["layer"], "003");
  EXPECT_EQ(attention["layers"][0]["error"], attention["forward"]);
  EXPECT_EQ(attention["faults"][0]["tensor"], "out");
  EXPECT_EQ(attention["faults"][0]["beyond"], 2);
}

TEST_F(ReportJson, WhatIsNoNumberIsNullAndBytesBecomeText) {
  steps(1, 200);
  take(level_line("bias", "warn", 200, "\xff\xfe" + std::string(100'000, 'x')));
  for (int64_t step = 201; step <= 206; ++step) take(step_line(step, NAN));
  take(event_line("divergence", 201));
  const Json report = Json::parse(report_json(builder_.finish()));
  const Json& event = report["loss_events"][0];
  EXPECT_TRUE(event["loss"].back()[1].is_null());
  EXPECT_LT(event["before"][0]["layer"].get<std::string>().size(), 500u);
  EXPECT_TRUE(event["gradient_norm"].empty());
}

}  // namespace
}  // namespace foreshock::cli
