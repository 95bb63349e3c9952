#include "agent/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kTrained = segment::kHasAttention | segment::kTrainsAttention;
constexpr uint32_t kSeen = segment::kForwardSeen | segment::kBackwardSeen | segment::kForwardNeedsGradient;
constexpr uint32_t kMaskSkip = 6, kDeviceSkip = 11;

// A rank of 100 steps whose model has `layers` layers of attention. Nothing was called yet.
RankStatistics rank_with(uint32_t layers) {
  RankStatistics rank;
  rank.identity.world_size = 1;
  rank.steps = 100;
  rank.layer_source = "parameter";
  rank.ops = {{"attention", 0, 1}, {"attention_backward", 1, 1}};
  rank.coverage.inventory_is_known = 1;
  rank.coverage.attention_layers = layers;
  for (uint32_t n = 0; n < layers; ++n) rank.layer_names.push_back({"00" + std::to_string(n), "", kTrained});
  return rank;
}

// Adds `slices` judged slices of a tensor of a layer, and a call of its pass in each step.
void judge(RankStatistics* rank, const std::string& label, uint32_t tensor, uint64_t slices = 20) {
  LayerStatistics* layer = rank->layer_of(label);
  layer->label = label;
  layer->source = "parameter";
  statistics_of(tensor, layer).judged += slices;
  statistics_of(tensor, layer).decided += slices;
  statistics_of(tensor, layer).relative_error_mean.add(0.002);
  if (is_key_gradient(tensor)) return;
  rank->judged[tensor] += slices;
  rank->totals.calls[tensor] += rank->steps;
  for (LayerName& record : rank->layer_names)
    if (record.label == label)
      record.attention |= tensor == 0 ? segment::kForwardSeen : segment::kBackwardSeen;
}

void judge_all(RankStatistics* rank, const std::string& label) {
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) judge(rank, label, tensor);
}

AttentionInventory inventory(const RankStatistics& rank) { return inventory_of({&rank}); }

// The only gap, with its layers.
CoverageGap only_gap(const RankStatistics& rank) {
  const AttentionInventory found = inventory(rank);
  EXPECT_EQ(found.gaps.size(), 1u);
  return found.gaps.empty() ? CoverageGap() : found.gaps.front();
}

TEST(Inventory, AModelWhoseLayersAreAllJudgedHasNoGap) {
  RankStatistics rank = rank_with(2);
  judge_all(&rank, "000");
  judge_all(&rank, "001");
  const AttentionInventory found = inventory(rank);
  EXPECT_TRUE(found.is_known);
  EXPECT_TRUE(found.gaps.empty());
  EXPECT_EQ(found.layers, 2u);
  EXPECT_EQ(found.seen, 2u);
  EXPECT_THAT(found.judged, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(found.needed, ElementsAre(2, 2, 2, 2));
}

TEST(Inventory, LayersWhoseCallsReachNoHookAreNamed) {
  RankStatistics rank = rank_with(4);
  judge_all(&rank, "000");
  judge_all(&rank, "002");
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.cause, GapCause::kNotHooked);
  EXPECT_THAT(gap.layers, ElementsAre("001", "003"));
  EXPECT_THAT(text_of(gap), HasSubstr("layers 001, 003: forward not judged; no call reached a hook."));
  EXPECT_EQ(inventory(rank).layers, 4u);
}

segment::UnseenName unseen_name(const char* name, uint32_t evidence) {
  segment::UnseenName unseen = {};
  std::strcpy(unseen.name, name);
  unseen.evidence = evidence;
  return unseen;
}

