#include "agent/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "agent/weight_lines.h"
#include "kernels/checksum.h"
#include "kernels/histogram.h"
#include "kernels/packed_counters.h"
#include "lab/wasserstein.h"

namespace foreshock {
namespace {

using segment::TensorRecord;
using segment::TensorView;

segment::Identity rank_of(int rank) {
  segment::Identity identity = {};
  identity.rank = identity.data_parallel = rank;
  identity.late_ready = 1;
  return identity;
}

// Rows [first, first + count) of a tensor of `columns` columns, as a trainer writes them.
class Part {
 public:
  Part(int64_t step, const std::vector<float>& whole, size_t columns, size_t first, size_t rows,
       const char* name = "w", uint64_t interval = 1, uint32_t tensors = 1,
       segment::HistogramForm form = segment::HistogramForm::kBins) {
    TensorRecord& record = view_.record;
    record = {};
    record.kind = segment::TensorKind::kSnapshot;
    record.step = step;
    record.interval = interval;
    record.snapshot = 1;
    record.tensors = tensors;
    record.dims = 2;
    record.dtype = 2;
    for (int n = 0; n < 4; ++n) record.shape[n] = record.part[n] = 1;
    record.shape[0] = static_cast<int64_t>(whole.size() / columns);
    record.part[0] = static_cast<int64_t>(rows);
    record.offset[0] = static_cast<int64_t>(first);
    record.shape[1] = record.part[1] = static_cast<int64_t>(columns);
    record.elements = rows * columns;
    record.form = form;
    std::strcpy(record.name, name);
    std::strcpy(record.layer, "000");
    const float* values = whole.data() + first * columns;
    record.checksum = checksum(values, record.elements * sizeof(float));
    fill_histogram(values);
    reductions_ = {0, 0.5 * static_cast<double>(record.elements), 0, 0.75};
    for (size_t n = 0; n < record.elements; ++n) reductions_[0] += double{values[n]} * double{values[n]};
    view_.payload[segment::kTensorHistogram] = std::as_bytes(std::span(histogram_));
    view_.payload[segment::kTensorReductions] = std::as_bytes(std::span(reductions_));
  }
  // The change is known of so many values alone; 0: of none.
  Part& with_update_of(double elements, double sum) {
    reductions_.resize(segment::kTensorReductionCount, std::nan(""));
    if (elements == 0) reductions_[1] = reductions_[2] = reductions_[3] = std::nan("");
    if (elements > 0) reductions_[1] = sum;
    reductions_[segment::kUpdateElements] = elements;
    view_.payload[segment::kTensorReductions] = std::as_bytes(std::span(reductions_));
    return *this;
  }
  Part& with_optimizer(double staleness) {
    optimizer_.assign(segment::kOptimizerNumbers, std::nan(""));
    optimizer_[segment::kMomentElements] = static_cast<double>(view_.record.elements);
    optimizer_[segment::kStalenessSum] = staleness;
    optimizer_[segment::kEpsilonDominated] = 1;
    optimizer_[segment::kSeenBeta2] = 0.95;
    view_.payload[segment::kTensorOptimizer] = std::as_bytes(std::span(optimizer_));
    return *this;
  }
  TensorView& view() { return view_; }

 private:
  void fill_histogram(const float* values) {
    const size_t bytes = view_.record.elements * sizeof(float);
    if (view_.record.form == segment::HistogramForm::kValues) {
      histogram_.resize(bytes);
      std::memcpy(histogram_.data(), values, bytes);
      return;
    }
    std::vector<uint64_t> words(kBinWords);
    count_bins(values, view_.record.elements, words.data());
    histogram_.resize(1 << 20);
    histogram_.resize(pack_bins(words.data(), histogram_.data(), histogram_.size()));
  }

