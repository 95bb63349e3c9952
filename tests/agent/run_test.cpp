#include "agent/run.h"

#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kLauncher = 4711;

// A command that trains rank 0 again and again. In one process its locks are not seen, so that every trainer
// here looks gone once it is quiet.
TEST(Run, WhatReplacedProcessesLeaveIsRemovedUnderALiveLauncherAndTold) {
  SegmentOfATrainer first;
  std::string error;
  RunOptions options;
  options.run_id = options.label = "job";
  const auto run = Run::open(options, Directory::open(first.directory, &error), &error);
  ASSERT_NE(run, nullptr) << error;
  const auto launcher = Directory::open(first.directory, &error);
  ASSERT_GE(launcher->lock("run.lock", LOCK_SH), 0);
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(first.directory))
      count += entry.path().extension() == ".seg" || entry.path().extension() == ".ctl";
    return count;
  };

  Registry registry;
  first.writer.identity()->launcher_pid = kLauncher;
  first.step(1, 2.0);
  first.sample(1, 1.0);
  run->discover(&registry);
  auto now = Run::Clock::now();
  run->look_for_life(now + 11s);
  EXPECT_EQ(files(), 2u) << "the last one of a rank may still be told how it ended";

  SegmentOfATrainer second(first.directory, 0, 0x11);
  second.writer.identity()->launcher_pid = kLauncher;
  run->discover(&registry);
  run->look_for_life(now + 22s);
  EXPECT_EQ(files(), 2u);
  EXPECT_TRUE(std::filesystem::exists(first.directory + "/0-0000000000000011.seg"));
  EXPECT_TRUE(run->is_needed());
  EXPECT_EQ(run->state(), RunState::kRunning);

  std::ofstream(first.directory + "/exit." + std::to_string(kLauncher) + ".json")
      << R"({"status": 0, "signal": 0, "state": "finished"})";
  now += 60s;
  ASSERT_EQ(run->ended_launchers(now, &registry).size(), 1u);
  const nlohmann::json ranks = run->document(kLauncher, false)["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["attention"]["forward"]["judged"], 1) << "judged before it was removed";
  for (const nlohmann::json& rank : ranks) EXPECT_EQ(rank["state"], "finished");
}

}  // namespace
}  // namespace foreshock