TEST(Inventory, WhatTheRunUsedUnseenIsTheCauseOfUnseenLayers) {
  RankStatistics rank = rank_with(2);
  judge_all(&rank, "000");
  rank.unseen = {unseen_name("flash_attn", 2)};  // only imported
  EXPECT_THAT(text_of(only_gap(rank)), HasSubstr("no call reached a hook. Do: add foreshock.tap"));
  rank.unseen = {unseen_name("TalkingHeadAttn: linear before softmax", 1)};
  EXPECT_THAT(
      text_of(only_gap(rank)),
      HasSubstr("layer 001: forward not judged; no call reached a hook, and the run used TalkingHeadAttn: "
                "linear before softmax. Do: add foreshock.tap"));
  rank.unseen = {unseen_name("compiled: sizes that change", 1)};
  EXPECT_THAT(text_of(only_gap(rank)),
              HasSubstr("change. Do: train without torch.compile, or add foreshock"));
  rank.unseen = {unseen_name("compiled: written-out attention, fused by Inductor", 1)};
  EXPECT_THAT(
      text_of(only_gap(rank)),
      HasSubstr("Do: train without torch.compile or with its backend aot_eager, or add foreshock.tap"));
  for (const char* name : {"a", "b\n", "c"}) rank.unseen.push_back(unseen_name(name, 1));
  EXPECT_THAT(only_gap(rank).reasons,
              testing::AllOf(HasSubstr("; and others"), testing::Not(HasSubstr("\n"))));
}

TEST(Inventory, ALayerThatIsCalledSeveralTimesAStepIsOneLayer) {
  RankStatistics rank = rank_with(1);
  judge_all(&rank, "000");
  rank.totals.calls[0] = rank.totals.calls[1] = 6 * rank.steps;
  EXPECT_EQ(inventory(rank).layers, 1u);
  EXPECT_TRUE(inventory(rank).gaps.empty());
}

TEST(Inventory, ALayerWhoseCallsAreMoreThanTheLayersThatWereSeenNeedsMoreSamples) {
  RankStatistics rank = rank_with(2);
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) judge(&rank, "000", tensor, 3);
  rank.totals.calls[0] = rank.totals.calls[1] = 2 * rank.steps;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kFewSamples);
  judge(&rank, "000", 0, 100);  // none of 100 samples was of layer 001
  rank.totals.calls[0] = 2 * rank.steps;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNotHooked);
}

TEST(Inventory, ABackwardPassThatReachesNoHookIsNamed) {
  RankStatistics rank = rank_with(3);
  judge_all(&rank, "000");
  judge_all(&rank, "002");
  judge(&rank, "001", 0);
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.cause, GapCause::kNoBackwardSeen);
  EXPECT_THAT(text_of(gap), HasSubstr("layer 001: dQ not judged; foreshock did not see its backward pass."));
}

TEST(Inventory, ALayerWhoseParametersGetNoGradientIsNamedAsSuch) {
  RankStatistics rank = rank_with(2);
  judge_all(&rank, "000");
  judge(&rank, "001", 0);
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNoBackwardSeen);  // no gradient norm of any layer is known
  rank.layer_of("000")->gradient_norm = 0.5;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNoGradient);
  EXPECT_THAT(
      text_of(only_gap(rank)),
      HasSubstr("layer 001: dQ not judged; no gradient of its parameters was seen. Do: check whether"));
  RankStatistics other = rank;
  other.layer_of("001")->gradient_norm = 0.0;
  EXPECT_EQ(only_gap(other).cause, GapCause::kNoBackwardSeen);
  EXPECT_EQ(inventory_of({&rank, &other}).gaps.at(0).cause, GapCause::kNoBackwardSeen);
  // A frozen layer has no gradient of its own.
  rank.layer_names[1].attention = segment::kHasAttention | kSeen;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kFewSamples);
  rank.layer_names[1].attention &= ~uint32_t{segment::kBackwardSeen};
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNoBackwardSeen);
}

TEST(Inventory, AFrozenLayerWithoutGradientNeedsNoBackwardPass) {
  RankStatistics rank = rank_with(2);
  judge_all(&rank, "000");
  judge(&rank, "001", 0);
  rank.layer_names[1].attention = segment::kHasAttention | segment::kForwardSeen;
  EXPECT_TRUE(inventory(rank).gaps.empty());
  EXPECT_THAT(inventory(rank).needed, ElementsAre(2, 1, 1, 1));
  // Frozen, but a gradient passes through it.
  rank.layer_names[1].attention |= segment::kForwardNeedsGradient;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNoBackwardSeen);
}

