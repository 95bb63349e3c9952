#include "agent/publish.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <set>
#include <string>

#include "agent/pipeline.h"
#include "agent/rank_state.h"
#include "agent/record_lines.h"
#include "exporters/http_routes.h"
#include "foreshock/hook.h"
#include "segment/layout.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

class Publish : public testing::Test {
 protected:
  RankStatistics some_rank(int steps = 6) {
    SegmentOfATrainer trainer;
    auto reader = trainer.open();
    Pipeline& pipeline = pipelines_.emplace_back(nullptr);
    RankStatistics rank;
    rank.run = "run";
    for (int n = 1; n <= steps; ++n) {
      trainer.step(n, 2.0);
      trainer.sample(n, 1.0 + 0x1p-8);
      pipeline.poll(*reader, &rank);
    }
    pipeline.refresh(*reader, &rank);
    rank.alive = true;  // a process does not see its own lock on the segment
    return rank;
  }

 private:
  std::list<Pipeline> pipelines_;  // a rank points to its pipeline's detectors
};

TEST_F(Publish, EverySeriesIsAccepted) {
  // Registry::set refuses wrong labels and values outside their closed sets: a refused series would be
  // missing here.
  Registry registry;
  publish_rank(some_rank(), 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const char* series :
       {"foreshock_rank_info{", "foreshock_source_info{", "foreshock_step{run=\"run\",rank=\"0\"} 6",
        "foreshock_attention_calls_total{run=\"run\",rank=\"0\",pass=\"forward\",op=\"attention\"} 6",
        "foreshock_attention_judged_total{run=\"run\",rank=\"0\",pass=\"forward\"} 6",
        "foreshock_attention_skipped_total{run=\"run\",rank=\"0\",pass=\"backward\",reason=\"ring_full\"} 0",
        "foreshock_attention_lost_total{run=\"run\",rank=\"0\",pass=\"forward\",reason=\"torn\"} 0",
        "foreshock_layer_attention_fused_ratio{run=\"run\",rank=\"0\",layer=\"003\",pass=\"forward\"}",
        "foreshock_loss{run=\"run\",rank=\"0\"} 2", "foreshock_slowdown_ratio{",
        "foreshock_overhead_seconds_total{"})
    EXPECT_NE(text.find(series), std::string::npos) << series << "\n" << text;
}

TEST_F(Publish, AFractionStaysOne) {
  Registry registry;
  RankStatistics rank = some_rank();
  rank.identity.max_slowdown = 0.25;
  rank.agent_seconds = 1.5;
  publish_rank(rank, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const char* series :
       {"foreshock_slowdown_limit_ratio{run=\"run\",rank=\"0\"} 0.25\n",
        "foreshock_overhead_seconds_total{run=\"run\",rank=\"0\",where=\"agent\"} 1.5\n"})
    EXPECT_NE(text.find(series), std::string::npos) << series << "\n" << text;
}

TEST_F(Publish, WhatIsNoLongerKnownIsNoLongerExported) {
  Registry registry;
  RankStatistics rank = some_rank();
  rank.loss_zscore = 3;
  publish_rank(rank, 2, &registry);
  const std::string series = "foreshock_loss_zscore{run=\"run\",rank=\"0\"}";
  ASSERT_NE(exposition(*registry.snapshot()).find(series + " 3"), std::string::npos);
  rank.loss_zscore.reset();  // the loss is NaN
  publish_rank(rank, 2, &registry);
  EXPECT_EQ(exposition(*registry.snapshot()).find(series), std::string::npos);
}

TEST_F(Publish, StepsThatAScalerLeavesOutUnseenAreNotZero) {
  Registry registry;
  RankStatistics rank = some_rank();
  publish_rank(rank, 2, &registry);
  EXPECT_NE(exposition(*registry.snapshot()).find("foreshock_skipped_steps_total{"), std::string::npos);
  EXPECT_EQ(summary_of(rank, 2)["skipped_steps"], 0);
  EXPECT_EQ(step_line(rank, rank.last_step).skipped_steps, 0u);
  rank.last_step.given |= segment::kSkipsUnseen;
  publish_rank(rank, 2, &registry);
  EXPECT_EQ(exposition(*registry.snapshot()).find("foreshock_skipped_steps_total{"), std::string::npos);
  EXPECT_TRUE(summary_of(rank, 2)["skipped_steps"].is_null());
  EXPECT_EQ(step_line(rank, rank.last_step).skipped_steps, std::nullopt);
}

