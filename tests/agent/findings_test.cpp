#include "agent/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

RankStatistics rank_at(int64_t step, int number = 0) {
  RankStatistics rank;
  rank.identity.rank = number;
  rank.last_step.sequence = 1;
  rank.last_step.step = step;
  rank.last_step.interval = 1;
  rank.judged[0] = rank.judged[1] = 126;
  return rank;
}

std::vector<Finding> findings(const Ranks& ranks) {
  const PassTotals passes[2] = {totals_of(ranks, 0), totals_of(ranks, 1)};
  return findings_of(ranks, nullptr, passes);
}

// Adds a slice of dQ in layer 001 with these errors, as observe() does.
void add_slice(int64_t step, double ratio, double relative_error, RankStatistics* rank) {
  LayerStatistics* layer = rank->layer_of("001");
  layer->label = "001";
  SampleLine slice;
  slice.step = step;
  slice.tensor = "grad_query";
  slice.relative_error_mean = relative_error;
  slice.deviation_ratio = ratio;
  slice.fused_ratio = ratio;
  layer->pass[1].last_step = step;
  layer->pass[1].relative_error_mean.add(relative_error);
  layer->pass[1].deviation_ratio.add(ratio);
  layer->pass[1].add_fused_ratio(ratio, kDeviationRatioBackward);
  note_alarms(slice, layer);
}

TEST(Findings, AnErrorIsASentenceWithPercentStepLargestAndPresentSize) {
  RankStatistics rank = rank_at(200);
  for (int64_t step = 1; step <= 8; ++step) add_slice(step, 162, 0.05, &rank);
  for (int64_t step = 9; step <= 200; ++step) add_slice(step, 12.5, 0.004, &rank);
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].text, HasSubstr("layer 001: dQ is wrong by up to 5 % (162x the error of "));
  EXPECT_THAT(found[0].text, HasSubstr(" attention, 12.5x in the last samples) since step 1"));
  EXPECT_EQ(found[0].largest, 162);
  EXPECT_EQ(found[0].now, 12.5);
  EXPECT_EQ(found[0].relative_error, 0.05);
  EXPECT_EQ(found[0].since_step, 1);
  EXPECT_EQ(found[0].last_step, 200);
  EXPECT_EQ(sentence_of(found[0]),
            found[0].text + ". Do: " + info_of(FindingKind::kAttentionError).action + ".");
}

// Between two samples of a layer there may be many steps, and the error began in one of them.
TEST(Findings, TheLastSoundSampleIsNamed) {
  RankStatistics rank = rank_at(500);
  for (const int64_t step : {64, 128, 190}) add_slice(step, 1, 0.001, &rank);
  for (const int64_t step : {255, 317}) add_slice(step, 90, 0.05, &rank);
  EXPECT_THAT(findings({&rank}).at(0).text, HasSubstr(" since step 255 (sound at 190)"));
  RankStatistics dense = rank_at(500);
  for (const int64_t step : {253, 254}) add_slice(step, 1, 0.001, &dense);
  for (const int64_t step : {255, 256}) add_slice(step, 90, 0.05, &dense);
  EXPECT_THAT(findings({&dense}).at(0).text,
              testing::AllOf(HasSubstr(" since step 255"), Not(HasSubstr("sample of"))));
}

// Adds a slice of dQ with this error and this bias; the rounded reference has none.
void add_biased_slice(int64_t step, double ratio, double bias_ulp, RankStatistics* rank) {
  PassStatistics& pass = rank->layer_of("001")->pass[1];
  const double noise = step % 2 == 0 ? 0.03 : -0.03;
  pass.bias.add({0, 0, step, 0}, {bias_ulp * (1 + noise), 1});
  pass.excess_bias.add({0, 0, step, 0}, {bias_ulp * (1 + noise), 1});
  pass.rounded_bias.add({0, 0, step, 0}, {noise, 1});
  LayerStatistics* layer = rank->layer_of("001");
  layer->label = "001";
  pass.last_step = step;
  pass.add_fused_ratio(ratio, kDeviationRatioBackward);
  SampleLine slice;
  slice.step = step;
  slice.tensor = "grad_query";
  slice.fused_ratio = ratio;
  slice.bias_error_sum = bias_ulp;
  slice.bias_ulp_sum = 1;
  note_alarms(slice, layer);
}

