#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/summary_parts.h"
#include "segment/layout.h"

namespace foreshock::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Json rank(int number) {
  const Json weights = {{"tensors", 30},
                        {"interval_steps", 64},
                        {"skipped", {{"budget", 0}, {"device", 0}}},
                        {"wasserstein_previous", 3.2e-5},
                        {"update_mean_abs", 1e-6},
                        {"moved_most", "blocks.3.up.weight"},
                        {"moved_most_wasserstein", 8.25e-5},
                        {"dropped", 0},
                        {"replicas", "here"},
                        {"replica_ranks", 2},
                        {"replicas_compared", 1204},
                        {"mismatches", 0}};
  return {{"rank", number}, {"weights", weights}};
}

std::string facts(const Json& ranks) { return weights_facts(ranks, Paint(false)); }

TEST(SummaryWeights, TellsHowFarTheyMovedAndThatReplicasAgree) {
  const std::string text = facts({rank(0), rank(1)});
  // 3.2e-5 / (64 * 1e-6)
  for (const char* part :
       {"W1 3.20e-05 in the last 64 steps, 0.50 of what", "blocks.3.up.weight moved most, W1 8.25e-05",
        "2 ranks agree bit for bit in 1 204 comparisons"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
}

TEST(SummaryWeights, NamesTheOddRank) {
  Json odd = rank(1);
  odd["weights"]["mismatches"] = 4;
  EXPECT_THAT(facts({rank(0), odd}),
              HasSubstr("the weights of rank 1 (4 times) differ from their replicas'"));
}

TEST(SummaryWeights, SaysWhereThereIsNothingToCompare) {
  Json one = rank(0);
  one["weights"]["replicas"] = "none";
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("full shard), so agreement cannot be checked"));
  one["weights"]["replicas"] = "elsewhere";
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("none on this node; Prometheus compares nodes"));
  one["weights"]["replicas"] = nullptr;
  EXPECT_THAT(facts(Json::array({one})), Not(HasSubstr("replicas")));
}

TEST(SummaryWeights, SaysWhatIsNotFollowedAndWhy) {
  Json one = rank(0);
  one["weights"]["unfollowed"] = {{"placement", 2}};
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("tensors not followed: 2 placement"));
  one["weights"]["tensors"] = 0;
  one["weights"]["unfollowed"] = {{"flat_parameter", 3}};
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("tensors not followed: 3 flat_parameter"));
  one["weights"]["unfollowed"] = {{"off", 3}};
  EXPECT_THAT(facts(Json::array({one})), IsEmpty()) << "as it was asked for";
}

TEST(SummaryWeights, SaysOfWhichPartTheChangeIs) {
  Json one = rank(0);
  one["weights"]["update_coverage"] = 1.0;
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("0.50 of what"));
  one["weights"]["update_coverage"] = 0.41;
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("known of 41 % of the values (--memory)"));
  EXPECT_THAT(facts(Json::array({one})), Not(HasSubstr("of what its steps")));
}

TEST(SummaryWeights, SaysWhyThereAreNoSpectra) {
  Json one = rank(0);
  one["update_spectra"] = {{"layers", 0}, {"skipped", {{"too_large", 5}, {"shape", 0}}}};
  EXPECT_THAT(
      facts(Json::array({one})),
      HasSubstr("looks at a projection without heads: 5 too large for the ring of weights (--memory)"));
  one["update_spectra"]["layers"] = 2;
  EXPECT_THAT(facts(Json::array({one})), Not(HasSubstr("too_large")));
}

// The names in the table are for machines: "33 shape" tells nobody what to look at.
TEST(SummaryWeights, EveryReasonOfNoSpectraIsSaidInWords) {
  Json one = rank(0);
  for (const std::string name : segment::kTensorHeadSkipNames) {
    one["update_spectra"] = {{"layers", 0}, {"skipped", {{name, 33}}}};
    EXPECT_THAT(facts(Json::array({one})), HasSubstr("a projection without heads: 33 ")) << name;
    EXPECT_THAT(facts(Json::array({one})), Not(HasSubstr("33 " + name))) << name;
  }
  one["update_spectra"]["skipped"] = {{"shape", 33}, {"of_tomorrow", 1}};
  EXPECT_THAT(facts(Json::array({one})),
              HasSubstr("33 of another shape than its name and the attention calls ask for, 1 of_tomorrow"));
}

TEST(SummaryWeights, SaysWhatWasLeftOut) {
  Json one = rank(0);
  one["weights"]["skipped"] = {{"budget", 3}, {"ring_full", 1}, {"device", 0}};
  one["weights"]["dropped"] = 7;
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("3 budget, 7 no room in the agent, 1 ring_full"));
}

TEST(SummaryWeights, BeforeTheSecondIntervalNothingIsKnown) {
  Json one = rank(0);
  one["weights"]["wasserstein_previous"] = nullptr;
  EXPECT_THAT(facts(Json::array({one})), HasSubstr("no two intervals of 64 steps were seen whole"));
}

TEST(SummaryWeights, WithoutWeightsThereIsNoLine) {
  Json one = rank(0);
  one["weights"]["tensors"] = 0;
  EXPECT_THAT(facts(Json::array({one})), IsEmpty());
  EXPECT_THAT(facts(Json::array({Json{{"rank", 0}}})), IsEmpty());
}

}  // namespace
}  // namespace foreshock::cli
