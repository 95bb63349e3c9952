#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "libmonitor/step_numbers.h"

namespace foreshock {
namespace {

class ScalarsTest : public testing::Test {
 protected:
  void SetUp() override { scalars_.attach(names_); }
  segment::StepRecord take() {
    segment::StepRecord record = {};
    scalars_.take(&record);
    return record;
  }
  segment::ScalarName names_[segment::kMaxScalars] = {};
  Scalars scalars_;
};

TEST_F(ScalarsTest, TheLastValueOfAStepCountsAndIsTakenOnce) {
  EXPECT_TRUE(scalars_.observe("loss", 1, 5));
  EXPECT_TRUE(scalars_.observe("accuracy", 0.5, -1));
  EXPECT_TRUE(scalars_.observe("loss", 2, 6));
  segment::StepRecord record = take();
  EXPECT_EQ(record.scalars_given, 3u);
  EXPECT_EQ(record.scalars[0], 2);
  EXPECT_EQ(record.scalar_step[0], 6);
  EXPECT_EQ(record.scalar_step[1], -1);
  EXPECT_STREQ(names_[1].name, "accuracy");
  EXPECT_EQ(names_[1].ready, 1u);
  EXPECT_EQ(names_[2].ready, 0u);
  EXPECT_EQ(take().scalars_given, 0u);
  EXPECT_TRUE(scalars_.observe("accuracy", NAN, 7));  // a result, and handed on as one
  record = take();
  EXPECT_EQ(record.scalars_given, 2u);
  EXPECT_TRUE(std::isnan(record.scalars[1]));
}

TEST_F(ScalarsTest, ThereIsRoomForSixteenNames) {
  for (int n = 0; n < 20; ++n)
    EXPECT_EQ(scalars_.observe(std::to_string(n).c_str(), n, n), n < static_cast<int>(segment::kMaxScalars));
  EXPECT_TRUE(scalars_.observe("3", 33, 0));
  const segment::StepRecord record = take();
  EXPECT_EQ(record.scalars_given, 0xffffu);
  EXPECT_EQ(record.scalars[3], 33);
}

TEST_F(ScalarsTest, LongNamesAreCutAndStayOneName) {
  const std::string name(100, 'x');
  EXPECT_TRUE(scalars_.observe(name.c_str(), 1, 0));
  EXPECT_TRUE(scalars_.observe(name.c_str(), 2, 0));
  EXPECT_EQ(std::string(names_[0].name), std::string(43, 'x'));
  EXPECT_EQ(names_[1].ready, 0u);
}

TEST_F(ScalarsTest, LongNamesThatBeginAlikeStayApart) {
  const std::string begin(43, 'x');
  for (const int value : {1, 2}) {
    EXPECT_TRUE(scalars_.observe((begin + "/query").c_str(), value, 0));
    EXPECT_TRUE(scalars_.observe((begin + "/key").c_str(), 10 * value, 0));
    EXPECT_TRUE(scalars_.observe((begin.substr(0, 41) + "~2").c_str(), 100 * value, 0));
  }
  EXPECT_EQ(names_[0].name, begin);
  EXPECT_EQ(names_[1].name, begin.substr(0, 41) + "~2");
  EXPECT_EQ(names_[2].name, begin.substr(0, 41) + "~3") << "its own name is another's by now";
  EXPECT_EQ(names_[3].ready, 0u);
  const segment::StepRecord record = take();
  EXPECT_EQ(record.scalars[0], 2);
  EXPECT_EQ(record.scalars[1], 20);
  EXPECT_EQ(record.scalars[2], 200);
}

TEST_F(ScalarsTest, WithoutASegmentOrANameNothingIsKept) {
  EXPECT_FALSE(Scalars().observe("loss", 1, 0));
  EXPECT_FALSE(scalars_.observe("", 1, 0));
  EXPECT_FALSE(scalars_.observe(nullptr, 1, 0));
  EXPECT_EQ(take().scalars_given, 0u);
}

}  // namespace
}  // namespace foreshock