// The series of backward gradients that are not finite and, where they are told, of steps left out: an alert
// is made of the first without the second.
std::string told_of_gradients(const RankStatistics& rank) {
  Registry registry;
  publish_rank(rank, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  std::string told;
  for (const char* name :
       {"foreshock_nonfinite_values_total{run=\"run\",rank=\"0\",site=\"attention_gradient\"} ",
        "foreshock_skipped_steps_total{run=\"run\",rank=\"0\",reason=\"overflow\"} "}) {
    const size_t at = text.find(name);
    if (at == std::string::npos) continue;
    const size_t from = at + std::strlen(name);
    told += text.substr(from, text.find('\n', from) - from) + " ";
  }
  return told;
}

void see_infinite_gradient(int64_t step, uint64_t seconds, RankStatistics* rank) {
  segment::Slot slot = {};
  slot.step = step;
  slot.time_ns = seconds * 1'000'000'000;
  slot.pass = 1;
  SliceDeviation deviation = {};
  deviation.tensor = JudgedTensor::kGradQuery;
  deviation.nonfinite_gradient = 3;
  observe(sample_line(*rank, slot, LayerOfCall{}, deviation, /*judge_seconds=*/0), rank);
}

TEST_F(Publish, GradientsOfAStepThatGoesOnAreToldWithWhatTheScalerDoesWithIt) {
  RankStatistics rank = some_rank();
  see_infinite_gradient(7, 100, &rank);
  EXPECT_EQ(told_of_gradients(rank), "0 0 ");
  see_infinite_gradient(7, 101, &rank);  // tried again, with half the scale
  EXPECT_EQ(told_of_gradients(rank), "0 0 ");
  segment::StepRecord step = rank.last_step;
  step.step = 7;
  step.skipped_steps = 2;
  observe_step(step, &rank);
  EXPECT_EQ(told_of_gradients(rank), "6 2 ");
  see_infinite_gradient(7, 102, &rank);  // judged late: it is known what became of its step
  EXPECT_EQ(told_of_gradients(rank), "9 2 ");
}

TEST_F(Publish, GradientsOfAStepThatDoesNotEndAreToldAllTheSame) {
  RankStatistics rank = some_rank();
  see_infinite_gradient(7, 100, &rank);
  see_infinite_gradient(7, 219, &rank);
  EXPECT_EQ(told_of_gradients(rank), "0 0 ");
  see_infinite_gradient(7, 221, &rank);  // a scaler that leaves out every step tells nothing of any
  EXPECT_EQ(told_of_gradients(rank), "9 0 ");
  see_infinite_gradient(7, 222, &rank);
  EXPECT_EQ(told_of_gradients(rank), "9 0 ");
  rank.alive = false;
  EXPECT_EQ(told_of_gradients(rank), "12 0 ");
}

TEST_F(Publish, GradientsOfAStepThatHasAnotherNumberThanWasThoughtAreToldWithTheSecondStep) {
  RankStatistics rank = some_rank();
  see_infinite_gradient(7, 100, &rank);
  segment::StepRecord step = rank.last_step;
  for (step.step = 1; step.step < 3; ++step.step) {  // another training of the same process
    EXPECT_EQ(told_of_gradients(rank), "0 0 ");
    observe_step(step, &rank);
  }
  EXPECT_EQ(told_of_gradients(rank), "3 0 ");
}

TEST_F(Publish, WhatTheTrainerHasGivenUpIsToldFromTheStepOnThatItDid) {
  Registry registry;
  RankStatistics rank = some_rank();
  const std::string series = "foreshock_monitor_enabled{run=\"run\",rank=\"0\",component=\"tensors\"} ";
  publish_rank(rank, 2, &registry);
  EXPECT_EQ(exposition(*registry.snapshot()).find(series), std::string::npos);
  EXPECT_TRUE(summary_of(rank, 2)["tensors_given_up_step"].is_null());
  EXPECT_TRUE(summary_of(rank, 2)["tensors_given_up_reason"].is_null());
  segment::StepRecord step = rank.last_step;
  step.given |= segment::kGaveUpTensors;
  for (step.step = 7; step.step < 9; ++step.step) observe_step(step, &rank);
  publish_rank(rank, 2, &registry);
  EXPECT_NE(exposition(*registry.snapshot()).find(series + "0"), std::string::npos);
  EXPECT_EQ(summary_of(rank, 2)["tensors_given_up_step"], 7);
  EXPECT_EQ(summary_of(rank, 2)["tensors_given_up_reason"], "cost");
  const nlohmann::json events = state_of(rank, 2)["events"];
  ASSERT_EQ(events.size(), 2u) << events;  // after the one that its slices made
  EXPECT_EQ(events[1]["event"], "tensors_given_up");
  EXPECT_EQ(events[1]["first_step"], 7);
  EXPECT_EQ(events[1]["count"], 1) << "once";
  RankStatistics next;  // of the agent that comes after one that was killed
  resume_from(step, nullptr, &next);
  EXPECT_EQ(summary_of(next, 2)["tensors_given_up_step"], 9) << "since then at least";
  step.given |= segment::kGaveUpFailed;
  RankStatistics failed;
  resume_from(step, nullptr, &failed);
  EXPECT_EQ(summary_of(failed, 2)["tensors_given_up_reason"], "failure");
}

TEST_F(Publish, CountersOfAClosedSetExistAtZeroFromTheStart) {
  Registry registry;
  RankStatistics rank;
  rank.run = "run";
  publish_rank(rank, 1, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const char* reason : segment::kSkipReasonNames)
    EXPECT_NE(text.find(std::string("reason=\"") + reason + "\"} 0"), std::string::npos) << reason;
}

TEST_F(Publish, TheSummaryHasTheKeysThatItsReadersRelyOn) {
  RankStatistics statistics = some_rank();
  statistics.identity.slots_given = 12;
  statistics.identity.slots_wanted = 256;
  statistics.coverage.numbers_fetched = 40;
  statistics.coverage.numbers_late = 3;
  statistics.coverage.numbers_skipped[FORESHOCK_SKIP_CAPTURE] = 7;
  statistics.coverage.parameters_unnamed = 9;
  statistics.coverage.norms_untold = 2;
  const nlohmann::json rank = summary_of(statistics, 2);
  for (const char* key : {"rank", "steps", "step_source", "attention", "slots", "worst_layer", "layer_source",
                          "loss", "slowdown_ratio"})
    EXPECT_TRUE(rank.contains(key)) << key;
  for (const char* pass : {"forward", "backward"}) {
    const nlohmann::json& of = rank["attention"][pass];
    for (const char* key : {"calls", "unsampled", "sampled", "judged", "in_flight", "skipped", "lost",
                            "relative_error", "deviation_ratio", "bias_ulp", "bias_z"})
      EXPECT_TRUE(of.contains(key)) << pass << " " << key;
  }
  EXPECT_EQ(rank["worst_layer"], "003");
  EXPECT_EQ(rank["parameters_unnamed"], 9);
  EXPECT_EQ(rank["gradient"]["untold_steps"], 2);
  EXPECT_EQ(rank["slots"], (nlohmann::json{{"given", 12}, {"wanted", 256}}));
  const nlohmann::json& numbers = rank["device_numbers"];
  EXPECT_EQ(numbers["fetched"], 40);
  EXPECT_EQ(numbers["skipped"].size(), segment::kSkipReasons);
  EXPECT_EQ(numbers["skipped"]["capture"], 7);
  EXPECT_EQ(numbers["late"], 3);
  // Nothing was judged in the backward pass: unknown is null, never 0.
  EXPECT_TRUE(rank["attention"]["backward"]["deviation_ratio"]["mean"].is_null());
  EXPECT_TRUE(rank["attention"]["backward"]["bias_ulp"].is_null());
}

TEST_F(Publish, StateNamesHostProgramAndFramework) {
  RankStatistics rank = some_rank();
  std::strcpy(rank.identity.host, "node17");
  std::strcpy(rank.identity.executable, "python3.11");
  std::strcpy(rank.identity.framework, "torch 2.13.0");
  rank.identity.late_ready = 0;
  EXPECT_EQ(state_of(rank, 2)["host"], "node17");
  EXPECT_EQ(state_of(rank, 2)["executable"], "python3.11");
  EXPECT_EQ(state_of(rank, 2)["framework"], nullptr) << "not known yet";
  rank.identity.late_ready = 1;
  EXPECT_EQ(state_of(rank, 2)["framework"], "torch 2.13.0");
  rank.identity.host[0] = '\0';
  EXPECT_EQ(state_of(rank, 2)["host"], nullptr);
}

TEST_F(Publish, HistoryHasTheTimeOfSteps) {
  RankStatistics rank = some_rank();
  rank.identity.start_time_ns = 1'795'000'000'000'000'000;
  segment::StepRecord step = rank.last_step;
  ++step.sequence;
  ++step.step;
  step.time_ns = rank.identity.start_time_ns + 2'500'000'000;
  observe_step(step, &rank);
  std::vector<HistoryTable> tables;
  add_history(rank, &tables);
  const auto& columns = tables.at(0).columns;
  const auto elapsed =
      std::ranges::find_if(columns, [](const auto& of) { return of.first == "elapsed_seconds"; });
  ASSERT_NE(elapsed, columns.end());
  EXPECT_EQ(elapsed->second.back(), 2.5f);
}

TEST_F(Publish, TheSummaryTellsWhatWasBeyondALimitAndWhen) {
  EXPECT_TRUE(summary_of(some_rank(1), 2)["past_alarms"].empty()) << "one slice may be luck";
  RankStatistics broken = some_rank(12);  // an error of 2^-8 in fp64, in every slice
  const nlohmann::json summary = summary_of(broken, 2);
  ASSERT_EQ(summary["past_alarms"].size(), 1u) << summary["past_alarms"];
  const nlohmann::json& past = summary["past_alarms"][0];
  EXPECT_EQ(past["layer"], "003");
  EXPECT_EQ(past["of"], "fused_ratio");
  EXPECT_EQ(past["first_step"], 1);
  EXPECT_EQ(past["last_step"], 12);
  EXPECT_EQ(past["most"], summary["attention"]["forward"]["fused_ratio"]["max"]);
  EXPECT_EQ(summary["attention"]["forward"]["nonfinite"], 0);
}

TEST_F(Publish, TheHistoryHasATableOfTheRankAndOneOfEachLayer) {
  const RankStatistics rank = some_rank();
  EXPECT_EQ(state_of(rank, 2)["layers"].size(), 1u);
  std::vector<HistoryTable> tables;
  add_history(rank, &tables);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables[0].layer, "");
  EXPECT_EQ(tables[1].layer, "003");
  const auto column = [](const HistoryTable& table, std::string_view name) {
    for (const auto& [known, values] : table.columns)
      if (known == name) return values;
    return std::vector<float>();
  };
  EXPECT_EQ(tables[0].first_step, 1);
  EXPECT_EQ(column(tables[0], "loss"), std::vector<float>(6, 2.0f));
  EXPECT_EQ(column(tables[0], "deviation_ratio_forward").size(), 6u);
  EXPECT_EQ(column(tables[1], "deviation_ratio_forward").size(), 6u);
}

