#include "agent/pipeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/limits.h"
#include "agent/totals.h"
#include "exporters/record.h"
#include "shadow/written_out.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

TEST(Pipeline, JudgesEverySliceOnceAndKeepsTheCount) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 20; ++n) {
    trainer.step(n, 2.0);
    trainer.sample(n, 1.0);
    EXPECT_TRUE(pipeline.poll(*reader, &rank));
  }
  EXPECT_FALSE(pipeline.poll(*reader, &rank));
  pipeline.refresh(*reader, &rank);
  EXPECT_EQ(rank.calls(0), 20u);
  EXPECT_EQ(rank.judged[0], 20u);
  EXPECT_EQ(rank.in_flight(0), 0u);
  EXPECT_EQ(rank.steps, 20u);
  // The test's own double arithmetic against the fp64 reference: a handful of roundings, 2^-53 each.
  EXPECT_LT(*max_of(rank.pass[0].relative_error_max), 16 * 0x1p-53);
  ASSERT_EQ(rank.layers.count("003"), 1u);
  EXPECT_EQ(rank.layers["003"].name, "blocks.3.attention.qkv.weight");
}

TEST(Pipeline, TheLayerThatIsWrongIsTheWorst) {
  SegmentOfATrainer trainer;
  std::strcpy(trainer.layer(1)->label, "007");
  trainer.layer(1)->ready = 1;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 8; ++n) trainer.sample(n, n % 2 == 0 ? 1.0 + 0x1p-6 : 1.0, n % 2);
  pipeline.poll(*reader, &rank);
  for (int n = 9; n <= 16; ++n) trainer.sample(n, n % 2 == 0 ? 1.0 : 1.0 + 0x1p-6, n % 2 == 0 ? 0 : 1);
  pipeline.poll(*reader, &rank);
  // Layer 0 (label 003) was wrong in even steps up to 8, layer 1 (007) in odd steps from 9 on: both are,
  // equally.
  ASSERT_NE(rank.worst_layer(), nullptr);
  EXPECT_NEAR(*max_of(rank.layers["003"].pass[0].relative_error_max), 0x1p-6, 1e-9);
  EXPECT_NEAR(*max_of(rank.layers["007"].pass[0].relative_error_max), 0x1p-6, 1e-9);
}

TEST(Pipeline, ANaNOfTheKernelIsCountedAndMakesItsLayerTheWorst) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  trainer.sample(1, NAN);
  pipeline.poll(*reader, &rank);
  EXPECT_EQ(rank.nonfinite_output, 16u);
  ASSERT_NE(rank.worst_layer(), nullptr);
  EXPECT_EQ(rank.worst_layer()->label, "003");
}

TEST(Pipeline, SoundGradientsOfKeysAndValuesGiveNoAlarm) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 4; ++n) {
    trainer.sample_columns(n, 1, 1);
    pipeline.poll(*reader, &rank);
  }
  pipeline.refresh(*reader, &rank);
  EXPECT_EQ(rank.judged[1], 0u);  // calls are counted by their slices of rows
  ASSERT_EQ(rank.keys.size(), 2u);
  for (const PassStatistics& keys : rank.keys) {
    EXPECT_EQ(keys.judged, 4u);
    EXPECT_LT(*max_of(keys.relative_error_max), 1e-6);
  }
  EXPECT_EQ(rank.pass[1].judged, 0u);
  EXPECT_TRUE(rank.alarms().empty());
}

TEST(Pipeline, WrongGradientOfValuesIsNamedAndThatOfKeysIsNot) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 4; ++n) {
    trainer.sample_columns(n, 1, n > 1 ? 1.05 : 1);
    pipeline.poll(*reader, &rank);
  }
  const std::vector<LayerAlarm> alarms = rank.alarms();
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].layer->label, "003");
  EXPECT_EQ(alarms[0].pass, 1u);
  EXPECT_STREQ(kJudgedTensorNames[alarms[0].tensor], "grad_value");
  EXPECT_EQ(alarms[0].last_step, 4);
  EXPECT_EQ(rank.worst_layer()->label, "003");
}

// What one alarm of grad_key is called when four slices of key positions, each right, come from calls whose
// dK is wrong elsewhere.
std::string alarm_of_unsampled_keys(double error, uint64_t whole_calls, uint64_t partial_calls) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  PassStatistics& rows = rank.layer_of("003")->pass[1];
  rows.judged = whole_calls;
  rows.with_partial_rows = partial_calls;
  for (int n = 1; n <= 4; ++n) {
    trainer.sample_columns(n, 1, 1, 0, error);
    pipeline.poll(*reader, &rank);
  }
  const std::vector<LayerAlarm> alarms = rank.alarms();
  if (alarms.empty()) return "";
  EXPECT_EQ(alarms.size(), 1u);
  EXPECT_STREQ(kJudgedTensorNames[alarms[0].tensor], "grad_key");
  return name_of(alarms[0].kind);
}

