#include "cli/report_builder.h"

#include <gmock/gmock.h>

#include "cli/report_text.h"
#include "told_run.h"

namespace foreshock::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ReportBuilding = ToldRun;

TEST_F(ReportBuilding, ASpikeWithTwoDetectorsBeforeItInLayers) {
  for (const char* layer : {"000", "001", "002", "003"}) {
    steps(1, 0);
    take(step_line(1, 1.0));
    take(sample_line(1, layer));
  }
  steps(2, 280);
  take(level_line("bias", "watch", 280, "003"));
  steps(281, 290);
  take(level_line("bias", "warn", 290, "003"));
  steps(291, 295);
  take(level_line("max_logit", "watch", 295, "001"));
  steps(296, 300);
  for (int64_t step = 301; step <= 303; ++step) take(step_line(step, 9.0));
  take(event_line("loss_spike", 301));
  steps(304, 420);
  const Report report = builder_.finish();
  EXPECT_TRUE(report.from_record);
  ASSERT_THAT(report.events, SizeIs(1));
  const ReportEvent& event = report.events[0];
  EXPECT_EQ(event.title, "Loss spike at step 301");
  ASSERT_THAT(event.signs, SizeIs(2));
  EXPECT_EQ(event.signs[0].detector, DetectorId::kBias);
  EXPECT_EQ(event.signs[0].layer, "003");
  EXPECT_EQ(event.signs[0].since_step, 280);
  EXPECT_EQ(event.signs[0].warn_step, 290);
  EXPECT_EQ(event.signs[1].detector, DetectorId::kMaxLogit);
  EXPECT_EQ(event.signs[1].warn_step, -1);
  EXPECT_EQ(fact(event, "layers").text, "detectors spoke in 001, 003; the other 2 stayed quiet");
  EXPECT_THAT(event.consistent_with, Contains(text_of(DetectorId::kBias).consistent_with));
  EXPECT_THAT(event.to_try, Contains(text_of(DetectorId::kMaxLogit).to_try));
  EXPECT_THAT(report.verdict, StartsWith("LOSS SPIKE: loss spike at step 301. Do: "));
  EXPECT_EQ(first_sign_of(event), "attention's output is biased in layer 003, 21 steps before");
  EXPECT_EQ(event.text,
            "The loss was 1 on average in the steps just before and rose to 9 at step 301. It was back 3 "
            "steps after "
            "the onset.");
}

// The agent's own events, and those that the detectors find in the record.
TEST_F(ReportBuilding, ADivergenceByItsLearningRateIsOneIncidentAndNamesItFirst) {
  for (const bool recorded : {true, false}) {
    ReportBuilder builder;
    for (int64_t step = 1; step <= 400; ++step) {
      StepLine line = step_line(step, step < 222 ? usual_loss(step) : 9.0);
      line.learning_rate = step < 221 ? 1e-3 : 1.0;
      builder.take(line);
      if (recorded && step == 224) builder.take(event_line("loss_spike", 222));
      if (recorded && step == 349) builder.take(event_line("divergence", 222));
    }
    const Report report = builder.finish();
    ASSERT_THAT(report.events, SizeIs(1));
    EXPECT_THAT(report.verdict,
                StartsWith("LOSS DIVERGED: loss diverged at step 222, one step after the learning rate went "
                           "from 0.001 to 1. Do: "));
    EXPECT_EQ(report.from_record, recorded);
    if (recorded) {
      EXPECT_THAT(report.events_note, HasSubstr("the detectors warn as often (0)."));
    }
  }
}

TEST_F(ReportBuilding, OfSeveralEventsTheFirstIsNamedWithItsSuspect) {
  for (int64_t step = 1; step <= 600; ++step) {
    const bool high = (step >= 222 && step < 226) || (step >= 500 && step < 504);
    StepLine line = step_line(step, high ? 9.0 : usual_loss(step));
    line.learning_rate = step >= 220 && step < 300 ? 0.1 : 1e-3;
    take(line);
  }
  EXPECT_THAT(
      builder_.finish().verdict,
      AllOf(StartsWith("LOSS SPIKE: loss spike at step 222, 2 steps after the learning rate went from "
                       "0.001 to 0.1. Do: "),
            EndsWith(" There is one more finding.")));
}

