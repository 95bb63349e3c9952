#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "agent/alerts.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

EventLine warning(const std::string& detector = "bias", const std::string& level = "warn") {
  EventLine line;
  line.run = "me";
  line.rank = 3;
  line.step = 120;
  line.event = "precursor";
  line.detector = detector;
  line.level = level;
  line.layer = "layer007";
  line.value = 0.25;
  line.score = 1.5;
  return line;
}

FindingLine fault() {
  FindingLine line;
  line.run = "me";
  line.rank = 3;
  line.finding = "attention_error";
  line.text = "layer 007: dK is wrong by up to 20x the error of fused attention since step 130";
  line.action = "use another kernel";
  line.layer = "007";
  line.tensor = "grad_key";
  line.since_step = 130;
  line.now = 12;
  line.largest = 20;
  return line;
}

class AlertCommandTest : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return folder_.path() + "/" + name; }
  std::string read(const char* name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Until everything that was told has ended.
  void drain(AlertCommand* commands) const {
    while (commands->is_busy()) {
      commands->poll(now_);
      std::this_thread::sleep_for(1ms);
    }
  }

  const TemporaryDirectory folder_;
  const AlertCommand::Clock::time_point now_ = AlertCommand::Clock::now();
};

TEST_F(AlertCommandTest, EnvironmentDescribesTheEvent) {
  setenv("FORESHOCK_ALERT_STEP", "inherited", 1);
  AlertCommand commands("env > " + path("told"));
  commands.set_url("http://127.0.0.1:9847/");
  commands.add(warning(), now_);
  drain(&commands);
  unsetenv("FORESHOCK_ALERT_STEP");
  const std::string told = "\n" + read("told");
  for (const char* line : {"TEXT=me: bias warns in layer layer007 on rank 3 at step 120",
                           "URL=http://127.0.0.1:9847/", "RUN=me", "RANK=3", "STEP=120", "EVENT=precursor",
                           "DETECTOR=bias", "LAYER=layer007", "VALUE=0.25", "SCORE=1.5", "LEFT_OUT=0"})
    EXPECT_THAT(told, HasSubstr("\nFORESHOCK_ALERT_" + std::string(line) + "\n"));
  EXPECT_THAT(told, HasSubstr("\nPATH="));
  EXPECT_EQ(commands.started(), 1u);
  EXPECT_EQ(commands.failed(), 0u);
}

TEST_F(AlertCommandTest, ANameIsNeverRun) {
  EventLine line = warning();
  line.layer = "$(touch " + path("hacked") + ")`touch " + path("hacked") + "`; touch " + path("hacked");
  AlertCommand commands("echo \"$FORESHOCK_ALERT_LAYER\" > " + path("told"));
  commands.add(line, now_);
  drain(&commands);
  EXPECT_EQ(read("told"), line.layer + "\n");
  EXPECT_FALSE(std::filesystem::exists(path("hacked")));
}

TEST_F(AlertCommandTest, OnlyWhatIsLoudIsTold) {
  AlertCommand commands("echo $FORESHOCK_ALERT_EVENT >> " + path("told"));
  EventLine resumed, spike, gradient;
  resumed.event = "resumed";
  spike.event = "loss_spike";  // a finding, which comes as such
  for (const EventLine& line : {warning("bias", "watch"), warning("bias", "quiet"), resumed, spike})
    commands.add(line, now_);
  for (const char* experimental : {"deviation_forward", "logit_growth", "entropy_drop"})
    commands.add(warning(experimental), now_);
  EXPECT_FALSE(commands.is_busy());
  gradient.event = "nonfinite_gradient_norm";
  commands.add(gradient, now_);
  drain(&commands);
  EXPECT_EQ(read("told"), "nonfinite_gradient_norm\n");
}

TEST_F(AlertCommandTest, AFindingHasItsSentenceAndItsAction) {
  AlertCommand commands("env > " + path("variables"));
  commands.add(fault(), now_);
  commands.add(fault(), now_ + 59s);
  drain(&commands);
  const std::string variables = "\n" + read("variables");
  for (const char* line :
       {"TEXT=me: layer 007: dK is wrong by up to 20x the error of fused attention since step 130. Do: "
        "use another kernel.",
        "RANK=3", "STEP=130", "EVENT=attention_error", "DETECTOR=", "LAYER=007", "TENSOR=grad_key",
        "ACTION=use another kernel", "VALUE=20", "SCORE=", "LEFT_OUT=0"})
    EXPECT_THAT(variables, HasSubstr("\nFORESHOCK_ALERT_" + std::string(line) + "\n"));
  EXPECT_EQ(commands.left_out(), 1u);
}

