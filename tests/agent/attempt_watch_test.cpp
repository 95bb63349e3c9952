#include <gtest/gtest.h>

#include "agent/weights.h"

namespace foreshock {
namespace {

// The first record of a process that began at `start` is of a second later.
bool is_new(AttemptWatch* watch, int rank, uint64_t start, int attempt = -1) {
  segment::TensorRecord record = {};
  record.time_ns = start + 1'000'000'000;
  segment::Identity identity;
  identity.rank = rank;
  identity.start_time_ns = start;
  identity.attempt = attempt;
  return watch->is_new(record, identity);
}

TEST(AttemptWatch, TheFirstOfAllIsNewAndARankThatBeginsLateIsNot) {
  AttemptWatch watch;
  EXPECT_TRUE(is_new(&watch, 0, 100));
  EXPECT_FALSE(is_new(&watch, 0, 100));
  EXPECT_FALSE(is_new(&watch, 1, 5'000'000'000)) << "it began after rank 0 had shown something";
}

TEST(AttemptWatch, ARestartIsOneHoweverManyRanksItHas) {
  AttemptWatch watch;
  EXPECT_TRUE(is_new(&watch, 0, 100));
  EXPECT_FALSE(is_new(&watch, 1, 101));
  EXPECT_TRUE(is_new(&watch, 0, 9'000'000'000));
  EXPECT_FALSE(is_new(&watch, 1, 9'000'000'001));
}

TEST(AttemptWatch, OtherRanksOfAHigherNumberAreAnotherAttempt) {
  AttemptWatch watch;
  EXPECT_TRUE(is_new(&watch, 0, 100, 0));
  EXPECT_FALSE(is_new(&watch, 1, 100, 0));
  EXPECT_TRUE(is_new(&watch, 2, 9'000'000'000, 1));
  EXPECT_FALSE(is_new(&watch, 3, 9'000'000'000, 1));
}

}  // namespace
}  // namespace foreshock