TEST_F(ReportBuilding, ASpikeThatNothingForetoldIsFoundByTheDetectors) {
  steps(1, 300);
  spike(301);
  const Report report = builder_.finish();
  EXPECT_FALSE(report.from_record);
  EXPECT_THAT(report.events_note, HasSubstr("run over it now"));
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_EQ(report.events[0].onset_step, 301);
  EXPECT_THAT(report.events[0].signs, IsEmpty());
  EXPECT_THAT(report.events[0].consistent_with, Contains(text_of(Clue::kNothingBefore).consistent_with));
  EXPECT_THAT(report.verdict, StartsWith("LOSS SPIKE: loss spike at step 301. Do: "));
  EXPECT_EQ(report.events[0].steps.front().step, 301 - ReportEvent::kBefore);
  EXPECT_EQ(report.events[0].steps.back().step, 301 + ReportEvent::kAfter);
}

FindingLine finding_line(const std::string& name, const std::string& headline, int64_t since,
                         const std::string& text, const std::string& state = "final") {
  FindingLine line;
  line.run = "me";
  line.state = state;
  line.finding = name;
  line.headline = headline;
  line.text = text;
  line.action = "look";
  line.since_step = since;
  return line;
}

VerdictLine verdict_line(const std::string& verdict) {
  VerdictLine line;
  line.run = "me";
  line.verdict = verdict;
  line.replicas_compared = 34;
  return line;
}

TEST_F(ReportBuilding, AVerdictOfALookThatIsNotFoundIsPrintedAsItIs) {
  steps(1, 10);
  take(verdict_line("healthy; 1 thing worth a look"));
  const Report report = builder_.finish();
  EXPECT_THAT(report.conditions, IsEmpty());
  EXPECT_TRUE(report.verdict.starts_with("Healthy; 1 thing worth a look. ")) << report.verdict;
}

TEST_F(ReportBuilding, TheVerdictIsThatOfTheAgent) {
  steps(1, 300);
  spike(301);
  TensorLine tensor;
  tensor.run = "me";
  tensor.step = 5;
  take(tensor);
  take(finding_line("loss_spike", "LOSS SPIKE", 301, "loss spike at step 301", "began"));
  take(finding_line("replicas_differ", "REPLICAS DIFFER", 5, "rank 1: weights differ (1 time)", "began"));
  take(finding_line("replicas_differ", "REPLICAS DIFFER", 5, "rank 1: weights differ (2 times)"));
  take(finding_line("divergence", "LOSS DIVERGED", 301, "loss diverged at step 301"));
  take(verdict_line("REPLICAS DIFFER"));
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict,
            "REPLICAS DIFFER: rank 1: weights differ (2 times). Do: look. There is one more finding.");
  ASSERT_THAT(report.findings, SizeIs(2)) << "the spike became the divergence";
  EXPECT_EQ(report.findings[1].text, "loss diverged at step 301");
  for (const ReportFact& fact : report.coverage) {
    if (fact.name == "weights") {
      EXPECT_THAT(fact.text, HasSubstr("34 compared between replicas"));
    }
  }
}

TEST_F(ReportBuilding, AVerdictWithoutAFindingIsRepeated) {
  steps(1, 10);
  take(verdict_line("healthy"));
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict, "Healthy. No loss event in 10 steps, and no detector warned.");
  EXPECT_THAT(report.notes, IsEmpty());
  EXPECT_TRUE(report.is_healthy);
}

TEST_F(ReportBuilding, ALayerThatWasNotCheckedIsNamedAndTheRunIsNotCalledHealthy) {
  steps(1, 10);
  VerdictLine line = verdict_line("PARTLY CHECKED");
  line.gap = "layer 001: dQ not judged; foreshock did not see its backward pass. Do: add foreshock.tap";
  take(line);
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict,
            "PARTLY CHECKED: " + line.gap + ". No loss event in 10 steps, and no detector warned.");
  EXPECT_FALSE(report.is_healthy);
}