TEST_F(Publish, WhatTheTrainingLogsIsAGaugeAndInTheState) {
  RankStatistics rank = some_rank();
  rank.logged["train/accuracy"] = {0.5, 4};
  rank.logged["broken"] = {NAN, 5};
  rank.scalar_names = {"train/accuracy", "broken"};
  Registry registry;
  publish_rank(rank, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  EXPECT_NE(text.find(R"(foreshock_logged_value{run="run",rank="0",name="train/accuracy"} 0.5)"),
            std::string::npos);
  EXPECT_NE(text.find(R"(foreshock_logged_value{run="run",rank="0",name="broken"} NaN)"), std::string::npos)
      << text;
  const nlohmann::json logged = state_of(rank, 2)["logged"];
  EXPECT_EQ(logged["train/accuracy"], (nlohmann::json{{"value", 0.5}, {"step", 4}}));
  EXPECT_TRUE(logged["broken"]["value"].is_null());
}

TEST_F(Publish, TwoLoggedNamesThatAreOneLabelAreTwoSeries) {
  RankStatistics rank = some_rank();
  rank.scalar_names = {"a_b", "a b", "a_b_2", "a+b", "not yet", "not_yet"};
  rank.logged = {{"a_b", {1, 1}}, {"a b", {2, 1}}, {"a_b_2", {3, 1}}, {"a+b", {4, 1}}, {"not_yet", {5, 1}}};
  Registry registry;
  publish_rank(rank, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  const auto series = [](const std::string& name, int value) {
    return R"(foreshock_logged_value{run="run",rank="0",name=")" + name + "\"} " + std::to_string(value) +
           "\n";
  };
  for (const auto& [name, value] : {std::pair("a_b", 1), std::pair("a_b_2", 2), std::pair("a_b_2_2", 3),
                                    std::pair("a_b_3", 4), std::pair("not_yet_2", 5)})
    EXPECT_NE(text.find(series(name, value)), std::string::npos) << name << "\n" << text;
  EXPECT_EQ(state_of(rank, 2)["logged"]["a b"]["value"], 2);
}

TEST_F(Publish, AlarmsAreCountedByPassAndKindAndAreZeroWithoutOne) {
  RankStatistics fresh;
  fresh.run = "run";
  fresh.identity.rank = 0;
  Registry registry;
  publish_rank(fresh, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  Registry wrong;
  publish_rank(some_rank(), 2, &wrong);  // an error of 2^-8 in fp64
  EXPECT_NE(exposition(*wrong.snapshot())
                .find(R"(foreshock_attention_alarm_layers{run="run",rank="0",pass="forward",of="error"} 1)"),
            std::string::npos);
  for (const char* pass : {"forward", "backward"})
    for (const char* of : {"error", "bias", "nonfinite"})
      EXPECT_NE(text.find(std::string(R"(foreshock_attention_alarm_layers{run="run",rank="0",pass=")") +
                          pass + R"(",of=")" + of + R"("} 0)"),
                std::string::npos)
          << pass << of << text;
}

TEST_F(Publish, AnErrorOfAllLayersTogetherCountsAsOneLayer) {
  RankStatistics rank;
  rank.run = "run";
  rank.identity.rank = 0;
  for (const char* label : {"000", "001"})
    rank.layers[label].pass[1].add_fused_ratio(7, kDeviationRatioBackward);  // one slice each
  for (int slice = 0; slice < 2; ++slice) rank.pass[1].add_fused_ratio(7, kDeviationRatioBackward);
  ASSERT_TRUE(rank.alarms().empty());
  Registry registry;
  publish_rank(rank, 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const auto& [pass, count] : {std::pair("backward", 1), std::pair("forward", 0)})
    EXPECT_NE(text.find(std::string(R"(foreshock_attention_alarm_layers{run="run",rank="0",pass=")") + pass +
                        R"(",of="error"} )" + std::to_string(count)),
              std::string::npos)
        << pass << text;
}

