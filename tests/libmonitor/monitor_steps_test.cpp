// What counts as a step, and which number it gets.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace foreshock
