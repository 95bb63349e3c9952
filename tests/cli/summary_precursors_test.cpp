#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/summary_parts.h"

namespace foreshock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Json rank(int number, const std::string& detectors, const std::string& events) {
  return Json::parse(R"({"rank": )" + std::to_string(number) + R"(, "precursors": {"detectors": [)" +
                     detectors + R"(], "loss_events": [)" + events + "]}}");
}

constexpr const char* kQuiet = R"({"detector": "max_logit", "warnings": 0, "last_warn_step": null})";
constexpr const char* kBias =
    R"({"detector": "bias", "layer": "call000", "warnings": 2, "last_warn_step": 1285})";
constexpr const char* kGradient =
    R"({"detector": "gradient_norm", "layer": null, "warnings": 1, "last_warn_step": 301})";
constexpr const char* kSpike = R"({"event": "loss_spike", "step": 321, "preceded_by": [
  {"detector": "bias", "layer": "call001", "lead_steps": 30},
  {"detector": "bias", "layer": "call000", "lead_steps": 36},
  {"detector": "gradient_norm", "layer": null, "lead_steps": 20}]})";

TEST(SummaryPrecursors, AQuietRunHasNoLine) {
  EXPECT_EQ(precursors_facts(Json::array({rank(0, kQuiet, "")})), "");
  EXPECT_EQ(precursors_facts(Json::parse(R"([{"rank": 0}])")), "");
  EXPECT_EQ(precursors_facts(Json::parse(R"([{"precursors": {"detectors": 3, "loss_events": null}}])")), "");
}

TEST(SummaryPrecursors, WhatWarnedIsNamedWithStepAndLayer) {
  const std::string text =
      precursors_facts(Json::array({rank(0, std::string(kBias) + "," + kGradient + "," + kQuiet, "")}));
  EXPECT_THAT(text, HasSubstr("bias warned 2 times, last at step 1 285 in call000\n"));
  EXPECT_THAT(text, HasSubstr("gradient_norm warned once, at step 301\n"));
  EXPECT_THAT(text, Not(HasSubstr("max_logit")));
  EXPECT_THAT(text, Not(HasSubstr("rank")));
}

TEST(SummaryPrecursors, ALossEventComesWithTheEarliestOfEachDetector) {
  const std::string text = precursors_facts(Json::array({rank(0, "", kSpike)}));
  EXPECT_THAT(text, HasSubstr("loss_spike at step 321; before it bias in call000 (36 steps), "
                              "gradient_norm (20 steps)\n"));
}

TEST(SummaryPrecursors, AnEventThatNothingForetoldSaysSo) {
  const std::string text = precursors_facts(
      Json::array({rank(0, "", R"({"event": "divergence", "step": 7, "preceded_by": []})")}));
  EXPECT_THAT(text, HasSubstr("divergence at step 7; no detector before it\n"));
}

TEST(SummaryPrecursors, ManyRanksAreNamedAndCutShort) {
  Json ranks = Json::array();
  for (int n = 0; n < 6; ++n) ranks.push_back(rank(n, kGradient, ""));
  const std::string text = precursors_facts(ranks);
  EXPECT_THAT(text, HasSubstr("step 301 on rank 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("on rank 4")));
  EXPECT_THAT(text, HasSubstr("and 2 more\n"));
}

}  // namespace
}  // namespace foreshock::cli
