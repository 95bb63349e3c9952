#include "agent/replicas.h"

#include <gtest/gtest.h>

#include <cstring>

namespace foreshock {
namespace {

using Odd = std::vector<int32_t>;

// Four ranks, 0 and 2 hold one half of a tensor, 1 and 3 the other.
Odd show(Replicas& replicas, int rank, int64_t step, uint64_t checksum, const char* name = "w") {
  segment::Identity identity = {};
  identity.rank = rank;
  identity.late_ready = 1;
  segment::TensorRecord record = {};
  record.step = step;
  record.interval = 1;
  record.tensors = 1;
  record.checksum = checksum;
  for (int n = 0; n < 4; ++n) record.shape[n] = record.part[n] = 1;
  record.shape[0] = 2;
  record.offset[0] = rank % 2;
  std::strcpy(record.name, name);
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
  EXPECT_EQ(replicas.compared(), 2u * 6);
}

TEST(Replicas, RanksMayBeReadOneAfterTheOther) {
  Replicas replicas;
  for (int rank = 0; rank < 4; ++rank)
    for (int64_t step = 1; step <= 20; ++step) EXPECT_EQ(show(replicas, rank, step, 1), Odd());
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(show(replicas, rank, 21, rank == 2 ? 2 : 1), rank == 2 ? (Odd{0, 2}) : Odd());
  EXPECT_EQ(replicas.most_ranks(), 2u);
  EXPECT_EQ(replicas.compared(), 2u * 21);
}

TEST(Replicas, ASnapshotThatWasLeftOutHoldsNothingUp) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 4; ++rank)
      if (step != 3 || rank != 2) show(replicas, rank, step, 1);
  EXPECT_EQ(replicas.compared(), 2u * 6 - 1);
  EXPECT_EQ(show(replicas, 0, 7, 1), Odd());
  EXPECT_EQ(show(replicas, 2, 7, 2), (Odd{0, 2}));
}

TEST(Replicas, AFullShardHasNone) {
  Replicas replicas;
  for (int64_t step = 1; step <= 6; ++step)
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(show(replicas, rank, step, static_cast<uint64_t>(rank)), Odd());
  EXPECT_EQ(replicas.compared(), 0u);
  EXPECT_EQ(replicas.most_ranks(), 0u);
}

}  // namespace
}  // namespace foreshock
