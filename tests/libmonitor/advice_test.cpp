#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>

#include "libmonitor/process.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

using segment::Advice;
using segment::Control;

class AdviceTest : public MonitorTest {};

Advice warning(int64_t since) {
  Advice advice = {};
  advice.level = FORESHOCK_WARN;
  advice.rank = 3;
  advice.since_step = since;
  advice.from_step = since + 4;
  advice.score = 1.5;
  std::strcpy(advice.detector, "output_error_drift");
  std::strcpy(advice.layer, "007");
  return advice;
}

foreshock_advice blank() {
  foreshock_advice advice;
  std::memset(&advice, 0x55, sizeof advice);
  advice.size = sizeof advice;
  advice.version = FORESHOCK_ABI_VERSION;
  return advice;
}

Control control_with(Advice advice) {
  Control control = {};
  advice.sequence = 2;
  control.advice = advice;
  return control;
}

TEST_F(AdviceTest, WhatTheAgentSaysReachesTheTrainer) {
  in_child({}, [&] {
    foreshock_advice advice = blank();
    EXPECT_EQ(foreshock_read_advice(&advice), 0) << "not monitored yet";
    Trainer trainer;
    for (int64_t step = 1; step <= 3; ++step) trainer.step(step, 1);
    EXPECT_EQ(foreshock_read_advice(&advice), 0) << "no agent yet";
    EXPECT_EQ(advice.level, 0x55555555u) << "and nothing is touched";

    auto agent = open();
    ASSERT_NE(agent, nullptr);
    agent->set_advice(warning(2));
    ASSERT_EQ(foreshock_read_advice(&advice), 1);
    EXPECT_EQ(advice.level, uint32_t{FORESHOCK_WARN});
    EXPECT_EQ(advice.rank, 3);
    EXPECT_EQ(advice.since_step, 2);
    EXPECT_EQ(advice.from_step, 6);
    EXPECT_EQ(advice.score, 1.5);
    EXPECT_STREQ(advice.detector, "output_error_drift");
    EXPECT_STREQ(advice.layer, "007");
    // The agent has looked at no step; then at all; then it is gone while the training goes on.
    EXPECT_EQ(advice.age_steps, 3u);
    agent->new_steps();
    EXPECT_EQ(foreshock_read_advice(&advice), 1);
    EXPECT_EQ(advice.age_steps, 0u);
    agent.reset();
    for (int64_t step = 4; step <= 5; ++step) trainer.step(step, 1);
    EXPECT_EQ(foreshock_read_advice(&advice), 1);
    EXPECT_EQ(advice.age_steps, 2u);
  });
}

TEST_F(AdviceTest, AChildThatDoesNotTrainHearsNothing) {
  in_child({}, [&] {
    Trainer trainer;
    trainer.step(1, 1);
    open()->set_advice(warning(1));
    foreshock_advice advice = blank();
    EXPECT_EQ(foreshock_read_advice(&advice), 1);
    if (const pid_t child = fork(); child == 0) {
      _exit(foreshock_read_advice(&advice));
    } else {
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  });
}

TEST_F(AdviceTest, StructOfAnotherReleaseIsRefused) {
  in_child({}, [&] {
    Trainer trainer;
    trainer.step(1, 1);
    open()->set_advice(warning(1));
    foreshock_advice right = blank();
    EXPECT_EQ(foreshock_read_advice(&right), 1);
    EXPECT_STREQ(right.layer, "007");
    foreshock_advice wrong = blank();
    wrong.size = sizeof wrong - 8;
    EXPECT_EQ(foreshock_read_advice(&wrong), 0);
    wrong = blank();
    wrong.version = 0;
    EXPECT_EQ(foreshock_read_advice(&wrong), 0);
    EXPECT_EQ(foreshock_read_advice(nullptr), 0);
  });
}

TEST_F(AdviceTest, AnAgentThatDiedWhileItWroteIsSucceeded) {
  in_child({}, [&] {
    Trainer trainer;
    trainer.step(1, 1);
    open()->set_advice(warning(1));
    const int file = ::open((base_ + "/r/" + files(".ctl")[0] + ".ctl").c_str(), O_RDWR);
    const uint64_t odd = 3;
    EXPECT_EQ(pwrite(file, &odd, sizeof odd, offsetof(Control, advice)), 8);
    foreshock_advice advice = blank();
    EXPECT_EQ(foreshock_read_advice(&advice), 0);
    open()->set_advice(warning(9));
    EXPECT_EQ(foreshock_read_advice(&advice), 1);
    EXPECT_EQ(advice.since_step, 9);
    close(file);
  });
}

TEST(HostileAdvice, IsNone) {
  foreshock_advice advice = blank();
  EXPECT_TRUE(read_advice(control_with(warning(1)), &advice));
  Advice wrong = warning(1);
  wrong.level = segment::kAdviceLevels;
  EXPECT_FALSE(read_advice(control_with(wrong), &advice));
  Control odd = control_with(warning(1));
  odd.advice.sequence = UINT64_MAX;
  EXPECT_FALSE(read_advice(odd, &advice));
  EXPECT_FALSE(read_advice(Control{}, &advice));
}

TEST(HostileAdvice, NamesEndAndCanBePrinted) {
  Advice wild = warning(1);
  std::memset(wild.detector, 'x', sizeof wild.detector);
  std::strcpy(wild.layer, "a\x1b[31m\nb\xff");
  foreshock_advice advice = blank();
  ASSERT_TRUE(read_advice(control_with(wild), &advice));
  EXPECT_EQ(std::string(advice.detector), std::string(sizeof wild.detector - 1, 'x'));
  EXPECT_STREQ(advice.layer, "a_[31m_b_");
}

// Two threads, as two processes: every advice that is read is one that was written.
TEST_F(AdviceTest, IsNeverHalfOfOneAndHalfOfAnother) {
  in_child({}, [&] {
    Trainer trainer;
    trainer.step(1, 1);
    auto agent = open();
    std::atomic<bool> is_over{false};
    std::thread writer([&] {
      for (int64_t n = 1; n <= 20'000; ++n) {
        Advice advice = warning(n);
        advice.score = static_cast<double>(n);
        std::memset(advice.layer, 'a' + static_cast<int>(n % 26), sizeof advice.layer - 1);
        agent->set_advice(advice);
      }
      is_over.store(true);
    });
    uint64_t read = 0;
    while (!is_over.load()) {
      foreshock_advice advice = blank();
      if (foreshock_read_advice(&advice) == 0) continue;
      ++read;
      const auto n = static_cast<int64_t>(advice.score);
      ASSERT_EQ(advice.since_step, n);
      ASSERT_EQ(advice.from_step, n + 4);
      for (size_t at = 0; at + 1 < sizeof advice.layer; ++at) ASSERT_EQ(advice.layer[at], 'a' + n % 26);
    }
    writer.join();
    EXPECT_GT(read, 0u);
  });
}

}  // namespace
}  // namespace foreshock
