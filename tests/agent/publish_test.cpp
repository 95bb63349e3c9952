#include "agent/publish.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/agent/segment_of_a_trainer.h"
#include "agent/pipeline.h"

namespace foreshock {
namespace {

RankStatistics some_rank() {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  rank.run = "run";
  for (int n = 1; n <= 6; ++n) {
    trainer.step(n, 2.0);
    trainer.sample(n, 1.0 + 0x1p-8);
  }
  pipeline.poll(*reader, &rank);
  pipeline.refresh(*reader, &rank);
  return rank;
}

TEST(Publish, EverySeriesIsAccepted) {
  // Registry::set refuses wrong labels and values outside their closed sets: a refused series would be missing here.
  Registry registry;
  publish_rank(some_rank(), 2, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const char* series :
       {"foreshock_rank_info{", "foreshock_source_info{", "foreshock_step{run=\"run\",rank=\"0\"} 6",
        "foreshock_attention_calls_total{run=\"run\",rank=\"0\",pass=\"forward\",op=\"attention\"} 6",
        "foreshock_attention_judged_total{run=\"run\",rank=\"0\",pass=\"forward\"} 6",
        "foreshock_attention_skipped_total{run=\"run\",rank=\"0\",pass=\"backward\",reason=\"ring_full\"} 0",
        "foreshock_attention_lost_total{run=\"run\",rank=\"0\",pass=\"forward\",reason=\"torn\"} 0",
        "foreshock_layer_attention_deviation_ratio{run=\"run\",rank=\"0\",layer=\"003\",pass=\"forward\"}",
        "foreshock_loss{run=\"run\",rank=\"0\"} 2", "foreshock_slowdown_ratio{", "foreshock_overhead_seconds_total{"})
    EXPECT_NE(text.find(series), std::string::npos) << series << "\n" << text;
}

TEST(Publish, CountersOfAClosedSetExistAtZeroFromTheStart) {
  Registry registry;
  RankStatistics rank;
  rank.run = "run";
  publish_rank(rank, 1, &registry);
  const std::string text = exposition(*registry.snapshot());
  for (const char* reason : segment::kSkipReasonNames)
    EXPECT_NE(text.find(std::string("reason=\"") + reason + "\"} 0"), std::string::npos) << reason;
}

TEST(Publish, TheSummaryHasTheKeysThatItsReadersRelyOn) {
  const nlohmann::json rank = summary_of(some_rank(), 2);
  for (const char* key : {"rank", "steps", "step_source", "attention", "worst_layer", "layer_source", "loss",
                          "slowdown_ratio"})
    EXPECT_TRUE(rank.contains(key)) << key;
  for (const char* pass : {"forward", "backward"}) {
    const nlohmann::json& of = rank["attention"][pass];
    for (const char* key : {"calls", "unsampled", "sampled", "judged", "in_flight", "skipped", "lost",
                            "relative_error", "deviation_ratio", "bias_ulp", "bias_z"})
      EXPECT_TRUE(of.contains(key)) << pass << " " << key;
  }
  EXPECT_EQ(rank["worst_layer"], "003");
  // Nothing was judged in the backward pass: unknown is null, never 0.
  EXPECT_TRUE(rank["attention"]["backward"]["deviation_ratio"]["mean"].is_null());
  EXPECT_TRUE(rank["attention"]["backward"]["bias_ulp"].is_null());
}

TEST(Publish, TheStateHasAHistoryOfEqualLengths) {
  const nlohmann::json state = state_of(some_rank(), 2);
  std::set<size_t> lengths;
  for (const char* key : {"step", "loss", "gradient_norm", "deviation_ratio"})
    lengths.insert(state["history"][key].size());
  EXPECT_EQ(lengths, std::set<size_t>({6}));
  EXPECT_EQ(state["layers"].size(), 1u);
}

}  // namespace
}  // namespace foreshock
