#include "agent/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "agent/record_lines.h"
#include "tests/agent/written_parts.h"
#include "tests/support/wasserstein.h"

namespace foreshock {
namespace {

TEST(Weights, TheDistanceToTheSnapshotBeforeAndToTheFirstIsW1) {
  Weights weights;
  const auto a = normal(5000, 1), b = normal(5000, 2), c = normal(5000, 3);
  EXPECT_FALSE(take(weights, Part(1, a, 50, 0, 100))[0].previous) << "there is none";
  const auto second = take(weights, Part(2, b, 50, 0, 100))[0];
  ASSERT_TRUE(second.previous && second.initial);
  const double ab = test::wasserstein(wide(a), wide(b)), ac = test::wasserstein(wide(a), wide(c)),
               bc = test::wasserstein(wide(b), wide(c));
  const auto third = take(weights, Part(3, c, 50, 0, 100))[0];
  // Certified bounds, and the truth's own rounding: 10^4 terms of 2^-53 relative.
  EXPECT_LE(second.previous->low, ab * (1 + 1e-12));
  EXPECT_GE(second.previous->high, ab * (1 - 1e-12));
  EXPECT_LE(third.previous->low, bc * (1 + 1e-12));
  EXPECT_GE(third.previous->high, bc * (1 - 1e-12));
  EXPECT_LE(third.initial->low, ac * (1 + 1e-12));
  EXPECT_GE(third.initial->high, ac * (1 - 1e-12));
  EXPECT_EQ(third.previous_step, 2);
  EXPECT_EQ(third.initial_step, 1);
  EXPECT_DOUBLE_EQ(*third.update_sum_magnitude, 2500);
}

TEST(Weights, AChangeThatIsKnownOfAPartIsToldAsThat) {
  Weights weights;
  const auto values = normal(5000, 1);
  const auto one = [&](int64_t step) { return Part(step, values, 50, 0, 100); };
  const auto part = take(weights, one(1).with_update_of(1000, 20))[0];
  EXPECT_EQ(part.update_elements, 1000u);
  EXPECT_DOUBLE_EQ(*tensor_line("r", part, false).update_mean_abs, 0.02);
  EXPECT_FALSE(take(weights, one(2).with_update_of(0, 0))[0].update_sum_magnitude);
  EXPECT_EQ(take(weights, one(3).with_update_of(1e18, 20))[0].update_elements, 5000u)
      << "never more than all";
  EXPECT_EQ(take(weights, one(4).with_update_of(-1, 20))[0].update_elements, 5000u)
      << "as if it were not told";
}

TEST(Weights, ShardsPutTogetherAreTheWholeBitForBit) {
  Weights whole, sharded;
  const auto values = normal(7000, 5);
  const auto expected = take(whole, Part(4, values, 70, 0, 100))[0];
  EXPECT_TRUE(take(sharded, Part(4, values, 70, 60, 40), 1, 3).empty());
  EXPECT_TRUE(take(sharded, Part(4, values, 70, 0, 1), 0, 3).empty());
  const auto done = take(sharded, Part(4, values, 70, 1, 59), 2, 3);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].parts.size(), 3u);
  EXPECT_EQ(done[0].elements, 7000u);
  EXPECT_TRUE(done[0].histogram == expected.histogram);
  EXPECT_EQ(done[0].stored, expected.stored);
  EXPECT_EQ(sharded.replicas().comparisons(), 0u) << "parts are no replicas";
}

TEST(Weights, RanksMayBeReadOneAfterTheOther) {
  Weights weights;
  const auto values = normal(4000, 6);
  for (int64_t step = 1; step <= 20; ++step)
    EXPECT_TRUE(take(weights, Part(step, values, 40, 0, 50), 0, 2).empty());
  for (int64_t step = 1; step <= 20; ++step) {
    const auto done = take(weights, Part(step, values, 40, 50, 50), 1, 2);
    ASSERT_EQ(done.size(), 1u) << step;
    EXPECT_EQ(done[0].step, step);
    if (step > 1) {
      EXPECT_EQ(done[0].previous->value, 0);
    }
  }
}

