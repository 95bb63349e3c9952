// Steps from the writer to the reader: what is overwritten, and what is completed later.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>

#include "segment/layout.h"
#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

TEST_F(SegmentFiles, CountsOverwrittenSteps) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  for (int n = 1; n <= static_cast<int>(kStepRecords) + 10; ++n) {
    StepRecord step = {};
    step.step = n;
    writer.append_step(step);
  }
  const auto steps = reader->new_steps();
  EXPECT_EQ(steps.size(), kStepRecords);
  EXPECT_EQ(reader->steps_lost(), 10u);
  EXPECT_EQ(steps.back().step, static_cast<int>(kStepRecords) + 10);
}

TEST_F(SegmentFiles, AStepWithoutScalarsHasNoOldOnes) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  StepRecord step = {};
  step.scalars_given = 1;
  step.scalars[0] = 4.5;
  for (uint64_t n = 0; n < kStepRecords; ++n) writer.append_step(step);
  step.scalars_given = 0;
  step.interval = 5;
  step.cost_ns = 6;
  writer.append_step(step);
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), kStepRecords);
  EXPECT_EQ(steps.front().scalars_given, 1u);
  EXPECT_EQ(steps.front().scalars[0], 4.5);
  EXPECT_EQ(steps.back().scalars_given, 0u);
  EXPECT_EQ(steps.back().interval, 5u);
  EXPECT_EQ(steps.back().cost_ns, 6u);
}

// Killed at each of its system calls in turn.
TEST_F(SegmentFiles, AKilledReaderCountsLostStepsOnce) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  for (int n = 1; n <= static_cast<int>(kStepRecords) + 10; ++n) writer.append_step(StepRecord());
  bool has_passed = false;
  for (int stops = 0; !has_passed; ++stops) {
    const auto reader = open();
    reader->unread_steps();
    const pid_t child = fork();
    if (child == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
      raise(SIGSTOP);
      reader->consume_steps();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSTOPPED(status)) GTEST_SKIP() << "no child can be traced here";
    for (int n = 0; n < stops; ++n) {
      ASSERT_EQ(ptrace(PTRACE_SYSCALL, child, nullptr, nullptr), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSTOPPED(status));
    }
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const auto next = open();
    has_passed = next->steps_consumed() + next->steps_lost() > 0;
    EXPECT_EQ(next->steps_lost(), has_passed ? 10u : 0u) << "after " << stops << " stops";
  }
}

// Of a step that took a second, at a time that the tests call their first.
StepRecord pending_step(int64_t number) {
  StepRecord step = {};
  step.step = number;
  step.time_ns = 1'000'000'000'000;
  step.duration_ns = 1'000'000'000;
  step.given = kNumbersPending | kGivenLearningRate;
  return step;
}

std::vector<int64_t> numbers_of(const std::vector<StepRecord>& steps) {
  std::vector<int64_t> numbers;
  for (const StepRecord& step : steps) numbers.push_back(step.step);
  return numbers;
}

// What this process has had read for it so far, in bytes.
uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  file >> key >> value;
  return key == "rchar:" ? value : 0;
}

TEST_F(SegmentFiles, AFewNewStepsAreReadWithoutCopyingTheRing) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  const uint64_t ring = kStepRecords * sizeof(StepRecord);
  uint64_t dear = 0;
  int64_t told = 0;
  for (uint64_t few = 1; told < 3 * static_cast<int64_t>(kStepRecords); few = few % 14 + 1) {
    std::vector<int64_t> written;
    for (uint64_t n = 0; n < few; ++n) {
      StepRecord step = {};
      step.step = ++told;
      writer.append_step(step);
      written.push_back(told);
    }
    const uint64_t before = bytes_read();
    EXPECT_EQ(numbers_of(reader->new_steps()), written);
    dear += bytes_read() - before >= ring;
  }
  EXPECT_EQ(reader->steps_lost(), 0u);
  EXPECT_GE(dear, 1u) << "the end of the ring was never met, or nothing is counted";
  EXPECT_LE(dear, 3u) << "once for each end of the ring";
  for (uint64_t n = 0; n < kStepRecords / 2; ++n) writer.append_step({});
  EXPECT_EQ(reader->new_steps().size(), kStepRecords / 2) << "many at once";
}

