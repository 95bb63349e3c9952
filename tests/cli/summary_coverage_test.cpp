#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/summary_parts.h"

namespace foreshock::cli {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

Json numbers(double fetched, const Json& skipped, double late) {
  return {{"device_numbers", {{"fetched", fetched}, {"skipped", skipped}, {"late", late}}}};
}

TEST(SummaryCoverage, OfNothingUnusualNothingIsSaid) {
  EXPECT_EQ(coverage_facts(Json::array({Json::object(), numbers(0, {{"device", 0}}, 0)})), "");
  EXPECT_EQ(coverage_facts(Json::array({{{"device_numbers", "x"}, {"attention_unseen", 3}}})), "");
}

// The first ones ask for the device, and never come.
TEST(SummaryCoverage, NumbersOfADeviceThatDidNotComeAreToldOfAboveOneInAHundred) {
  EXPECT_EQ(coverage_facts(Json::array({numbers(300, {{"ring_full", 3}}, 0)})), "");
  EXPECT_THAT(coverage_facts(Json::array({numbers(300, {{"ring_full", 3}}, 1)})),
              HasSubstr("of 300 losses and norms there 4 did not come: 1 late, 3 ring_full\n"));
  const Json refused = numbers(20, {{"device", 20}, {"capture", 0}}, 0);
  EXPECT_THAT(coverage_facts(Json::array({refused, refused})),
              HasSubstr("of 40 losses and norms there 40 did not come: 40 device\n"));
}

TEST(SummaryCoverage, WhatRanInGraphsIsTold) {
  const Json graphs = {
      {"launches", 10}, {"unknown_launches", 0}, {"calls", {{"forward", 30}, {"backward", 10}}}};
  Json rank = {{"attention_coverage", {{"graphs", graphs}}}};
  EXPECT_THAT(coverage_facts(Json::array({rank, rank})),
              HasSubstr("80 calls ran in 20 launches of CUDA graphs, unsampled\n"));
  rank["attention_coverage"]["graphs"]["unknown_launches"] = 2;
  EXPECT_THAT(coverage_facts(Json::array({rank})), HasSubstr("; of 2 more launches nothing is known\n"));
}

TEST(SummaryCoverage, KernelsThatWereCountedStandBesideTheCalls) {
  Json kernels = {{"state", "done"},
                  {"steps", 3},
                  {"launched", {{"forward", 18}, {"backward", 6}}},
                  {"calls", {{"forward", 12}, {"backward", 6}}}};
  EXPECT_THAT(coverage_facts(Json::array({{{"attention_coverage", {{"kernels", kernels}}}}})),
              HasSubstr("24 of attention launched in 3 steps, 18 calls seen\n"));
  kernels["state"] = "taken";
  kernels["holder"] = "nsys";
  EXPECT_THAT(coverage_facts(Json::array({{{"attention_coverage", {{"kernels", kernels}}}}})),
              HasSubstr("not counted: another tool has CUPTI's place (nsys)\n"));
}

TEST(SummaryCoverage, AttentionBeyondTheHooksIsNamedOnce) {
  const Json rank = {{"attention_unseen", {{{"op", "flex_attention"}, {"evidence", "used"}}}}};
  const std::string told = coverage_facts(Json::array({rank, rank}));
  EXPECT_THAT(told, HasSubstr("flex_attention (used)\n"));
  EXPECT_EQ(told.find("flex_attention"), told.rfind("flex_attention"));
}

TEST(SummaryCoverage, WhatThereWasNoRoomForIsCounted) {
  Json rank = {{"parameters_unnamed", 4464}, {"gradient", {{"untold_steps", 0}}}};
  EXPECT_EQ(coverage_facts(Json::array({rank, {{"parameters_unnamed", 0}}})),
            "  unnamed             4 464 parameters, for want of room: their layers have no gradient norm\n");
  rank["gradient"]["untold_steps"] = 3;
  EXPECT_THAT(
      coverage_facts(Json::array({rank, rank})),
      HasSubstr("untold              of 3 steps: more gradients than there is room for, and no norm\n"));
  EXPECT_EQ(coverage_facts(Json::array({{{"parameters_unnamed", 0}, {"gradient", {{"untold_steps", 0}}}}})),
            "");
}

}  // namespace
}  // namespace foreshock::cli