TEST_F(ReportBuilding, ATrainingThatFailedIsHealthyOnlyUntilThen) {
  steps(1, 10);
  VerdictLine line = verdict_line("healthy");
  line.state = "failed";
  take(line);
  const Report report = builder_.finish();
  EXPECT_THAT(report.verdict, StartsWith("Healthy until it failed. "));
  EXPECT_FALSE(report.is_healthy);
}

TEST_F(ReportBuilding, ARecordWithoutAVerdictIsNotCalledHealthy) {
  steps(1, 10);
  EXPECT_FALSE(builder_.finish().is_healthy);
}

TEST_F(ReportBuilding, WarningsOfExperimentalDetectorsAreOnlyCounted) {
  steps(1, 150);
  take(level_line("entropy_drop", "warn", 150, "001"));
  take(verdict_line("healthy"));
  EXPECT_EQ(builder_.finish().verdict,
            "Healthy. No loss event in 150 steps; only experimental detectors warned (1 time).");
}

SampleLine slice(int64_t step, const std::string& layer, double ratio) {
  SampleLine line = sample_line(step, layer);
  line.tensor = "out";
  line.fused_ratio = ratio;
  return line;
}

TEST_F(ReportBuilding, AnAttentionFaultIsInTheVerdictWithItsCurveAndItsLayer) {
  for (int64_t step = 1; step <= 100; ++step) {
    take(step_line(step, usual_loss(step)));
    if (step % 4 != 0) continue;
    take(slice(step, "001", 0.8));
    take(slice(step, "002", step < 64 ? 0.8 : step == 80 ? 24 : 10));
  }
  const Report report = builder_.finish();
  EXPECT_THAT(report.verdict,
              StartsWith("ATTENTION FAULT: layer 002: the output is wrong by up to 24x the error of fused "
                         "attention since step 64 (sound at 60). Do: "))
      << "the first slice beyond the limit";
  EXPECT_EQ(report.attention_text,
            "The largest error was 12 of the alarm limit, of attention's output in layer 002 at step 80.");
  ASSERT_THAT(report.findings, SizeIs(1));
  const auto at = [](const HistoryTable& table, int64_t step) {
    return table.columns[0].second.at(static_cast<size_t>((step - table.first_step) / table.steps_per_point));
  };
  EXPECT_FLOAT_EQ(at(report.attention, 60), 0.4f);
  EXPECT_FLOAT_EQ(at(report.attention, 80), 12);
  ASSERT_THAT(report.attention_layers, SizeIs(2));
  EXPECT_EQ(report.attention_layers[1].layer, "002");
  EXPECT_FLOAT_EQ(at(report.attention_layers[0], 80), 0.4f);
  EXPECT_FLOAT_EQ(at(report.attention_layers[1], 80), 12);
}

TEST_F(ReportBuilding, ASingleSliceBeyondTheLimitIsNoFault) {
  steps(1, 10);
  take(slice(8, "001", 0.8));
  take(slice(9, "002", 3));
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict, "No loss event in 10 steps, and no detector warned.");
  EXPECT_EQ(report.attention_text,
            "The largest error was 1.5 of the alarm limit, of attention's output in layer 002 at step 9.");
}

// Without the error of sound attention, a sample is not judged: it is neither healthy nor a fault.
TEST_F(ReportBuilding, ASampleWithoutARatioIsNotDrawn) {
  steps(1, 10);
  for (const int64_t step : {4, 5, 6}) {
    SampleLine line = slice(step, "002", 10);
    line.deviation_ratio = 0.7;
    if (step == 5) line.fused_ratio.reset();
    take(line);
  }
  const Report report = builder_.finish();
  const std::vector<float>& forward = report.attention.columns.at(0).second;
  const std::vector<float>& layer = report.attention_layers.at(0).columns.at(0).second;
  ASSERT_THAT(forward, SizeIs(3));
  ASSERT_THAT(layer, SizeIs(3));
  for (const auto* curve : {&forward, &layer}) {
    EXPECT_FLOAT_EQ(curve->at(0), 5);
    EXPECT_TRUE(std::isnan(curve->at(1)));
    EXPECT_FLOAT_EQ(curve->at(2), 5);
  }
}

