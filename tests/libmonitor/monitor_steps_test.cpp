// What counts as a step, and which number it gets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>

#include "libmonitor/sampling.h"
#include "segment/layout.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

class MonitorSteps : public MonitorTest {};

TEST_F(MonitorSteps, StepsThatAreToldReplaceThoseThatAreSeen) {
  in_child({}, [] {
    Trainer trainer;
    trainer.end(-1, FORESHOCK_STEP_COUNTED);
    trainer.end(-1, FORESHOCK_STEP_COUNTED);
    trainer.end(101);
    trainer.end(-1, FORESHOCK_STEP_COUNTED);  // the same step, seen later
    trainer.end(101, FORESHOCK_STEP_OPTIMIZER_STATE);
    trainer.end(102);
  });
  auto reader = open();
  std::vector<int64_t> steps;
  for (const segment::StepRecord& record : reader->new_steps()) steps.push_back(record.step);
  EXPECT_EQ(steps, std::vector<int64_t>({1, 2, 101, 102}));
}

TEST_F(MonitorSteps, AStepNumberThatNoTrainingReachesIsUnknown) {
  in_child({}, [] {
    Trainer trainer;
    for (int64_t n : {int64_t{7}, INT64_MAX, (int64_t{1} << 62), INT64_MIN, int64_t{9}}) trainer.step(n, 1);
    trainer.step((int64_t{1} << 62) - 1, 1);
    for (int n = 0; n < 2; ++n) trainer.step(-1, 1);
  });
  auto reader = open();
  std::vector<int64_t> steps;
  for (const segment::StepRecord& record : reader->new_steps()) steps.push_back(record.step);
  const int64_t most = int64_t{1} << 62;
  EXPECT_EQ(steps, std::vector<int64_t>({7, 8, 9, 10, 9, most - 1, most, most + 1}));
}

// The gradient of one parameter, told before each of several steps of which only the last one is told.
void report_gradient(double norm) {
  static const int parameter = 0;
  foreshock_gradient gradient = {};
  gradient.size = sizeof gradient;
  gradient.version = FORESHOCK_ABI_VERSION;
  gradient.identity = &parameter;
  gradient.sum_of_squares = norm * norm;
  foreshock_observe_gradients(&gradient, 1);
}

TEST_F(MonitorSteps, TheGradientIsThatOfTheLastStep) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    for (int n = 0; n < 10; ++n) report_gradient(3);
    trainer.step(10, 1);
    report_gradient(INFINITY);  // a step that a scaler left out and nobody told
    report_gradient(4);
    trainer.step(11, 1);
    report_gradient(INFINITY);  // the same, told, with nothing seen of the next one
    foreshock_step_skipped();
    trainer.step(12, 1);
  });
  const auto steps = open()->new_steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[1].gradient_norm, 3);
  EXPECT_EQ(steps[2].gradient_norm, 4);
  EXPECT_EQ(steps[3].given & FORESHOCK_GIVEN_GRADIENT_NORM, 0u);
}

// Most of these steps are brief: their record is written without the rest of the monitor, and their costs are
// charged later.
TEST_F(MonitorSteps, ABriefStepHasItsOwnLossCallsAndLength) {
  in_child({{"FORESHOCK_EVERY", "1024"}}, [] {
    Trainer trainer;
    for (int64_t n = 1; n <= 60; ++n) {
      for (int layer = 0; layer < 1 + n % 3; ++layer) trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
      if (n == 30) {
        const foreshock_scalar logged = {sizeof logged, FORESHOCK_ABI_VERSION, "train/custom", 30.5, -1};
        foreshock_observe_scalars(&logged, 1);
      }
      if (n == 43) report_gradient(2);
      if (n == 44) foreshock_step_skipped();
      foreshock_observe_loss(1.0 / static_cast<double>(n), FORESHOCK_LOSS_BACKWARD_ROOT);
      foreshock_step step = reported_step(n);
      step.learning_rate = 0.5 * static_cast<double>(n);
      step.given = FORESHOCK_GIVEN_LEARNING_RATE;
      foreshock_step_end(&step);
    }
  });
  auto reader = open();
  const auto records = reader->new_steps();
  ASSERT_EQ(records.size(), 60u);
  int64_t expected = 0;
  for (const segment::StepRecord& record : records) {
    const int64_t n = ++expected;
    EXPECT_EQ(record.step, n);
    EXPECT_EQ(record.calls, static_cast<uint64_t>(1 + n % 3));
    EXPECT_DOUBLE_EQ(record.loss, 1.0 / static_cast<double>(n));
    EXPECT_DOUBLE_EQ(record.learning_rate, 0.5 * static_cast<double>(n));
    EXPECT_GT(record.duration_ns, 0u);
    EXPECT_GT(record.cost_ns, 500 * record.calls) << "the estimate of the calls, and the step's end";
    EXPECT_EQ(record.skipped_steps, n < 44 ? 0u : 1u);
    EXPECT_EQ((record.given & FORESHOCK_GIVEN_GRADIENT_NORM) != 0, n == 43) << n;
    EXPECT_EQ(record.scalars_given, n == 30 ? 1u : 0u) << n;
  }
}

