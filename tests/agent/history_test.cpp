#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "agent/rank_state.h"
#include "exporters/http_routes.h"

namespace foreshock {
namespace {

constexpr History::Column kColumns[] = {{"mean", History::Keep::kMean}, {"max", History::Keep::kMax}};

HistoryTable table_of(const History& history) {
  HistoryTable table;
  history.copy_to(&table);
  return table;
}

TEST(History, HoldsEveryStepWhileThereIsRoom) {
  History history(kColumns, 4);
  for (int64_t step = 5; step < 9; ++step) history.add(step, 0, static_cast<double>(step));
  const HistoryTable table = table_of(history);
  EXPECT_EQ(table.first_step, 5);
  EXPECT_EQ(table.steps_per_point, 1);
  ASSERT_EQ(table.columns.size(), 2u);
  EXPECT_EQ(table.columns[0].second, (std::vector<float>{5, 6, 7, 8}));
  for (float unknown : table.columns[1].second) EXPECT_TRUE(std::isnan(unknown));
}

TEST(History, TwoNeighboursBecomeOneAtMultiplesOfTheWidth) {
  History history(kColumns, 4);
  for (int64_t step = 5; step < 10; ++step)
    for (size_t column : {0, 1}) history.add(step, column, static_cast<double>(step));
  const HistoryTable table = table_of(history);
  EXPECT_EQ(table.first_step, 4);  // the point that holds step 5
  EXPECT_EQ(table.steps_per_point, 2);
  EXPECT_EQ(table.columns[0].second, (std::vector<float>{5, 6.5, 8.5}));
  EXPECT_EQ(table.columns[1].second, (std::vector<float>{5, 7, 9}));
}

TEST(History, TheWholeRunStaysInViewAndTheMemoryBounded) {
  History history(kColumns, 64);
  constexpr int64_t kSteps = 100000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    history.add(step, 0, 1.0);
    history.add(step, 1, static_cast<double>(step));
  }
  const HistoryTable table = table_of(history);
  const auto points = static_cast<int64_t>(table.columns[0].second.size());
  EXPECT_LE(points, 64);
  EXPECT_GE(points, 32);
  EXPECT_EQ(table.steps_per_point, 2048);  // 100000 / 64 is between 1024 and 2048
  for (float mean : table.columns[0].second) EXPECT_EQ(mean, 1);
  EXPECT_EQ(table.columns[1].second.back(), kSteps);
  EXPECT_EQ(table.columns[1].second[0], 2047);
}

TEST(History, NegativeValuesHaveALargestToo) {
  History history(kColumns, 2);
  for (int64_t step : {2, 3, 4}) history.add(step, 1, -static_cast<double>(step));
  EXPECT_EQ(table_of(history).columns[1].second, (std::vector<float>{-2, -4}));
}

TEST(History, LeavesOutWhatCannotBeDrawn) {
  History history(kColumns, 4);
  history.add(-1, 0, 1);
  history.add(8, 0, NAN);
  history.add(8, 0, INFINITY);
  EXPECT_EQ(table_of(history).columns[0].second.size(), 0u);
  history.add(8, 0, 1);
  history.add(7, 0, 2);  // before the first one
  EXPECT_EQ(table_of(history).columns[0].second, std::vector<float>{1});
}

TEST(History, AStepFromAnotherWorldCostsDetailAndNothingElse) {
  History history(kColumns, 4);
  history.add(1, 0, 3);
  history.add(std::numeric_limits<int64_t>::max(), 0, 5);
  const HistoryTable table = table_of(history);
  EXPECT_LE(table.columns[0].second.size(), 4u);
  EXPECT_EQ(table.columns[0].second.front(), 3);
  EXPECT_EQ(table.columns[0].second.back(), 5);
}

}  // namespace
}  // namespace foreshock
