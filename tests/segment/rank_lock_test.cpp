// Who lives, and which of several processes has a rank: locks of the kernel's.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

// Runs `body` in a child that owns a segment and ends when told.
template <class Body>
void with_live_segment(const std::string& directory, int rank, uint64_t nonce, Body body) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    SegmentWriter writer;
    const char* why = writer.create({directory.c_str(), rank, nonce, 2, 4096});
    const char byte = why == nullptr ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  body();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(SegmentFiles, LivenessIsAKernelLock) {
  std::unique_ptr<SegmentReader> reader;
  with_live_segment(directory_, 0, 0x10, [&] {
    reader = open();
    EXPECT_TRUE(reader->is_locked());
  });
  EXPECT_FALSE(reader->is_locked());
}

TEST_F(SegmentFiles, TheSecondOfOneRankIsRefusedWhileTheFirstLives) {
  with_live_segment(directory_, 3, 0x10, [&] {
    SegmentWriter second, other_rank;
    EXPECT_STREQ(create(&second, 3, 0x20), "rank_taken");
    EXPECT_FALSE(fs::exists(directory_ + "/3-0000000000000020.seg"));
    EXPECT_FALSE(fs::exists(directory_ + "/3-0000000000000020.ctl"));
    EXPECT_EQ(create(&other_rank, 4, 0x30), nullptr);
  });
  SegmentWriter after;
  EXPECT_EQ(create(&after, 3, 0x40), nullptr);
}

// The first one has far more to reserve, so the second one is done while nothing of the first has its name
// yet.
TEST_F(SegmentFiles, OfTwoOfOneRankThatStartTogetherOneStays) {
  for (int round = 0; round < 10; ++round) {
    int done[2], end[2];
    ASSERT_EQ(pipe(done), 0);
    ASSERT_EQ(pipe(end), 0);
    pid_t children[2];
    for (uint32_t n = 0; n < 2; ++n) {
      children[n] = fork();
      if (children[n] != 0) continue;
      close(end[1]);
      SegmentWriter writer;
      const char* why = writer.create({directory_.c_str(), 3, 100 + n, n == 0 ? 16u : 2u, 1 << 20});
      const char byte = why == nullptr ? 'y' : std::string(why) == "rank_taken" ? 't' : 'n';
      if (write(done[1], &byte, 1) != 1) _exit(1);
      char none;
      _exit(read(end[0], &none, 1) == 0 ? 0 : 1);  // both live until both have tried
    }
    std::string answers(2, ' ');
    for (char& answer : answers) ASSERT_EQ(read(done[0], &answer, 1), 1);
    std::sort(answers.begin(), answers.end());
    EXPECT_EQ(answers, "ty");
    for (const int fd : {end[1], end[0], done[0], done[1]}) close(fd);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    for (const auto& entry : fs::directory_iterator(directory_)) fs::remove(entry.path());
  }
}

TEST_F(SegmentFiles, WhoCannotHaveASegmentLeavesItsRankToTheNext) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {64 << 10, before.rlim_max};
  SegmentWriter writer;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_STREQ(create(&writer, 3, 0x10), "file_limit");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  with_live_segment(directory_, 3, 0x20, [this] { EXPECT_FALSE(fs::exists(directory_ + "/3.rank")); });
}

}  // namespace
}  // namespace foreshock::segment
