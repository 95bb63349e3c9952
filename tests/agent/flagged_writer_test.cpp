#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "agent/flagged.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using Outcome = FlaggedFolder::Outcome;

// A disk that does what a test says. It outlives the writer, whose thread it may keep.
struct Disk {
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = false;
  Outcome outcome = Outcome::kWritten;
  std::vector<std::string> names;
  int begun = 0;
};

class FolderOnDisk : public FlaggedFolder {
 public:
  explicit FolderOnDisk(std::shared_ptr<Disk> disk) : FlaggedFolder("/slices", 0), disk_(std::move(disk)) {}

  Outcome write(const std::string& name, const std::string&, std::string* error) const override {
    std::unique_lock lock(disk_->mutex);
    ++disk_->begun;
    disk_->changed.notify_all();
    disk_->changed.wait(lock, [&] { return !disk_->hangs; });
    if (disk_->outcome == Outcome::kWritten)
      disk_->names.push_back(name);
    else
      *error = "the disk says no";
    disk_->changed.notify_all();
    return disk_->outcome;
  }

 private:
  const std::shared_ptr<Disk> disk_;
};

FlaggedSlice slice(const std::string& name, size_t bytes = 8) {
  FlaggedSlice made;
  made.name = name;
  made.reason = FlagReason::kBias;
  made.arrays.push_back({"q", "BF16", {static_cast<int64_t>(bytes / 2)}, std::string(bytes, 'x')});
  return made;
}

class FlaggedWriterTest : public ::testing::Test {
 protected:
  void hang(bool hangs) {
    const std::unique_lock lock(disk_->mutex);
    disk_->hangs = hangs;
    disk_->changed.notify_all();
  }
  void wait_until_writing(int begun) {
    std::unique_lock lock(disk_->mutex);
    ASSERT_TRUE(disk_->changed.wait_for(lock, 60s, [&] { return disk_->begun >= begun; }));
  }
  std::unique_ptr<FlaggedWriter> writer() {
    return std::make_unique<FlaggedWriter>(std::make_unique<FolderOnDisk>(disk_));
  }

  const std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
};

TEST_F(FlaggedWriterTest, WritesInOrderAndCountsByReason) {
  const auto to = writer();
  for (const char* name : {"a", "b", "c"}) to->offer(slice(name));
  ASSERT_TRUE(to->wait(60s));
  EXPECT_EQ(disk_->names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(to->counts().saved[static_cast<size_t>(FlagReason::kBias)], 3u);
  EXPECT_EQ(to->counts().problem, "");
}

TEST_F(FlaggedWriterTest, WhatWaitsIsWrittenAtTheEnd) {
  {
    const auto to = writer();
    for (const char* name : {"a", "b", "c"}) to->offer(slice(name));
  }
  EXPECT_EQ(disk_->names.size(), 3u);
}

TEST_F(FlaggedWriterTest, ADiskThatHangsHoldsUpNobodyAndKeepsAFixedAmount) {
  constexpr size_t kLarge = FlaggedWriter::kMostWaitingBytes / 4;
  const auto to = writer();
  hang(true);
  to->offer(slice("written"));
  wait_until_writing(1);
  for (int n = 0; n < 6; ++n) to->offer(slice(std::to_string(n), kLarge));  // four of them fit
  EXPECT_FALSE(to->wait(1ms));
  EXPECT_EQ(to->counts().dropped[static_cast<size_t>(FlaggedDrop::kBusy)], 2u);
  hang(false);
  ASSERT_TRUE(to->wait(60s));
  EXPECT_EQ(disk_->names.size(), 5u);
}

TEST_F(FlaggedWriterTest, ASliceLargerThanAllThatMayWaitIsTakenAlone) {
  const auto to = writer();
  hang(true);
  to->offer(slice("written"));
  wait_until_writing(1);
  to->offer(slice("huge", FlaggedWriter::kMostWaitingBytes + 2));
  to->offer(slice("small"));
  hang(false);
  ASSERT_TRUE(to->wait(60s));
  EXPECT_EQ(disk_->names, (std::vector<std::string>{"written", "huge"}));
}

TEST_F(FlaggedWriterTest, AtTheEndADiskThatHangsIsLeft) {
  hang(true);
  auto to = writer();
  to->offer(slice("never"));
  wait_until_writing(1);
  const auto begin = std::chrono::steady_clock::now();
  to.reset();  // waits kMaxWaitAtEnd, 3 s
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_TRUE(disk_->names.empty());
  hang(false);  // its thread ends by itself
  std::unique_lock lock(disk_->mutex);
  EXPECT_TRUE(disk_->changed.wait_for(lock, 60s, [&] { return disk_->names.size() == 1; }));
}

TEST_F(FlaggedWriterTest, TellsWhyNothingIsWritten) {
  const auto to = writer();
  disk_->outcome = Outcome::kFull;
  to->offer(slice("a"));
  ASSERT_TRUE(to->wait(60s));
  disk_->outcome = Outcome::kFailed;
  to->offer(slice("b"));
  ASSERT_TRUE(to->wait(60s));
  to->drop(FlaggedDrop::kAlike);
  const FlaggedCounts counts = to->counts();
  EXPECT_EQ(counts.dropped, (std::array<uint64_t, kFlaggedDrops>{1, 0, 1, 1}));
  EXPECT_EQ(counts.problem, "the disk says no");
  disk_->outcome = Outcome::kWritten;
  to->offer(slice("c"));
  ASSERT_TRUE(to->wait(60s));
  EXPECT_EQ(to->counts().problem, "/slices: slices can be written again");
  EXPECT_EQ(disk_->names, std::vector<std::string>{"c"});
}

}  // namespace
}  // namespace foreshock