TEST(Pipeline, ErrorOfKeysThatAreNotSampledIsFoundByConservation) {
  EXPECT_EQ(alarm_of_unsampled_keys(0, kWholeCalls, 0), "");
  EXPECT_EQ(alarm_of_unsampled_keys(0.01, kWholeCalls, 0), "conservation");
  EXPECT_EQ(alarm_of_unsampled_keys(0.01, kWholeCalls - 1, 0), "") << "the calls may see a part of the keys";
  EXPECT_EQ(alarm_of_unsampled_keys(0.01, 10 * kWholeCalls, 1), "") << "as with context parallelism";
  EXPECT_EQ(alarm_of_unsampled_keys(NAN, 0, 1), "nonfinite");
}

TEST(Pipeline, CallsWithoutALayerAreJudgedAsOne) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 4; ++n) {
    trainer.sample(n, n % 2 == 0 ? NAN : 1.0, -1);
    pipeline.poll(*reader, &rank);
  }
  EXPECT_TRUE(rank.layers.empty());
  ASSERT_EQ(rank.alarms().size(), 1u);
  EXPECT_EQ(rank.alarms()[0].layer->label, "");
  EXPECT_EQ(rank.alarms()[0].kind, AlarmKind::kNonfinite);
  EXPECT_EQ(rank.pass[0].nonfinite, 2u);
}

TEST(Pipeline, NanThatStaysIsWrittenLessAndLessOften) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  std::string error;
  const std::string path = trainer.directory + "/record.jsonl";
  auto record = RecordWriter::open(path, &error);
  ASSERT_NE(record, nullptr) << error;
  Pipeline pipeline(record.get());
  RankStatistics rank;
  for (int n = 1; n <= 100; ++n) {
    trainer.sample(n, NAN);
    pipeline.poll(*reader, &rank);
  }
  ASSERT_TRUE(record->flush());
  ASSERT_EQ(rank.events.size(), 1u);
  EXPECT_EQ(rank.events[0].first_step, 1);
  EXPECT_EQ(rank.events[0].count, 100u);
  std::vector<int64_t> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json["type"] == "event") steps.push_back(json["step"]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64}));
}

// The agent looks once a second, when all layers have NaN already.
TEST(Pipeline, TheFirstNanGradientOfALayerHasTheStepThatItsCountShows) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (const uint32_t n : {0, 1}) {
    auto layer = trainer.layer(n);  // published at the end of its scope
    std::snprintf(layer->label, sizeof layer->label, "%03u", n);
    layer->gradient_step = layer->last_nonfinite_step = 12;
    layer->nonfinite_steps = n == 0 ? 2 : 4;
    layer->ready = 1;
  }
  pipeline.refresh(*reader, &rank);
  std::map<std::string, int64_t> first;
  for (const RankEvent& event : rank.events)
    if (event.what == "nonfinite_gradient") first[event.layer] = event.first_step;
  EXPECT_EQ(first, (std::map<std::string, int64_t>{{"000", 11}, {"001", 9}}));
}

TEST(Pipeline, ALayerThatIsLabelledLateHasItsLabelFromTheNextSliceOn) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  pipeline.refresh(*reader, &rank);
  trainer.sample(1, 1.0, 1);
  pipeline.poll(*reader, &rank);
  EXPECT_EQ(rank.unnamed.pass[0].judged, 1u);
  std::strcpy(trainer.layer(1)->label, "007");
  std::strcpy(trainer.layer(1)->name, "blocks.7");
  trainer.layer(1)->ready = 1;
  trainer.sample(2, 1.0, 1);
  pipeline.poll(*reader, &rank);
  EXPECT_EQ(rank.unnamed.pass[0].judged, 1u);
  ASSERT_EQ(rank.layers.count("007"), 1u);
  EXPECT_EQ(rank.layers["007"].name, "blocks.7");
  std::strcpy(trainer.layer(1)->name, "blocks");  // named after a further parameter
  pipeline.refresh(*reader, &rank);
  trainer.sample(3, 1.0, 1);
  pipeline.poll(*reader, &rank);
  EXPECT_EQ(rank.layers["007"].name, "blocks");
  std::strcpy(trainer.layer(1)->name, "blk");  // no slice follows
  pipeline.finish(*reader, &rank);
  EXPECT_EQ(rank.layers["007"].name, "blk");
}