TEST(Weights, ReplicasCountOnceAndTheOddOneIsNamed) {
  Weights weights;
  const auto values = normal(4000, 7);
  auto flipped = values;
  uint32_t bits = 0;
  std::memcpy(&bits, &flipped[1234], sizeof bits);
  bits ^= 1;
  std::memcpy(&flipped[1234], &bits, sizeof bits);
  std::vector<int64_t> odd;
  const auto step = [&](int64_t number, const std::vector<float>& of_rank_1) {
    for (int rank = 0; rank < 3; ++rank)
      for (const auto& done :
           take(weights, Part(number, rank == 1 ? of_rank_1 : values, 40, 0, 100), rank, 3)) {
        EXPECT_EQ(done.elements, done.parts.empty() ? 0u : 4000u);
        odd.insert(odd.end(), done.odd_ranks.begin(), done.odd_ranks.end());
      }
  };
  step(1, values);
  EXPECT_TRUE(odd.empty());
  step(2, flipped);
  EXPECT_EQ(odd, std::vector<int64_t>{1});
  EXPECT_EQ(weights.replicas().mismatches(1), 1u);
  EXPECT_EQ(weights.replicas().mismatches(0), 0u);
  EXPECT_EQ(weights.replicas().comparisons(), 4u);
  // What other nodes compare by.
  const auto *zero = weights.replicas().checksum_of(0), *one = weights.replicas().checksum_of(1),
             *two = weights.replicas().checksum_of(2);
  ASSERT_TRUE(zero && one && two);
  EXPECT_EQ(zero->group, one->group);
  EXPECT_EQ(zero->checksum, two->checksum);
  EXPECT_NE(zero->checksum, one->checksum);
  EXPECT_EQ(zero->step, 2);
}

TEST(Weights, OfTwoThatDifferNobodyKnowsWhich) {
  Weights weights;
  const auto values = normal(400, 8), others = normal(400, 9);
  take(weights, Part(1, values, 4, 0, 100), 0, 2);
  const auto done = take(weights, Part(1, others, 4, 0, 100), 1, 2);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].odd_ranks, (std::vector<int64_t>{0, 1}));
}

TEST(Weights, ANewIntervalBeginsANewSeries) {
  Weights weights;
  const auto values = normal(400, 10);
  take(weights, Part(8, values, 4, 0, 100, "w", 4));
  EXPECT_TRUE(take(weights, Part(12, values, 4, 0, 100, "w", 4))[0].previous);
  EXPECT_FALSE(take(weights, Part(16, values, 4, 0, 100, "w", 8))[0].previous);
  EXPECT_TRUE(take(weights, Part(24, values, 4, 0, 100, "w", 8))[0].previous);
  EXPECT_FALSE(take(weights, Part(40, values, 4, 0, 100, "w", 8))[0].previous) << "one was left out";
}

TEST(Weights, TheModelIsAllTensorsOfAnInterval) {
  Weights weights;
  const auto a = normal(400, 11), b = normal(800, 12), c = normal(400, 13);
  take(weights, Part(4, a, 4, 0, 100, "a", 4, 2));
  take(weights, Part(6, b, 4, 0, 200, "b", 4, 2));
  EXPECT_EQ(weights.model().step, -1) << "nobody knows yet how many tensors there are";
  take(weights, Part(8, c, 4, 0, 100, "a", 4, 2));
  take(weights, Part(10, b, 4, 0, 200, "b", 4, 2));
  const PoolSnapshot& model = weights.model();
  EXPECT_EQ(model.step, 8);
  EXPECT_EQ(model.tensors, 2u);
  ASSERT_TRUE(model.previous && model.previous_max && model.rms && model.update_mean_abs);
  auto before = wide(a), after = wide(c);
  for (float value : b) {
    before.push_back(value);
    after.push_back(value);
  }
  // 2^20 bins: the value lies within the width of the bins, 2^-11 relative to |w| of 0.02 mostly.
  EXPECT_NEAR(model.previous->value, test::wasserstein(before, after), 1e-5);
  EXPECT_DOUBLE_EQ(*model.update_mean_abs, 0.5);
  EXPECT_EQ(weights.layers().at("000").previous_max, model.previous_max);
  EXPECT_NEAR(*model.previous_max, test::wasserstein(wide(a), wide(c)), 1e-5);
}

TEST(Weights, AHistogramThatDoesNotHoldItsValuesIsRefused) {
  Weights weights;
  Part part(1, normal(400, 14), 4, 0, 100);
  part.view().payload[segment::kTensorHistogram] = part.view().payload[segment::kTensorHistogram].first(20);
  const char* why = nullptr;
  EXPECT_TRUE(weights.add(part.view(), rank_of(0), 1, &why).empty());
  EXPECT_NE(why, nullptr);
  EXPECT_EQ(take(weights, Part(1, normal(400, 14), 4, 0, 100)).size(), 1u) << "nothing of it is left";
}

