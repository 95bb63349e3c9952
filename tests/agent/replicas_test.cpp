#include "agent/replicas.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace foreshock {
namespace {

using Odd = std::vector<int32_t>;

// A whole tensor of one element at each step; one of `tensors` that a rank shows.
segment::TensorRecord record_of(const std::string& name, int64_t step, uint64_t checksum, uint32_t tensors) {
  segment::TensorRecord record = {};
  record.step = step;
  record.interval = 1;
  record.tensors = tensors;
  record.checksum = checksum;
  for (int n = 0; n < 4; ++n) record.shape[n] = record.part[n] = 1;
  std::strcpy(record.name, name.c_str());
  return record;
}

// Four ranks, 0 and 2 hold one half of a tensor, 1 and 3 the other.
Odd show(Replicas& replicas, int rank, int64_t step, uint64_t checksum, const char* name = "w") {
  segment::Identity identity = {};
  identity.rank = rank;
  identity.late_ready = 1;
  segment::TensorRecord record = record_of(name, step, checksum, 1);
  record.shape[0] = 2;
  record.offset[0] = rank % 2;
  return replicas.add(record, identity, 4);
}

TEST(Replicas, OfShardsAreComparedAmongThoseThatHoldThem) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 4; ++rank) {
      const bool is_odd = step == 5 && rank == 3;
      const Odd odd = show(replicas, rank, step, is_odd ? 9 : 7 + static_cast<uint64_t>(rank % 2));
      EXPECT_EQ(odd, is_odd ? (Odd{1, 3}) : Odd()) << "at once; of two nobody knows which";
    }
  EXPECT_EQ(replicas.most_ranks(), 2u);
  EXPECT_EQ(replicas.mismatches(1), 1u);
  EXPECT_EQ(replicas.mismatches(0), 0u);
  EXPECT_EQ(replicas.comparisons(), 2u * 6);
}

TEST(Replicas, RanksMayBeReadOneAfterTheOther) {
  Replicas replicas;
  for (int rank = 0; rank < 4; ++rank)
    for (int64_t step = 1; step <= 20; ++step) EXPECT_EQ(show(replicas, rank, step, 1), Odd());
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(show(replicas, rank, 21, rank == 2 ? 2 : 1), rank == 2 ? (Odd{0, 2}) : Odd());
  EXPECT_EQ(replicas.most_ranks(), 2u);
  EXPECT_EQ(replicas.comparisons(), 2u * 21);
}

TEST(Replicas, ASnapshotThatWasLeftOutHoldsNothingUp) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 4; ++rank)
      if (step != 3 || rank != 2) show(replicas, rank, step, 1);
  EXPECT_EQ(replicas.comparisons(), 2u * 6 - 1);
  EXPECT_EQ(show(replicas, 0, 7, 1), Odd());
  EXPECT_EQ(show(replicas, 2, 7, 2), (Odd{0, 2}));
}

TEST(Replicas, AFullShardHasNone) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(show(replicas, rank, step, static_cast<uint64_t>(rank)), Odd());
  EXPECT_EQ(replicas.comparisons(), 0u);
  EXPECT_EQ(replicas.most_ranks(), 0u);
}

TEST(Replicas, WhatARankShowsFirstOfAStepStays) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(show(replicas, rank, step, 1), Odd());
      EXPECT_EQ(show(replicas, rank, step, 2), Odd()) << "the step's number stood still";
    }
  EXPECT_EQ(replicas.comparisons(), 2u * 6);
}

TEST(Replicas, RanksThatNumberTheirStepsInOtherWaysAreNotCompared) {
  Replicas replicas;
  const auto show_from = [&](int rank, int64_t step, uint32_t source) {
    segment::Identity identity = {};
    identity.rank = rank;
    identity.late_ready = 1;
    segment::TensorRecord record = {};
    record.step = step;
    record.interval = record.tensors = 1;
    record.step_source = source;
    record.checksum = static_cast<uint64_t>(100 * rank + step);
    return replicas.add(record, identity, 2);
  };
  for (int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(show_from(0, step, 1), Odd());
    EXPECT_EQ(show_from(1, step, 2), Odd());
  }
  EXPECT_EQ(replicas.comparisons(), 0u);
  ASSERT_TRUE(replicas.checksum_of(0) && replicas.checksum_of(1));
  EXPECT_NE(replicas.checksum_of(0)->group, replicas.checksum_of(1)->group) << "nor by another node's reader";
  show_from(0, 7, 2);
  EXPECT_EQ(show_from(1, 7, 2), (Odd{0, 1}));
}

