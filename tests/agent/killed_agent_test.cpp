// An agent that is killed between a line of the record and the word in the control file that it was taken:
// the next one finds the same steps and slices again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <map>

#include "agent/pipeline.h"
#include "agent/restart_state.h"
#include "exporters/record_reader.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

bool g_disk_is_full = false;
ssize_t write_unless_full(int file, const void* bytes, size_t count) {
  if (!g_disk_is_full) return write(file, bytes, count);
  errno = ENOSPC;
  return -1;
}

class KilledAgentTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    directory_ = Directory::open(trainer_.directory, &why);
    ASSERT_NE(directory_, nullptr) << why;
    start_agent();
  }

  void start_agent() {
    pipeline_.reset();
    record_.reset();
    std::string error;
    const int spool = directory_->open_file("record.spool", O_RDWR | O_CREAT | O_APPEND);
    record_ = RecordWriter::open(path_, &error, spool, write_unless_full);
    ASSERT_NE(record_, nullptr) << error;
    pipeline_ = std::make_unique<Pipeline>(record_.get());
    state_ = WatchState();
    state_.restore(*directory_, "run", path_, record_.get(), &pipeline_->watches(),
                   &pipeline_->written_lines());
    reader_ = trainer_.open();
    rank_ = RankStatistics();
    rank_.run = "run";
  }

  // Two lines each: a step and a slice of it.
  void train(int steps) {
    for (int n = 0; n < steps; ++n) {
      trainer_.step(++step_, 2.0);
      trainer_.sample(step_, 1.0);
    }
    pipeline_->poll(*reader_, &rank_);
    ASSERT_EQ(record_->flush(), !g_disk_is_full);
  }

  std::string control() const { return trainer_.directory + "/0-0000000000000010.ctl"; }
  std::string taken() const {
    std::ifstream file(control(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // In place: the trainer has the file mapped.
  void put_back(const std::string& bytes) const {
    std::fstream(control(), std::ios::in | std::ios::out | std::ios::binary) << bytes;
  }

  // How often each step has a line of its own, and one of its slice.
  std::map<int64_t, std::pair<int, int>> lines() const {
    std::map<int64_t, std::pair<int, int>> found;
    std::string error;
    const auto reader = RecordReader::open(path_, &error);
    while (const auto line = reader->next()) {
      if (const auto* step = std::get_if<StepLine>(&*line)) ++found[*step->step].first;
      if (const auto* sample = std::get_if<SampleLine>(&*line)) ++found[*sample->step].second;
    }
    return found;
  }

  SegmentOfATrainer trainer_;
  std::unique_ptr<Directory> directory_;
  const std::string path_ = trainer_.directory + "/record.jsonl";
  std::unique_ptr<RecordWriter> record_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<segment::SegmentReader> reader_;
  WatchState state_;
  RankStatistics rank_;
  int64_t step_ = 0;
};

TEST_F(KilledAgentTest, WhatItHadWrittenIsNotWrittenAgain) {
  train(3);
  ASSERT_TRUE(state_.save(*directory_, record_.get(), pipeline_->watches()));
  const std::string before = taken();
  train(4);
  put_back(before);
  start_agent();
  train(2);
  const std::map<int64_t, std::pair<int, int>> found = lines();
  EXPECT_EQ(found.size(), 9u);
  for (const auto& [step, count] : found) EXPECT_EQ(count, std::make_pair(1, 1)) << "step " << step;
  EXPECT_EQ(rank_.steps, 9u) << "they count all the same";
}

TEST_F(KilledAgentTest, WhatItCouldNotWriteIsWrittenByTheNext) {
  for (const bool has_told : {true, false}) {
    ASSERT_TRUE(state_.save(*directory_, record_.get(), pipeline_->watches()));
    const std::string before = taken();
    g_disk_is_full = true;
    train(4);
    g_disk_is_full = false;
    if (!has_told) put_back(before);
    start_agent();
    train(2);
    const std::map<int64_t, std::pair<int, int>> found = lines();
    EXPECT_EQ(found.size(), static_cast<size_t>(step_));
    for (const auto& [step, count] : found) EXPECT_EQ(count, std::make_pair(1, 1)) << "step " << step;
    EXPECT_EQ(pipeline_->watches().lines(), 2u * (4 + 2)) << "the detectors saw each once";
  }
}

}  // namespace
}  // namespace foreshock