TEST_F(MonitorSteps, WhatIsPausedIsNotSampled) {
  in_child({}, [this] {
    Trainer trainer;
    const auto store = [this](uint32_t on) {  // as foreshock pause does
      const int fd = ::open((base_ + "/r/" + files(".ctl")[0] + ".ctl").c_str(), O_WRONLY | O_CLOEXEC);
      ASSERT_EQ(pwrite(fd, &on, sizeof on, offsetof(segment::Control, command_switch)), ssize_t{sizeof on});
      close(fd);
    };
    trainer.step(1, 1);
    trainer.step(2, 1);
    store(0);
    for (int step = 3; step <= 5; ++step) trainer.step(step, 1);
    store(1);
    trainer.step(6, 1);
  });
  std::vector<uint32_t> sampled;
  for (const segment::StepRecord& record : open()->new_steps()) sampled.push_back(record.sampled);
  EXPECT_EQ(sampled, std::vector<uint32_t>({0, 1, 0, 0, 0, 1}));
}

// Attention on a path that nobody sees: there is only the pass over the gradients.
TEST_F(MonitorSteps, GradientsOfATrainingWithoutCallsAreWithinTheBudget) {
  constexpr int kSteps = 200;
  const auto passes = [this](const char* limit) {
    TearDown();
    SetUp();
    in_child({{"FORESHOCK_MAX_SLOWDOWN", limit}}, [] {
      Trainer trainer;
      trainer.end(1);
      foreshock_gradient gradient = {};
      gradient.size = sizeof gradient;
      gradient.version = FORESHOCK_ABI_VERSION;
      const std::vector<float> values(1 << 20, 1.f);
      gradient.values = {values.data(), {1 << 20, 1, 1, 1}, {1, 0, 0, 0}, FORESHOCK_FP32, 1, 0, 0};
      for (int step = 2; step < kSteps + 2; ++step) {
        usleep(1000);
        if (foreshock_step_is_sampled() != 0) foreshock_observe_gradients(&gradient, 1);
        trainer.end(step);
      }
    });
    int sampled = 0;
    for (const segment::StepRecord& record : open()->new_steps()) {
      sampled += record.sampled != 0;
      EXPECT_EQ(record.sampled != 0, (record.given & FORESHOCK_GIVEN_GRADIENT_NORM) != 0);
    }
    return sampled;
  };
  // A hundred times the budget pays for more passes, however long one takes here: under a sanitizer on a busy
  // machine not for all. The first two are not held against it.
  EXPECT_GT(passes("100%"), 4 * passes("1%"));
  EXPECT_EQ(passes("0%"), 0);
}

// Its end is what makes the segment, and time counts from that on: none has passed.
TEST_F(MonitorSteps, AFirstStepThatNothingWasSeenOfTookNoTime) {
  in_child({}, [] {
    Trainer trainer;
    trainer.end(1);
    usleep(1000);
    trainer.end(2);
  });
  const auto records = open()->new_steps();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].duration_ns, 0u);
  EXPECT_GE(records[1].duration_ns, 1'000'000u);
}

TEST_F(MonitorSteps, WhatTheCallerHasGivenUpIsInItsRecord) {
  static_assert(uint32_t{FORESHOCK_GIVEN_UP_TENSORS} == segment::kGaveUpTensors);
  static_assert(uint32_t{FORESHOCK_GIVEN_UP_FAILED} == segment::kGaveUpFailed);
  static_assert(uint32_t{FORESHOCK_GIVEN_OTHER_TRAINING} == segment::kGivenOtherTraining);
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    foreshock_step record = {};
    record.size = sizeof record;
    record.version = FORESHOCK_ABI_VERSION;
    record.step = 2;
    record.step_source = FORESHOCK_STEP_REPORTED;
    record.given = FORESHOCK_GIVEN_UP_TENSORS;
    foreshock_step_end(&record);
  });
  auto reader = open();
  const auto steps = reader->new_steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FALSE(given(steps[0], segment::kGaveUpTensors));
  EXPECT_TRUE(given(steps[1], segment::kGaveUpTensors));
}

TEST_F(MonitorSteps, StepsThatAreLeftOutUnseenAreSaidToBe) {
  in_child({}, [] {
    Trainer trainer;
    trainer.step(1, 1);
    foreshock_skips_unseen();
    trainer.step(2, 1);
    trainer.step(3, 1);
  });
  const auto steps = open()->new_steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_TRUE(segment::knows_skips(steps[0]));
  EXPECT_FALSE(segment::knows_skips(steps[1]));
  EXPECT_FALSE(segment::knows_skips(steps[2]));
}