// Of key positions with many query rows the limit is higher, and three slices are needed.
TEST_F(ReportBuilding, ErrorsOfKeyGradientsHaveLimitsOfTheirOwn) {
  const auto take_keys = [&](int64_t step, int64_t rows) {
    SampleLine line = sample_line(step, "003");
    line.pass = "backward";
    line.tensor = "grad_value";
    line.fused_ratio = 9;
    line.keys = rows;
    take(line);
  };
  steps(1, 10);
  for (const int64_t step : {4, 5, 6}) take_keys(step, 4 * 4096);  // limit 12
  for (const int64_t step : {7, 8}) take_keys(step, 128);          // limit 6
  {
    ReportBuilder copy_of_two;
    SampleLine line = sample_line(7, "003");
    line.tensor = "grad_key";
    line.fused_ratio = 9;
    for (int n = 0; n < 2; ++n) copy_of_two.take(line);
    EXPECT_THAT(copy_of_two.finish().findings, IsEmpty());
  }
  take_keys(9, 128);
  const Report report = builder_.finish();
  ASSERT_THAT(report.findings, SizeIs(1));
  EXPECT_EQ(report.findings[0].tensor, "grad_value");
  EXPECT_EQ(report.findings[0].since_step, 7);  // the first of its slices beyond their limits
  EXPECT_EQ(report.findings[0].largest, 9);
}

TEST_F(ReportBuilding, WhatAnExperimentalDetectorSaysIsNotTheHeadlineOfOneThatIsProven) {
  steps(1, 200);
  take(level_line("entropy_drop", "warn", 200, "002"));
  steps(201, 280);
  take(level_line("max_logit", "warn", 280, "001"));
  steps(281, 300);
  for (int64_t step = 301; step <= 303; ++step) take(step_line(step, 9.0));
  take(event_line("loss_spike", 301));
  steps(304, 420);
  const std::string sign = first_sign_of(builder_.finish().events.at(0));
  EXPECT_THAT(sign, EndsWith("in layer 001, 21 steps before"));
}

TEST_F(ReportBuilding, ALossThatIsNoNumberAndWhereThatBegan) {
  steps(1, 200);
  take(event_line("nonfinite", 199, "002"));
  for (int64_t step = 201; step <= 206; ++step) take(step_line(step, NAN));
  const Report report = builder_.finish();
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_EQ(report.events[0].kind, WatchEventKind::kDivergence);
  EXPECT_THAT(report.events[0].text, HasSubstr("; from step 201 on it was NaN or infinite."));
  EXPECT_EQ(fact(report.events[0], "NaN or infinite values").text,
            "first in attention's result of layer 002, 2 steps before");
  EXPECT_THAT(report.events[0].consistent_with, Contains(text_of(Clue::kNonfinite).consistent_with));
}

TEST_F(ReportBuilding, ARunWithoutEventsSaysWhatWasNotWatched) {
  steps(1, 300);
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict, "No loss event in 300 steps, and no detector warned.");
  EXPECT_THAT(report.events, IsEmpty());
  ASSERT_THAT(report.detectors, SizeIs(kDetectors));
  for (const ReportDetector& each : report.detectors) EXPECT_EQ(each.values, 0u);
  EXPECT_EQ(report.facts[0].text, "no end in the record: it goes on, or its agent was stopped");
}

TEST_F(ReportBuilding, ALossThatFallsIsComparedWithTheStepsJustBefore) {
  for (int64_t step = 1; step <= 420; ++step) {
    const double falling = 10 * std::exp(-0.01 * static_cast<double>(step));
    take(step_line(step, step >= 301 && step <= 306 ? 1.5 : falling));  // no more than it was at step 189
    if (step == 303) take(event_line("loss_spike", 301));
  }
  EXPECT_THAT(builder_.finish().events[0].text, HasSubstr("It was back 6 steps after the onset."));
}