TEST(Weights, TheOptimizerOfPartsIsJoinedAndThatOfReplicasCountsOnce) {
  const auto values = normal(400, 7);
  Weights sharded;
  take(sharded, Part(4, values, 4, 0, 60).with_optimizer(300), 0, 2);
  const auto joined = take(sharded, Part(4, values, 4, 60, 40).with_optimizer(100), 1, 2);
  ASSERT_EQ(joined.size(), 1u);
  ASSERT_TRUE(joined[0].optimizer);
  EXPECT_DOUBLE_EQ(*joined[0].optimizer->rms_staleness(), 1);
  EXPECT_DOUBLE_EQ(*joined[0].optimizer->epsilon_dominated_ratio(), 2. / 400);
  EXPECT_EQ(joined[0].optimizer->values[segment::kSeenBeta2], 0.95);
  EXPECT_DOUBLE_EQ(*sharded.optimizer().summary()->pooled.rms_staleness(), 1);

  Weights replicated;
  const auto first = take(replicated, Part(4, values, 4, 0, 100).with_optimizer(1600), 0, 2);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(take(replicated, Part(4, values, 4, 0, 100).with_optimizer(1600), 1, 2).empty());
  EXPECT_DOUBLE_EQ(*replicated.optimizer().summary()->pooled.rms_staleness(), 2);
  EXPECT_DOUBLE_EQ(replicated.optimizer().summary()->pooled.values[segment::kMomentElements], 400);

  // A part that says nothing of its optimizer leaves the tensor's unknown.
  Weights silent;
  take(silent, Part(4, values, 4, 0, 60).with_optimizer(300), 0, 2);
  const auto half = take(silent, Part(4, values, 4, 60, 40), 1, 2);
  ASSERT_TRUE(half[0].optimizer);
  EXPECT_FALSE(half[0].optimizer->rms_staleness());
}

TEST(Weights, ARefusedRecordLeavesNothingBehind) {
  Weights weights;
  const auto values = normal(400, 24);
  take(weights, Part(1, values, 4, 0, 60), 0, 2);
  Part overlapping(1, values, 4, 30, 70), other_whole(1, normal(800, 25), 4, 60, 40);
  for (Part* part : {&overlapping, &other_whole}) {
    const char* why = nullptr;
    EXPECT_TRUE(weights.add(part->view(), rank_of(1), 2, &why).empty());
    EXPECT_NE(why, nullptr);
  }
  const auto done = take(weights, Part(1, values, 4, 60, 40), 1, 2);
  ASSERT_EQ(done.size(), 1u) << "what came before is still there";
  EXPECT_EQ(done[0].elements, 400u);
  EXPECT_EQ(weights.known_tensors(), 1u);
  Part broken(2, values, 4, 0, 100, "broken");
  broken.view().payload[segment::kTensorHistogram] = {};
  const char* why = nullptr;
  EXPECT_TRUE(weights.add(broken.view(), rank_of(0), 2, &why).empty());
  EXPECT_EQ(weights.known_tensors(), 1u);
}

// Whatever the parser lets through: steps and intervals at their ends, tensors that change their layer, their
// shape and their rank, in any order. Under the sanitizers this finds what no other test asks.
TEST(Weights, AnyRecordsThatTheParserLetsThroughAreTaken) {
  std::mt19937 random(26);
  const auto one_of = [&random](const auto& choices) { return choices[random() % std::size(choices)]; };
  const int64_t steps[] = {0, 1, 2, 3, 64, 65, int64_t{1} << 32, (int64_t{1} << 62) - 1};
  // Mostly upwards: a run that goes back begins anew.
  const auto next_step = [&](int n) { return random() % 50 == 0 ? one_of(steps) : steps[n / 50 % 8]; };
  const uint64_t intervals[] = {1, 2, 64, uint64_t{1} << 32};
  const char* const names[] = {"a", "b", "c"};
  const char* const layers[] = {"", "000", "001"};
  const auto values = normal(8, 27);
  Weights weights(1 << 16);
  size_t taken = 0;
  for (int n = 0; n < 20000; ++n) {
    const size_t first = random() % 3;
    Part part(next_step(n), values, 2, first, 1 + random() % (4 - first), one_of(names), one_of(intervals),
              1 + random() % 3, segment::HistogramForm::kValues);
    TensorRecord& record = part.view().record;
    std::strcpy(record.layer, one_of(layers));
    record.time_ns = random() % 100 * 1000000000;
    record.checksum = random() % 2;
    record.snapshot = random() % 3;
    segment::Identity identity = rank_of(static_cast<int>(random() % 4));
    identity.world_size = static_cast<int>(random() % 4);
    identity.tensor_parallel = static_cast<int>(random() % 3) - 1;
    identity.start_time_ns = random() % 1000 == 0 ? random() % 100 * 1000000000 : 0;
    const char* why = nullptr;
    taken += weights.add(part.view(), identity, 1 + random() % 4, &why).size();
    if (n % 100 == 0) weights.completed();
    ASSERT_LE(weights.pending_bytes(), (1u << 16) / 4);
  }
  EXPECT_GT(taken, 50u);
}

}  // namespace
}  // namespace foreshock