// Calls belong to the step after the one told last: an odd number, where every second step is told.
TEST_F(MonitorSteps, WhatIsToldRarelyIsSampledAllTheSame) {
  for (const int64_t stride : {2, 10, 20}) {
    TearDown();
    SetUp();
    in_child({{"FORESHOCK_EVERY", "8"}}, [&] {
      Trainer trainer;
      for (int64_t step = stride; step <= 40 * stride; step += stride) {
        for (int64_t n = 1; n < stride; ++n) {
          trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
          trainer.attention(true, FORESHOCK_IN_BACKWARD);
        }
        trainer.step(step, 1);
      }
    });
    std::vector<int64_t> sampled, expected;
    for (const segment::StepRecord& record : open()->new_steps())
      if (record.sampled != 0) sampled.push_back(record.step);
    // How far the numbers go on is known when three have been told.
    for (int64_t told = 4 * stride; told <= 40 * stride; told += stride)
      if (told / 8 != (told - stride) / 8) expected.push_back(told);
    EXPECT_EQ(sampled, expected) << "every " << stride;
  }
}

// The steps that are sampled after the first look (2 to 9), of 40, where one in 8 is and a burst was told.
class MonitorBurst : public MonitorTest {
 protected:
  std::vector<int64_t> sampled(uint64_t interval, int64_t from, int64_t until, const char* every = "0") {
    in_child({{"FORESHOCK_EVERY", every}}, [&] {
      Trainer trainer;
      trainer.step(1, 1);
      open()->set_interval(8, 0);
      open()->set_burst(interval, from, until);
      for (int64_t step = 2; step <= 40; ++step) trainer.step(step, 1);
    });
    std::vector<int64_t> steps;
    for (const segment::StepRecord& record : open()->new_steps())
      if (record.sampled != 0 && !segment::is_first_look(record)) steps.push_back(record.step);
    return steps;
  }
};

// Of the steps first to last, those that are sampled once in `interval` steps.
std::vector<int64_t> sampled_steps(int64_t first, int64_t last, uint64_t interval) {
  std::vector<int64_t> steps;
  for (int64_t step = first; step <= last; ++step)
    if (is_sampled_step(/*seed=*/0, step, interval)) steps.push_back(step);
  return steps;
}

TEST_F(MonitorBurst, IsSampledMoreDenselyAndEnds) {
  std::vector<int64_t> expected = sampled_steps(10, 16, 2);
  for (const int64_t step : sampled_steps(17, 40, 8)) expected.push_back(step);
  EXPECT_EQ(sampled(2, 10, 16), expected);
}

TEST_F(MonitorBurst, NeverSamplesLess) { EXPECT_EQ(sampled(16, 10, 30), sampled_steps(10, 40, 8)); }

TEST_F(MonitorBurst, IsNoneWhereTheIntervalIsTheUsers) {
  EXPECT_EQ(sampled(1, 10, 16, "20"), std::vector<int64_t>({20, 40}));
}

TEST_F(MonitorBurst, WithoutAnEndIsNone) {
  EXPECT_EQ(sampled(1, 10, int64_t{1} << 60), sampled_steps(10, 40, 8));
}

TEST_F(MonitorBurst, OfNoStepsIsNone) {
  EXPECT_EQ(sampled(1, INT64_MIN, INT64_MAX), sampled_steps(10, 40, 8));
}

class MonitorBudget : public MonitorTest {};

TEST_F(MonitorBudget, TheBudgetPaysForTheAgent) {
  in_child({{"FORESHOCK_EVERY", "2"}, {"FORESHOCK_MAX_SLOWDOWN", "90%"}}, [this] {
    Trainer trainer;
    for (int64_t step = 1; step <= 40; ++step) {
      trainer.step(step, 1);
      usleep(2000);
      if (step == 20) open()->set_agent_cost({1'000'000'000, 0, 0, 0});
    }
  });
  int before = 0, after = 0;
  for (const segment::StepRecord& record : open()->new_steps())
    if (record.sampled != 0) ++(record.step <= 21 ? before : after);
  EXPECT_GE(before, 5);
  EXPECT_EQ(after, 0);
}

// A slice that costs the agent more than the budget holds is not taken. Other work of the agent says nothing
// about slices.
TEST_F(MonitorBudget, ASliceIsTakenOnlyIfTheAgentsTimeIsPaidToo) {
  for (const uint64_t slice_ns : {10'000u, 1'000'000'000u}) {
    in_child({{"FORESHOCK_EVERY", "2"}, {"FORESHOCK_MAX_SLOWDOWN", "90%"}}, [&, this] {
      Trainer trainer;
      for (int64_t step = 1; step <= 40; ++step) {
        trainer.step(step, 1);
        usleep(2000);
        if (step == 20) open()->set_agent_cost({1'000'000, slice_ns, 1, 0});
      }
    });
    int before = 0, after = 0;
    for (const segment::StepRecord& record : open()->new_steps())
      if (record.sampled != 0) ++(record.step <= 21 ? before : after);
    EXPECT_GE(before, 5);
    if (slice_ns == 10'000)
      EXPECT_GE(after, 5);
    else
      EXPECT_EQ(after, 0);
    fs::remove_all(base_ + "/r");
    fs::create_directory(base_ + "/r");
  }
}

}  // namespace
}  // namespace foreshock