TEST_F(SegmentFiles, WaitsForTheNumbersOfAStep) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  StepRecord whole = pending_step(1);
  whole.given = 0;
  writer.append_step(whole);
  StepRecord step = pending_step(2);
  const uint64_t number = writer.append_step(step);
  whole.step = 3;
  writer.append_step(whole);
  const uint64_t now = step.time_ns;
  EXPECT_EQ(numbers_of(reader->new_steps(now)), std::vector<int64_t>({1}));
  EXPECT_TRUE(reader->new_steps(now).empty());
  EXPECT_EQ(reader->steps_lost(), 0u);

  step.loss = 2.5;
  step.loss_source = 3;
  step.gradient_norm = 4;
  step.skipped_steps = 7;
  step.given |= kGivenLoss | kGivenGradientNorm;
  writer.complete_step(number, step);
  const auto steps = reader->new_steps(now);
  ASSERT_EQ(numbers_of(steps), std::vector<int64_t>({2, 3}));
  EXPECT_EQ(steps[0].given, kGivenLoss | kGivenGradientNorm | kGivenLearningRate);
  EXPECT_EQ(steps[0].loss, 2.5);
  EXPECT_EQ(steps[0].loss_source, 3u);
  EXPECT_EQ(steps[0].gradient_norm, 4);
  EXPECT_EQ(steps[0].skipped_steps, 7u);
  EXPECT_EQ(reader->steps_lost(), 0u);
}

TEST_F(SegmentFiles, StopsWaitingForAStep) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  const uint64_t first = pending_step(1).time_ns, second = pending_step(1).duration_ns;
  for (const char* end : {"others", "time", "trainer"}) {
    SCOPED_TRACE(end);
    auto reader = open();
    const auto before = static_cast<int64_t>(reader->steps_consumed());
    writer.append_step(pending_step(before + 1));
    EXPECT_TRUE(reader->new_steps(first + 4 * second - 1).empty());
    if (*end == 't' && end[1] == 'i') {
      EXPECT_EQ(reader->new_steps(first + 4 * second).size(), 1u);
    } else if (*end == 't') {
      reader->wait_no_more();
      EXPECT_EQ(reader->new_steps(first).size(), 1u);
    } else {
      for (uint64_t n = 0; n < kMostPendingSteps; ++n) {
        EXPECT_TRUE(reader->new_steps(first).empty());
        writer.append_step(pending_step(before + 2));
      }
      EXPECT_TRUE(reader->new_steps(first).empty());
      writer.append_step(pending_step(before + 3));
      EXPECT_EQ(numbers_of(reader->new_steps(first)), std::vector<int64_t>({before + 1}));
      reader->wait_no_more();
      EXPECT_EQ(reader->new_steps(first).size(), kMostPendingSteps + 1);
    }
  }
}

// An agent that reads while a step is completed finds either what is pending or all of it.
TEST_F(SegmentFiles, AStepCompletedDuringTheReadIsWhole) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer), nullptr);
  auto reader = open();
  constexpr int64_t kSteps = 2000;
  std::atomic<int64_t> taken{0};
  std::jthread trainer([&] {
    for (int64_t n = 1; n <= kSteps; ++n) {
      while (taken < n - 8) std::this_thread::yield();
      StepRecord step = pending_step(n);
      const uint64_t number = writer.append_step(step);
      step.loss = static_cast<double>(n);
      step.gradient_norm = -step.loss;
      step.given = kGivenLoss | kGivenGradientNorm;
      writer.complete_step(number, step);
    }
  });
  const uint64_t now = pending_step(1).time_ns;
  while (taken < kSteps) {
    for (const StepRecord& step : reader->new_steps(now)) {
      EXPECT_EQ(step.step, ++taken);
      if (is_pending(step)) continue;
      EXPECT_EQ(step.loss, static_cast<double>(step.step));
      EXPECT_EQ(step.gradient_norm, -step.loss);
    }
  }
  EXPECT_EQ(reader->steps_lost(), 0u);
}

int64_t after(std::initializer_list<int64_t> told) {
  StepStride stride;
  for (const int64_t step : told) stride.add(step);
  return stride.steps();
}

TEST(StepStride, IsOneUntilAPatternRepeats) {
  EXPECT_EQ(after({}), 1);
  EXPECT_EQ(after({10}), 1);
  EXPECT_EQ(after({10, 20}), 1);
  EXPECT_EQ(after({10, 20, 30}), 10);
}

TEST(StepStride, IgnoresASingleJump) {
  EXPECT_EQ(after({1, 2, 1000}), 1);
  EXPECT_EQ(after({1, 2, 1000, 1001}), 1);
  EXPECT_EQ(after({10, 20, 30, 35, 45}), 5);
  EXPECT_EQ(after({10, 20, 30, 35, 45, 55}), 10);
}

TEST(StepStride, IgnoresStepsBackwards) {
  EXPECT_EQ(after({100, 110, 120, 50}), 1);
  EXPECT_EQ(after({100, 110, 120, 50, 60, 70}), 10);
  EXPECT_EQ(after({5, 5, 5}), 1);
}

TEST(StepStride, AcceptsAnyNumber) {
  EXPECT_EQ(after({INT64_MAX, INT64_MIN, INT64_MAX}), 1);
  EXPECT_EQ(after({10, 20, 30, -1, 40}), 1);
}

}  // namespace
}  // namespace foreshock::segment