TEST(Findings, TheBiasOfSlicesWithLargeErrorsIsNotAFinding) {
  RankStatistics rank = rank_at(300);
  const auto expect_error_alone = [&] {
    const std::vector<Finding> found = findings({&rank});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].kind, FindingKind::kAttentionError);
  };
  for (int64_t step = 1; step <= 100; ++step) add_biased_slice(step, 500, 540831, &rank);
  expect_error_alone();
  for (int64_t step = 101; step <= 300; ++step) {
    add_biased_slice(step, 1, 0, &rank);
    expect_error_alone();
  }
}

// Rounding in one direction raises the error too. The bias says more then: it is the rounding.
TEST(Findings, ABiasThatRoundingCanHaveIsAFindingBesideTheError) {
  RankStatistics rank = rank_at(100);
  for (int64_t step = 1; step <= 100; ++step) add_biased_slice(step, 3.5, 0.8, &rank);
  std::vector<FindingKind> kinds;
  for (const Finding& finding : findings({&rank})) kinds.push_back(finding.kind);
  EXPECT_THAT(kinds,
              testing::UnorderedElementsAre(FindingKind::kAttentionBias, FindingKind::kAttentionError));
}

TEST(Findings, ABiasThatBeganBeforeTheErrorsStaysAFinding) {
  RankStatistics rank = rank_at(200);
  for (int64_t step = 1; step <= 100; ++step) add_biased_slice(step, 1, 40, &rank);
  const int64_t since = findings({&rank}).at(0).since_step;
  for (int64_t step = 101; step <= 200; ++step) add_biased_slice(step, 500, 540831, &rank);
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, FindingKind::kAttentionBias);
  EXPECT_EQ(found[0].since_step, since);
  EXPECT_THAT(found[0].text, HasSubstr("dQ is biased by +40.00 ulp since step "));
  EXPECT_EQ(found[1].kind, FindingKind::kAttentionError);
  EXPECT_EQ(found[1].since_step, 101);
}

TEST(Findings, SizesBeyondAMeaningAreNotPrinted) {
  RankStatistics rank = rank_at(40);
  for (int64_t step = 1; step <= 40; ++step) add_slice(step, 1e62, 1e60, &rank);
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].text, HasSubstr("wrong by more than 100 % (more than 1000x the error"));
}

TEST(Findings, AnErrorIsComparedWithWhatTheOperationMayHave) {
  RankStatistics rank = rank_at(40);
  for (int64_t step = 1; step <= 40; ++step) add_slice(step, 20, 0.05, &rank);
  PassStatistics& backward = rank.layer_of("001")->pass[1];
  const auto text = [&](uint64_t judged, uint64_t written_out) {
    backward.judged = judged;
    backward.written_out = written_out;
    return findings({&rank}).at(0).text;
  };
  EXPECT_THAT(text(40, 0), HasSubstr("20x the error of fused attention) since"));
  EXPECT_THAT(text(40, 40), HasSubstr("20x the error of plain attention rounded as this one) since"));
  EXPECT_THAT(text(40, 7), HasSubstr("20x the error of sound attention) since"));
  EXPECT_THAT(text(0, 0), HasSubstr("20x the error of sound attention) since")) << "of an earlier agent";
}

