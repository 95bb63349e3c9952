// The first look: the class by itself, and the steps that it samples in a monitored process.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "libmonitor/ledger.h"
#include "libmonitor/options.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

TEST(FirstLook, ClosesAfterItsSteps) {
  FirstLook look(true);
  for (int step = 0; step < FirstLook::kSampledSteps; ++step) {
    EXPECT_TRUE(look.is_open());
    EXPECT_DOUBLE_EQ(look.end_step(true, 2, 2, 0.01), 0.01);
    EXPECT_DOUBLE_EQ(look.end_step(false, 2, 0, 0.001), step + 1 < FirstLook::kSampledSteps ? 0.001 : 0);
  }
  EXPECT_FALSE(look.is_open());
  EXPECT_EQ(look.seconds_left(), 0);
  EXPECT_EQ(look.end_step(true, 2, 2, 0.01), 0);
}

TEST(FirstLook, PaysNoMoreThanItsGrant) {
  FirstLook look(true);
  EXPECT_DOUBLE_EQ(look.end_step(false, 2, 0, 0.4), 0.4);
  EXPECT_DOUBLE_EQ(look.end_step(true, 2, 2, 0.4), segment::kFirstLookSeconds - 0.4);
  EXPECT_FALSE(look.is_open());
}

TEST(FirstLook, ClosesOnceEveryCallOfALargeModelWasSampledTwice) {
  FirstLook look(true);
  look.end_step(true, 80, 60, 0.01);
  look.end_step(true, 80, 60, 0.01);
  EXPECT_TRUE(look.is_open());
  look.end_step(true, 80, 60, 0.01);
  EXPECT_FALSE(look.is_open());
}

TEST(FirstLook, ClosesWhereNothingCanBeSampled) {
  FirstLook look(true);
  for (int step = 0; step < FirstLook::kMostSteps; ++step) {
    EXPECT_TRUE(look.is_open()) << step;
    look.end_step(false, 0, 0, 0.0001);
  }
  EXPECT_FALSE(look.is_open());
}

TEST(FirstLook, NoneIsWantedWithChosenStepsOrWithoutCost) {
  EXPECT_FALSE(FirstLook(false).is_open());
  EXPECT_FALSE(FirstLook().is_open());
}

class FirstLookOfAProcess : public MonitorTest {
 protected:
  // The records of a training of 40 steps of one layer.
  std::vector<segment::StepRecord> steps(std::vector<std::pair<const char*, const char*>> variables) {
    in_child(variables, [] {
      Trainer trainer;
      for (int64_t step = 1; step <= 40; ++step) trainer.step(step, 1);
    });
    return open()->new_steps();
  }
  static std::vector<int64_t> sampled(const std::vector<segment::StepRecord>& records) {
    std::vector<int64_t> steps;
    for (const segment::StepRecord& record : records)
      if (record.sampled != 0) steps.push_back(record.step);
    return steps;
  }
};

TEST_F(FirstLookOfAProcess, SamplesTheFirstStepsWhateverTheBudget) {
  const auto records = steps({{"FORESHOCK_EVERY", "0"}, {"FORESHOCK_MAX_SLOWDOWN", "0.0001%"}});
  EXPECT_EQ(sampled(records), std::vector<int64_t>({2, 3, 4, 5, 6, 7, 8, 9}));
  for (const segment::StepRecord& record : records)
    EXPECT_EQ(segment::is_first_look(record), record.step <= 9) << record.step;
}

TEST_F(FirstLookOfAProcess, IsNotTakenWhereNoCostIsAllowed) {
  const auto records = steps({{"FORESHOCK_EVERY", "0"}, {"FORESHOCK_MAX_SLOWDOWN", "0"}});
  EXPECT_EQ(sampled(records), std::vector<int64_t>());
}

TEST_F(FirstLookOfAProcess, AnIntervalGivenWithoutALimitIsKept) {
  const auto records = steps({{"FORESHOCK_EVERY", "10"}, {"FORESHOCK_MAX_SLOWDOWN", ""}});
  EXPECT_EQ(sampled(records), std::vector<int64_t>({10, 20, 30, 40}));
  EXPECT_EQ(open()->identity().max_slowdown, 1);
  for (const segment::StepRecord& record : records) EXPECT_FALSE(segment::is_first_look(record));
}

TEST_F(FirstLookOfAProcess, AnIntervalIsLimitedIfALimitIsGivenToo) {
  EXPECT_LE(sampled(steps({{"FORESHOCK_EVERY", "1"}, {"FORESHOCK_MAX_SLOWDOWN", "0.0001%"}})).size(), 3u);
}

}  // namespace
}  // namespace foreshock
