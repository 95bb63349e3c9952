#include <gtest/gtest.h>

#include <cstddef>
#include <set>

#include "libmonitor/call.h"
#include "tests/libmonitor/call_on_tensors.h"
#include "tests/libmonitor/packed_tensors.h"

namespace foreshock {
namespace {

const std::vector<int32_t> kQueries = {7, 1, 0, 30, 12}, kKeys = {9, 1, 4, 30, 15};

int check(const foreshock_attention_call& call, uint32_t pass = 0) {
  ValidatedCall checked;
  return validate_call(call, pass, &checked);
}

TEST(PackedCall, IsPlannedByTheLongest) {
  for (const bool by_sequence : {false, true}) {
    PackedTensors tensors;
    tensors.lse_by_sequence = by_sequence;
    tensors.build(kQueries, kKeys, true);
    tensors.call.causal = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
    ValidatedCall checked;
    ASSERT_EQ(validate_call(tensors.call, FORESHOCK_BACKWARD, &checked), -1);
    EXPECT_EQ(checked.shape.batch, 1);
    EXPECT_EQ(checked.shape.heads, 4);
    EXPECT_EQ(checked.shape.kv_heads, 2);
    EXPECT_EQ(checked.shape.queries, 30);
    EXPECT_EQ(checked.shape.keys, 30);
    EXPECT_EQ(checked.head_dim, 6);
    EXPECT_EQ(checked.packed.count, 5u);
    EXPECT_EQ(checked.packed.queries, 50u);
    EXPECT_EQ(checked.packed.keys, 59u);
    EXPECT_EQ(checked.lse_by_sequence, by_sequence);
    EXPECT_EQ(checked.window.is_bottom_right, 1u);
    // Who tells more than there is plans for what there is.
    tensors.call.longest_query = tensors.call.longest_key = 1 << 20;
    if (by_sequence) tensors.call.log_sum_exp = {};
    ASSERT_EQ(validate_call(tensors.call, FORESHOCK_BACKWARD, &checked), -1);
    EXPECT_EQ(checked.shape.queries, 50);
    EXPECT_EQ(checked.shape.keys, 59);
  }
}

TEST(PackedCall, WithOffsetsOfItsOwnQueriesBothCornersAreOne) {
  PackedTensors tensors;
  tensors.build(kQueries, kQueries, false);
  tensors.call.causal = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  tensors.call.key_offsets = tensors.call.query_offsets;
  ValidatedCall checked;
  ASSERT_EQ(validate_call(tensors.call, 0, &checked), -1);
  EXPECT_EQ(checked.window.is_bottom_right, 0u);
}

TEST(PackedCall, RefusesWithTheRightReason) {
  const auto reason = [](auto change) {
    PackedTensors tensors;
    tensors.build(kQueries, kKeys, false);
    change(tensors.call);
    return check(tensors.call);
  };
  using Call = foreshock_attention_call;
  EXPECT_EQ(reason([](Call&) {}), -1);
  EXPECT_EQ(reason([](Call& c) { c.mask = c.query; }), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason([](Call& c) { c.key_offsets = nullptr; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](Call& c) { c.query_offsets = reinterpret_cast<const int32_t*>(0x1002); }),
            FORESHOCK_SKIP_LAYOUT);
  for (const int64_t none : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_EQ(reason([none](Call& c) { c.sequences = none; }), FORESHOCK_SKIP_LAYOUT) << none;
    if (none > 0) continue;
    EXPECT_EQ(reason([none](Call& c) { c.longest_query = none; }), FORESHOCK_SKIP_LAYOUT) << none;
    EXPECT_EQ(reason([none](Call& c) { c.longest_key = none; }), FORESHOCK_SKIP_LAYOUT) << none;
  }
  EXPECT_EQ(reason([](Call& c) { c.query.dims = 4; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](Call& c) { --c.out.shape[1]; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](Call& c) { c.log_sum_exp.shape[1] = 49; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](Call& c) { c.log_sum_exp.shape[0] = 5; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](Call& c) { c.log_sum_exp.dims = 3; }), FORESHOCK_SKIP_LAYOUT);
}

// `by_columns`: of the slice of key positions, not of rows.
std::string bytes_of(const ValidatedCall& call, uint64_t seed, bool by_columns) {
  Slice slice =
      by_columns ? choose_columns(call.shape, seed, 8, seed, 0) : choose_slice(call.shape, seed, 8, seed, 0);
  SlicePlan plan;
  EXPECT_TRUE(by_columns ? plan_columns(call, 1 << 16, 1, slice, &plan)
                         : plan_slice(call, 1 << 16, 1, &slice, &plan));
  segment::Slot slot = slot_of(plan, 0);
  std::string bytes(1 << 16, 'x');
  copy_slot(call, slice, slot, bytes.data());
  slot.batch = 0;  // which of the packed ones it was
  return bytes + std::string(reinterpret_cast<const char*>(&slot), sizeof slot);
}

constexpr int32_t kWindowed = 3;  // in place of a causal mask

TEST(TakeSequence, IsTheCallOfThatSequenceAlone) {
  for (const bool by_sequence : {false, true}) {
    for (const int32_t kind : {0, 1, 2, kWindowed}) {  // FORESHOCK_CAUSAL_..., or a window
      PackedTensors tensors;
      tensors.lse_by_sequence = by_sequence;
      tensors.build(kQueries, kKeys, true);
      tensors.call.causal = kind;
      if (kind == kWindowed) set_window(FORESHOCK_CAUSAL_BOTTOM_RIGHT, 4, 1, &tensors.call);
      std::set<int64_t> seen;
      for (uint64_t seed = 0; seed < 60; ++seed) {
        ValidatedCall packed, alone;
        ASSERT_EQ(validate_call(tensors.call, 1, &packed), -1);
        ASSERT_EQ(take_sequence(choose_packed_position(seed, 8, seed, 0), &packed), -1);
        EXPECT_EQ(packed.packed.count, 0u);
        seen.insert(packed.sequence);
        ASSERT_EQ(validate_call(tensors.alone(static_cast<size_t>(packed.sequence)), 1, &alone), -1);
        EXPECT_EQ(bytes_of(packed, seed, false), bytes_of(alone, seed, false)) << packed.sequence;
        ASSERT_EQ(why_no_columns(packed), segment::kColumnsTaken);
        EXPECT_EQ(bytes_of(packed, seed, true), bytes_of(alone, seed, true)) << packed.sequence;
      }
      // All but the one of a single position in fifty are surely met, the empty one never.
      EXPECT_TRUE(seen.contains(0) && seen.contains(3) && seen.contains(4));
      EXPECT_FALSE(seen.contains(2));
    }
  }
}

TEST(TakeSequence, RefusesWhatCannotBeJudged) {
  PackedTensors tensors;
  tensors.build({9}, {5}, false);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(tensors.call, 0, &checked), -1);
  EXPECT_EQ(take_sequence(0, &checked), -1);
  tensors.call.causal = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  ASSERT_EQ(validate_call(tensors.call, 0, &checked), -1);
  EXPECT_EQ(take_sequence(0, &checked), FORESHOCK_SKIP_MASK) << "its first queries see no key";
  tensors.keys[1] = 6;
  ASSERT_EQ(validate_call(tensors.call, 0, &checked), -1);
  EXPECT_EQ(take_sequence(0, &checked), FORESHOCK_SKIP_LAYOUT) << "offsets beyond the keys";
}

}  // namespace
}  // namespace foreshock
