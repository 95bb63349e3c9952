#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "agent/publish.h"
#include "agent/rank_state.h"
#include "agent/record_lines.h"
#include "exporters/http_routes.h"

namespace foreshock {
namespace {

// 64 slices of a sound layer: ratios around 0.9, biases of both signs. Each slice is a cluster of its own.
LayerStatistics sound_layer(const std::string& label) {
  LayerStatistics layer;
  layer.label = label;
  for (int n = 0; n < 64; ++n) {
    for (PassStatistics& pass : layer.pass) {
      ++pass.judged;
      pass.add_fused_ratio(0.9 + 0.01 * (n % 7), kDeviationRatioForward);
      pass.relative_error_max.add(0.002);
      pass.bias.add({0, 0, n, 0}, {n % 2 == 0 ? 0.03 : -0.03, 1});
      pass.excess_bias.add({0, 0, n, 0}, {n % 2 == 0 ? 0.03 : -0.03, 1});
      pass.rounded_bias.add({0, 0, n, 0}, {n % 2 == 0 ? 0.03 : -0.03, 1});
    }
  }
  return layer;
}

RankStatistics rank_of(const LayerStatistics& second) {
  RankStatistics rank;
  for (const LayerStatistics& layer : {sound_layer("000"), second, sound_layer("002")})
    rank.layers[layer.label] = layer;
  return rank;
}

void expect_alarm(const LayerStatistics& layer, uint32_t pass, const std::string& of) {
  const RankStatistics rank = rank_of(layer);
  const std::vector<LayerAlarm> alarms = rank.alarms();
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].layer->label, layer.label);
  EXPECT_EQ(alarms[0].pass, pass);
  EXPECT_EQ(name_of(alarms[0].kind), of);
  EXPECT_EQ(rank.worst_layer()->label, layer.label);
}

TEST(Rank, SoundLayersGiveNoAlarm) { EXPECT_TRUE(rank_of(sound_layer("001")).alarms().empty()); }

// A command may train hundreds of times under one agent.
TEST(Rank, OfLayersThatAreToldOfNothingIsLost) {
  RankStatistics rank = rank_of(sound_layer("001"));
  for (const char* label : {"003", "004", "005", "006"}) rank.layers[label] = sound_layer(label);
  rank.layers["003"].pass[1].past[AlarmKind::kBias] = {1, 2, 0.3};
  rank.layers["004"].nonfinite_steps = 1;
  rank.layers["005"].pass[0].add_fused_ratio(3.9, kDeviationRatioForward);  // once: the worst, and no alarm
  for (int n = 0; n < 2; ++n) rank.layers["006"].pass[1].add_fused_ratio(3.5, kDeviationRatioBackward);
  for (int64_t step = 1; step < 1000; ++step) rank.history.add(step, kColumnLoss, 2.0);
  const nlohmann::json before = summary_of(rank, 1);
  rank.shrink_to_summary();
  EXPECT_EQ(summary_of(rank, 1), before);
  EXPECT_EQ(rank.layers.size(), 4u);
  HistoryTable table;
  rank.history.copy_to(&table);
  for (const auto& [name, values] : table.columns) EXPECT_TRUE(values.empty()) << name;
}

TEST(Rank, OneBadHeadOfManyIsAnAlarmOneOddSliceIsNot) {
  LayerStatistics layer = sound_layer("001");
  layer.pass[0].add_fused_ratio(8, kDeviationRatioForward);
  EXPECT_TRUE(rank_of(layer).alarms().empty());
  layer.pass[0].add_fused_ratio(7, kDeviationRatioForward);
  expect_alarm(layer, 0, "fused_ratio");
  EXPECT_EQ(rank_of(layer).alarms()[0].value, 8);
}

void fill_with_bias(double ulp, BiasPool* pool) {
  for (int n = 0; n < 64; ++n) pool->add({0, 0, n, 0}, {ulp + (n % 2 == 0 ? 0.03 : -0.03), 1});
}