TEST(Findings, AmongEqualsTheFirstOnsetComesFirst) {
  RankStatistics rank = rank_at(100);
  for (const auto& [label, first] : {std::pair("000", 72), std::pair("001", 3), std::pair("002", 40)}) {
    LayerStatistics* layer = rank.layer_of(label);
    layer->label = label;
    layer->pass[0].past[AlarmKind::kBias] = {first, 90, 0.4, {}, BiasPool::kSlices};
  }
  std::vector<int64_t> onsets;
  for (const Finding& finding : findings({&rank})) onsets.push_back(finding.since_step);
  EXPECT_THAT(onsets, ElementsAre(3, 40, 72));
}

TEST(Findings, AWrongOutputComesBeforeTheGradientThatIsWrongBecauseOfIt) {
  RankStatistics rank = rank_at(100);
  for (const char* label : {"000", "001"}) rank.layer_of(label)->label = label;
  rank.layer_of("001")->pass[0].past[AlarmKind::kFusedRatio] = {4, 90, 20};
  rank.layer_of("001")->pass[1].past[AlarmKind::kFusedRatio] = {2, 90, 20};
  rank.layer_of("000")->pass[0].past[AlarmKind::kFusedRatio] = {3, 90, 20};
  std::vector<std::pair<std::string, int>> places;
  for (const Finding& finding : findings({&rank})) places.emplace_back(finding.layer, finding.tensor);
  EXPECT_THAT(places, ElementsAre(std::pair("001", 0), std::pair("001", 1), std::pair("000", 0)));
}

TEST(Findings, RanksAreNamedIfThereAreSeveral) {
  RankStatistics first = rank_at(100, 0), second = rank_at(100, 1);
  second.layer_of("001")->label = "001";
  second.layer_of("001")->pass[0].past[AlarmKind::kNonfinite] = {7, 9, std::nullopt};
  const std::vector<Finding> found = findings({&first, &second});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(
      found[0].text,
      "layer 001 on rank 1: the output has NaN or Inf where the fp64 reference has none in steps 7 to 9, "
      "not since");
}

// 300 calm losses, and high ones from 301 on. `rate`: the learning rate from step 300 on.
void watch_divergence(double rate, RankWatch* watch) {
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 500; ++step)
    watch->observe_step(step, step > 300 ? 9.0 : 2.0 + 0.01 * static_cast<double>(step % 7), 0.5, &events,
                        step >= 300 ? rate : 0.003, uint64_t{0});
}

TEST(Findings, TheCauseOfALossEventIsWhatChangedBefore) {
  RankWatch jumped, steady;
  watch_divergence(0.3, &jumped);
  watch_divergence(0.003, &steady);
  RankStatistics rank = rank_at(500);
  rank.watch = &jumped;
  std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text,
            "loss diverged at step 301, one step after the learning rate went from 0.003 to 0.3");
  EXPECT_EQ(found[0].since_step, 301);
  rank.watch = &steady;
  found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "loss diverged at step 301");
}

// Scores that overflow follow from a divergence. Without large scores, or before it, NaN is a fault of its
// own.
TEST(Findings, NanAfterADivergenceIsAConsequenceWhereScoresAreLarge) {
  RankWatch watch;
  watch_divergence(0.3, &watch);
  const auto headline = [&](double score, int64_t nan_since, std::string* last = nullptr) {
    RankStatistics rank = rank_at(500);
    rank.watch = &watch;
    LayerStatistics* layer = rank.layer_of("001");
    layer->label = "001";
    layer->pass[0].dtype = DType::kBf16;
    layer->scores.logit.add(score);
    layer->pass[0].past[AlarmKind::kNonfinite] = {nan_since, nan_since + 9, std::nullopt};
    const std::vector<Finding> found = findings({&rank});
    EXPECT_EQ(found.size(), 2u);
    if (last != nullptr) *last = found.back().text;
    const PassTotals passes[2] = {};
    return verdict_of(found, inventory_of({&rank}), passes).headline;
  };
  std::string last;
  EXPECT_EQ(headline(4e4, 307, &last), "LOSS DIVERGED");
  EXPECT_THAT(last,
              HasSubstr("NaN or Inf where the fp64 reference has none in steps 307 to 316, not since, after "
                        "the loss event at step 301: its scores are too large"));
  EXPECT_EQ(headline(20, 307), "ATTENTION FAULT");
  EXPECT_EQ(headline(4e4, 300), "ATTENTION FAULT");
  EXPECT_EQ(headline(4e4, 301), "ATTENTION FAULT");
  EXPECT_EQ(headline(4e4, 400), "ATTENTION FAULT");
}

