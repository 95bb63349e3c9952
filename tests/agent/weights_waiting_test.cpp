// Ranks that are read one after the other, or run apart.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "agent/weights.h"
#include "tests/agent/written_parts.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

TEST(Weights, ARankThatBeginsLateIsNoRestart) {
  Weights weights;
  const auto take_of = [&](int rank, int64_t step, uint64_t started, const char* name) {
    Part part(step, normal(400, 16), 4, 0, 100, name);
    part.view().record.time_ns = started + static_cast<uint64_t>(step);
    segment::Identity identity = rank_of(rank);
    identity.start_time_ns = started;
    const char* why = nullptr;
    return weights.add(part.view(), identity, 2, &why);
  };
  take_of(0, 1, 100, "a");
  take_of(1, 1, 500, "b");
  EXPECT_TRUE(take_of(0, 2, 100, "a").at(0).previous);
  EXPECT_TRUE(take_of(1, 2, 500, "b").at(0).previous);
  EXPECT_FALSE(take_of(0, 3, 600, "a").at(0).previous) << "this one has started again";
  EXPECT_FALSE(take_of(1, 3, 600, "b").at(0).previous);
  EXPECT_TRUE(take_of(0, 4, 600, "a").at(0).previous);
}

// A job whose ranks nobody knows the coordinates of: equal names need not be one tensor.
TEST(Weights, RanksOfUnknownCoordinatesAreNotMixed) {
  Weights weights;
  for (int64_t step = 1; step <= 3; ++step)
    for (int rank = 0; rank < 2; ++rank) {
      segment::Identity identity = rank_of(rank);
      identity.world_size = 2;
      identity.tensor_parallel = identity.pipeline_parallel = identity.expert_parallel = -1;
      Part part(step, normal(400, 20 + static_cast<unsigned>(rank)), 4, 0, 100);
      const char* why = nullptr;
      const auto done = weights.add(part.view(), identity, 2, &why);
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].key.rank, rank);
      if (step > 1) {
        EXPECT_EQ(done[0].previous->value, 0);
      }
    }
  EXPECT_EQ(weights.replicas().comparisons(), 0u);
  EXPECT_EQ(weights.model().tensors, 2u);
}

TEST(Weights, ARankWithoutWeightsIsNotWaitedForUntilItShowsSome) {
  Weights weights;
  const auto values = normal(400, 21);
  const auto half = [&](int64_t step, int rank) {
    return take_at(weights, Part(step, values, 4, rank == 0 ? 0 : 50, 50), rank, 3,
                   30 * static_cast<double>(step));
  };
  EXPECT_TRUE(half(1, 0).empty());
  EXPECT_TRUE(half(2, 0).empty());
  EXPECT_EQ(half(3, 0).size(), 3u) << "the others have had time";
  const auto alone = half(4, 0);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].elements, 200u);
  EXPECT_TRUE(alone[0].previous);
  EXPECT_TRUE(half(4, 1).empty()) << "late";
  EXPECT_TRUE(half(5, 0).empty()) << "now it is waited for";
  const auto whole = half(5, 1);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].elements, 400u);
}

TEST(Weights, WhatARankLeftOutIsNotComparedWithTheWhole) {
  Weights weights;
  const auto values = normal(400, 22);
  const auto third = [&](int64_t step, int rank, const char* name = "w") {
    return take(weights, Part(step, values, 4, rank == 0 ? 0 : 50, 25, name), rank, 3);
  };
  // Rank 2 holds nothing of it, and rank 1 has no budget at step 3.
  for (int64_t step = 1; step <= 6; ++step) {
    std::vector<TensorSnapshot> done;
    for (int rank = 0; rank < 3; ++rank)
      for (auto& each : third(step, rank, rank == 2 || (rank == 1 && step == 3) ? "other" : "w"))
        if (each.key.name == "w") done.push_back(std::move(each));
    for (const TensorSnapshot& each : done) {
      EXPECT_EQ(each.elements, 200u) << each.step;
      EXPECT_NE(each.step, 3);
      if (each.step != 1) {
        EXPECT_TRUE(each.initial) << "the first one is kept: " << each.step;
      }
    }
  }
  EXPECT_GE(weights.snapshots_dropped(), 1u);
}

