#include "cli/report_events.h"

#include "told_run.h"

namespace foreshock::cli {
namespace {

TEST(ReportEvents, LevelsBecomeEpisodes) {
  EventCollector collector;
  collector.take(level_line("bias", "watch", 10, "003"), 0, 10);
  collector.take(level_line("bias", "warn", 12, "003"), 0, 12);
  collector.take(level_line("bias", "quiet", 30, "003"), 0, 30);
  collector.take(level_line("bias", "watch", 50, "003"), 0, 50);
  ASSERT_EQ(collector.episodes().size(), 2u);
  EXPECT_EQ(collector.episodes()[0].since_step, 10);
  EXPECT_EQ(collector.episodes()[0].warn_step, 12);
  EXPECT_EQ(collector.episodes()[0].end_step, 30);
  EXPECT_EQ(collector.episodes()[0].most, Level::kWarn);
  EXPECT_EQ(collector.episodes()[1].end_step, -1);
  EXPECT_EQ(collector.warnings(), 1u);
}

TEST(ReportEvents, WhatARankSaidIsForgottenWhenItGoesBack) {
  EventCollector collector;
  collector.take(level_line("bias", "warn", 12, "003"), 0, 12);
  collector.take(event_line("resumed", 5), 1, 5);
  collector.take(event_line("loss_spike", 20), 1, 22);
  ASSERT_EQ(collector.events().size(), 1u);
  EXPECT_TRUE(collector.events()[0].signs.empty());
  collector.take(level_line("bias", "watch", 8, "003"), 1, 22);
  ASSERT_EQ(collector.episodes().size(), 2u) << "the first one does not go on";
  EXPECT_EQ(collector.episodes()[1].warn_step, -1);
}

void speak(EventCollector& collector, int64_t watch, int64_t warn, int64_t quiet) {
  collector.take(level_line("bias", "watch", watch, "003"), 0, watch);
  collector.take(level_line("bias", "warn", warn, "003"), 0, warn);
  collector.take(level_line("bias", "quiet", quiet, "003"), 0, quiet);
}

// An episode of the event before this one is not what led to it.
TEST(ReportEvents, OfSeveralTimesTheOneThatLedToTheEvent) {
  EventCollector collector;
  speak(collector, 100, 110, 130);
  speak(collector, 280, 285, 300);
  speak(collector, 310, 315, 318);
  collector.take(event_line("loss_spike", 320), 0, 322);
  ASSERT_EQ(collector.events()[0].signs.size(), 1u);
  const ReportSign& sign = collector.events()[0].signs[0];
  EXPECT_EQ(sign.since_step, 280) << "both of the last two reached to 64 steps before it";
  EXPECT_EQ(sign.warn_step, 285);
  EXPECT_EQ(sign.end_step, 318);
  collector.take(event_line("loss_spike", 400), 0, 402);
  EXPECT_EQ(collector.events()[1].signs[0].since_step, 310) << "none did: the last";
}

// bias is among the default detectors of the benchmark, entropy_drop and logit_growth are not.
TEST(ReportEvents, WhatHasProvenItselfComesFirst) {
  EventCollector collector;
  collector.take(level_line("entropy_drop", "warn", 290, "002"), 0, 290);
  collector.take(level_line("logit_growth", "watch", 280, "002"), 0, 280);
  collector.take(level_line("bias", "watch", 310, "001"), 0, 310);
  collector.take(level_line("bias", "warn", 315, "003"), 0, 315);
  collector.take(event_line("loss_spike", 320), 0, 322);
  const std::vector<ReportSign>& signs = collector.events()[0].signs;
  ASSERT_EQ(signs.size(), 4u);
  EXPECT_EQ(signs[0].layer, "003");
  EXPECT_EQ(signs[1].layer, "001");
  EXPECT_EQ(signs[2].detector, DetectorId::kEntropyDrop);
  EXPECT_EQ(signs[3].detector, DetectorId::kLogitGrowth);
}

TEST(ReportEvents, OtherEventsAndUnknownDetectorsAreLeftAlone) {
  EventCollector collector;
  collector.take(event_line("weight_mismatch", 5), 0, 5);
  EXPECT_FALSE(collector.has_any());
  collector.take(level_line("of_a_newer_version", "warn", 5), 0, 5);
  EventLine nowhere;
  nowhere.event = "loss_spike";
  collector.take(nowhere, 0, 5);
  EXPECT_TRUE(collector.has_any());
  EXPECT_TRUE(collector.episodes().empty());
  EXPECT_TRUE(collector.events().empty());
}

TEST(ReportEvents, ASpikeThatDivergesIsOneIncidentOnAllRanks) {
  EventCollector collector;
  collector.take(event_line("loss_spike", 222), 0, 224);
  collector.take(event_line("loss_spike", 223, "", 1), 0, 225);
  collector.take(event_line("divergence", 222), 0, 350);
  collector.take(event_line("divergence", 223, "", 1), 0, 351);
  ASSERT_EQ(collector.events().size(), 1u);
  EXPECT_EQ(collector.events()[0].kind, WatchEventKind::kDivergence);
  EXPECT_EQ(collector.events()[0].onset_step, 222);
  EXPECT_EQ(collector.events()[0].declared_step, 224);
  EXPECT_EQ(collector.events()[0].ranks, (std::vector<int64_t>{0, 1}));
  collector.take(event_line("divergence", 226), 0, 360);
  collector.take(event_line("loss_rise", 222), 0, 360);
  EXPECT_EQ(collector.events().size(), 3u)
      << "a second divergence, and a slow rise, are incidents of their own";
}

TEST(ReportEvents, AnotherAttemptIsAnotherEvent) {
  EventCollector collector;
  collector.take(event_line("loss_spike", 20), 0, 22);
  collector.take(event_line("loss_spike", 21, "", 1), 0, 23);
  collector.take(event_line("loss_spike", 20), 1, 22);
  EXPECT_EQ(collector.events().size(), 2u) << "the ranks of the first attempt share one";
  for (int64_t step = 0; step < 2000; ++step)
    collector.take(event_line("loss_rise", 100 * step), 0, 100 * step);
  EXPECT_EQ(collector.events().size(), EventCollector::kMostEvents);
  EXPECT_EQ(collector.left_out(), 2002u - EventCollector::kMostEvents);
}

}  // namespace
}  // namespace foreshock::cli
