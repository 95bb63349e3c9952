// What a run tells its trainers: the detectors' advice, and bursts.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "agent/run.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

constexpr uint64_t kInterval = 64;

class RunAdvice : public testing::Test {
 protected:
  void open(uint64_t every = 0) {
    RunOptions options;
    options.run_id = options.label = "job";
    options.every = every;
    options.max_slowdown = 0.01;
    options.record = first_.directory + "/record.jsonl";
    std::string error;
    run_ = foreshock::Run::open(options, Directory::open(first_.directory, &error), &error);
    ASSERT_NE(run_, nullptr) << error;
    run_->discover(&registry_);
  }

  // Steps of 10 ms, of which a sampled one costs 0.1 ms and another one a tenth of that.
  void train(int64_t from, int64_t to) {
    for (int64_t number = from; number <= to; ++number) {
      segment::StepRecord step = {};
      step.step = number;
      step.duration_ns = 10'000'000;
      step.sampled = static_cast<uint64_t>(number) % kInterval == 0;
      step.cost_ns = step.sampled ? 100'000 : 10'000;
      step.interval = kInterval;
      for (SegmentOfATrainer* trainer : {&first_, &second_}) trainer->writer.append_step(step);
    }
    run_->poll();
  }

  // The same, told every tenth step; one that is sampled costs 10 ms.
  void train_told_as_one(int64_t from, int64_t to) {
    for (int64_t number = from; number <= to; number += 10) {
      segment::StepRecord step = {};
      step.step = number;
      step.duration_ns = 100'000'000;
      step.sampled = static_cast<uint64_t>(number) % kInterval < 10;
      step.cost_ns = step.sampled ? 10'000'000 : 100'000;
      step.interval = kInterval;
      for (SegmentOfATrainer* trainer : {&first_, &second_}) trainer->writer.append_step(step);
    }
    run_->poll();
  }

  // Two slices that err beyond what their precision explains: deviation_forward warns.
  void err(int64_t step) {
    for (int n = 0; n < 2; ++n) first_.sample(step, 1 + 0x1p-8);
    run_->poll();
  }

  static segment::Advice advice_of(const SegmentOfATrainer& trainer) { return trainer.control().advice; }

  SegmentOfATrainer first_, second_ = SegmentOfATrainer(first_.directory, 1);
  Registry registry_;
  std::unique_ptr<foreshock::Run> run_;
};

TEST_F(RunAdvice, IsQuietFromTheMomentThatAnAgentFollows) {
  EXPECT_EQ(advice_of(first_).sequence, 0u);
  open();
  for (const SegmentOfATrainer* trainer : {&first_, &second_}) {
    EXPECT_EQ(advice_of(*trainer).sequence, 2u);
    EXPECT_EQ(advice_of(*trainer).level, 0u);
    EXPECT_EQ(advice_of(*trainer).rank, -1);
  }
}

TEST_F(RunAdvice, AWarningOfOneRankReachesAllWithAStepThatIsStillToCome) {
  open();
  train(1, 10);
  err(8);
  for (const SegmentOfATrainer* trainer : {&first_, &second_}) {
    const segment::Advice advice = advice_of(*trainer);
    EXPECT_EQ(advice.sequence % 2, 0u);
    EXPECT_EQ(advice.level, 2u);
    EXPECT_EQ(advice.rank, 0);
    EXPECT_EQ(advice.since_step, 8);
    // A quarter of a second ahead, in steps of 10 ms: an agent that is a little late is none too late.
    EXPECT_GE(advice.from_step, 10 + 25);
    EXPECT_LE(advice.from_step, 10 + 25 + 4);
    EXPECT_STREQ(advice.detector, "deviation_forward");
    EXPECT_STREQ(advice.layer, "003");
    EXPECT_GE(advice.score, 1);
  }
  // What has not changed is not written again; who comes later hears it too.
  const uint64_t written = advice_of(first_).sequence;
  train(11, 20);
  EXPECT_EQ(advice_of(first_).sequence, written);
  SegmentOfATrainer late(first_.directory, 2);
  run_->discover(&registry_);
  EXPECT_EQ(advice_of(late).level, 2u);
  EXPECT_EQ(advice_of(late).from_step, advice_of(first_).from_step);
}

TEST_F(RunAdvice, ATrainingThatGoesBackIsQuietAgain) {
  open();
  train(1, 10);
  err(8);
  train(4, 6);
  EXPECT_EQ(advice_of(first_).level, 0u);
}

TEST_F(RunAdvice, AWarningBeginsABurstOfAllRanksOnce) {
  open();
  train(1, 200);
  run_->update_interval(0);
  err(192);
  const segment::Control first = first_.control(), second = second_.control();
  EXPECT_EQ(first.burst_interval, 1u);
  EXPECT_GT(first.burst_from_step, 200);
  EXPECT_EQ(first.burst_until_step, first.burst_from_step + kBurstSamples);
  EXPECT_EQ(second.burst_interval, 1u);
  EXPECT_EQ(second.burst_from_step, first.burst_from_step);
  run_.reset();
  std::ifstream file(first_.directory + "/record.jsonl");
  std::stringstream record;
  record << file.rdbuf();
  size_t bursts = 0;
  for (size_t at = 0; (at = record.str().find("\"event\":\"burst\"", at)) != std::string::npos; ++at)
    ++bursts;
  EXPECT_EQ(bursts, 2u) << "one line of each rank";
}

// 1 % of 10 ms is 0.1 ms; the ranks take 0.02 of that at 8 steps. Of the agent's 8 ms since the start, which
// 200 steps share and not 3 samples, it is 0.04: there is room for 8.
TEST_F(RunAdvice, WhatTheAgentSpendsOnEveryStepKeepsNoneFromBeingSampled) {
  open();
  train(1, 200);
  run_->update_interval(0.008);
  EXPECT_EQ(first_.control().interval, 8u);
}

// 10 ms in every second of 64 steps are beyond 1 %: the interval grows, from a step that no rank has told. Of
// a sampled step in 64 that are told they would be a fifth of it, and it would shrink.
TEST_F(RunAdvice, AnIntervalIsChosenByWhatStepsToldAsOneCost) {
  open();
  train_told_as_one(10, 640);
  run_->update_interval(0);
  for (const SegmentOfATrainer* trainer : {&first_, &second_}) {
    EXPECT_EQ(trainer->control().interval, 2 * kInterval);
    EXPECT_EQ(trainer->control().interval_from_step, 640 + 4 * 10);
  }
  err(640);
  EXPECT_GE(advice_of(first_).from_step, 640 + 40 + 25);
  EXPECT_LE(advice_of(first_).from_step, 640 + 40 + 29);
}

TEST_F(RunAdvice, NoBurstBeforeItsCostIsKnownNorWhereTheIntervalIsTheUsers) {
  open();
  train(1, 200);
  err(192);
  EXPECT_EQ(first_.control().burst_interval, 0u);
  run_.reset();
  open(kInterval);
  train(201, 400);
  run_->update_interval(0);
  err(384);
  EXPECT_EQ(first_.control().burst_interval, 0u);
}

TEST_F(RunAdvice, NoBurstWhereRanksAreOnOtherNodes) {
  for (SegmentOfATrainer* trainer : {&first_, &second_}) {
    trainer->identity()->world_size = 16;
    trainer->identity()->local_ranks = 2;
  }
  open();
  train(1, 200);
  run_->update_interval(0);
  err(192);
  EXPECT_EQ(advice_of(first_).level, 2u);
  EXPECT_EQ(first_.control().burst_interval, 0u);
}

}  // namespace
}  // namespace foreshock
