#include "cli/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Json pass(double judged, double layers = 2) {
  return {{"judged", judged},
          {"layers_judged", layers},
          {"partial", 0},
          {"relative_error", {{"mean", 0.002}}},
          {"deviation_ratio", {{"mean", 0.7}, {"max", 0.9}}}};
}

Json rank_of(double forward, double backward) {
  return {{"rank", 0},
          {"step", 400},
          {"sample_interval_steps", 8},
          {"attention", {{"forward", pass(forward)}, {"backward", pass(backward)}}}};
}

Verdict verdict_on(const Json& rank) {
  const Json ranks = Json::array({rank});
  const PassTotals passes[2] = {totals_of(ranks, "forward"), totals_of(ranks, "backward")};
  return verdict_of(passes, ranks);
}

TEST(Verdict, StatesOnHowMuchItRests) {
  const Verdict verdict = verdict_on(rank_of(62, 46));
  EXPECT_EQ(verdict.state, Verdict::State::kSound);
  EXPECT_EQ(verdict.sentence(),
            "attention errs no more than its precision explains, over 62 forward and 46 backward samples of "
            "2 layers");
}

TEST(Verdict, NamesThePassThatWasNotJudged) {
  Verdict verdict = verdict_on(rank_of(62, 0));
  EXPECT_THAT(verdict.not_judged, ElementsAre("backward"));
  EXPECT_THAT(verdict.sentence(), HasSubstr("over 62 forward samples of 2 layers; not judged: backward"));
  verdict = verdict_on(rank_of(62, 3));
  EXPECT_THAT(verdict.sentence(), HasSubstr("; not judged: backward (too few samples)"));
}

TEST(Verdict, OfTooFewSamplesNothingIsConcluded) {
  const Verdict verdict = verdict_on(rank_of(1, 0));
  EXPECT_EQ(verdict.state, Verdict::State::kTooFew);
  EXPECT_EQ(verdict.sentence(),
            "too few samples for a verdict on attention, over 1 forward sample of 2 layers");
  Json wrong = rank_of(2, 0);
  wrong["alarms"] = {{{"layer", "001"}, {"pass", "forward"}, {"of", "deviation_ratio"}, {"value", 8}}};
  EXPECT_EQ(verdict_on(wrong).state, Verdict::State::kFault) << "an alarm has its own minimum";
}

TEST(Verdict, AnAlarmThatNothingRenewsSaysWhenItWasLastSeen) {
  Json rank = rank_of(62, 46);
  rank["alarms"] = {
      {{"layer", "000"}, {"pass", "backward"}, {"of", "bias"}, {"value", 0.3}, {"last_step", 222}}};
  EXPECT_EQ(verdict_on(rank).sentence(),
            "attention of layer 000 backward is biased by +0.30 ulp (last seen at step 222)");
  rank["alarms"][0]["last_step"] = 392;
  EXPECT_THAT(verdict_on(rank).sentence(), Not(HasSubstr("last seen")));
}

TEST(Verdict, WordsForEachKindOfAlarm) {
  Json rank = rank_of(62, 46);
  const auto with = [&](const char* of) {
    rank["alarms"] = {{{"layer", "000"}, {"pass", "forward"}, {"of", of}, {"value", 18.0}}};
    return verdict_on(rank).sentence();
  };
  EXPECT_THAT(with("fused_ratio"),
              HasSubstr("errs up to 18.0 times what fused attention in its precision errs"));
  EXPECT_THAT(with("log_sum_exp"), HasSubstr("a log-sum-exp whose error is up to 18.0 times what rounding"));
  EXPECT_THAT(with("deviation_ratio"), HasSubstr("errs up to 18.0 times what its precision explains"));
  EXPECT_THAT(with("nonfinite"), HasSubstr("gives NaN or Inf where the reference does not"));
}

TEST(Verdict, ABiasThatASoundAlgorithmHasTooIsNone) {
  Json rank = rank_of(62, 46);
  Json& backward = rank["attention"]["backward"];
  backward.update({{"bias_ulp", -2.48}, {"bias_z", -41}, {"excess_bias_ulp", 0.01}, {"excess_bias_z", 0.4}});
  EXPECT_EQ(verdict_on(rank).state, Verdict::State::kSound);
  backward.update({{"excess_bias_ulp", -2.4}, {"excess_bias_z", -30}});
  EXPECT_THAT(verdict_on(rank).sentence(), HasSubstr("backward is biased"));
}

}  // namespace
}  // namespace foreshock::cli
