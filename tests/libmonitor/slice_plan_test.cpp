#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "libmonitor/call.h"
#include "segment/reader.h"
#include "tests/libmonitor/call_on_tensors.h"
#include "tests/libmonitor/written_slots.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

using Call = CallOnTensors;

TEST(SlicePlan, PartsJoinedAreTheSliceByteForByte) {
  for (int kind = 0; kind < 4; ++kind) {
    Call call;
    call.queries = call.keys = 500;
    call.build(kind % 2 == 1);
    if (kind >= 2) add_mask(&call);
    ValidatedCall checked;
    ASSERT_EQ(validate_call(call.call, kind % 2, &checked), -1);
    const Slice slice = choose_slice(checked.shape, 3, 5, 7, 0);
    Slice kept = slice;
    SlicePlan plan;
    const size_t whole_bytes = slot_bytes_for(checked);
    ASSERT_TRUE(plan_slice(checked, whole_bytes, 1, &kept, &plan));
    const std::vector<char> whole_slot = written(checked, slice, plan, 0, whole_bytes);
    const segment::SlotView whole = parsed(whole_slot);
    size_t most_parts = 0;
    for (size_t capacity = sizeof(segment::Slot); capacity < whole_bytes;
         capacity += 64 * test::kVariationStep) {
      kept = slice;
      if (!plan_slice(checked, capacity, segment::kMaxSlots, &kept, &plan) || plan.slots == 1 ||
          kept.rows() < slice.rows())
        continue;
      most_parts = std::max<size_t>(most_parts, plan.slots);
      segment::JoinedSlice joined;
      for (uint32_t part = 0; part < plan.slots; ++part) {
        const std::vector<char> bytes = written(checked, slice, plan, part, capacity);
        const segment::SlotView view = parsed(bytes);
        const char* why = part == 0 ? joined.begin(view, whole_bytes) : joined.add(view);
        ASSERT_EQ(why, nullptr) << why;
      }
      ASSERT_TRUE(joined.is_whole());
      const segment::SlotView view = joined.take();
      EXPECT_EQ(view.header.keys, whole.header.keys);
      EXPECT_EQ(view.header.parts, 0u);
      for (uint32_t id = 0; id < segment::kPayloads; ++id)
        ASSERT_TRUE(std::ranges::equal(view.payload[id], whole.payload[id])) << capacity << " " << id;
    }
    EXPECT_GE(most_parts, 10u);
  }
}

TEST(SlicePlan, WhereTheFurthestRowsDoNotFitTheOthersStay) {
  Call call;
  call.queries = call.keys = 640;
  call.build(false);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call.call, 0, &checked), -1);
  Slice slice = choose_slice(checked.shape, 3, 5, 7, 0);
  const int all = slice.positions;
  ASSERT_EQ(all, 8);  // two heads of one kv-head, eight positions, one in each eighth
  SlicePlan plan;
  ASSERT_TRUE(plan_slice(checked, sizeof(segment::Slot) + 4096 + 320 * 2 * 6 * 4, 1, &slice, &plan));
  EXPECT_LT(slice.positions, all);
  EXPECT_GE(slice.positions, 3);
  EXPECT_EQ(plan.header.rows, 2u * slice.positions);
  EXPECT_EQ(plan.header.keys, slice.position[slice.positions - 1] + 1);
  EXPECT_EQ(plan.header.head[slice.positions], plan.header.head[0] + 1);
}

TEST(SlicePlan, WhatCannotFitIsRefused) {
  Call call;
  call.build(false);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call.call, 0, &checked), -1);
  Slice slice = choose_slice(checked.shape, 1, 1, 1, 0);
  SlicePlan plan;
  EXPECT_FALSE(plan_slice(checked, sizeof(segment::Slot), 60, &slice, &plan));
  add_mask(&call);  // every row sees every key: fewer rows are no help
  ASSERT_EQ(validate_call(call.call, 0, &checked), -1);
  slice = choose_slice(checked.shape, 1, 1, 1, 0);
  EXPECT_FALSE(plan_slice(checked, 1024, 1, &slice, &plan));
}

}  // namespace
}  // namespace foreshock
