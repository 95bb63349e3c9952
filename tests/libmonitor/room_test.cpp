#include "libmonitor/room.h"

#include <gtest/gtest.h>

#include "segment/layout.h"

namespace foreshock {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Room, ATenthDividedByTheRanks) {
  EXPECT_EQ(allowed_share(1000 * kMiB, 64 * kMiB, 1), 64 * kMiB);
  EXPECT_EQ(allowed_share(1000 * kMiB, 64 * kMiB, 8), 1000 * kMiB / 80);
  EXPECT_EQ(allowed_share(64 * kMiB, 64 * kMiB, 1), 64 * kMiB / 10);
  EXPECT_EQ(allowed_share(0, 64 * kMiB, 0), 0u);
}

TEST(Room, SlotsAreAsManyAsUsefulThenLarger) {
  EXPECT_EQ(plan_slots(kMiB / 8, kMiB / 8).slots, 0u);  // one slot is none
  EXPECT_EQ(plan_slots(kMiB / 4, kMiB / 16).slots, 4u);
  EXPECT_EQ(plan_slots(8 * kMiB, kMiB).slots, 8u);
  const SlotPlan roomy = plan_slots(1000 * kMiB, kMiB);
  EXPECT_EQ(roomy.slots, segment::kMaxSlots);
  EXPECT_EQ(roomy.slot_bytes, 2 * kMiB);
  EXPECT_EQ(plan_slots(64 * kMiB, 0).slots, 0u);
}

TEST(Room, WhereFewSlicesFitASliceTakesSeveralSlots) {
  for (uint64_t need : {9 * kMiB, 40 * kMiB, 100 * kMiB}) {
    const SlotPlan plan = plan_slots(64 * kMiB, need);
    EXPECT_EQ(plan.slots, 32u);
    EXPECT_EQ(plan.slot_bytes, 2 * kMiB);
  }
  EXPECT_EQ(plan_slots(kMiB, 100 * kMiB).slots, 4u);  // not below 256 KiB
  EXPECT_EQ(plan_slots(kMiB / 4, 100 * kMiB).slots, 0u);
}

TEST(Room, OnlyMemoryCounts) {
  EXPECT_EQ(free_shared_memory("/proc"), 0u);
  EXPECT_EQ(free_shared_memory("/no/such/directory"), 0u);
  EXPECT_FALSE(is_on_tmpfs("/proc"));
  EXPECT_FALSE(is_on_tmpfs("/no/such/directory"));
}

}  // namespace
}  // namespace foreshock