TEST_F(AlertCommandTest, TheSameIsToldOnceAMinuteAndTheOthersAreCounted) {
  AlertCommand commands("echo $FORESHOCK_ALERT_DETECTOR $FORESHOCK_ALERT_LEFT_OUT >> " + path("told"));
  commands.add(warning(), now_);
  for (int n = 0; n < 5; ++n) commands.add(warning(), now_ + 59s);
  commands.add(warning("max_logit"), now_ + 59s);
  commands.add(warning(), now_ + 60s);
  drain(&commands);
  EXPECT_EQ(read("told"), "bias 0\nmax_logit 0\nbias 5\n");
  EXPECT_EQ(commands.left_out(), 5u);
}

TEST_F(AlertCommandTest, ACommandThatHangsIsKilledWithAllItStarted) {
  AlertCommand commands("sleep 600 & echo $! > " + path("child") + "; sleep 600");
  commands.add(warning(), now_);
  commands.add(fault(), now_);
  commands.poll(now_);
  while (read("child").empty()) std::this_thread::sleep_for(1ms);
  const pid_t child = std::stoi(read("child"));
  commands.poll(now_ + AlertCommand::kTimeout - 1s);
  EXPECT_EQ(commands.started(), 1u) << "one at a time";
  EXPECT_EQ(kill(child, 0), 0);
  while (commands.started() == 1) {
    commands.poll(now_ + AlertCommand::kTimeout);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(commands.failed(), 1u);
  const auto has_ended = [&] {  // gone, or nobody has taken note of its end yet
    std::ifstream file("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return !(file >> pid >> name >> state) || state == "Z" || state == "X";
  };
  while (!has_ended()) std::this_thread::sleep_for(1ms);
  while (commands.is_busy()) {  // the second one
    commands.poll(now_ + 3 * AlertCommand::kTimeout);
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(AlertCommandTest, WhoLeavesBeginsWhatWaits) {
  {
    AlertCommand commands("sleep 0.1; echo $FORESHOCK_ALERT_DETECTOR > " + path("told.") +
                          "$FORESHOCK_ALERT_DETECTOR");
    commands.add(warning("bias"), now_);
    commands.add(warning("max_logit"), now_);
    commands.poll(now_);
    commands.start_all(now_);
    EXPECT_EQ(commands.started(), 2u);
  }
  while (read("told.bias") != "bias\n" || read("told.max_logit") != "max_logit\n")
    std::this_thread::sleep_for(1ms);
}

TEST_F(AlertCommandTest, NoDescriptorOfTheAgentIsOpenInTheCommand) {
  const int ours = open("/dev/null", O_RDONLY);  // as a library would, which does not think of commands
  ASSERT_GT(ours, STDERR_FILENO);
  AlertCommand commands("for n in /proc/self/fd/*; do readlink $n; done > " + path("open") +
                        "; readlink /proc/$$/fd/" + std::to_string(ours) + " > " + path("leaked"));
  commands.add(warning(), now_);
  drain(&commands);
  close(ours);
  EXPECT_NE(read("open"), "");
  EXPECT_EQ(read("leaked"), "");
}

TEST_F(AlertCommandTest, AFailingCommandIsCounted) {
  AlertCommand commands("exit 3");
  commands.add(warning(), now_);
  drain(&commands);
  EXPECT_EQ(commands.failed(), 1u);
}

TEST_F(AlertCommandTest, WhatWaitsIsBounded) {
  AlertCommand commands("true");
  for (int n = 0; n < 100; ++n) {
    FindingLine line = fault();
    line.finding += std::to_string(n);
    commands.add(line, now_);
  }
  EXPECT_EQ(commands.left_out(), 100 - AlertCommand::kMostWaiting);
  drain(&commands);
  EXPECT_EQ(commands.started(), AlertCommand::kMostWaiting);
}

TEST_F(AlertCommandTest, WithoutACommandNothingIsKept) {
  AlertCommand commands("");
  commands.add(warning(), now_);
  EXPECT_FALSE(commands.is_busy());
}

}  // namespace
}  // namespace foreshock
