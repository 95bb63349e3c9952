#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "agent/restart_state.h"
#include "exporters/record_reader.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

// A run whose agents come and go: lines to the record and to the detectors, as the pipeline gives them.
class WatchStateTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    directory_ = Directory::open(folder_, &why);
    ASSERT_NE(directory_, nullptr) << why;
    start_agent();
  }

  void start_agent() {
    std::string error;
    record_ = RecordWriter::open(path_, &error);
    ASSERT_NE(record_, nullptr) << error;
    watches_ = Watches();
    state_ = WatchState();
    written_lines_ = WrittenLines();
    state_.restore(*directory_, "run", path_, record_.get(), &watches_, &written_lines_);
  }
  void save() {
    record_->flush();
    EXPECT_TRUE(state_.save(*directory_, record_.get(), watches_));
  }
  // Killed when the record had been written further than the state.
  void kill_agent() {
    record_.reset();
    start_agent();
  }

  void train(int steps, double loss = 2, double gradient = 1) {
    for (int n = 0; n < steps; ++n) {
      StepLine line;
      line.run = "run";
      line.rank = 0;
      line.step = ++step_;
      line.loss = loss + draw_(engine_) / 50;
      line.gradient_norm = gradient * std::exp(draw_(engine_) / 10);
      record_->write(line);
      if (!takes_events_along_)
        for (const EventLine& event : watches_.observe(line)) record_->write(event);
    }
  }

  std::vector<std::string> events_of(bool recorded) {
    record_->flush();
    std::string error;
    std::vector<std::string> found;
    Watches watches;
    const auto add = [&](const EventLine& line) {
      found.push_back(std::to_string(*line.step) + " " + line.event + " " + line.detector + " " + line.level);
    };
    const auto reader = RecordReader::open(path_, &error);
    while (const auto line = reader->next()) {
      if (const auto* event = std::get_if<EventLine>(&*line); event != nullptr && event->step && recorded)
        add(*event);
      std::visit(
          [&](const auto& each) {
            for (const EventLine& event : watches.observe(each))
              if (!recorded) add(event);
          },
          *line);
    }
    return found;
  }

  const TemporaryDirectory temporary_;
  const std::string folder_ = temporary_.path(), path_ = folder_ + "/record.jsonl";
  bool takes_events_along_ = false;  // killed between a line and its events
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<RecordWriter> record_;
  Watches watches_;
  WatchState state_;
  WrittenLines written_lines_;

 private:
  int64_t step_ = 0;
  std::mt19937_64 engine_{1};
  std::normal_distribution<double> draw_;
};

TEST_F(WatchStateTest, AnAgentThatWasStoppedGoesOn) {
  train(150);
  save();
  kill_agent();
  EXPECT_EQ(watches_.watch_of("run", 0)->states()[static_cast<size_t>(DetectorId::kGradientNorm)].values,
            150u);
  train(10, 9, 30);
  EXPECT_EQ(events_of(true), events_of(false));
  EXPECT_EQ(events_of(true).size(), 2u);  // gradient norm at once, the spike
}

TEST_F(WatchStateTest, WhatTheRecordSaysBeyondTheStateIsTakenIn) {
  train(100);
  save();
  train(50);
  kill_agent();
  EXPECT_EQ(watches_.watch_of("run", 0)->states()[static_cast<size_t>(DetectorId::kGradientNorm)].values,
            150u);
  train(10, 9, 30);
  EXPECT_EQ(events_of(true), events_of(false));
  EXPECT_EQ(events_of(true).size(), 2u);
}

TEST_F(WatchStateTest, EventsThatDidNotReachTheRecordAreAddedOnce) {
  train(150);
  save();
  takes_events_along_ = true;
  train(10, 9, 30);
  EXPECT_EQ(events_of(true).size(), 0u);
  takes_events_along_ = false;
  kill_agent();
  EXPECT_EQ(events_of(true), events_of(false));
  EXPECT_EQ(events_of(true).size(), 2u);
  kill_agent();
  EXPECT_EQ(events_of(true).size(), 2u);
}

TEST_F(WatchStateTest, WithoutItsStateItBeginsAnewAndTheRecordSaysSo) {
  train(150);
  save();
  for (const char* bytes : {"", "hello", "foreshock detectors 2\nXXXXXXXX"}) {
    std::ofstream(folder_ + "/" + WatchState::kFile, std::ios::binary) << bytes;
    kill_agent();
    EXPECT_EQ(watches_.all().size(), 0u);
    train(10, 9, 30);
  }
  EXPECT_EQ(events_of(true), events_of(false));
  EXPECT_EQ(events_of(true).size(), 0u);  // they had not learned
}

TEST_F(WatchStateTest, NothingNewIsNotWritten) {
  train(10);
  save();
  directory_->remove(WatchState::kFile);
  save();
  EXPECT_FALSE(directory_->has(WatchState::kFile));
}

}  // namespace
TEST(WrittenLines, KeepsTheNewest) {
  WrittenLines written;
  StepLine line;
  const auto at = [&](size_t step) {
    line.step = static_cast<int64_t>(step);
    return line;
  };
  for (size_t step = 0; step < WrittenLines::kMost + 2; ++step) written.note(at(step));
  EXPECT_FALSE(written.erase(at(1)));
  EXPECT_TRUE(written.erase(at(2)));
  EXPECT_FALSE(written.erase(at(2))) << "a line is repeated once";
  EXPECT_TRUE(written.erase(at(WrittenLines::kMost + 1)));
}

}  // namespace foreshock