TEST_F(ReportBuilding, ASlowRiseIsNotBackBeforeItHasRisen) {
  steps(1, 300);
  for (int64_t step = 301; step <= 420; ++step)
    take(step_line(step, std::min(3.0, 1.0 + 0.02 * static_cast<double>(std::max<int64_t>(0, step - 310)))));
  take(event_line("loss_rise", 301));
  EXPECT_EQ(
      builder_.finish().events[0].text,
      "The loss was 1 in the mean of 32 steps just before; the highest such mean since was 2.43, from step "
      "366 on. It had not come back 96 steps after the onset. Such a rise is seen late: here at step 420.");
}

TEST_F(ReportBuilding, ASlowRiseIsBackWhenItsMeanIs) {
  steps(1, 300);
  for (int64_t step = 301; step <= 420; ++step) take(step_line(step, step <= 330 ? 2.0 : 1.0));
  take(event_line("loss_rise", 301));
  EXPECT_THAT(builder_.finish().events[0].text,
              HasSubstr("was 1.938, from step 301 on. It was back 28 steps after the onset."))
      << "two of the 32 losses from step 329 on are high: 1/15 of the highest mean's rise";
}

TEST_F(ReportBuilding, AWarningWithoutALossEventIsTheStory) {
  steps(1, 150);
  take(level_line("entropy_drop", "warn", 150, "001"));
  take(level_line("max_logit", "warn", 140, "002"));
  EXPECT_EQ(
      builder_.finish().verdict,
      "No loss event in 150 steps; detectors warned 1 time, first at step 140: attention scores became very "
      "large in layer 002.");
}

TEST_F(ReportBuilding, WarningsOfDetectorsThatOlderVersionsHadAreLeftOut) {
  steps(1, 150);
  take(level_line("update_spectrum", "warn", 140, "002"));
  take(level_line("rms_staleness", "warn", 145, ""));
  const Report report = builder_.finish();
  EXPECT_THAT(report.episodes, IsEmpty());
  EXPECT_EQ(report.verdict, "No loss event in 150 steps, and no detector warned.");
}

TEST_F(ReportBuilding, ALossThatIsNotKnownIsNotCalledWell) {
  for (int64_t step = 1; step <= 200; ++step) take(step_line(step, std::nullopt));
  const Report report = builder_.finish();
  EXPECT_EQ(report.verdict,
            "The loss of this run is unknown, so loss events cannot be detected, and no detector warned.");
  EXPECT_EQ(report.coverage[1].text, "not known at any step");
}

TEST_F(ReportBuilding, TooFewLossesForARuleAreSaid) {
  steps(1, 100);
  EXPECT_EQ(builder_.finish().coverage[1].mark, ReportFact::Mark::kUnknown);
}

TEST_F(ReportBuilding, ARecordWithoutAStepSaysNothingOfTheLoss) {
  RunLine line;
  line.run = "me";
  line.state = "started";
  take(line);
  EXPECT_THAT(builder_.finish().verdict, HasSubstr("nothing can be said"));
}

TEST_F(ReportBuilding, TheSameStepsRunAgainAreACircumstance) {
  steps(1, 300);
  spike(301);
  steps(250, 450);  // from a checkpoint, and this time it went well
  const Report report = builder_.finish();
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_EQ(fact(report.events[0], "the same steps again").text,
            "were run 1 more time: it came again in none");
  EXPECT_THAT(report.events[0].consistent_with, Contains(text_of(Clue::kDidNotComeAgain).consistent_with));
}

