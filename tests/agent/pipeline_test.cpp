#include "agent/pipeline.h"

#include <gtest/gtest.h>

#include <fstream>

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
  std::strcpy(trainer.writer.layers()[1].label, "007");
  trainer.writer.layers()[1].ready = 1;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  for (int n = 1; n <= 8; ++n) trainer.sample(n, n % 2 == 0 ? 1.0 + 0x1p-6 : 1.0, n % 2);
  pipeline.poll(*reader, &rank);
  for (int n = 9; n <= 16; ++n) trainer.sample(n, n % 2 == 0 ? 1.0 : 1.0 + 0x1p-6, n % 2 == 0 ? 0 : 1);
  pipeline.poll(*reader, &rank);
  // Layer 0 (label 003) was wrong in even steps up to 8, layer 1 (007) in odd steps from 9 on: both are, equally.
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
  EXPECT_EQ(rank.nonfinite_output, 8u);
  ASSERT_NE(rank.worst_layer(), nullptr);
  EXPECT_EQ(rank.worst_layer()->label, "003");
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

TEST(Pipeline, WhatATrainerLeftHalfWrittenIsLostAsTorn) {
  SegmentOfATrainer trainer;
  auto reader = trainer.open();
  Pipeline pipeline(nullptr);
  RankStatistics rank;
  trainer.sample(1, 1.0);
  ++trainer.writer.threads()[0].calls[0];
  ++trainer.writer.threads()[0].sampled[0];
  ASSERT_NE(trainer.writer.claim(50), nullptr);  // never published
  pipeline.finish(*reader, &rank);
  EXPECT_EQ(rank.judged[0], 1u);
  EXPECT_EQ(rank.lost[0][static_cast<int>(segment::Lost::kTorn)], 1u);
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
  ASSERT_EQ(rank.spike_steps.size(), 1u);
  EXPECT_EQ(rank.spike_steps[0], 201);
}

TEST(Pipeline, TheRecordTellsStepsAndSamples) {
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
  record->flush();
  std::ifstream file(path);
  std::string step, sample;
  std::getline(file, step);
  std::getline(file, sample);
  EXPECT_NE(step.find("\"type\":\"step\""), std::string::npos) << step;
  EXPECT_NE(step.find("\"loss\":2.0"), std::string::npos) << step;
  EXPECT_NE(sample.find("\"layer\":\"003\""), std::string::npos) << sample;
  EXPECT_NE(sample.find("\"step_judged\":1"), std::string::npos) << sample;
}

}  // namespace
}  // namespace foreshock
