#include "cli/report_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshock::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;

// An event at step 300 of rank 0, every step before it known.
class ReportFacts : public ::testing::Test {
 protected:
  ReportFacts() {
    event_.onset_step = 300;
    event_.declared_step = 302;
    event_.ranks = {0};
    for (int64_t step = 44; step <= 396; ++step)
      event_.steps.push_back({step, 1.0, 1.0, 3e-4, std::nullopt, 0, 8});
    StepLine line;
    line.rank = 0;
    for (int64_t step = 1; step <= 396; ++step) {
      line.step = step;
      run_.trails[0].add(line);
    }
  }
  ReportFact fact(const std::string& name) {
    clues_.clear();
    for (const ReportFact& each : facts_of(event_, {event_}, run_, &clues_))
      if (each.name == name) return each;
    ADD_FAILURE() << name;
    return {};
  }
  static constexpr auto kQuiet = ReportFact::Mark::kQuiet;
  static constexpr auto kNotable = ReportFact::Mark::kNotable;
  static constexpr auto kUnknown = ReportFact::Mark::kUnknown;

  ReportEvent event_;
  RunSeen run_;
  std::vector<Clue> clues_;
};

TEST_F(ReportFacts, WhatIsWellOrNotKnownIsSaidSo) {
  EXPECT_EQ(fact("learning rate").text, "0.0003, as 64 steps before");
  EXPECT_THAT(clues_, testing::ElementsAre(Clue::kNothingBefore));
  EXPECT_EQ(fact("NaN or infinite values").mark, kQuiet);
  EXPECT_EQ(fact("steps left out").text, "none before it");
  EXPECT_EQ(fact("restarts").mark, kQuiet);
  EXPECT_EQ(fact("monitor").text,
            "every step before it was seen; attention was to be sampled in one step of 8");
  for (const char* name : {"layers", "ranks", "replicas", "batch", "the same steps again"})
    EXPECT_EQ(fact(name).mark, kUnknown) << name;
}

TEST_F(ReportFacts, ARateThatDoubledIsNotableAndOneThatDecaysIsNot) {
  for (TrailStep& step : event_.steps) step.learning_rate = step.step < 290 ? 1e-4 : 2e-4;
  EXPECT_EQ(fact("learning rate").text, "went from 0.0001 to 0.0002 at step 290, 10 steps before");
  EXPECT_THAT(clues_, testing::ElementsAre(Clue::kLearningRate, Clue::kNothingBefore));
  for (TrailStep& step : event_.steps) step.learning_rate = step.step < 290 ? 1e-4 : 0.9e-4;
  EXPECT_EQ(fact("learning rate").mark, kQuiet);
  EXPECT_THAT(clues_, Not(Contains(Clue::kLearningRate)));
}

TEST_F(ReportFacts, ARateThatRisesSlowlyHasNoStepOfItsOwn) {
  for (TrailStep& step : event_.steps) step.learning_rate = 1e-6 * static_cast<double>(step.step - 200);
  EXPECT_EQ(fact("learning rate").text, "0.0001; 3.6e-05 64 steps before");
}

TEST_F(ReportFacts, ARateThatFellIsNamedWithItsStep) {
  for (TrailStep& step : event_.steps) step.learning_rate = step.step < 300 ? 1e-3 : 1e-4;
  EXPECT_EQ(fact("learning rate").text, "went from 0.001 to 0.0001 at step 300, at the onset");
}

TEST_F(ReportFacts, ABatchIsNamed) {
  for (TrailStep& step : event_.steps) step.batch_id = static_cast<uint64_t>(7000 + step.step);
  EXPECT_EQ(fact("batch").text, "batch_id 7300 at the onset");
}

TEST_F(ReportFacts, StepsThatTheScalerLeftOut) {
  for (TrailStep& step : event_.steps) step.skipped_steps = step.step < 280 ? 4 : 6;
  EXPECT_EQ(fact("steps left out").text, "2 in the 256 steps before, by the gradient scaler");
  EXPECT_THAT(clues_, Contains(Clue::kSkippedSteps));
}