TEST(Findings, AnExperimentalDetectorIsNeverACause) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 310; ++step) {
    watch.observe(DetectorId::kDeviationForward, "001", "001", step, step > 250 ? 9 : 1, 0, &events);
    watch.observe_step(step, step > 300 ? 9.0 : 2.0 + 0.01 * static_cast<double>(step % 7), 0.5, &events);
  }
  ASSERT_FALSE(watch.loss_events().back().preceded_by.empty());
  RankStatistics rank = rank_at(310);
  rank.watch = &watch;
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "loss spike at step 301");
}

TEST(Findings, ASlowRiseIsAFinding) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  for (int64_t step = 1; step <= 3000; ++step) {
    const double rise = step > 1500 ? 0.001 * static_cast<double>(step - 1500) : 0;
    watch.observe_step(step, 2.0 + rise + 0.05 * static_cast<double>(step * 7919 % 13 - 6), 0.5, &events);
  }
  ASSERT_GT(watch.losses(WatchEventKind::kLossRise).count, 0u);
  RankStatistics rank = rank_at(3000);
  rank.watch = &watch;
  const std::vector<Finding> found = findings({&rank});
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].text, HasSubstr("loss began to rise slowly at step "));
  const PassTotals passes[2] = {};
  EXPECT_EQ(verdict_of(found, inventory_of({&rank}), passes).headline, "LOSS RISES");
}

TEST(Findings, ALossOfNanIsOneFindingWithTheOrderOfTheFirstOnes) {
  RankWatch watch;
  std::vector<WatchEvent> events;
  RankStatistics rank = rank_at(20);
  for (int64_t step = 1; step <= 20; ++step) {
    const double loss = step >= 12 ? std::numeric_limits<double>::quiet_NaN() : 2.0;
    watch.observe_step(step, loss, 0.5, &events);
    rank.last_loss = loss;
    if (step == 12) rank.nonfinite_loss_since = step;
  }
  rank.watch = &watch;
  // In one step, the loss comes before the backward pass.
  rank.note_event("nonfinite_attention_gradient", 12, "003", 4);
  rank.note_event("nonfinite", 13, "003", 4);
  rank.note_event("nonfinite_gradient_norm", 12, "", std::nullopt);
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u) << "the divergence to NaN is the same";
  EXPECT_EQ(found[0].text,
            "loss is not finite since step 12; first NaN or Inf: loss at step 12, gradients of attention of "
            "layer 003 at step 12, gradient norm at step 12");
}

TEST(Findings, TheKeyOfAFindingDoesNotChangeWithItsSize) {
  RankStatistics rank = rank_at(40);
  for (int64_t step = 1; step <= 20; ++step) add_slice(step, 20, 0.01, &rank);
  const std::string before = key_of(findings({&rank}).at(0));
  for (int64_t step = 21; step <= 40; ++step) add_slice(step, 90, 0.05, &rank);
  EXPECT_EQ(key_of(findings({&rank}).at(0)), before);
  for (int64_t step = 41; step <= 140; ++step) add_slice(step, 1, 0.001, &rank);
  const std::vector<Finding> found = findings({&rank});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(key_of(found[0]), before) << "an alarm that has ended is the same finding";
  EXPECT_THAT(found[0].text, HasSubstr(", not since"));
}

}  // namespace
}  // namespace foreshock