TEST(Pipeline, AnAlarmThatHasEndedIsKeptWithItsSteps) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 100; ++n) {
    trainer.sample(n, n == 9 || n == 12 ? NAN : 1.0);
    pipeline.poll(*reader, &rank);
  }
  const std::vector<LayerAlarm> alarms = rank.alarms();
  EXPECT_TRUE(std::none_of(alarms.begin(), alarms.end(),
                           [](const LayerAlarm& alarm) { return alarm.kind == AlarmKind::kNonfinite; }));
  const auto& past = rank.layers["003"].pass[0].past;
  ASSERT_EQ(past.count(AlarmKind::kNonfinite), 1u);
  EXPECT_EQ(past.at(AlarmKind::kNonfinite).first_step, 9);
  EXPECT_EQ(past.at(AlarmKind::kNonfinite).last_step, 12);
}

TEST(Pipeline, WrittenOutAttentionIsComparedWithTheWorseFloor) {
  const auto ratio_of = [](const char* op, std::optional<double> fused, std::optional<double> plain) {
    SliceDeviation deviation;
    deviation.fused_ratio = fused;
    deviation.deviation_ratio = plain;
    allow_for_operation(op, &deviation);
    return deviation.fused_ratio;
  };
  EXPECT_EQ(ratio_of("_scaled_dot_product_flash_attention_for_cpu", 9, 1), 9);
  for (const char* op : {"foreshock::eager_attention", "foreshock::eager_attention_backward",
                         "foreshock::tap_backward", "_scaled_dot_product_attention_math"}) {
    const bool may_have_sinks = std::string_view(op).starts_with("foreshock::eager_attention");
    EXPECT_DOUBLE_EQ(*ratio_of(op, 9, 3), 3 / std::sqrt(may_have_sinks ? 4 : 3)) << "roundings of a score";
    EXPECT_EQ(ratio_of(op, 1, 9), 1);
    EXPECT_EQ(ratio_of(op, 9, std::nullopt), std::nullopt) << "not judged";
  }
}

TEST(Pipeline, AHostileSlotIsRefusedCountedAndTheRestGoesOn) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  segment::Slot* slot = trainer.writer.claim(100);
  slot->rows = 1000;
  trainer.writer.publish(slot, 100);
  trainer.sample(1, 1.0);
  pipeline.poll(*reader, &rank);
  pipeline.refresh(*reader, &rank);
  EXPECT_EQ(rank.refused_slots, 1u);
  EXPECT_EQ(rank.lost[0][static_cast<int>(segment::Lost::kRefused)], 1u);
  EXPECT_EQ(rank.judged[0], 1u);
}

// Another process writes into the file: nothing of it is judged, and the run is not healthy.
TEST(Pipeline, WhatAnotherProcessHasChangedIsDamaged) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  trainer.sample(1, 1.0);
  trainer.sample(2, 1.0);
  pipeline.refresh(*reader, &rank);
  EXPECT_FALSE(rank.is_damaged);
  const segment::Region& slots = reader->header().regions[segment::kSlots];
  const int file = open((trainer.directory + "/0-0000000000000010.seg").c_str(), O_RDWR | O_CLOEXEC);
  const std::vector<char> noise(256, '\x7f');
  const uint64_t payload = slots.offset + 2 * slots.record_size + 704;  // of ticket 2
  ASSERT_EQ(pwrite(file, noise.data(), noise.size(), static_cast<off_t>(payload)), 256);
  pipeline.poll(*reader, &rank);
  pipeline.refresh(*reader, &rank);
  EXPECT_EQ(rank.judged[0], 1u);
  EXPECT_EQ(rank.lost[0][static_cast<int>(segment::Lost::kDamaged)], 1u);
  EXPECT_EQ(rank.pass[0].nonfinite, 0u);
  EXPECT_TRUE(totals_of({&rank}, 0).is_damaged);
  EXPECT_FALSE(rank.is_damaged) << "the file is what it was";
  trainer.sample(3, 1.0);
  trainer.thread()->calls[0] = 7;
  pipeline.refresh(*reader, &rank);
  EXPECT_EQ(rank.calls(0), 7u);
  ASSERT_EQ(ftruncate(file, 0), 0);
  close(file);
  pipeline.finish(*reader, &rank);
  EXPECT_TRUE(rank.is_damaged);
  EXPECT_EQ(rank.judged[0], 1u);
  EXPECT_EQ(rank.calls(0), 7u) << "what was read before is kept";
}

TEST(Pipeline, WhatATrainerLeftHalfWrittenIsLostAsTorn) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  trainer.sample(1, 1.0);
  trainer.thread()->calls[0] += 2;
  trainer.thread()->sampled[0] += 2;
  segment::Slot* slot = trainer.writer.claim(50);
  ASSERT_NE(slot, nullptr);
  trainer.writer.write({{slot, sizeof *slot}});  // and of the other one nothing
  pipeline.finish(*reader, &rank);
  EXPECT_EQ(rank.judged[0], 1u);
  EXPECT_EQ(rank.lost[0][static_cast<int>(segment::Lost::kTorn)], 2u);
  EXPECT_EQ(trainer.open()->lost(0, segment::Lost::kTorn), 2u) << "the next agent knows it too";
  EXPECT_EQ(rank.in_flight(0), 0u);
}

