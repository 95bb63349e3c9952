#include "detect/state.h"

#include <gtest/gtest.h>

namespace foreshock {
namespace {

TEST(State, WhatIsWrittenIsRead) {
  StateWriter writer;
  const double number = -0.1;
  const int64_t step = INT64_MIN;
  const uint64_t count = UINT64_MAX;
  writer(number), writer(step), writer(count), writer(-7), writer(true), writer(std::string("a\0b", 3));
  StateReader reader(writer.bytes());
  double read_number;
  int64_t read_step;
  uint64_t read_count;
  int small;
  bool flag;
  std::string text;
  reader(read_number), reader(read_step), reader(read_count), reader(small), reader(flag), reader(text);
  EXPECT_TRUE(reader.good() && reader.at_end());
  EXPECT_EQ(read_number, number);
  EXPECT_EQ(read_step, step);
  EXPECT_EQ(read_count, count);
  EXPECT_EQ(small, -7);
  EXPECT_TRUE(flag);
  EXPECT_EQ(text, std::string("a\0b", 3));
}

TEST(State, BytesThatAreMissingOrWrongAreRefusedForGood) {
  uint64_t number = 5;
  StateReader empty("");
  empty(number);
  EXPECT_FALSE(empty.good());
  EXPECT_EQ(number, 0u);
  const std::string long_one = std::string(8, '\x7f') + "abc";
  StateReader long_text(long_one);
  std::string text = "x";
  long_text(text);
  EXPECT_FALSE(long_text.good());
  EXPECT_EQ(text, "");
  const std::string many_things = std::string(8, '\x7f') + std::string(64, ' ');
  StateReader many(many_things);
  EXPECT_EQ(many.count(UINT64_MAX), 0u);
  EXPECT_FALSE(many.good());
  const std::string two("\x02\0\0\0\0\0\0\0", 8);
  StateReader no_flag(two);
  bool flag = true;
  no_flag(flag);
  EXPECT_FALSE(no_flag.good());
}

}  // namespace
}  // namespace foreshock
