#include "libmonitor/guest.h"

#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {
namespace {

using Guest = MonitorTest;

foreshock_identity identity(int rank) {
  foreshock_identity identity = {};
  identity.size = sizeof identity;
  identity.version = FORESHOCK_ABI_VERSION;
  identity.rank = rank;
  identity.world_size = 8;
  identity.local_rank = identity.attempt = -1;
  identity.data_parallel = 3;
  identity.tensor_parallel = identity.pipeline_parallel = identity.expert_parallel = -1;
  identity.framework = "test 1";
  return identity;
}

TEST_F(Guest, WhatIsToldBeforeTheSegmentDecidesItsRank) {
  in_child({{"RANK", "1"}}, [] {
    const foreshock_identity told = identity(5);
    foreshock_describe(&told);
    Trainer().step(1, 2);
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->name().starts_with("5-"));
  const segment::Identity found = reader->identity();
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.attempt, 0);
  EXPECT_EQ(found.late_ready, 1u);
  EXPECT_EQ(found.data_parallel, 3);
  EXPECT_STREQ(found.framework, "test 1");
}

TEST_F(Guest, LateFactsAreShownWithTheStepAfterThem) {
  in_child({}, [this] {
    Trainer trainer;
    trainer.attention(false, FORESHOCK_NEEDS_GRADIENT);
    const foreshock_identity told = identity(-1);
    foreshock_describe(&told);
    EXPECT_EQ(open()->identity().late_ready, 0u);
    trainer.step(1, 2);
    EXPECT_EQ(open()->identity().late_ready, 1u);
    EXPECT_EQ(open()->identity().data_parallel, 3);
  });
}

TEST_F(Guest, AChildIsNotWhatItsParentWasToldToBe) {
  in_child({{"RANK", "1"}}, [this] {
    const foreshock_identity told = identity(5);
    foreshock_describe(&told);
    in_child({{"RANK", "2"}}, [] { Trainer().step(1, 2); });
  });
  auto reader = open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->identity().rank, 2);
  EXPECT_EQ(reader->identity().late_ready, 0u);
}

}  // namespace
}  // namespace foreshock