TEST_F(Publish, TheRatioThatIsDrawnIsTheOneThatIsJudged) {
  RankStatistics rank;
  rank.run = "run";
  rank.identity.rank = 0;
  rank.pass[0].add_fused_ratio(1.5, kDeviationRatioForward);
  rank.pass[0].deviation_ratio.add(9);
  Registry registry;
  publish_rank(rank, 2, &registry);
  EXPECT_NE(
      exposition(*registry.snapshot())
          .find(R"(foreshock_attention_fused_ratio{run="run",rank="0",pass="forward",stat="mean"} 1.5)"),
      std::string::npos);
  rank.pass[0].dtype = DType::kBf16;
  rank.pass[1].dtype = DType::kFp32;
  const nlohmann::json limits = state_of(rank, 2)["limits"];
  EXPECT_EQ(limits["deviation_ratio_forward"], 2);
  EXPECT_EQ(limits["deviation_ratio_backward"], 6);
  EXPECT_EQ(limits["bias_ulp"], 0.125);
}

TEST_F(Publish, TheSameEventOfALayerIsOneAndTheOldestGoFirst) {
  RankStatistics rank;
  rank.note_event("nonfinite", 3, "001", 2.0);
  rank.note_event("nonfinite", 7, "001", 5.0);
  rank.note_event("loss_spike", 8, "", std::nullopt);
  nlohmann::json events = state_of(rank, 1)["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], (nlohmann::json{{"event", "nonfinite"},
                                       {"layer", "001"},
                                       {"first_step", 3},
                                       {"last_step", 7},
                                       {"count", 2},
                                       {"value", 5.0}}));
  EXPECT_TRUE(events[1]["value"].is_null());
  for (size_t n = 0; n < kMostEvents; ++n) rank.note_event("nonfinite", 9, std::to_string(n), 1.0);
  events = state_of(rank, 1)["events"];
  EXPECT_EQ(events.size(), kMostEvents);
  EXPECT_EQ(events[0]["layer"], "0");
}

}  // namespace
}  // namespace foreshock
