#include <gtest/gtest.h>

#include "agent/weights.h"

namespace foreshock {
namespace {

using Verdict = RollbackWatch::Verdict;
constexpr uint64_t kSecond = 1'000'000'000;

Verdict take(RollbackWatch* watch, int rank, int64_t step, uint64_t time_ns) {
  segment::TensorRecord record = {};
  record.step = step;
  record.time_ns = time_ns;
  return watch->classify(record, rank);
}

TEST(RollbackWatch, WhatARankHasShownBeforeItWentBackIsOfBefore) {
  RollbackWatch watch;
  EXPECT_EQ(take(&watch, 0, 10, kSecond), Verdict::kGoesOn);
  EXPECT_EQ(take(&watch, 1, 10, kSecond), Verdict::kGoesOn);
  EXPECT_EQ(take(&watch, 0, 3, 2 * kSecond), Verdict::kWentBack);
  EXPECT_EQ(take(&watch, 1, 11, 2 * kSecond), Verdict::kStale);
  EXPECT_EQ(take(&watch, 1, 3, 3 * kSecond), Verdict::kGoesOn) << "it has gone back as well";
  EXPECT_EQ(take(&watch, 0, 4, 3 * kSecond), Verdict::kGoesOn);
}

TEST(RollbackWatch, ARankThatDoesNotGoBackIsHeardAgain) {
  RollbackWatch watch;
  take(&watch, 0, 10, kSecond);
  take(&watch, 1, 10, kSecond);
  take(&watch, 0, 3, 2 * kSecond);
  EXPECT_EQ(take(&watch, 1, 11, 2 * kSecond), Verdict::kStale);
  EXPECT_EQ(take(&watch, 1, 12, 2 * kSecond + RollbackWatch::kMaxStaleNs), Verdict::kGoesOn);
  EXPECT_EQ(take(&watch, 1, 13, 2 * kSecond + RollbackWatch::kMaxStaleNs), Verdict::kGoesOn);
}

// One return of rank 1 is not seen: it has left turns out. The others come too fast for any patience with the
// last.
TEST(RollbackWatch, ARankIsHeardThoughTheOthersGoBackAgainAndAgain) {
  RollbackWatch watch;
  uint64_t heard = 0;
  for (uint64_t epoch = 0; epoch < 10; ++epoch)
    for (int64_t step = 0; step < 4; ++step) {
      const uint64_t now = kSecond * (1 + 4 * epoch + static_cast<uint64_t>(step));
      take(&watch, 0, step, now);
      if (epoch == 2 && step < 3) continue;
      heard += take(&watch, 1, step, now) != Verdict::kStale;
    }
  EXPECT_GE(heard, 20u);
}

}  // namespace
}  // namespace foreshock