TEST_F(ReportBuilding, AnEventOnOneRankOfTwoIsToldOnceWithItsRank) {
  for (int64_t step = 1; step <= 420; ++step) {
    take(step_line(step, step >= 301 && step <= 303 ? 9.0 : usual_loss(step), 1));
    take(step_line(step, usual_loss(step), 0));
  }
  const Report report = builder_.finish();
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_THAT(report.events[0].ranks, testing::ElementsAre(1));
  EXPECT_EQ(fact(report.events[0], "ranks").text, "seen on 1 of 2: rank 1");
}

TEST_F(ReportBuilding, RanksThatHaveItTogetherShareAnEvent) {
  for (int64_t step = 1; step <= 420; ++step)
    for (int64_t rank = 0; rank < 2; ++rank)
      take(step_line(step, step >= 301 + 2 * rank && step <= 304 + 2 * rank ? 9.0 : usual_loss(step), rank));
  const Report report = builder_.finish();
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_THAT(report.events[0].ranks, testing::ElementsAre(0, 1));
  EXPECT_EQ(fact(report.events[0], "ranks").text, "seen on all 2 in the record");
}

TEST_F(ReportBuilding, AnEventAtTheEndOfACutRecordIsTold) {
  steps(1, 300);
  for (int64_t step = 301; step <= 303; ++step) take(step_line(step, 9.0));
  const Report report = builder_.finish();
  ASSERT_THAT(report.events, SizeIs(1));
  EXPECT_EQ(report.events[0].steps.back().step, 303);
  EXPECT_THAT(report.events[0].text, HasSubstr("It had not come back 2 steps after the onset."));
}

TEST_F(ReportBuilding, RecordsOfNodesAreOneRunAndOfOtherRunsNone) {
  steps(1, 20);
  builder_.begin_record();
  steps(1, 20, 8);
  EXPECT_THAT(builder_.take(step_line(21, 1.0)), HasSubstr("rank 0 is in an earlier record too"));
  StepLine other = step_line(1, 1.0, 9);
  other.run = "another";
  EXPECT_THAT(builder_.take(other), HasSubstr("of run another"));
}

TEST_F(ReportBuilding, AnotherProcessOfARankIsARestart) {
  RunLine of_run;
  of_run.run = "me";
  of_run.rank = 0;
  of_run.pid = 7;  // in a container every process may have the same
  const auto tell = [&](const char* state) {
    of_run.state = state;
    take(of_run);
  };
  tell("started");
  steps(1, 490);
  tell("ended");
  tell("started");
  steps(491, 500);
  spike(501);
  EXPECT_EQ(fact(builder_.finish().events.at(0), "restarts").text,
            "another process went on from step 491, 10 steps before");
}

TEST_F(ReportBuilding, AnAgentThatBeginsAnewIsNoRestart) {
  RunLine started;
  started.run = "me";
  started.rank = 0;
  started.state = "started";
  started.pid = 7;
  take(started);
  steps(1, 490);
  take(started);
  steps(491, 500);
  spike(501);
  EXPECT_EQ(fact(builder_.finish().events.at(0), "restarts").text, "none before it");
}

TEST_F(ReportBuilding, WeightsThatDifferBetweenNodesAreNoAgreement) {
  TensorLine tensor;
  tensor.run = "me";
  tensor.parts = 1;
  tensor.ranks = 2;
  EventLine differs = event_line("weight_mismatch", 200, "003");
  differs.rank.reset();
  steps(1, 300);
  take(tensor);
  take(differs);
  spike(301);
  EXPECT_EQ(fact(builder_.finish().events.at(0), "replicas").text,
            "weights that should be equal differ from step 200 on, seen between nodes, layer 003");
}

TEST_F(ReportBuilding, StepsThatMayBeAnythingDoNoHarm) {
  for (const int64_t step : {INT64_MAX, INT64_MIN, int64_t{0}, INT64_MAX, int64_t{-5}}) {
    take(step_line(step, NAN));
    take(level_line("bias", "warn", step, "\xff<b>"));
    take(event_line("loss_spike", step));
    take(event_line("divergence", -(step / 2)));
  }
  EXPECT_THAT(builder_.finish().events, Not(IsEmpty()));
}

}  // namespace
}  // namespace foreshock::cli