TEST(Weights, WhatWaitsForAPartTakesNoMoreThanItsShareOfMemory) {
  FORESHOCK_SKIP_IF_SANITIZED();
  const uint64_t most = uint64_t{1} << 20;
  Weights weights(most);
  const auto values = normal(4000, 23);
  char name[16];
  for (int n = 0; n < 300; ++n) {
    std::snprintf(name, sizeof name, "w%d", n);
    take(weights, Part(1, values, 40, 0, 50, name), 0, 2);
    EXPECT_LE(weights.pending_bytes(), most / 4) << n;
  }
  EXPECT_GT(weights.snapshots_dropped(), 0u);
}

// The stages of a pipeline: tensors of other names, some of no layer, on ranks that run apart.
TEST(Weights, RanksThatRunApartMakeOneModel) {
  Weights weights;
  const auto values = normal(400, 32), others = normal(400, 33);
  const auto show = [&](int rank, int64_t window) {
    for (const char* name : {"up", "down"}) {
      Part part(4 * window + (name[0] == 'u' ? 0 : 2), window % 2 == 0 ? values : others, 4, 0, 100, name, 4,
                2);
      segment::Identity identity = rank_of(rank);
      identity.world_size = 2;
      identity.pipeline_parallel = rank;
      const char* why = nullptr;
      EXPECT_EQ(weights.add(part.view(), identity, 2, &why).size(), 1u);
    }
  };
  std::vector<int64_t> steps;
  show(0, 1);
  for (int64_t window = 1; window <= 8; ++window) {
    show(0, window + 1);
    show(1, window);
    for (const PoolSnapshot& pool : weights.completed())
      if (pool.layer.empty()) {
        EXPECT_EQ(pool.tensors, 4u) << pool.step;
        ASSERT_TRUE(pool.previous) << pool.step;
        EXPECT_GT(pool.previous->value, 0) << pool.step;
        steps.push_back(pool.step);
      }
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{8, 12, 16, 20, 24, 28, 32}));
}

TEST(Weights, ARankThatRunsFarAheadTakesNoMoreMemory) {
  Weights weights;
  const auto values = normal(4000, 34);
  for (int64_t step = 1; step <= (test::kIsSanitized ? 20 : 200); ++step) {
    Part part(step, values, 40, 0, 100, "a");
    segment::Identity identity = rank_of(0);
    const char* why = nullptr;
    if (step == 1) {
      Part other(step, values, 40, 0, 100, "b");
      identity.rank = 1;
      weights.add(other.view(), identity, 2, &why);
      identity.rank = 0;
    }
    const auto done = weights.add(part.view(), identity, 2, &why);
    ASSERT_EQ(done.size(), 1u);
    // Of either tensor the first one and the last one, of one of them also the one that is waited with.
    EXPECT_LE(weights.kept_bytes(), 8 * done[0].stored.size()) << step;
  }
}

TEST(Weights, AfterAPauseTheModelIsTheSame) {
  Weights weights;
  const auto values = normal(400, 35);
  for (int64_t step : {1, 2, 3, 100, 101, 102})
    for (const char* name : {"a", "b"}) {
      Part part(step, values, 4, 0, 100, name);
      part.view().record.snapshot = step == 1 ? 1 : 2;
      std::strcpy(part.view().record.layer, name);
      const auto done = take(weights, std::move(part));
      ASSERT_EQ(done.size(), 1u);
      if (step > 1) {
        EXPECT_EQ(done[0].initial_step, 1) << step;
      }
      EXPECT_EQ(done[0].previous.has_value(), step != 1 && step != 100);
    }
  for (const PoolSnapshot& pool : weights.completed())
    EXPECT_EQ(pool.tensors, pool.layer.empty() ? 2u : 1u) << pool.step;
  EXPECT_EQ(weights.model().step, 102);
  EXPECT_TRUE(weights.model().initial);
}

}  // namespace
}  // namespace foreshock