TEST(Replicas, OneThatBeginsLateIsWaitedForFromThenOn) {
  Replicas replicas;
  const auto show_whole = [&](int rank, int64_t step, uint64_t checksum) {
    segment::Identity identity = {};
    identity.rank = rank;
    identity.late_ready = 1;
    segment::TensorRecord record = {};
    record.step = step;
    record.interval = record.tensors = 1;
    record.checksum = checksum;
    return replicas.add(record, identity, 3);
  };
  const int64_t late = Replicas::kMostOpen + 5;
  for (int64_t step = 1; step <= late; ++step)
    for (int rank = 0; rank < 2; ++rank) show_whole(rank, step, 1);
  EXPECT_GT(replicas.comparisons(), 0u) << "the third is not waited for";
  show_whole(2, late, 2);
  EXPECT_EQ(show_whole(0, late + 1, 1), Odd());
  EXPECT_EQ(show_whole(1, late + 1, 1), Odd());
  EXPECT_EQ(show_whole(2, late + 1, 2), Odd{2});
}

TEST(Replicas, ATensorThatIsNeverShownKeepsNobodyFromBeingCompared) {
  Replicas replicas;
  const auto show_two_of_three = [&](int rank, int64_t window, bool all) {
    segment::Identity identity = {};
    identity.rank = rank;
    identity.late_ready = 1;
    for (const char* name : {"a", "b"}) {
      if (!all && name[0] == 'b') continue;
      segment::TensorRecord record = {};
      record.step = 8 * window + (name[0] == 'b' ? 1 : 0);
      record.interval = 8;
      record.tensors = 3;
      record.checksum = static_cast<uint64_t>(window);
      std::strcpy(record.name, name);
      replicas.add(record, identity, 2);
    }
  };
  for (int rank = 0; rank < 2; ++rank) {
    show_two_of_three(rank, 1, true);
    show_two_of_three(rank, 2, true);
    EXPECT_EQ(replicas.checksum_of(rank), nullptr) << "more may come in this interval";
    show_two_of_three(rank, 3, true);
    ASSERT_NE(replicas.checksum_of(rank), nullptr);
    EXPECT_EQ(replicas.checksum_of(rank)->step, 16);
  }
  EXPECT_EQ(replicas.checksum_of(0)->group, replicas.checksum_of(1)->group);
  EXPECT_EQ(replicas.checksum_of(0)->checksum, replicas.checksum_of(1)->checksum);
  show_two_of_three(0, 4, false);
  EXPECT_EQ(replicas.checksum_of(0)->step, 24);
  show_two_of_three(0, 5, true);
  EXPECT_EQ(replicas.checksum_of(0)->step, 24) << "of 32 on there was no room for one";
}

// Whole tensor `name` of one of two ranks of a job whose coordinates are not known.
Odd show_own(Replicas& replicas, int rank, int64_t step, uint64_t checksum, const std::string& name = "w") {
  segment::Identity identity = {};
  identity.rank = rank;
  return replicas.add(record_of("rank" + std::to_string(rank) + "." + name, step, checksum, 2), identity, 2);
}

TEST(Replicas, ThoseKeptEqualByHandAreRecognisedAndThenCompared) {
  Replicas replicas;
  for (int64_t step = 1; step <= 4; ++step)
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(show_own(replicas, rank, step, static_cast<uint64_t>(step)), Odd());
  EXPECT_EQ(replicas.tensors_compared(), 1u);
  EXPECT_TRUE(replicas.coverage().own.empty());
  EXPECT_EQ(replicas.coverage().by_hand, 1u);
  EXPECT_EQ(replicas.coverage().most_on_a_rank, 0u);
  show_own(replicas, 0, 5, 5);
  EXPECT_EQ(show_own(replicas, 1, 5, 99), (Odd{0, 1}));
}

TEST(Replicas, TensorsThatDoNotChangeAreEqualByChance) {
  Replicas replicas;
  for (int64_t step = 1; step <= 9; ++step)
    for (int rank = 0; rank < 2; ++rank) show_own(replicas, rank, step, 7);
  EXPECT_EQ(replicas.comparisons(), 0u);
  EXPECT_EQ(replicas.coverage().maybe_replicas, 1u);
  show_own(replicas, 0, 10, 8);
  EXPECT_EQ(show_own(replicas, 1, 10, 9), Odd());
}

TEST(Replicas, TensorsOfARankThatOnceDifferedAreItsOwn) {
  Replicas replicas;
  for (int64_t step = 1; step <= 9; ++step)
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(show_own(replicas, rank, step, static_cast<uint64_t>(step == 2 ? rank : step)), Odd());
  EXPECT_EQ(replicas.comparisons(), 0u);
  EXPECT_EQ(replicas.coverage().own, std::vector<std::string>{"w"});
  EXPECT_EQ(replicas.coverage().most_on_a_rank, 1u);
}

TEST(Replicas, TensorsThatWereNeverComparedAreNamed) {
  Replicas replicas;
  show(replicas, 0, 1, 7, "of one rank");
  for (int64_t step = 1; step <= 3; ++step)
    for (int rank = 0; rank < 4; ++rank) show(replicas, rank, step, 7, "seen");
  EXPECT_EQ(replicas.tensors_compared(), 1u);
  EXPECT_EQ(replicas.coverage().never, std::vector<std::string>{"of one rank"});
}

}  // namespace
}  // namespace foreshock