TEST(Rank, ABiasIsAnAlarmUnlessTheRoundedReferenceHasItToo) {
  LayerStatistics layer = sound_layer("001");
  fill_with_bias(0.3, &layer.pass[1].bias);
  fill_with_bias(0.3, &layer.pass[1].excess_bias);
  expect_alarm(layer, 1, "bias");
  fill_with_bias(0.3, &layer.pass[1].rounded_bias);
  EXPECT_TRUE(rank_of(layer).alarms().empty());
}

// A slice of layer 001. query_rows: over which a slice of dK sums.
// Adds a checked tensor of a slice to the rank, as the pipeline does.
void observe(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
             RankStatistics* rank) {
  observe(sample_line(*rank, slot, layer, deviation, /*judge_seconds=*/0), rank);
}

// The line of a slice of the output.
SampleLine output_at(int64_t step) {
  SampleLine line;
  line.step = step;
  line.tensor = "out";
  return line;
}

struct Sliced {
  JudgedTensor tensor = JudgedTensor::kGradKey;
  DType dtype = DType::kNone;
  uint32_t query_rows = 32;
  double ratio = 1, unexplained_bias = 0;
};

// Observes the slice in `count` steps.
void observe(const Sliced& sliced, int count, RankStatistics* rank) {
  const auto tensor = static_cast<uint32_t>(sliced.tensor);
  segment::Slot slot = {};
  slot.pass = pass_of(tensor);
  slot.columns = is_key_gradient(tensor);
  slot.dtype = static_cast<uint32_t>(sliced.dtype);
  slot.keys = sliced.query_rows;
  SliceDeviation deviation;
  deviation.backward = slot.pass == 1;
  deviation.tensor = sliced.tensor;
  slot.rows = 16;
  deviation.rows_compared = 16;
  deviation.bias = {0, 1};
  deviation.fused_ratio = sliced.ratio;
  deviation.unexplained_bias = sliced.unexplained_bias;
  for (slot.step = 0; slot.step < count; ++slot.step)
    observe(slot, {"001", "", "parameter"}, deviation, rank);
}

// Each block that it adds up in bf16 is one more rounding: a ratio of 8 is expected at 16384 causal queries.
TEST(Rank, LimitOfKeyGradientsGrowsWithTheQueries) {
  const auto alarms = [](uint32_t rows, double ratio) {
    RankStatistics rank;
    observe({.query_rows = rows, .ratio = ratio}, kSlicesBeyondKeys, &rank);
    return rank.alarms().size();
  };
  EXPECT_EQ(alarms(1024, 5.9), 0u);
  EXPECT_EQ(alarms(4096, 6.1), 1u);
  EXPECT_EQ(alarms(16384, 8), 0u);
  EXPECT_EQ(alarms(16384, 12.1), 1u);
}

TEST(Rank, ASliceOfKeyGradientsHasTheLimitOfItsOwnQueries) {
  RankStatistics rank;
  observe({.query_rows = 16384, .ratio = 8}, kSlicesBeyondKeys, &rank);
  observe({.query_rows = 32, .ratio = 1}, 1, &rank);
  EXPECT_TRUE(rank.alarms().empty());
}