TEST_F(ReportFacts, StepsThatWereNotSeen) {
  std::erase_if(event_.steps, [](const TrailStep& step) { return step.step >= 100 && step.step < 110; });
  EXPECT_EQ(fact("monitor").mark, kNotable);
  EXPECT_THAT(fact("monitor").text, testing::StartsWith("10 steps before it were not seen"));
  EXPECT_THAT(clues_, Contains(Clue::kMonitorGap));
}

TEST_F(ReportFacts, ReplicasAgreeOrDiffer) {
  run_.tensors = 4;
  EXPECT_EQ(fact("replicas").text, "there are none to compare: each tensor is held once");
  run_.replicas_compared = 4;
  EXPECT_EQ(fact("replicas").mark, kQuiet);
  run_.fault_events.push_back({"weight_mismatch", "003", 1, 320, 0});
  EXPECT_EQ(fact("replicas").mark, kQuiet) << "it came after the event";
  run_.fault_events[0].step = 256;
  EXPECT_EQ(fact("replicas").text,
            "weights that should be equal differ from step 256 on, seen on rank 1, layer 003");
  EXPECT_THAT(clues_, Contains(Clue::kReplicasDiffer));
  run_.fault_events[0].rank = -1;
  EXPECT_EQ(fact("replicas").text,
            "weights that should be equal differ from step 256 on, seen between nodes, layer 003");
  run_.fault_events.clear();
  run_.records = 2;
  EXPECT_EQ(fact("replicas").mark, kUnknown) << "each record is compared within itself only";
}

TEST_F(ReportFacts, AProcessThatWentOnIsARestart) {
  run_.trails.clear();
  StepLine line;
  const auto steps = [&](int64_t first, int64_t last) {
    for (line.step = first; *line.step <= last; ++*line.step) run_.trails[0].add(line);
  };
  steps(1, 290);
  run_.trails[0].begin_process();
  steps(291, 396);
  EXPECT_EQ(fact("restarts").text, "another process went on from step 291, 9 steps before");
  EXPECT_THAT(clues_, Contains(Clue::kResumed));
  event_.onset_step = 290;
  EXPECT_EQ(fact("restarts").text, "none before it");
}

TEST_F(ReportFacts, WhatWasNoNumberLongBeforeOrElsewhereIsNoCircumstance) {
  run_.fault_events = {
      {"nonfinite", "001", 0, 30, 0}, {"nonfinite", "001", 5, 299, 0}, {"nonfinite", "001", 0, 299, 1}};
  EXPECT_EQ(fact("NaN or infinite values").mark, kQuiet);
  run_.fault_events.push_back({"nonfinite_gradient", "001", 0, 300, 0});
  EXPECT_EQ(fact("NaN or infinite values").text, "first in the gradient of layer 001, at the onset");
  EXPECT_THAT(clues_, Not(Contains(Clue::kNonfinite))) << "it did not come first";
}

TEST_F(ReportFacts, WhatWasNoNumberFirstIsNamedInTheOrderOfAStep) {
  const auto set_loss = [&](int64_t from) {
    for (TrailStep& step : event_.steps) step.loss = step.step < from ? 2.0 : NAN;
  };
  run_.fault_events = {{"nonfinite_gradient_norm", "", 0, 300, 0},
                       {"nonfinite_attention_gradient", "003", 0, 300, 0}};
  set_loss(300);
  EXPECT_EQ(fact("NaN or infinite values").text, "in the loss; none was seen before it");
  set_loss(301);
  EXPECT_EQ(fact("NaN or infinite values").text, "first in attention's gradients of layer 003, at the onset");
  run_.fault_events.push_back({"nonfinite", "001", 0, 300, 0});
  set_loss(300);
  EXPECT_EQ(fact("NaN or infinite values").text, "first in attention's result of layer 001, at the onset");
  run_.fault_events.push_back({"weights_nonfinite", "", 0, 290, 0});
  EXPECT_EQ(fact("NaN or infinite values").text, "first in the weights, 10 steps before");
}

TEST_F(ReportFacts, NoSentenceIsSaidTwice) {
  event_.signs.resize(2);
  event_.signs[0].detector = DetectorId::kDeviationForward;
  event_.signs[1].detector = DetectorId::kDeviationBackward;
  explain({}, &event_);
  EXPECT_EQ(event_.consistent_with.size(), 3u);
  EXPECT_EQ(event_.to_try.size(), 2u) << "both detectors advise the same";
}

}  // namespace
}  // namespace foreshock::cli