TEST(Inventory, AReasonThatSkipsTheCallsOfALayerIsNamed) {
  RankStatistics rank = rank_with(2);
  judge_all(&rank, "000");
  rank.layer_names[1].attention |= kSeen;
  rank.layer_names[1].skipped[0] = 1u << kMaskSkip | 1u << 1;  // ring_full passes with time
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.cause, GapCause::kSkipped);
  EXPECT_EQ(gap.reasons, "mask");
  EXPECT_THAT(text_of(gap),
              HasSubstr("its calls are not sampled: a mask, window or soft cap that is not supp"));
  rank.layer_names[1].skipped[0] = 1u << 1;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kFewSamples);
}

TEST(Inventory, WhatADeviceMustBeIsNamed) {
  RankStatistics rank = rank_with(1);
  rank.layer_names[0].attention |= kSeen;
  rank.layer_names[0].skipped[0] = 1u << kDeviceSkip;
  EXPECT_THAT(text_of(only_gap(rank)),
              HasSubstr("layer 000: forward not judged; foreshock does not read its device. "
                        "It needs CUDA, driver 525 or later; not ROCm, XPU, MPS"));
}

TEST(Inventory, AnOutputWithDropoutIsNotJudged) {
  RankStatistics rank = rank_with(1);
  judge_all(&rank, "000");
  LayerStatistics* layer = rank.layer_of("000");
  layer->pass[0].relative_error_mean = {};
  layer->pass[0].decided = 0;
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.tensor, 0u);
  EXPECT_EQ(gap.reasons, "dropout");
}

TEST(Inventory, SlicesThatTooFewRowsDecideAreAGap) {
  RankStatistics rank = rank_with(1);
  judge_all(&rank, "000");
  PassStatistics& of_query = rank.layer_of("000")->pass[1];
  of_query.decided = 1;
  EXPECT_THAT(inventory(rank).gaps, testing::IsEmpty());
  of_query.decided = 0;
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.cause, GapCause::kFewRows);
  EXPECT_THAT(inventory(rank).judged, ElementsAre(1, 0, 1, 1));
  rank.layer_of("000")->pass[0].decided = 0;  // saturated softmax: the rows have gradients
  EXPECT_THAT(text_of(only_gap(rank)),
              HasSubstr("layer 000: forward not judged; the error of each slice is that of too few rows."));
  EXPECT_THAT(text_of(gap),
              HasSubstr("layer 000: dQ not judged; the error of each slice is that of too few rows."));
}

TEST(Inventory, KeysThatWereNotSampledAreAGap) {
  RankStatistics rank = rank_with(1);
  judge(&rank, "000", 0);
  judge(&rank, "000", 1);
  EXPECT_EQ(only_gap(rank).tensor, 2u);
  rank.layer_of("000")->columns_skipped[segment::kColumnsNotChosen] = 19;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kFewSamples);
  EXPECT_THAT(text_of(only_gap(rank)), HasSubstr("layer 000: dK and dV not judged; too few samples yet."));
  rank.layer_of("000")->columns_skipped[segment::kColumnsLogSumExp] = 1;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kSkipped);
  EXPECT_THAT(text_of(only_gap(rank)),
              HasSubstr("no key is judged: no log sum exp. Do: look up this reason in docs/coverage.md"));
}

TEST(Inventory, EvaluationCallsWithoutALayerAreNotCheckedLayers) {
  RankStatistics rank = rank_with(1);
  rank.unnamed.pass[0].judged = rank.unnamed.pass[0].decided = rank.judged[0] = 30;
  rank.totals.calls[0] = 3000;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kUnattributed);
  EXPECT_THAT(inventory(rank).judged, ElementsAre(0, 0, 0, 0));
}