// An error of 5 % of dK in a small training in bf16 may be as little as 4 times the error of fused attention.
TEST(Rank, LimitOfKeyGradientsIsLowerForErrorsOfOneSign) {
  const auto alarms = [](DType dtype, double ratio, double bias, int slices) {
    RankStatistics rank;
    observe({.dtype = dtype, .ratio = ratio, .unexplained_bias = bias}, slices, &rank);
    const std::vector<LayerAlarm> found = rank.alarms();
    EXPECT_TRUE(found.empty() || found[0].kind == AlarmKind::kFusedRatio);
    const PassStatistics& keys =
        *statistics_of(rank.layers["001"], static_cast<uint32_t>(JudgedTensor::kGradKey));
    EXPECT_EQ(keys.past.size(), found.size());
    return found.size();
  };
  EXPECT_EQ(alarms(DType::kBf16, 4, 2.1, 3), 1u);
  EXPECT_EQ(alarms(DType::kBf16, 4, -2.1, 3), 1u);
  EXPECT_EQ(alarms(DType::kBf16, 4, 1.9, 3), 0u);
  EXPECT_EQ(alarms(DType::kBf16, 4, 2.1, 2), 0u);
  EXPECT_EQ(alarms(DType::kBf16, 2.9, 9, 3), 0u);
  EXPECT_EQ(alarms(DType::kFp16, 4, 15, 3), 0u);  // an ulp is an eighth of that of bf16
  EXPECT_EQ(alarms(DType::kFp16, 4, 17, 3), 1u);
  EXPECT_EQ(alarms(DType::kFp32, 5.9, 1e6, 3), 0u);
  EXPECT_EQ(alarms(DType::kFp32, 6.1, 1e6, 3), 1u);
}

// PyTorch's CPU kernel adds dK and dV up in bf16: its bias is not quite that of fused attention.
TEST(Rank, BiasOfKeyGradientsHasALimitOfItsOwn) {
  for (const double ulp : {0.2, 0.3}) {
    LayerStatistics layer = sound_layer("001");
    PassStatistics& keys = statistics_of(static_cast<uint32_t>(JudgedTensor::kGradKey), &layer);
    fill_with_bias(ulp, &keys.bias);
    fill_with_bias(ulp, &keys.excess_bias);
    const std::vector<LayerAlarm> alarms = alarms_of(layer, static_cast<uint32_t>(JudgedTensor::kGradKey));
    ASSERT_EQ(alarms.size(), ulp > 0.25 ? 1u : 0u) << ulp;
    if (!alarms.empty()) {
      EXPECT_EQ(alarms[0].kind, AlarmKind::kBias);
    }
  }
}

TEST(Rank, UnrelatedCallsUnderOneOrdinalHaveNoAlarmForBias) {
  LayerStatistics layer = sound_layer("001");
  fill_with_bias(0.6, &layer.pass[0].bias);
  fill_with_bias(0.6, &layer.pass[0].excess_bias);
  expect_alarm(layer, 0, "bias");
  layer.is_mixed = true;
  EXPECT_TRUE(rank_of(layer).alarms().empty());
}

TEST(Rank, CallsOfUnlikeShapeOfOneOrdinalAreMixed) {
  segment::Slot slot = {};
  slot.step = 1;
  slot.head_dim = slot.value_dim = 64;
  for (const char* source : {"ordinal", "parameter"}) {
    RankStatistics rank;
    observe(slot, {.label = "000", .name = "", .source = source}, {}, &rank);
    observe(slot, {.label = "000", .name = "", .source = source}, {}, &rank);
    EXPECT_FALSE(rank.layers.at("000").is_mixed);
    segment::Slot other = slot;
    other.head_dim = other.value_dim = 32;
    observe(other, {.label = "000", .name = "", .source = source}, {}, &rank);
    EXPECT_EQ(rank.layers.at("000").is_mixed, source == std::string("ordinal"));
  }
}

TEST(Rank, ReasonsForNoKeyPositionsAreCountedByLayer) {
  RankStatistics rank;
  segment::Slot slot = {};
  slot.pass = 1;
  SliceDeviation deviation;
  for (const auto& [layer, why] : {std::pair("000", segment::kColumnsPacked),
                                   {"000", segment::kColumnsPacked},
                                   {"001", segment::kColumnsNotChosen},
                                   {"", segment::kColumnsPacked}}) {
    slot.columns_skip = why;
    deviation.tensor = JudgedTensor::kGradQuery;
    observe(slot, {.label = layer, .name = "", .source = "parameter"}, deviation, &rank);
  }
  slot.columns_skip = segment::kColumnsTaken;
  slot.columns = 1;  // the slice of key positions itself
  deviation.tensor = JudgedTensor::kGradKey;
  observe(slot, {.label = "000", .name = "", .source = "parameter"}, deviation, &rank);
  EXPECT_EQ(rank.columns_skipped[segment::kColumnsPacked], 3u);
  EXPECT_EQ(rank.columns_skipped[segment::kColumnsTaken], 0u);
  EXPECT_EQ(rank.layers.at("000").columns_skipped[segment::kColumnsPacked], 2u);
  EXPECT_EQ(rank.layers.at("001").columns_skipped[segment::kColumnsNotChosen], 1u);
  EXPECT_EQ(rank.unnamed.columns_skipped[segment::kColumnsPacked], 1u);
}