  std::vector<char> histogram_;
  std::vector<double> reductions_, optimizer_;
  TensorView view_;
};

std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> law(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = law(random);
  return values;
}

std::vector<double> wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::vector<TensorSnapshot> take(Weights& weights, Part part, int rank = 0, size_t ranks = 1) {
  const char* why = nullptr;
  auto done = weights.take(part.view(), rank_of(rank), ranks, &why);
  EXPECT_EQ(why, nullptr) << why;
  return done;
}

TEST(Weights, TheDistanceToTheSnapshotBeforeAndToTheFirstIsW1) {
  Weights weights;
  const auto a = normal(5000, 1), b = normal(5000, 2), c = normal(5000, 3);
  EXPECT_FALSE(take(weights, Part(1, a, 50, 0, 100))[0].previous) << "there is none";
  const auto second = take(weights, Part(2, b, 50, 0, 100))[0];
  ASSERT_TRUE(second.previous && second.initial);
  const double ab = lab::wasserstein(wide(a), wide(b)), ac = lab::wasserstein(wide(a), wide(c)),
               bc = lab::wasserstein(wide(b), wide(c));
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
  EXPECT_EQ(sharded.replicas().compared(), 0u) << "parts are no replicas";
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
  EXPECT_EQ(weights.replicas().compared(), 4u);
  // What other nodes compare by.
  const auto *zero = weights.replicas().of(0), *one = weights.replicas().of(1),
             *two = weights.replicas().of(2);
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
  EXPECT_NEAR(model.previous->value, lab::wasserstein(before, after), 1e-5);
  EXPECT_DOUBLE_EQ(*model.update_mean_abs, 0.5);
  EXPECT_EQ(weights.layers().at("000").previous_max, model.previous_max);
  EXPECT_NEAR(*model.previous_max, lab::wasserstein(wide(a), wide(c)), 1e-5);
}

TEST(Weights, AfterARestartStepsMayRepeat) {
  Weights weights;
  const auto values = normal(400, 15);
  const auto take_of = [&](int64_t step, uint64_t started) {
    Part part(step, values, 4, 0, 100);
    part.view().record.time_ns = started + 10;
    segment::Identity identity = rank_of(0);
    identity.start_time_ns = started;
    const char* why = nullptr;
    return weights.take(part.view(), identity, 1, &why);
  };
  EXPECT_EQ(take_of(8, 100).size(), 1u);
  EXPECT_EQ(take_of(9, 100).size(), 1u);
  const auto again = take_of(8, 500);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_FALSE(again[0].previous);
  EXPECT_TRUE(take_of(9, 500)[0].previous);
}

TEST(Weights, ARankThatBeginsLateIsNoRestart) {
  Weights weights;
  const auto take_of = [&](int rank, int64_t step, uint64_t started, const char* name) {
    Part part(step, normal(400, 16), 4, 0, 100, name);
    part.view().record.time_ns = started + static_cast<uint64_t>(step);
    segment::Identity identity = rank_of(rank);
    identity.start_time_ns = started;
    const char* why = nullptr;
    return weights.take(part.view(), identity, 2, &why);
  };
  take_of(0, 1, 100, "a");
  take_of(1, 1, 500, "b");
  EXPECT_TRUE(take_of(0, 2, 100, "a").at(0).previous);
  EXPECT_TRUE(take_of(1, 2, 500, "b").at(0).previous);
  EXPECT_FALSE(take_of(0, 3, 600, "a").at(0).previous) << "this one has started again";
  EXPECT_FALSE(take_of(1, 3, 600, "b").at(0).previous);
  EXPECT_TRUE(take_of(0, 4, 600, "a").at(0).previous);
}

TEST(Weights, AHistogramThatDoesNotHoldItsValuesIsRefused) {
  Weights weights;
  Part part(1, normal(400, 14), 4, 0, 100);
  part.view().payload[segment::kTensorHistogram] = part.view().payload[segment::kTensorHistogram].first(20);
  const char* why = nullptr;
  EXPECT_TRUE(weights.take(part.view(), rank_of(0), 1, &why).empty());
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
      const auto done = weights.take(part.view(), identity, 2, &why);
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].key.rank, rank);
      if (step > 1) {
        EXPECT_EQ(done[0].previous->value, 0);
      }
    }
  EXPECT_EQ(weights.replicas().compared(), 0u);
  EXPECT_EQ(weights.model().tensors, 2u);
}

std::vector<TensorSnapshot> take_at(Weights& weights, Part part, int rank, size_t ranks, double seconds) {
  part.view().record.time_ns = static_cast<uint64_t>(1e9 * seconds);
  return take(weights, std::move(part), rank, ranks);
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

TEST(Weights, ARefusedRecordLeavesNothingBehind) {
  Weights weights;
  const auto values = normal(400, 24);
  take(weights, Part(1, values, 4, 0, 60), 0, 2);
  Part overlapping(1, values, 4, 30, 70), other_whole(1, normal(800, 25), 4, 60, 40);
  for (Part* part : {&overlapping, &other_whole}) {
    const char* why = nullptr;
    EXPECT_TRUE(weights.take(part->view(), rank_of(1), 2, &why).empty());
    EXPECT_NE(why, nullptr);
  }
  const auto done = take(weights, Part(1, values, 4, 60, 40), 1, 2);
  ASSERT_EQ(done.size(), 1u) << "what came before is still there";
  EXPECT_EQ(done[0].elements, 400u);
  EXPECT_EQ(weights.known_tensors(), 1u);
  Part broken(2, values, 4, 0, 100, "broken");
  broken.view().payload[segment::kTensorHistogram] = {};
  const char* why = nullptr;
  EXPECT_TRUE(weights.take(broken.view(), rank_of(0), 2, &why).empty());
  EXPECT_EQ(weights.known_tensors(), 1u);
}

// One tensor over time, one number of it at each step.
std::vector<TensorSnapshot> take_timed(Weights& weights, int rank, size_t ranks, int64_t step, double seconds,
                                       uint64_t snapshot = 2, size_t first = 0, size_t rows = 100) {
  static const auto values = normal(400, 31);
  Part part(step, values, 4, first, rows);
  part.view().record.time_ns = static_cast<uint64_t>(1e9 * seconds);
  part.view().record.snapshot = snapshot;
  return take(weights, std::move(part), rank, ranks);
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
  const uint64_t compared = weights.replicas().compared();
  take_timed(weights, 0, 2, 41, 41);
  take_timed(weights, 1, 2, 41, 41);
  EXPECT_EQ(weights.replicas().compared(), compared + 1);
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
      EXPECT_EQ(weights.take(part.view(), identity, 2, &why).size(), 1u);
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
  for (int64_t step = 1; step <= 200; ++step) {
    Part part(step, values, 40, 0, 100, "a");
    segment::Identity identity = rank_of(0);
    const char* why = nullptr;
    if (step == 1) {
      Part other(step, values, 40, 0, 100, "b");
      identity.rank = 1;
      weights.take(other.view(), identity, 2, &why);
      identity.rank = 0;
    }
    const auto done = weights.take(part.view(), identity, 2, &why);
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
  return weights.take(part.view(), identity, 1, &why);
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
    taken += weights.take(part.view(), identity, 1 + random() % 4, &why).size();
    if (n % 100 == 0) weights.completed();
    ASSERT_LE(weights.pending_bytes(), (1u << 16) / 4);
  }
  EXPECT_GT(taken, 50u);
}

}  // namespace
}  // namespace foreshock