TEST(Pipeline, ASpikeOfTheLossIsAnEventWithItsStep) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 200; ++n) trainer.step(n, 2.0 + 0.01 * (n % 7));
  for (int n = 201; n <= 204; ++n) trainer.step(n, 9.0);
  pipeline.poll(*reader, &rank);
  EXPECT_EQ(rank.loss_event_count(WatchEventKind::kLossSpike)->count, 1u);
  EXPECT_EQ(rank.loss_event_count(WatchEventKind::kLossSpike)->first_step, 201);
}

TEST(Pipeline, ALossThatStaysUpIsASpikeAndADivergence) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 600; ++n) {
    trainer.step(n, n < 300 ? 1 + 1e-3 * std::sin(n) : 50);
    pipeline.poll(*reader, &rank);
  }
  EXPECT_EQ(rank.loss_event_count(WatchEventKind::kLossSpike)->first_step, 300);
  EXPECT_EQ(rank.loss_event_count(WatchEventKind::kDivergence)->first_step, 300);
}

TEST(Pipeline, AnAgentThatTakesUpTellsWhatItsForerunnerSaw) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline before(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 300; ++n) {
    trainer.step(n, n < 290 ? 1 + 1e-3 * std::sin(n) : 50);
    before.poll(*reader, &rank);
  }
  ASSERT_EQ(rank.loss_event_count(WatchEventKind::kLossSpike)->first_step, 290);

  for (const bool restored : {true, false}) {
    Pipeline after(nullptr);
    uint64_t offset = 0;
    if (restored) {
      ASSERT_TRUE(after.watches().restore(before.watches().save(0), &offset));
    }
    RankStatistics taken;
    after.refresh(*reader, &taken);
    after.resume_from(*reader, &taken);
    EXPECT_EQ(taken.taken_up_step, restored ? 300 : 301);
    EXPECT_EQ(taken.last_loss, restored ? 50 : 40);
    EXPECT_EQ(taken.loss_events_known, restored);
    const std::optional<LossCount> spikes = taken.loss_event_count(WatchEventKind::kLossSpike);
    EXPECT_EQ(spikes.has_value(), restored);
    EXPECT_EQ(spikes ? spikes->first_step : -1, restored ? 290 : -1);
    trainer.step(restored ? 301 : 302, 40);
    after.poll(*reader, &taken);
    EXPECT_FALSE(taken.first_loss) << "the first of the rank is not the first of this agent";
  }
}

TEST(Pipeline, TheSlowdownOfTheLastMinutesForgetsWhatCameBefore) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 200; ++n) {
    segment::StepRecord step = {};
    step.step = n;
    step.duration_ns = 60'000'000'000;
    step.cost_ns = n <= 100 ? 30'000'000'000 : 0;  // half of the time, then nothing
    trainer.writer.append_step(step);
    pipeline.poll(*reader, &rank);
    rank.agent_seconds = 0;  // what judging cost this test
  }
  EXPECT_NEAR(*rank.slowdown(1), 1.0 / 3, 1e-12);  // 3000 s of ours beside 9000 s of theirs
  EXPECT_LT(*rank.recent_slowdown(1), 1e-6);       // e^-20 of it is left
}

TEST(Pipeline, TheRecordHasTheStartThenStepsAndSamples) {
  SegmentOfATrainer trainer;
  const std::string path = trainer.directory + "/record.jsonl";
  std::string error;
  auto record = RecordWriter::open(path, &error);
  ASSERT_NE(record, nullptr) << error;
  auto reader = trainer.open();
  Pipeline pipeline(record.get());
  RankStatistics rank;
  trainer.step(1, 2.0);
  trainer.sample(2, 1.0 + 0x1p-10);
  pipeline.poll(*reader, &rank);
  // Nobody flushes: what the trainer was told to be taken is in the file, were the agent killed now.
  std::ifstream file(path);
  std::string start, step, sample;
  std::getline(file, start);
  std::getline(file, step);
  std::getline(file, sample);
  EXPECT_NE(start.find("\"state\":\"started\""), std::string::npos) << start;
  EXPECT_NE(step.find("\"type\":\"step\""), std::string::npos) << step;
  EXPECT_NE(step.find("\"loss\":2.0"), std::string::npos) << step;
  EXPECT_NE(sample.find("\"layer\":\"003\""), std::string::npos) << sample;
  EXPECT_NE(sample.find("\"step_judged\":1"), std::string::npos) << sample;
}

}  // namespace
}  // namespace foreshock