TEST(Rank, KeyColumnsThatCannotBeComparedAreNotJudged) {
  RankStatistics rank;
  segment::Slot slot = {};
  slot.pass = 1;
  slot.columns = 1;
  slot.rows = 16;
  for (const int compared : {0, 16})
    for (const JudgedTensor tensor : {JudgedTensor::kGradKey, JudgedTensor::kGradValue}) {
      SliceDeviation deviation;
      deviation.tensor = tensor;
      deviation.rows_compared = compared;
      deviation.rows_not_comparable = 16 - compared;
      observe(slot, {.label = "000", .name = "", .source = "parameter"}, deviation, &rank);
      const bool is_last = tensor == JudgedTensor::kGradValue;
      EXPECT_EQ(rank.keys[is_last].judged, compared == 0 ? 0u : 1u);
      EXPECT_EQ(rank.layers.at("000").columns_skipped[segment::kColumnsEmpty], 1u);
    }
  EXPECT_EQ(rank.columns_skipped[segment::kColumnsEmpty], 1u);
}

TEST(Rank, AFallingStepNumberIsAnotherTraining) {
  RankStatistics rank;
  rank.layers["000"].source = "ordinal";
  uint64_t sequence = 0;
  for (const int64_t step : {1, 2, 3, 3, 1, 2, 1}) {
    segment::StepRecord record = {};
    record.sequence = sequence += 2;
    record.step = step;
    observe_step(record, &rank);
  }
  EXPECT_EQ(rank.step_restarts, 2u);
  segment::StepRecord counted = {};
  counted.sequence = sequence += 2;
  counted.step = 2;
  counted.given = segment::kGivenOtherTraining;
  observe_step(counted, &rank);
  EXPECT_EQ(rank.step_restarts, 3u) << "numbers that the helper counts do not fall";
  EXPECT_TRUE(rank.layers["000"].is_mixed);
}

// As in runs that have diverged: dQ is almost 0, and any attention in bf16 errs towards 0 there.
TEST(Rank, ABiasThatASoundAlgorithmHasTooIsNoAlarm) {
  LayerStatistics layer = sound_layer("001");
  fill_with_bias(-2.48, &layer.pass[1].bias);
  EXPECT_TRUE(rank_of(layer).alarms().empty());
  fill_with_bias(0.3, &layer.pass[1].excess_bias);  // the sound algorithm is biased further
  EXPECT_TRUE(rank_of(layer).alarms().empty());
}

// In fp32 the error of unfused attention is by chance a quarter of a sound kernel's.
TEST(Rank, TheErrorOfUnfusedAttentionAloneAccusesNoKernel) {
  LayerStatistics layer = sound_layer("001");
  for (int n = 0; n < 64; ++n) layer.pass[n % 2].deviation_ratio.add(4);
  EXPECT_TRUE(rank_of(layer).alarms().empty());
  for (int n = 0; n < 2; ++n) layer.pass[1].add_fused_ratio(18, kDeviationRatioBackward);
  expect_alarm(layer, 1, "fused_ratio");
}

