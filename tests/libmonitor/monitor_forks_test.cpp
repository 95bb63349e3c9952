// Forks of a trainer: a child is not its parent, and not monitored until it trains itself.
#include <gtest/gtest.h>

#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

using MonitorForks = MonitorTest;

TEST_F(MonitorForks, AForkedChildIsInertUntilItTrains) {
  in_child({}, [this] {
    Trainer trainer;
    trainer.step(1, 2);
    const segment::Totals before = open()->totals();
    const pid_t child = fork();
    if (child == 0) {
      for (int n = 0; n < 50; ++n) trainer.attention(false);
      _exit(foreshock_enabled());
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(open()->totals() == before);
    trainer.step(2, 2);
    EXPECT_EQ(open()->totals().calls[0], before.calls[0] + 2);
  });
}

TEST_F(MonitorForks, WhatAForkedChildDoesNotSeeIsNotItsParents) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 2);
    const pid_t child = fork();
    if (child == 0) {
      foreshock_note_unseen("of_the_child", FORESHOCK_UNSEEN_USED);
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    foreshock_note_unseen("of_the_parent", FORESHOCK_UNSEEN_USED);
    if (fork() == 0) {
      setenv("RANK", "1", 1);
      foreshock_note_unseen("of_a_child_that_trains", FORESHOCK_UNSEEN_USED);
      trainer.step(1, 2);
      _exit(0);
    }
    wait(nullptr);
  });
  std::vector<std::vector<std::string>> names;
  for (const std::string rank : {"0-", "1-"})
    for (const std::string& file : files(".seg")) {
      if (!file.starts_with(rank)) continue;
      std::string why;
      const auto reader = SegmentReader::open(base_ + "/r", file, &why);
      ASSERT_NE(reader, nullptr) << why;
      names.emplace_back();
      for (const auto& unseen : reader->unseen_names()) names.back().push_back(segment::text_of(unseen.name));
    }
  const std::vector<std::string> parent = {"of_the_parent"},
                                 child = {"of_the_parent", "of_a_child_that_trains"};
  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{parent, child}));
}

TEST_F(MonitorForks, AForkedChildThatTrainsHasASegmentOfItsOwn) {
  in_child({}, [this] {
    Trainer trainer;
    trainer.step(1, 2);
    const pid_t child = fork();
    if (child == 0) {
      setenv("RANK", "1", 1);
      for (int n = 1; n <= 3; ++n) trainer.step(n, 2);
      _exit(foreshock_enabled() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(files(".seg").size(), 2u);
  });
}

TEST_F(MonitorForks, TwoProcessesOfOneRankTheSecondIsOffAloud) {
  in_child({}, [this] {
    Trainer trainer;
    trainer.step(1, 1);
    const pid_t child = fork();
    if (child == 0) {
      trainer.step(1, 1);  // trains under its parent's rank
      _exit(foreshock_enabled());
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(files(".rank_taken").size(), 1u);
  });
}

}  // namespace
}  // namespace foreshock
