#include "libmonitor/process.h"

#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <optional>

#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

using ProcessState = MonitorTest;

foreshock_identity identity(int rank) {
  foreshock_identity identity = {};
  identity.size = sizeof identity;
  identity.version = FORESHOCK_ABI_VERSION;
  identity.rank = rank;
  identity.world_size = 8;
  identity.local_rank = identity.attempt = -1;
  identity.data_parallel = 3;
  identity.tensor_parallel = identity.pipeline_parallel = identity.expert_parallel = -1;
  identity.framework = "test 1";
  return identity;
}

TEST_F(ProcessState, WhatIsToldBeforeTheSegmentDecidesItsRank) {
  in_child({{"RANK", "1"}}, [] {
    const foreshock_identity told = identity(5);
    foreshock_describe(&told);
    Trainer().step(1, 2);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->name().starts_with("5-"));
  const segment::Identity found = reader->identity();
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.attempt, 0);
  EXPECT_EQ(found.late_ready, 1u);
  EXPECT_EQ(found.data_parallel, 3);
  EXPECT_STREQ(found.framework, "test 1");
}

// An agent that was quick enough took a process for rank 0 and nobody's: no launcher had it in its summary.
TEST_F(ProcessState, WhoFindsTheSegmentKnowsWhoseItIs) {
  in_child({{"RANK", "1"}}, [this] {
    for (int life = 1; life <= 50; ++life) {
      const pid_t trainer = fork();
      if (trainer == 0) {
        Trainer().step(1, 1);
        _exit(0);
      }
      bool has_ended = false;
      while (files(".seg").empty() && !has_ended) has_ended = waitpid(trainer, nullptr, WNOHANG) == trainer;
      const auto reader = open();
      EXPECT_NE(reader, nullptr);
      EXPECT_NE(reader == nullptr ? 0 : reader->identity().pid, 0u) << "process " << life;
      if (!has_ended) waitpid(trainer, nullptr, 0);
      fs::remove_all(base_ + "/r");
      fs::create_directory(base_ + "/r");
    }
  });
}

TEST_F(ProcessState, HowItsProcessEndsIsTold) {
  struct Way {
    std::function<void()> end;
    std::optional<int> status;
  };
  const Way ways[] = {{[] { exit(0); }, 0},
                      {[] { exit(3); }, 3},
                      {[] { _exit(0); }, std::nullopt},
                      {[] { raise(SIGKILL); }, std::nullopt}};
  for (const Way& way : ways) {
    in_child({}, [&way] {
      const pid_t trainer = fork();
      if (trainer == 0) {
        Trainer().step(1, 1);
        way.end();
      }
      waitpid(trainer, nullptr, 0);
    });
    EXPECT_EQ(open()->exit_status(), way.status);
    fs::remove_all(base_ + "/r");
    fs::create_directory(base_ + "/r");
  }
}

TEST_F(ProcessState, TheEndOfAChildIsNotThatOfTheTrainer) {
  in_child({}, [this] {
    Trainer().step(1, 1);
    const pid_t child = fork();
    if (child == 0) exit(0);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(open()->exit_status(), std::nullopt);
  });
}

// A launcher that read it too early took it for anybody's, and told of a process that was another's.
TEST_F(ProcessState, WhoFindsThatAProcessIsOffKnowsWhoseItIs) {
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  ASSERT_GE(inotify_add_watch(watch, (base_ + "/r").c_str(), IN_CREATE | IN_MOVED_TO), 0);
  in_child({{"FORESHOCK_LAUNCHER", "4711"}}, [] { foreshock_off("a reason"); });
  alignas(inotify_event) char events[4096];
  const ssize_t length = read(watch, events, sizeof events);
  close(watch);
  std::string found;
  for (ssize_t at = 0; at < length;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events + at);
    at += static_cast<ssize_t>(sizeof *event) + event->len;
    if (std::string(event->name).starts_with("off.")) found = event->name;
    EXPECT_TRUE(found.empty() || event->mask == IN_MOVED_TO) << "it had its name before it was written";
  }
  std::string owner;
  std::ifstream(base_ + "/r/" + found) >> owner;
  EXPECT_EQ(owner, "4711");
}

// The service's group may write into the run directory.
TEST_F(ProcessState, AReportGoesIntoNoFileToWhichAnotherUsersLinkLeads) {
  const std::string file = base_ + "/file";
  std::ofstream(file) << "of the user";
  in_child({}, [&] {
    const std::string name = "off." + std::to_string(getpid()) + ".why", folder = base_ + "/r/";
    fs::create_symlink(file, folder + "." + name);
    ASSERT_EQ(mkfifo((folder + name).c_str(), 0600), 0);
    foreshock_off("why");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder + name)));
  });
  std::string content;
  std::getline(std::ifstream(file) >> std::ws, content);
  EXPECT_EQ(content, "of the user");
}

// Calls without steps are written every 100 ms only, and these take less.
TEST_F(ProcessState, WhatIsCountedWhenItIsSwitchedOffIsInTheSegment) {
  in_child({{"FORESHOCK_EVERY", "1000"}}, [this] {
    Trainer trainer;
    trainer.step(1, 2);
    for (int n = 0; n < 300; ++n) trainer.attention(false);
    foreshock_off("");
    trainer.attention(false);  // not counted
    EXPECT_EQ(open()->totals().calls[trainer.forward_op], 302u);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(base_ + "/r"), {}), 2)
      << "without a reason, no file has one";
}

TEST_F(ProcessState, LateFactsAreShownWithTheStepAfterThem) {
  in_child({}, [this] {
    Trainer trainer;
    trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
    const foreshock_identity told = identity(-1);
    foreshock_describe(&told);
    EXPECT_EQ(open()->identity().late_ready, 0u);
    trainer.step(1, 2);
    EXPECT_EQ(open()->identity().late_ready, 1u);
    EXPECT_EQ(open()->identity().data_parallel, 3);
  });
}

TEST_F(ProcessState, AChildIsNotWhatItsParentWasToldToBe) {
  in_child({{"RANK", "1"}}, [this] {
    const foreshock_identity told = identity(5);
    foreshock_describe(&told);
    in_child({{"RANK", "2"}}, [] { Trainer().step(1, 2); });
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->identity().rank, 2);
  EXPECT_EQ(reader->identity().late_ready, 0u);
}

}  // namespace
}  // namespace foreshock
