#include <gtest/gtest.h>

#include "agent/publish.h"

namespace foreshock {
namespace {

// 100 forward calls seen.
RankStatistics a_rank() {
  RankStatistics rank;
  rank.run = "run";
  rank.identity.rank = 3;
  segment::Op op = {};
  op.pass = 0;
  rank.ops = {op};
  rank.totals.calls[0] = 100;
  return rank;
}

std::string exposed(const RankStatistics& rank, Registry* registry) {
  publish_coverage(rank, registry);
  return exposition(*registry->snapshot());
}

TEST(PublishCoverage, NothingIsClaimedWhereNobodyCounted) {
  Registry registry;
  const std::string text = exposed(a_rank(), &registry);
  EXPECT_NE(text.find("coverage_ratio{run=\"run\",rank=\"3\",source=\"none\"} NaN"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("foreshock_graph_launches_total{"), std::string::npos) << text;
  EXPECT_EQ(coverage_json(a_rank()).dump(), R"({"ratio":null,"source":"none"})");
}

TEST(PublishCoverage, GraphsCountWhatRanInThem) {
  Registry registry;
  RankStatistics rank = a_rank();
  exposed(rank, &registry);
  rank.coverage.graph_launches = 7;
  rank.coverage.recorded_calls[0] = 20;  // of the 100: 80 ran
  rank.coverage.launched_calls[0] = 140;
  rank.coverage.launched_calls[1] = 20;
  const std::string text = exposed(rank, &registry);
  for (const char* series : {"coverage_ratio{run=\"run\",rank=\"3\",source=\"graphs\"} 0.3333333333333333",
                             "attention_recorded_total{run=\"run\",rank=\"3\",pass=\"forward\"} 20",
                             "attention_graph_calls_total{run=\"run\",rank=\"3\",pass=\"backward\"} 20",
                             "graph_launches_total{run=\"run\",rank=\"3\",attention=\"known\"} 7",
                             "graph_launches_total{run=\"run\",rank=\"3\",attention=\"unknown\"} 0"})
    EXPECT_NE(text.find(series), std::string::npos) << series << "\n" << text;
  EXPECT_EQ(text.find("source=\"none\""), std::string::npos) << text;
  const nlohmann::json told = coverage_json(rank);
  EXPECT_DOUBLE_EQ(told["ratio"], 80.0 / 240.0);
  EXPECT_EQ(told["source"], "graphs");
  EXPECT_EQ(told["graphs"]["calls"]["forward"], 140);
  EXPECT_EQ(told["graphs"]["recorded"]["forward"], 20);
}

TEST(PublishCoverage, WithGraphsOfUnknownContentThereIsNoRatio) {
  RankStatistics rank = a_rank();
  rank.coverage.graph_launches = 7;
  rank.coverage.unknown_launches = 1;
  rank.coverage.launched_calls[0] = 70;
  EXPECT_TRUE(coverage_json(rank)["ratio"].is_null());
  EXPECT_EQ(coverage_json(rank)["source"], "none");
  EXPECT_EQ(coverage_json(rank)["graphs"]["unknown_launches"], 1);
}

RankStatistics counted_rank() {
  RankStatistics rank = a_rank();
  rank.coverage.kernel_count_state = static_cast<uint32_t>(segment::KernelCountState::kDone);
  rank.coverage.kernel_count_steps = 4;
  rank.coverage.kernels[0] = 12;
  rank.coverage.kernels[1] = 8;
  rank.coverage.kernel_count_calls[0] = 10;
  return rank;
}

TEST(PublishCoverage, CountedKernelsAreTheBestSource) {
  Registry registry;
  RankStatistics rank = counted_rank();
  rank.coverage.graph_launches = 1;
  rank.coverage.kernel_count_in_graphs = 5;
  const std::string text = exposed(rank, &registry);
  for (const char* series : {"coverage_ratio{run=\"run\",rank=\"3\",source=\"kernels\"} 0.4\n",
                             "attention_kernels_total{run=\"run\",rank=\"3\",pass=\"forward\"} 12",
                             "kernel_count_state{run=\"run\",rank=\"3\",state=\"done\"} 1"})
    EXPECT_NE(text.find(series), std::string::npos) << series << "\n" << text;
  EXPECT_EQ(coverage_json(rank)["kernels"]["launched"]["backward"], 8);
}

TEST(PublishCoverage, MoreCallsThanKernelsIsNoRatio) {
  RankStatistics rank = counted_rank();
  rank.coverage.kernel_count_calls[1] = 11;
  EXPECT_EQ(coverage_json(rank)["source"], "none");
}

// Whatever a hostile segment says.
TEST(PublishCoverage, FiguresThatMakeNoSenseGiveNoRatio) {
  RankStatistics rank = a_rank();
  rank.coverage.graph_launches = 1;
  rank.coverage.recorded_calls[0] = 101;
  EXPECT_TRUE(coverage_json(rank)["ratio"].is_null());
  rank = counted_rank();
  rank.coverage.kernel_count_state = 77;
  Registry registry;
  EXPECT_EQ(exposed(rank, &registry).find("foreshock_kernel_count_state{"), std::string::npos);
}

}  // namespace
}  // namespace foreshock
