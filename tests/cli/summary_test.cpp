#include "cli/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace foreshock::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

Json pass(double judged, double ratio, double bias, double z) {
  return {{"calls", 4800},
          {"unsampled", 4400},
          {"sampled", judged},
          {"judged", judged},
          {"in_flight", 0},
          {"skipped", {{"dropout", 12}, {"budget", 0}}},
          {"lost", Json::object()},
          {"relative_error", {{"mean", 0.0019}, {"max", 0.0024}}},
          {"deviation_ratio", {{"mean", ratio}, {"max", ratio * 1.25}}},
          {"bias_ulp", bias},
          {"bias_z", z}};
}

Json rank(int number, double ratio, double bias = 0.01, double z = 0.8) {
  return {{"rank", number},
          {"steps", 1600},
          {"step_source", "optimizer_state"},
          {"attention", {{"forward", pass(300, ratio, bias, z)}, {"backward", pass(100, 0.8, -0.004, -0.2)}}},
          {"worst_layer", "003"},
          {"layer_source", "parameter"},
          {"loss", {{"first", 5.52}, {"last", 2.31}, {"spikes", 0}, {"source", "nll"}}},
          {"slowdown_ratio", 0.0061}};
}

std::string text_of(const Json& ranks) {
  return summary_text(Json{{"schema", 1}, {"run", "abc"}, {"state", "finished"}, {"ranks", ranks}}.dump(),
                      false);
}

