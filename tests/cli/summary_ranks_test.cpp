#include <gtest/gtest.h>

#include "cli/summary.h"

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

Json process(int rank, int attempt, Json step) {
  return {{"rank", rank}, {"attempt", attempt}, {"step", step}};
}

TEST(SummaryRanks, CountsRanksNotProcesses) {
  EXPECT_EQ(ranks_text(Json::array({process(0, 0, 5)})), "1 rank");
  EXPECT_EQ(ranks_text({process(0, 0, 5), process(1, 0, 5)}), "2 ranks");
  EXPECT_EQ(ranks_text({process(0, 0, 5), process(0, 0, 9)}), "1 rank in 2 processes");
  EXPECT_EQ(ranks_text({process(0, 0, 5), process(1, 0, 5), process(0, 1, 9), process(1, 1, 9)}),
            "2 ranks in 4 processes (2 attempts)");
  EXPECT_EQ(ranks_text(Json::array({Json::object()})), "1 rank") << "an agent of another version";
}

TEST(SummaryRanks, TellsWhoEndedEarly) {
  EXPECT_EQ(ended_early_text({process(0, 0, 40), process(1, 0, 39)}), "");
  EXPECT_EQ(ended_early_text({process(0, 0, 40), process(1, 0, 12)}), "rank 1 at step 12, of 40");
  EXPECT_EQ(ended_early_text({process(0, 0, 40), process(1, 0, nullptr)}),
            "rank 1 before its first step, of 40");
  EXPECT_EQ(ended_early_text({process(0, 0, nullptr), process(1, 0, nullptr)}), "");
  Json many = Json::array({process(0, 0, 90)});
  for (int rank = 1; rank < 8; ++rank) many.push_back(process(rank, 0, rank));
  EXPECT_EQ(ended_early_text(many),
            "rank 1 at step 1, rank 2 at step 2, rank 3 at step 3, rank 4 at step 4 and 3 more, of 90");
}

TEST(SummaryRanks, AnEarlierAttemptHasNotEndedEarly) {
  EXPECT_EQ(ended_early_text({process(0, 0, 7), process(1, 0, 6), process(0, 1, 40), process(1, 1, 40)}), "");
}

TEST(SummaryRanks, TellsSinceWhenAndWhereNamesNormsAndWeightsWereGivenUp) {
  const auto given_up = [](int rank, Json step) {
    Json one = process(rank, 0, 900);
    one["tensors_given_up_step"] = step;
    return one;
  };
  EXPECT_EQ(given_up_text(Json::array({process(0, 0, 900)})), "") << "an agent of another version";
  EXPECT_EQ(given_up_text({given_up(0, nullptr), given_up(1, nullptr)}), "");
  EXPECT_EQ(given_up_text(Json::array({given_up(0, 96)})), "from step 96 on");
  EXPECT_EQ(given_up_text({given_up(0, nullptr), given_up(1, 120), given_up(2, 96)}),
            "from step 96 on in 2 of 3 ranks");
}

}  // namespace
}  // namespace foreshock::cli
