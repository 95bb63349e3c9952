#include <gtest/gtest.h>

#include <vector>

#include "libmonitor/sampling.h"

namespace foreshock {
namespace {

std::vector<int> step(OrdinalFollower& follower, int forward, int backward) {
  follower.begin_step();
  std::vector<int> places;
  for (int n = 0; n < forward; ++n) places.push_back(follower.next(false, false));
  for (int n = 0; n < backward; ++n) places.push_back(follower.next(true, false));
  return places;
}

TEST(Ordinal, IsGivenOnceAPeriodHasRepeated) {
  OrdinalFollower follower;
  EXPECT_EQ(step(follower, 3, 3), std::vector<int>({-1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(step(follower, 3, 3), std::vector<int>({-1, -1, -1, 2, 1, 0}));
  EXPECT_EQ(step(follower, 3, 3), std::vector<int>({0, 1, 2, 2, 1, 0}));
}

TEST(Ordinal, AnEvaluationBetweenStepsIsSeveralPeriods) {
  OrdinalFollower follower;
  step(follower, 2, 2);
  step(follower, 2, 2);
  EXPECT_EQ(step(follower, 6, 2), std::vector<int>({0, 1, 0, 1, 0, 1, 1, 0}));
}

TEST(Ordinal, AccumulationTurnsSeveralTimesAStep) {
  OrdinalFollower follower;
  follower.begin_step();
  std::vector<int> last;
  for (int micro = 0; micro < 4; ++micro) {
    last.clear();
    for (int n = 0; n < 2; ++n) last.push_back(follower.next(false, false));
    for (int n = 0; n < 2; ++n) last.push_back(follower.next(true, false));
  }
  EXPECT_EQ(last, std::vector<int>({0, 1, 1, 0}));
}

TEST(Ordinal, IsNeverGivenAgainAfterItMeantSomethingElse) {
  OrdinalFollower follower;
  step(follower, 3, 3);
  step(follower, 3, 3);
  step(follower, 4, 4);
  EXPECT_EQ(step(follower, 3, 3), std::vector<int>({-1, -1, -1, -1, -1, -1}));
}

// As of a wrapped function that cannot tell a recomputation: all layers forward, then each once more before
// its backward call. A period of one would name all of them as the first.
TEST(Ordinal, IsNotGivenWhereLayersAreRecomputedUnmarked) {
  OrdinalFollower follower;
  for (int n = 0; n < 4; ++n) {
    follower.begin_step();
    for (int layer = 0; layer < 4; ++layer) EXPECT_EQ(follower.next(false, false), -1);
    for (int layer = 0; layer < 4; ++layer) {
      EXPECT_EQ(follower.next(false, false), -1);
      EXPECT_EQ(follower.next(true, false), -1);
    }
  }
}

TEST(Ordinal, RecomputationIsNoPlace) {
  OrdinalFollower follower;
  step(follower, 1, 1);
  step(follower, 1, 1);
  follower.begin_step();
  EXPECT_EQ(follower.next(false, false), 0);
  EXPECT_EQ(follower.next(false, true), -1);
  EXPECT_EQ(follower.next(true, false), 0);
}

}  // namespace
}  // namespace foreshock