TEST(Rank, LimitsOfRatiosAreWiderInFp32) {
  const auto alarms = [](DType dtype, double ratio) {
    RankStatistics rank;
    observe({.tensor = JudgedTensor::kOut, .dtype = dtype, .ratio = ratio}, kSlicesBeyond, &rank);
    return rank.alarms().size();
  };
  EXPECT_EQ(alarms(DType::kBf16, 2.5), 1u);
  EXPECT_EQ(alarms(DType::kFp32, 2.5), 0u);
  EXPECT_EQ(alarms(DType::kFp32, 4.5), 1u);
}

// What counts is by how much the output drifts. PyTorch's CPU kernel has a bias of half an ulp of fp32.
TEST(Rank, ABiasCountsByTheDriftThatItCauses) {
  const auto alarms = [](DType dtype, double ulp) {
    LayerStatistics layer = sound_layer("001");
    layer.pass[0].dtype = dtype;
    fill_with_bias(ulp, &layer.pass[0].bias);
    fill_with_bias(ulp, &layer.pass[0].excess_bias);
    return alarms_of(layer, 0).size();
  };
  EXPECT_EQ(alarms(DType::kBf16, 0.07), 0u);
  EXPECT_EQ(alarms(DType::kBf16, 0.25), 1u);
  EXPECT_EQ(alarms(DType::kFp16, 0.5), 0u);
  EXPECT_EQ(alarms(DType::kFp16, 2), 1u);
  EXPECT_EQ(alarms(DType::kFp32, 100), 0u);
}

TEST(Rank, AWrongLogSumExpIsAnAlarm) {
  LayerStatistics layer = sound_layer("001");
  for (int n = 0; n < 2; ++n) layer.pass[0].lse_error_ratio.add(1.5, n);
  expect_alarm(layer, 0, "log_sum_exp");
}

TEST(Rank, AnAlarmNamesTheStepThatLastSupportedIt) {
  LayerStatistics layer = sound_layer("001");
  SampleLine wrong = output_at(70);
  wrong.fused_ratio = 8;
  layer.pass[0].last_step = 70;
  layer.pass[0].add_fused_ratio(8, kDeviationRatioForward);
  layer.pass[0].add_fused_ratio(8, kDeviationRatioForward);
  note_alarms(wrong, &layer);
  SampleLine sound = output_at(90);
  sound.fused_ratio = 1;
  layer.pass[0].add_fused_ratio(1, kDeviationRatioForward);
  note_alarms(sound, &layer);
  EXPECT_EQ(rank_of(layer).alarms().at(0).last_step, 70);
}

// One slice gives no alarm; the slice that gives it is not the first that was wrong.
TEST(Rank, AnErrorBeginsAtItsFirstSliceBeyondTheLimit) {
  LayerStatistics layer = sound_layer("001");
  const auto judge = [&](double ratio, int64_t step) {
    SampleLine slice = output_at(step);
    slice.fused_ratio = ratio;
    layer.pass[0].last_step = step;
    layer.pass[0].add_fused_ratio(ratio, kDeviationRatioForward);
    note_alarms(slice, &layer);
  };
  judge(8, 10);
  for (int64_t step = 11; step < 80; ++step) judge(1, step);  // as many as a window has, and more
  EXPECT_TRUE(layer.pass[0].past.empty());
  judge(INFINITY, 79);  // an alarm of another kind; the windows have finite values only
  judge(8, 80);
  judge(1, 81);
  judge(9, 90);
  judge(9, 95);
  EXPECT_EQ(layer.pass[0].past.at(AlarmKind::kFusedRatio).first_step, 80);
  EXPECT_EQ(layer.pass[0].past.at(AlarmKind::kFusedRatio).last_step, 95);
}