TEST(Summary, TellsTheStoryOfOneRank) {
  const std::string text = text_of(Json::array({rank(0, 0.71)}));
  for (const char* part :
       {"run abc", "finished", "1 600 steps (optimizer state)", "4 800", "12 dropout", "0.71", "0.89",
        "1.9e-03", "+0.010 ulp", "003 (named by parameter)", "5.52 -> 2.31 (nll), no spike", "0.61 %",
        "in the last 64 slices of a rank", "attention errs no more than its precision explains"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("unknown")));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

TEST(Summary, TellsOfStepsThatNobodySaw) {
  Json late = rank(0, 0.71);
  late["steps_lost"] = 1024;
  EXPECT_THAT(text_of(Json::array({late})),
              HasSubstr("not seen            1 024 of 1 600 steps: the agent came"));
  EXPECT_THAT(text_of(Json::array({late, rank(1, 0.7)})), HasSubstr("1 024 of 3 200 steps of all ranks:"));
  late["steps_lost"] = 0;
  EXPECT_THAT(text_of(Json::array({late})), Not(HasSubstr("not seen")));
}

TEST(Summary, TellsOfProcessesThatTheAgentCannotFollow) {
  Json summary = {{"schema", 1}, {"run", "abc"}, {"state", "running"}, {"ranks", Json::array()}};
  EXPECT_EQ(refused_line(summary.dump()), "");
  summary["refused"] = {{"segments", 2}, {"why", "its layout is newer than this agent's"}};
  const char* line = "2 processes of this run cannot be followed: its layout is newer than this agent's";
  EXPECT_EQ(refused_line(summary.dump()), line);
  EXPECT_THAT(summary_text(summary.dump(), false), HasSubstr(line)) << "foreshock status, before any rank";
  summary["ranks"] = Json::array({rank(0, 0.71)});
  EXPECT_THAT(summary_text(summary.dump(), false), HasSubstr(line));
}

TEST(Summary, TellsHowOftenStepsWereSampled) {
  Json often = rank(0, 0.71);
  often["sample_interval_steps"] = 8;
  EXPECT_THAT(text_of(Json::array({often})), HasSubstr("0.61 %, one step in 8 was sampled\n"));
  often["sample_interval_steps"] = 1;
  for (const char* pass : {"forward", "backward"}) often["attention"][pass]["unsampled"] = 0;
  EXPECT_THAT(text_of(Json::array({often})), HasSubstr("0.61 %, every step was sampled\n"));
  often["attention"]["forward"]["unsampled"] = 404;
  EXPECT_THAT(text_of(Json::array({often})), HasSubstr("0.61 %, every step was sampled at the end\n"));
}

TEST(Summary, SlowdownOfAFewSecondsNamesThem) {
  Json brief = rank(0, 0.71);
  brief["train_seconds"] = 0.294;
  EXPECT_THAT(text_of(Json::array({brief})), HasSubstr("0.61 % of 0.29 s in steps"));
  brief["train_seconds"] = 70;
  EXPECT_THAT(text_of(Json::array({brief})), Not(HasSubstr("s in steps")));
}

TEST(Summary, SeveralTrainingsOfOneProcessAreSaidToBePooled) {
  Json first = rank(0, 0.71), second = rank(1, 0.7);
  first["step"] = 30;
  second["step"] = 3;
  EXPECT_THAT(text_of(Json::array({first, second})), HasSubstr("ended early"));
  first["step_restarts"] = 4;
  const std::string text = text_of(Json::array({first, second}));
  EXPECT_THAT(text, HasSubstr("several trainings   the optimizer was replaced, or the step number fell, 4 times"));
  EXPECT_THAT(text, Not(HasSubstr("ended early")));
}

TEST(Summary, WhatWasGivenUpIsToldWithTheReason) {
  Json dear = rank(0, 0.71);
  EXPECT_THAT(text_of(Json::array({dear})), Not(HasSubstr("given up")));
  dear["tensors_given_up_step"] = 96;
  const std::string text = text_of(Json::array({dear}));
  EXPECT_THAT(text, HasSubstr("given up"));
  EXPECT_THAT(text, HasSubstr("names, gradient norms and weights, from step 96 on"));
  EXPECT_THAT(text, HasSubstr("several times --max-slowdown"));
  dear["tensors_given_up_reason"] = "failure";
  const std::string failed = text_of(Json::array({dear}));
  EXPECT_THAT(failed, HasSubstr("names, gradient norms and weights, from step 96 on"));
  EXPECT_THAT(failed, HasSubstr("could not be named"));
  EXPECT_THAT(failed, Not(HasSubstr("--max-slowdown")));
}

TEST(Summary, UnknownIsNotZero) {
  Json lonely = {{"rank", 0}, {"steps", 3}};
  const std::string text = text_of(Json::array({lonely}));
  EXPECT_THAT(text, HasSubstr("unknown"));
  EXPECT_THAT(text, Not(HasSubstr("0.00")));
  EXPECT_THAT(text, HasSubstr("no attention was judged"));
}

TEST(Summary, ABudgetThatAllowsNoSampleIsNamedWithWhatToDo) {
  Json short_steps = rank(0, 0.7);
  for (const char* pass : {"forward", "backward"}) {
    Json& of = short_steps["attention"][pass];
    of["sampled"] = of["judged"] = 0;
    of["skipped"] = {{"budget", 108}};
  }
  EXPECT_THAT(text_of(Json::array({short_steps})), HasSubstr("--max-slowdown 10%"));
  EXPECT_THAT(text_of(Json::array({short_steps, rank(1, 0.7)})), Not(HasSubstr("--max-slowdown")))
      << "another rank was judged";
}

TEST(Summary, WithoutASlotTheBudgetIsNotBlamed) {
  Json cramped = rank(0, 0.7);
  for (const char* pass : {"forward", "backward"}) {
    Json& of = cramped["attention"][pass];
    of["sampled"] = of["judged"] = 0;
    of["skipped"] = {{"budget", 3}};
  }
  cramped["sample_interval_steps"] = 8;
  cramped["slots"] = {{"given", 0}, {"wanted", 256}};
  const std::string no_room = text_of(Json::array({cramped}));
  EXPECT_THAT(no_room, HasSubstr("no shared memory was left for samples"));
  EXPECT_THAT(no_room, Not(HasSubstr("--max-slowdown")));
  EXPECT_THAT(no_room, Not(HasSubstr("was sampled")));
  cramped["slots"]["wanted"] = 0;
  EXPECT_THAT(text_of(Json::array({cramped})), HasSubstr("`--slices off`"));
  EXPECT_THAT(text_of(Json::array({cramped, rank(1, 0.7)})), Not(HasSubstr("--slices off")))
      << "another rank was judged";
  cramped["slots"]["given"] = 12;
  EXPECT_THAT(text_of(Json::array({cramped})), HasSubstr("--max-slowdown 10%"));
}

TEST(Summary, OneSliceBeyondTheLimitIsNotCalledWrong) {
  Json lucky = rank(0, 0.9);
  lucky["attention"]["backward"]["deviation_ratio"]["max"] = 4.02;
  const std::string text = text_of(Json::array({lucky}));
  EXPECT_THAT(text, HasSubstr("errs no more than its precision explains"));
  EXPECT_THAT(text, Not(HasSubstr("wrong")));
}

TEST(Summary, ABiasOfFewSlicesIsMarkedAsSuch) {
  Json early = rank(0, 0.9);
  early["attention"]["forward"]["bias_z"] = nullptr;
  EXPECT_THAT(text_of(Json::array({early})), HasSubstr("few slices"));
}

TEST(Summary, AddsUpRanksAndShowsEach) {
  const std::string text = text_of(Json::array({rank(0, 0.5), rank(1, 0.7)}));
  EXPECT_THAT(text, HasSubstr("2 ranks"));
  EXPECT_THAT(text, HasSubstr("9 600"));
  EXPECT_THAT(text, HasSubstr("0.60"));  // the mean weighs both alike: they judged equally many
  EXPECT_THAT(text, HasSubstr("rank 1"));
}

TEST(Summary, NamesWhatIsWrong) {
  EXPECT_THAT(text_of(Json::array({rank(0, 2.5)})), HasSubstr("errs more than its precision explains"));
  EXPECT_THAT(text_of(Json::array({rank(0, 0.9, 0.18, 26)})), HasSubstr("forward is biased"));
  EXPECT_THAT(text_of(Json::array({rank(0, 0.9, 0.18, 2)})), Not(HasSubstr("biased")));
  Json rounding = rank(0, 0.9, 0.18, 26);
  rounding["attention"]["forward"]["rounded_reference_bias_ulp"] = 0.17;
  rounding["attention"]["forward"]["rounded_reference_bias_z"] = 20;
  EXPECT_THAT(text_of(Json::array({rounding})), Not(HasSubstr("biased")));
  Json broken = rank(0, 0.9);
  broken["gradient"] = {{"norm", 1.5}, {"nonfinite_layers", {"002"}}};
  broken["loss"]["spikes"] = 1;
  broken["loss"]["first_spike_step"] = 812;
  EXPECT_THAT(text_of(Json::array({broken})), HasSubstr("1 spike at step 812"));
  EXPECT_THAT(text_of(Json::array({broken})), HasSubstr("not finite at times in layer 002"));
}

TEST(Summary, ALossThatIsLostIsNoSpike) {
  Json lost = rank(0, 0.9);
  lost["loss"]["divergences"] = 1;
  lost["loss"]["first_divergence_step"] = 300;
  EXPECT_THAT(text_of(Json::array({lost})), HasSubstr("(nll), diverged at step 300"));
  lost["loss"]["spikes"] = 2;
  lost["loss"]["first_spike_step"] = 120;
  EXPECT_THAT(text_of(Json::array({lost})), HasSubstr(", 2 spikes, first at step 120, diverged at step 300"));
  lost["loss"]["spikes"] = 1;
  lost["loss"]["first_spike_step"] = 300;
  EXPECT_THAT(text_of(Json::array({lost})), HasSubstr("(nll), diverged at step 300"))
      << "one incident, one event";
}

TEST(Summary, ALossThatIsNotFiniteIsKnown) {
  Json diverged = rank(0, 0.9);
  diverged["loss"] = {{"first", 5.7}, {"last", nullptr},  {"last_nonfinite", "nan"},     {"source", "nll"},
                      {"spikes", 0},  {"divergences", 1}, {"first_divergence_step", 222}};
  EXPECT_THAT(text_of(Json::array({diverged})), HasSubstr("5.7 -> nan (nll), diverged at step 222"));
}

TEST(Summary, WhatAKilledAgentTookWithItIsUnknown) {
  Json taken_up = rank(0, 0.9);
  taken_up["taken_up_step"] = 812;
  taken_up["loss"]["first"] = taken_up["loss"]["spikes"] = nullptr;
  const std::string text = text_of(Json::array({taken_up}));
  EXPECT_THAT(text, HasSubstr("unknown -> 2.31 (nll), spikes unknown"));
  EXPECT_THAT(text, HasSubstr("started again at step 812: deviations are of later steps"));
}

TEST(Summary, OneLayerIsNotHiddenByTheOthers) {
  Json guilty = rank(0, 1.1);
  guilty["alarms"] = {{{"layer", "007"}, {"pass", "forward"}, {"of", "deviation_ratio"}, {"value", 7.82}},
                      {{"layer", "008"}, {"pass", "backward"}, {"of", "bias"}, {"value", -0.3}}};
  EXPECT_THAT(
      text_of(Json::array({guilty})),
      HasSubstr(
          "attention of layer 007 forward errs up to 7.8 times what its precision explains (and 1 more)"));
  guilty["alarms"].erase(0);
  EXPECT_THAT(text_of(Json::array({rank(0, 0.9), guilty})),
              HasSubstr("rank 0 layer 008 backward is biased by -0.30"));
}

TEST(Summary, WhatWasNotComparedIsNotPraised) {
  Json scores_only = rank(0, 0.9);
  for (const char* pass : {"forward", "backward"}) {
    Json& of = scores_only["attention"][pass];
    for (const char* figure : {"relative_error", "deviation_ratio"})
      of[figure] = {{"mean", nullptr}, {"max", nullptr}};
    of["bias_ulp"] = of["bias_z"] = nullptr;
  }
  EXPECT_THAT(text_of(Json::array({scores_only})), HasSubstr("only the scores were judged"));
  EXPECT_THAT(text_of(Json::array({scores_only, rank(1, 0.9)})), HasSubstr("errs no more"));
}

TEST(Summary, NaNIsTheFirstThingSaid) {
  Json broken = rank(0, 0.9);
  broken["attention"]["forward"]["nonfinite"] = 47;
  EXPECT_THAT(
      text_of(Json::array({broken})),
      HasSubstr("attention forward gave NaN or Inf where the reference does not, in 47 of 300 slices"));
  broken["past_alarms"] = {{{"layer", nullptr},
                            {"pass", "forward"},
                            {"of", "nonfinite"},
                            {"first_step", 16},
                            {"last_step", 1024},
                            {"most", nullptr}}};
  broken["alarms"] = {{{"layer", "007"}, {"pass", "forward"}, {"of", "bias"}, {"value", 0.2}}};
  EXPECT_THAT(
      text_of(Json::array({broken})),
      HasSubstr("attention of calls without a layer forward gave NaN or Inf where the reference does not "
                "at steps 16 to 1 024, not of late (and 1 more)"));
}

TEST(Summary, WhatHasPassedIsNotForgotten) {
  Json mended = rank(0, 0.9);
  mended["alarms"] = Json::array();
  mended["past_alarms"] = {{{"layer", "007"},
                            {"pass", "backward"},
                            {"of", "deviation_ratio"},
                            {"first_step", 8},
                            {"last_step", 5000},
                            {"most", 41.5}}};
  EXPECT_THAT(
      text_of(Json::array({mended})),
      HasSubstr("attention of layer 007 backward erred up to 41.5 times what its precision explains at "
                "steps 8 to 5 000, not of late"));
  mended["alarms"] = {{{"layer", "007"}, {"pass", "backward"}, {"of", "deviation_ratio"}, {"value", 3.5}}};
  const std::string text = text_of(Json::array({mended}));
  EXPECT_THAT(text, HasSubstr("layer 007 backward errs up to 3.5 times"));
  EXPECT_THAT(text, Not(HasSubstr("more)"))) << "what still is so is told once";
}

TEST(Summary, ALargeBiasOfFewSlicesHidesNoSureOneOfAnotherRank) {
  const std::string text = text_of(Json::array({rank(0, 0.9, 0.21, 4), rank(1, 0.9, 0.18, 26)}));
  EXPECT_THAT(text, HasSubstr("attention forward is biased"));
  EXPECT_THAT(text, HasSubstr("+0.180 ulp"));
}

TEST(Summary, AnErrorWithoutARightDigitIsNoFigure) {
  Json saturated = rank(0, 7.0);
  saturated["attention"]["backward"]["relative_error"]["mean"] = 1.4e52;
  EXPECT_THAT(text_of(Json::array({saturated})),
              HasSubstr("1.9e-03       above 1   above 1: rows that are almost 0, or all is wrong"));
  saturated["attention"]["backward"]["relative_error"]["mean"] = 1.0;
  EXPECT_THAT(text_of(Json::array({saturated})), HasSubstr("1.0e+00"));
}

TEST(Summary, ANormThatIsNotFiniteNamesItsLayer) {
  Json broken = rank(0, 0.9);
  broken["gradient"] = {{"norm", nullptr}, {"nonfinite_layers", {"002"}}};
  EXPECT_THAT(text_of(Json::array({broken})), HasSubstr("not finite at times in layer 002"));
}

TEST(Summary, SaysWhenNoStepWasSeen) {
  Json one = rank(0, 0.7);
  EXPECT_THAT(text_of(Json::array({one})), Not(HasSubstr("no optimizer step was seen")));
  one["steps"] = nullptr;
  EXPECT_THAT(text_of(Json::array({one})), HasSubstr("no optimizer step was seen"));
}

TEST(Summary, SaysWhenNoAttentionWasSeen) {
  Json blind = rank(0, 0.7);
  for (const char* name : {"forward", "backward"}) {
    blind["attention"][name] = {{"calls", 0}, {"judged", 0}};
  }
  EXPECT_THAT(text_of(Json::array({blind})), HasSubstr("no attention call was seen"));
}

TEST(Summary, ManyRanksStayReadable) {
  Json ranks = Json::array();
  for (int number = 0; number < 40; ++number) ranks.push_back(rank(number, 0.7));
  const std::string text = text_of(ranks);
  EXPECT_THAT(text, HasSubstr("... and 24 more"));
}

TEST(Summary, OtherTextIsNoSummary) {
  EXPECT_EQ(summary_text("not json", false), "");
  EXPECT_FALSE(has_ranks("[]"));
  EXPECT_FALSE(has_ranks(R"({"ranks": []})"));
  EXPECT_TRUE(has_ranks(R"({"ranks": [{}]})"));
  EXPECT_THAT(summary_text(R"({"ranks": [{"rank": "x", "loss": 3}], "state": 7})", true),
              HasSubstr("unknown"));
}

}  // namespace
}  // namespace foreshock::cli
