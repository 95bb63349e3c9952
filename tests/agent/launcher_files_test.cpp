#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "agent/run.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

class LauncherFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }
  std::unique_ptr<Directory> open() const {
    std::string why;
    auto directory = Directory::open(directory_, &why);
    EXPECT_NE(directory, nullptr) << why;
    return directory;
  }

  const TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
};

TEST_F(LauncherFiles, ExitsAreAnsweredOnce) {
  write("exit.12.json", R"({"status": 0, "signal": 0, "state": "finished"})");
  write("exit.13.json", R"({"status": 1, "signal": 0, "state": "preempted"})");
  auto exits = unanswered_exits(*open());
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_EQ(exits[0].launcher_id, 12u);
  EXPECT_EQ(exits[0].state, RunState::kFinished);
  EXPECT_EQ(exits[1].state, RunState::kPreempted);
  EXPECT_TRUE(open()->write(summary_name(12), "{}"));
  exits = unanswered_exits(*open());
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].launcher_id, 13u);
}

TEST_F(LauncherFiles, BrokenFilesAreAFailedRun) {
  write("exit.5.json", "{\"state\": ");
  write("exit.6.json", "[1, 2]");
  write("exit.7.json", R"({"state": 3})");
  write("exit.x.json", "{}");
  const auto exits = unanswered_exits(*open());
  ASSERT_EQ(exits.size(), 3u);
  for (const LauncherExit& exit : exits) EXPECT_EQ(exit.state, RunState::kFailed);
}

TEST_F(LauncherFiles, WhatCannotBeAskedForWantOfDescriptorsIsNotAnswered) {
  write("exit.12.json", R"({"status": 0, "signal": 0, "state": "finished"})");
  write("run.lock", "");
  const auto directory = open();
  {
    const FewDescriptors none(0);
    EXPECT_TRUE(has_launcher(*directory)) << "an agent that takes its launcher for dead ends";
    EXPECT_EQ(exit_of(*directory, 12), std::nullopt);
    EXPECT_EQ(unanswered_exits(*directory).size(), 0u);
  }
  EXPECT_FALSE(has_launcher(*directory));
  EXPECT_EQ(exit_of(*directory, 12), RunState::kFinished);
}

TEST_F(LauncherFiles, ALauncherIsASharedLock) {
  EXPECT_FALSE(has_launcher(*open()));
  const int fd = ::open((directory_ + "/run.lock").c_str(), O_RDWR | O_CREAT, 0600);
  EXPECT_FALSE(has_launcher(*open()));
  ASSERT_EQ(flock(fd, LOCK_SH), 0);
  EXPECT_TRUE(has_launcher(*open()));
  close(fd);
  EXPECT_FALSE(has_launcher(*open()));
}

TEST_F(LauncherFiles, AnExitIsKnownAlsoAfterItWasAnswered) {
  EXPECT_EQ(exit_of(*open(), 12), std::nullopt);
  write("exit.12.json", R"({"state": "preempted"})");
  EXPECT_TRUE(open()->write(summary_name(12), "{}"));
  EXPECT_EQ(exit_of(*open(), 12), RunState::kPreempted);
}

}  // namespace
}  // namespace foreshock
