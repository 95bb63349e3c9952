#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/report_text.h"
#include "tests/support/variations.h"
#include "told_run.h"

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;
using ReportJson = ToldRun;

TEST_F(ReportJson, ALongRunWithManyEventsStaysSmall) {
  FORESHOCK_SKIP_IF_SANITIZED();
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
  const Json report = Json::parse(report_json(builder_.finish()));
  const Json& attention = report["attention"];
  EXPECT_EQ(attention["first_step"], 4);
  EXPECT_EQ(attention["forward"], Json({2.5, nullptr, nullptr, nullptr, 2.5}));
  EXPECT_EQ(attention["layers"][0]["layer"], "003");
  EXPECT_EQ(attention["layers"][0]["error"], attention["forward"]);
  EXPECT_EQ(report["findings"][0]["tensor"], "out");
  EXPECT_EQ(report["verdict_from"], "report");
}

class ReportConditions : public ToldRun {
 protected:
  // A rate that is 0 from step 101 on, and a verdict of the agent if there is one.
  Report report_of(const std::string& verdict) {
    for (int64_t step = 1; step <= 200; ++step) {
      StepLine line = step_line(step, usual_loss(step));
      if (step > 100) line.learning_rate = 0;
      take(line);
    }
    VerdictLine line;
    line.run = "me";
    line.verdict = verdict;
    if (!verdict.empty()) take(line);
    return builder_.finish();
  }
  void skip_steps(double in_row) {
    EventLine event = event_line(kScalerSkips, 200);
    event.value = in_row;
    take(event);
  }
};

TEST_F(ReportConditions, OfASoundTrainingAreWorthALook) {
  const Report report = report_of("healthy");
  EXPECT_TRUE(report.verdict.starts_with("Healthy; 1 thing worth a look: ")) << report.verdict;
  const Json conditions = Json::parse(report_json(report))["conditions"];
  ASSERT_EQ(conditions.size(), 1u);
  EXPECT_EQ(conditions[0]["condition"], "rate_zero");
  EXPECT_EQ(conditions[0]["kind"], "look");
  EXPECT_EQ(conditions[0]["since_step"], 101);
  EXPECT_EQ(conditions[0]["text"],
            "the learning rate of the first parameter group is 0 since step 101 (largest before: 0.0003)");
  EXPECT_NE(report_markdown(report, {"run.jsonl"})
                .find("Worth a look:\n- the learning rate of the first parameter group is 0 since step 101 "
                      "(largest before: 0.0003). Do: "),
            std::string::npos);
}

TEST_F(ReportConditions, ThatAreFaultsAreTheVerdictOfARecordWithoutFindings) {
  for (int64_t step = 1; step <= 200; ++step) take(step_line(step, usual_loss(step)));
  skip_steps(40);
  const Report report = builder_.finish();
  EXPECT_TRUE(
      report.verdict.starts_with("NO STEP IS TAKEN: no optimizer step is taken since step 201: the "
                                 "gradient scaler has skipped 40 in a row. Do: find the layer "))
      << report.verdict;
  EXPECT_EQ(Json::parse(report_json(report))["conditions"][0]["kind"], "fault");
}

TEST_F(ReportConditions, OfARecordWithAFindingAreListedBesideIt) {
  FindingLine finding;
  finding.run = "me";
  finding.finding = "loss_rise";
  finding.headline = "LOSS RISES";
  finding.state = "final";
  finding.text = "the loss rises";
  take(finding);
  const Report report = report_of("LOSS RISES");
  EXPECT_TRUE(report.verdict.starts_with("LOSS RISES: ")) << report.verdict;
  EXPECT_EQ(report.conditions.size(), 1u);
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