TEST(Rank, WrongSumsAndAWrongLogSumExpBeginAtTheirFirstSlice) {
  LayerStatistics layer = sound_layer("001");
  for (const int64_t step : {40, 48}) {
    SampleLine wrong = output_at(step);
    wrong.conservation_ratio = 3 * kConservationRatio;
    wrong.lse_error_ratio = 2;
    statistics_of(2, &layer).conservation_ratio.add(*wrong.conservation_ratio, step);
    layer.pass[0].lse_error_ratio.add(*wrong.lse_error_ratio, step);
    note_alarms(wrong, &layer);
    wrong.tensor = "grad_key";
    note_alarms(wrong, &layer);
  }
  EXPECT_EQ(layer.keys[0].past.at(AlarmKind::kConservation).first_step, 40);
  EXPECT_EQ(layer.pass[0].past.at(AlarmKind::kLogSumExp).first_step, 40);
}

TEST(Rank, ValuesThatAreNotFiniteAreAnAlarm) {
  LayerStatistics layer = sound_layer("001");
  layer.pass[0].nonfinite_slices.add(1, 1);
  expect_alarm(layer, 0, "nonfinite");
  for (size_t n = 0; n < BiasPool::kSlices; ++n) layer.pass[0].nonfinite_slices.add(0, 2);
  EXPECT_TRUE(rank_of(layer).alarms().empty()) << "none among the last slices";
}

segment::StepRecord step_of(int64_t number, double seconds, double cost) {
  segment::StepRecord step = {};
  step.sequence = static_cast<uint64_t>(number);
  step.step = number;
  step.duration_ns = static_cast<uint64_t>(1e9 * seconds);
  step.cost_ns = static_cast<uint64_t>(1e9 * cost);
  return step;
}

// SIGSTOP for ten minutes, or `foreshock pause`: the next step lasts as long as it stood still.
TEST(Rank, APauseIsNoTrainingTime) {
  RankStatistics rank;
  for (int n = 1; n <= 200; ++n) observe_step(step_of(n, 0.1, 0.001), &rank);
  const double before = *rank.recent_slowdown(1);
  EXPECT_NEAR(before, 0.001 / 0.099, 1e-6);
  observe_step(step_of(201, 600, 0.001), &rank);
  EXPECT_NEAR(*rank.recent_slowdown(1), before, 1e-6);
  EXPECT_NEAR(*rank.slowdown(1), before, 1e-6);
  for (int n = 202; n <= 400; ++n) observe_step(step_of(n, 3, 0.001), &rank);
  EXPECT_LT(*rank.recent_slowdown(1), 0.1 * before) << "steps that have become longer are no pauses";
}

// 40 steps of 20 ms. The first 9 cost 10 ms each and are a first look; the others cost 0.1 ms.
TEST(Rank, FirstLookIsNotPartOfTheSlowdown) {
  RankStatistics rank;
  segment::StepRecord step = {};
  step.sampled = 1;
  for (step.sequence = 2; step.sequence <= 80; step.sequence += 2) {
    const bool is_first = ++step.step <= 9;
    step.given = is_first ? segment::kFirstLook : 0;
    step.cost_ns = is_first ? 10'000'000 : 100'000;
    step.duration_ns = 20'000'000 + step.cost_ns;
    observe_step(step, &rank);
  }
  EXPECT_NEAR(rank.first_look.own_seconds, 0.09, 1e-9);
  EXPECT_NEAR(*rank.slowdown(1), 0.0001 * 31 / (0.02 * 40 + 0.09), 1e-9);
  EXPECT_EQ(rank.sampled_steps, 31u) << "the interval is not chosen by what the first look cost";
  EXPECT_TRUE(rank.is_in_first_look(9));
  EXPECT_FALSE(rank.is_in_first_look(10));
}

TEST(Rank, FirstLookBeyondItsGrantIsPartOfTheSlowdown) {
  RankStatistics rank;
  segment::StepRecord step = {};
  step.sequence = 2;
  step.given = segment::kFirstLook;
  step.cost_ns = 800'000'000;
  step.duration_ns = 2'800'000'000;
  observe_step(step, &rank);
  EXPECT_NEAR(rank.first_look.own_seconds, segment::kFirstLookSeconds, 1e-9);
  EXPECT_NEAR(rank.cost.own_seconds, 0.3, 1e-9);
}

}  // namespace
}  // namespace foreshock