// A head that is trained on a base under torch.no_grad(): a backward pass may not exist.
TEST(Inventory, CallsWithoutALayerMayNeedNoBackwardPass) {
  RankStatistics rank = rank_with(0);
  rank.unnamed.pass[0].judged = rank.unnamed.pass[0].decided = rank.judged[0] = 100;
  rank.unnamed.pass[0].relative_error_mean.add(0.002);
  rank.totals.calls[0] = 100;
  EXPECT_EQ(only_gap(rank).cause, GapCause::kNoBackwardSeen);
  EXPECT_THAT(
      text_of(only_gap(rank)),
      HasSubstr("calls without a layer: dQ not judged; no backward call reached a hook. Do: nothing if "
                "no gradient passes through them"));
}

TEST(Inventory, WithoutAnInventoryTheLayersAreThoseOfTheCalls) {
  RankStatistics rank = rank_with(0);
  rank.coverage.inventory_is_known = 0;
  judge_all(&rank, "000");
  rank.layer_of("head")->gradient_norm = 1;  // a layer without attention
  EXPECT_FALSE(inventory(rank).is_known);
  EXPECT_EQ(inventory(rank).layers, 1u);
  EXPECT_TRUE(inventory(rank).gaps.empty());
  // Calls that are found in a model without known attention: the inventory is wrong, and is not used.
  rank.coverage.inventory_is_known = 1;
  EXPECT_FALSE(inventory(rank).is_known);
}

TEST(Inventory, WithoutAnyLayerTheCallsMustBeJudged) {
  RankStatistics rank = rank_with(0);
  rank.coverage.inventory_is_known = 0;
  rank.unnamed.pass[0].judged = rank.unnamed.pass[0].decided = rank.judged[0] = 30;
  rank.unnamed.pass[0].relative_error_mean.add(0.002);
  EXPECT_THAT(text_of(only_gap(rank)), HasSubstr("calls without a layer: dQ not judged"));
  EXPECT_EQ(inventory(rank).layers, 0u);
}

TEST(Inventory, LayersKnownByTheOrderOfCallsAreComparedByNumber) {
  RankStatistics rank = rank_with(3);
  rank.layer_source = "ordinal";
  for (const char* label : {"call000", "call001"}) {
    judge_all(&rank, label);
    rank.layer_of(label)->source = "ordinal";
  }
  const CoverageGap gap = only_gap(rank);
  EXPECT_EQ(gap.cause, GapCause::kNotHooked);
  EXPECT_EQ(gap.unnamed, 1u);
  EXPECT_THAT(text_of(gap), HasSubstr("1 layer: forward not judged"));
  judge_all(&rank, "call002");
  rank.layer_of("call002")->source = "ordinal";
  EXPECT_TRUE(inventory(rank).gaps.empty());
}

TEST(Inventory, ALayerNamedByTheTrainingStandsForOneThatWasNotSeen) {
  RankStatistics rank = rank_with(2);
  rank.layer_source = "annotation";
  judge_all(&rank, "000");
  judge_all(&rank, "mine");
  rank.layer_of("mine")->source = "annotation";
  EXPECT_TRUE(inventory(rank).gaps.empty());
  EXPECT_EQ(inventory(rank).layers, 2u);
}

TEST(Inventory, RanksOfAPipelineHaveTheirOwnLayers) {
  RankStatistics first = rank_with(1), second = rank_with(1);
  second.layer_names[0].label = "001";
  judge_all(&first, "000");
  judge_all(&second, "001");
  const Ranks ranks = {&first, &second};
  EXPECT_EQ(inventory_of(ranks).layers, 2u);
  EXPECT_TRUE(inventory_of(ranks).gaps.empty());
}

TEST(Inventory, OtherMixersAreNamed) {
  RankStatistics rank = rank_with(1);
  judge_all(&rank, "000");
  rank.coverage.other_mixers = 3;
  std::strcpy(rank.coverage.mixer_names, "MambaMixer");
  EXPECT_EQ(inventory(rank).other_mixers, 3u);
  EXPECT_EQ(inventory(rank).mixer_names, "MambaMixer");
  EXPECT_EQ(inventory_json(inventory(rank))["other_mixer_names"], "MambaMixer");
}

}  // namespace
}  // namespace foreshock
