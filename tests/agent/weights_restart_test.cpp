// Steps that come again: restarts, rollbacks, attempts.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "agent/weights.h"
#include "tests/agent/written_parts.h"

namespace foreshock {
namespace {

TEST(Weights, AfterARestartStepsMayRepeat) {
  Weights weights;
  const auto values = normal(400, 15);
  const auto take_of = [&](int64_t step, uint64_t started) {
    Part part(step, values, 4, 0, 100);
    part.view().record.time_ns = started + 10;
    segment::Identity identity = rank_of(0);
    identity.start_time_ns = started;
    const char* why = nullptr;
    return weights.add(part.view(), identity, 1, &why);
  };
  EXPECT_EQ(take_of(8, 100).size(), 1u);
  EXPECT_EQ(take_of(9, 100).size(), 1u);
  const auto again = take_of(8, 500);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_FALSE(again[0].previous);
  EXPECT_TRUE(take_of(9, 500)[0].previous);
}

TEST(Weights, AProcessThatGoesBackToAnEarlierStepIsFollowedFromThere) {
  Weights weights;
  for (int64_t step = 1; step <= 8; ++step)
    take_timed(weights, 0, 1, step, static_cast<double>(step), step == 1 ? 1 : 2);
  EXPECT_EQ(weights.model().step, 8);
  const auto again = take_timed(weights, 0, 1, 3, 9);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_FALSE(again[0].previous) << "what lies two steps back was trained further meanwhile";
  EXPECT_EQ(again[0].initial_step, 1) << "the distance from the start has one meaning";
  EXPECT_EQ(weights.model().step, -1);
  const auto next = take_timed(weights, 0, 1, 4, 10);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].previous_step, 3);
  EXPECT_EQ(weights.model().step, 4);
  EXPECT_TRUE(weights.model().previous && weights.model().initial);
}

TEST(Weights, ASecondTrainingOfAProcessHasAFirstSnapshotOfItsOwn) {
  Weights weights;
  for (int64_t step = 1; step <= 8; ++step)
    take_timed(weights, 0, 1, step, static_cast<double>(step), step == 1 ? 1 : 2);
  const auto first = take_timed(weights, 0, 1, 1, 9, 1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_FALSE(first[0].previous || first[0].initial || first[0].initial_step);
  const auto second = take_timed(weights, 0, 1, 2, 10);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_TRUE(second[0].initial);
  EXPECT_EQ(second[0].initial_step, 1);
}

TEST(Weights, RanksThatGoBackTogetherAreReadOneAfterTheOther) {
  Weights weights;
  std::vector<int64_t> whole;
  for (int rank = 0; rank < 2; ++rank) {
    double now = 0;
    for (int64_t step : {5, 6, 7, 8, 6, 7, 8, 9})
      for (const auto& done : take_timed(weights, rank, 2, step, ++now, 2, rank == 0 ? 0 : 50, 50)) {
        EXPECT_EQ(done.elements, 400u);
        EXPECT_EQ(done.previous_step.value_or(-1), done.step == 6 ? -1 : done.step - 1);
        whole.push_back(done.step);
      }
  }
  EXPECT_EQ(whole, (std::vector<int64_t>{6, 7, 8, 9}));
}

TEST(Weights, AStepThatIsNumberedFarTooHighBlindsNobodyForLong) {
  Weights weights;
  size_t done = 0, done_late = 0;
  for (int64_t step = 1; step <= 40; ++step)
    for (int rank = 0; rank < 2; ++rank) {
      const int64_t told = rank == 0 && step == 5 ? 1000000000 : step;
      const size_t now =
          take_timed(weights, rank, 2, told, static_cast<double>(step), step == 1 ? 1 : 2).size();
      done += now;
      if (step > 20) done_late += now;
    }
  EXPECT_EQ(done_late, 20u);
  EXPECT_GE(done, 35u);
  EXPECT_EQ(weights.model().step, 40);
  EXPECT_TRUE(weights.model().initial) << "the first snapshot is what it was";
  const uint64_t compared = weights.replicas().comparisons();
  take_timed(weights, 0, 2, 41, 41);
  take_timed(weights, 1, 2, 41, 41);
  EXPECT_EQ(weights.replicas().comparisons(), compared + 1);
}

std::vector<TensorSnapshot> take_of_attempt(Weights& weights, int attempt, int64_t step, uint64_t snapshot,
                                            size_t rows = 100) {
  static const auto values = normal(400, 36);
  Part part(step, values, 4, 0, rows);
  segment::Identity identity = rank_of(0);
  identity.attempt = attempt;
  identity.start_time_ns = 1000 * (static_cast<uint64_t>(attempt) + 1);
  part.view().record.time_ns = identity.start_time_ns + static_cast<uint64_t>(step);
  part.view().record.snapshot = snapshot;
  const char* why = nullptr;
  return weights.add(part.view(), identity, 1, &why);
}

TEST(Weights, TheFirstSnapshotIsTheRunsAndNotThatOfAnAttempt) {
  Weights weights;
  for (int64_t step = 1; step <= 9; ++step) take_of_attempt(weights, 0, step, static_cast<uint64_t>(step));
  const auto again = take_of_attempt(weights, 1, 7, 1);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].initial_step, 1);
  EXPECT_FALSE(again[0].previous);
  take_of_attempt(weights, 1, 8, 2);
  EXPECT_TRUE(weights.model().initial);
  EXPECT_FALSE(weights.take_initial_unknown()) << "it is known";
  // The next attempt begins with weights of its own.
  EXPECT_FALSE(take_of_attempt(weights, 2, 1, 1)[0].initial);
  EXPECT_EQ(take_of_attempt(weights, 2, 2, 2)[0].initial_step, 1);
  // One that holds another part of the tensor does not make its own first one the run's.
  const auto part = take_of_attempt(weights, 3, 5, 1, 50);
  ASSERT_EQ(part.size(), 1u);
  EXPECT_FALSE(take_of_attempt(weights, 3, 6, 2, 50)[0].initial);
  EXPECT_EQ(weights.take_initial_unknown(), 5);
  EXPECT_FALSE(weights.take_initial_unknown()) << "said once";
}

TEST(Weights, AnAgentThatBeginsInMidRunKnowsNoFirstSnapshot) {
  Weights in_the_middle, after_a_restart, in_a_later_attempt, new_run;
  take_of_attempt(in_the_middle, 0, 50, 9);
  EXPECT_FALSE(take_of_attempt(in_the_middle, 0, 51, 10)[0].initial);
  EXPECT_EQ(in_the_middle.take_initial_unknown(), 50);
  after_a_restart.set_followed_before();
  take_of_attempt(after_a_restart, 0, 50, 1);
  EXPECT_FALSE(take_of_attempt(after_a_restart, 0, 51, 2)[0].initial);
  EXPECT_EQ(after_a_restart.take_initial_unknown(), 50);
  take_of_attempt(in_a_later_attempt, 1, 50, 1);
  EXPECT_FALSE(take_of_attempt(in_a_later_attempt, 1, 51, 2)[0].initial);
  EXPECT_EQ(in_a_later_attempt.take_initial_unknown(), 50);
  take_of_attempt(new_run, 0, 50, 1);
  EXPECT_EQ(take_of_attempt(new_run, 0, 51, 2)[0].initial_step, 50) << "a run from a checkpoint";
  EXPECT_FALSE(new_run.take_initial_unknown());
}

}  // namespace
}  // namespace foreshock
