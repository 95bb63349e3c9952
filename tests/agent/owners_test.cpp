#include <gtest/gtest.h>

#include "agent/publish.h"

namespace foreshock {
namespace {

RankStatistics rank_with(int rank, int data_parallel, std::initializer_list<const char*> layers) {
  RankStatistics statistics;
  statistics.identity.rank = rank;
  statistics.identity.late_ready = 1;
  statistics.identity.data_parallel = data_parallel;
  for (const char* label : layers) statistics.layers[label].label = label;
  return statistics;
}

TEST(Owners, TheFirstOfTheReplicasShowsTheLayers) {
  const RankStatistics first = rank_with(0, 0, {"000", "001"}), second = rank_with(1, 1, {"000", "001"});
  const LayerOwners owners({&first, &second});
  EXPECT_TRUE(owners.exports(first, "000"));
  EXPECT_FALSE(owners.exports(second, "000"));
  EXPECT_STREQ(name_of(ownership_of(first.identity)), "1");
  EXPECT_STREQ(name_of(ownership_of(second.identity)), "0");
}

TEST(Owners, OnANodeWithoutOwnersNobodyDoes) {
  const RankStatistics rank = rank_with(9, 1, {"000"});
  EXPECT_FALSE(LayerOwners({&rank}).exports(rank, "000"));
}

TEST(Owners, UnknownCoordinatesShowEachLayerOnce) {
  // A pipeline: 0 and 1 have one half, 2 and 3 the other.
  const RankStatistics a = rank_with(0, -1, {"000"}), b = rank_with(1, -1, {"000"}),
                       c = rank_with(2, -1, {"001"}), d = rank_with(3, -1, {"001"});
  const LayerOwners owners({&d, &c, &b, &a});
  EXPECT_TRUE(owners.exports(a, "000"));
  EXPECT_FALSE(owners.exports(b, "000"));
  EXPECT_TRUE(owners.exports(c, "001"));
  EXPECT_FALSE(owners.exports(d, "001"));
  EXPECT_STREQ(name_of(ownership_of(a.identity)), "unknown");
}

TEST(Owners, ALivingRankTakesOverFromADeadOne) {
  RankStatistics dead = rank_with(0, -1, {"000", "only"});
  const RankStatistics living = rank_with(1, -1, {"000"});
  dead.alive = false;
  const LayerOwners owners({&dead, &living});
  EXPECT_FALSE(owners.exports(dead, "000"));
  EXPECT_TRUE(owners.exports(living, "000"));
  EXPECT_TRUE(owners.exports(dead, "only"));
}

TEST(Owners, WhatIsNotReadyIsUnknown) {
  RankStatistics rank = rank_with(3, 0, {"000"});
  rank.identity.late_ready = 0;
  EXPECT_EQ(ownership_of(rank.identity), Ownership::kUnknown);
}

}  // namespace
}  // namespace foreshock
