#include <gtest/gtest.h>

#include <vector>

#include "libmonitor/call.h"
#include "segment/reader.h"
#include "tests/libmonitor/call_on_tensors.h"

namespace foreshock {
namespace {

using Call = CallOnTensors;

TEST(SliceCopy, TheParserReadsBackWhatTheTensorsHold) {
  for (bool backward : {false, true}) {
    Call call;
    call.build(backward);
    ValidatedCall checked;
    ASSERT_EQ(validate_call(call.call, backward, &checked), -1);
    for (uint64_t number = 0; number < 30; ++number) {
      Slice slice = choose_slice(checked.shape, 3, 5, number, 0);
      std::vector<char> bytes(slot_bytes_for(checked));
      SlicePlan plan;
      ASSERT_TRUE(plan_slice(checked, bytes.size(), 1, &slice, &plan));
      const segment::Slot slot = slot_of(plan, 0);
      std::memcpy(bytes.data(), &slot, sizeof slot);
      copy_slot(checked, slice, slot, bytes.data());
      segment::SlotView view;
      const char* why = segment::parse_slot(std::as_bytes(std::span(bytes)), &view);
      ASSERT_EQ(why, nullptr) << why;
      const auto payload = [&](segment::PayloadId id) {
        return reinterpret_cast<const float*>(view.payload[id].data());
      };
      uint32_t most = 0;
      for (uint32_t row = 0; row < slot.rows; ++row) {
        EXPECT_EQ(slot.seen_end[row], slot.position[row] + 1);
        most = std::max(most, slot.seen_end[row]);
        for (int64_t d = 0; d < call.dim; ++d) {
          EXPECT_EQ(payload(segment::kQuery)[row * call.dim + d],
                    call.at(call.query, call.heads, call.queries, slot.batch, slot.head[row],
                            slot.position[row], d));
          if (backward) {
            EXPECT_EQ(payload(segment::kGradQuery)[row * call.dim + d],
                      call.at(call.grad_query, call.heads, call.queries, slot.batch, slot.head[row],
                              slot.position[row], d));
          }
        }
        EXPECT_EQ(payload(segment::kLogSumExp)[row],
                  call.lse[(slot.batch * call.heads + slot.head[row]) * call.queries + slot.position[row]]);
      }
      EXPECT_EQ(slot.keys, most);  // no key is copied that no row sees
      for (uint32_t key = 0; key < slot.keys; ++key)
        EXPECT_EQ(payload(segment::kKey)[key * call.dim + 1],
                  call.at(call.key, call.kv_heads, call.keys, slot.batch, slot.kv_head, key, 1));
    }
  }
}

TEST(SliceCopy, HasTheKeysThatEachRowSeesInAWindow) {
  for (const int32_t alignment : {FORESHOCK_CAUSAL_TOP_LEFT, FORESHOCK_CAUSAL_BOTTOM_RIGHT})
    for (const auto& [left, right] :
         {std::pair<int64_t, int64_t>(3, 0), {0, 2}, {-1, 1}, {2, -1}, {99, 99}}) {
      Call call;
      call.keys = 15;  // 3 more than queries
      call.build(true);
      set_window(alignment, left, right, &call.call);
      ValidatedCall checked;
      ASSERT_EQ(validate_call(call.call, FORESHOCK_BACKWARD, &checked), -1);
      for (uint64_t number = 0; number < 10; ++number) {
        Slice slice = choose_slice(checked.shape, 3, 5, number, 0);
        SlicePlan plan;
        ASSERT_TRUE(plan_slice(checked, slot_bytes_for(checked), 1, &slice, &plan));
        const segment::Slot slot = slot_of(plan, 0);
        uint32_t most = 0;
        for (uint32_t row = 0; row < slot.rows; ++row) {
          uint32_t begin = 15, end = 0;
          for (uint32_t key = 0; key < 15; ++key) {
            const int64_t own = slot.position[row] + (alignment == FORESHOCK_CAUSAL_BOTTOM_RIGHT ? 3 : 0);
            const bool is_seen = (left < 0 || key >= own - left) && (right < 0 || key <= own + right);
            if (is_seen) begin = std::min(begin, key), end = key + 1;
          }
          EXPECT_EQ(slot.seen_begin[row], begin);
          EXPECT_EQ(slot.seen_end[row], end);
          most = std::max(most, end);
        }
        EXPECT_EQ(slot.keys, most);
      }
    }
}

TEST(SliceCopy, WithDropoutTheOutputStaysBehind) {
  Call call;
  call.build(false);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &checked), -1);
  const uint64_t with_output = slot_bytes_for(checked);
  call.call.dropout = 0.5;
  ASSERT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &checked), -1);
  // The call that decides how large slots are may be one with dropout: others need room for an output.
  EXPECT_EQ(slot_bytes_for(checked), with_output);
  Slice slice = choose_slice(checked.shape, 3, 5, 7, 0);
  std::vector<char> bytes(with_output);
  SlicePlan plan;
  ASSERT_TRUE(plan_slice(checked, bytes.size(), 1, &slice, &plan));
  const segment::Slot slot = slot_of(plan, 0);
  std::memcpy(bytes.data(), &slot, sizeof slot);
  copy_slot(checked, slice, slot, bytes.data());
  segment::SlotView view;
  const char* why = segment::parse_slot(std::as_bytes(std::span(bytes)), &view);
  ASSERT_EQ(why, nullptr) << why;
  EXPECT_EQ(slot.without_out, 1u);
  EXPECT_TRUE(view.payload[segment::kOut].empty());
  for (uint32_t row = 0; row < slot.rows; ++row) {
    float sum = 0, value = 0;
    std::memcpy(&sum, view.payload[segment::kLogSumExp].data() + row * sizeof sum, sizeof sum);
    EXPECT_EQ(sum, call.lse[(slot.batch * call.heads + slot.head[row]) * call.queries + slot.position[row]]);
    std::memcpy(&value, view.payload[segment::kValue].data(), sizeof value);
    EXPECT_EQ(value, call.at(call.value, call.kv_heads, call.keys, slot.batch, slot.kv_head, 0, 0));
  }
}

TEST(SliceCopy, HasWhatDropoutKept) {
  for (const uint32_t slots : {1u, 2u}) {
    Call call;
    if (slots > 1) call.queries = call.keys = 150;
    call.build(true);
    add_mask(&call);
    add_kept_like_mask(&call);
    ValidatedCall checked;
    ASSERT_EQ(validate_call(call.call, FORESHOCK_BACKWARD, &checked), -1);
    Slice slice = choose_slice(checked.shape, 1, 1, 1, 0);
    std::vector<char> bytes(slots == 1 ? slot_bytes_for(checked) : 16384);
    SlicePlan plan;
    ASSERT_TRUE(plan_slice(checked, bytes.size(), slots, &slice, &plan));
    ASSERT_EQ(plan.slots, slots);
    segment::JoinedSlice joined;
    segment::SlotView view;
    for (uint32_t part = 0; part < slots; ++part) {
      segment::Slot slot = slot_of(plan, part);
      slot.first_ticket = 1;
      copy_slot(checked, slice, slot, bytes.data());
      std::memcpy(bytes.data(), &slot, sizeof slot);
      ASSERT_EQ(segment::parse_slot(std::as_bytes(std::span(bytes)), &view), nullptr);
      if (slots > 1) {
        ASSERT_EQ(part == 0 ? joined.begin(view, 1 << 20) : joined.add(view), nullptr);
      }
    }
    if (slots > 1) view = joined.take();
    EXPECT_EQ(view.header.dropout, 0.25);
    EXPECT_EQ(view.header.soft_cap, 30);
    EXPECT_EQ(view.header.without_out, 0u);
    const auto* kept = reinterpret_cast<const float*>(view.payload[segment::kKept].data());
    ASSERT_EQ(view.payload[segment::kKept].size(), size_t{4} * view.header.rows * call.keys);
    for (uint32_t row = 0; row < view.header.rows; ++row)
      for (uint32_t key = 0; key < view.header.keys; ++key)
        ASSERT_EQ(kept[row * view.header.keys + key],
                  call.kept[static_cast<size_t>(view.header.position[row] * call.keys + key)]);
  }
}

TEST(SliceCopy, MasksAreBroadcast) {
  Call call;
  call.build(false);
  add_mask(&call);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call.call, 0, &checked), -1);
  Slice slice = choose_slice(checked.shape, 1, 1, 1, 0);
  std::vector<char> bytes(slot_bytes_for(checked));
  SlicePlan plan;
  ASSERT_TRUE(plan_slice(checked, bytes.size(), 1, &slice, &plan));
  const segment::Slot slot = slot_of(plan, 0);
  copy_slot(checked, slice, slot, bytes.data());
  const float* mask = reinterpret_cast<const float*>(bytes.data() + slot.payload[segment::kMask].offset);
  ASSERT_EQ(slot.keys, call.keys);
  for (uint32_t row = 0; row < slot.rows; ++row)
    for (uint32_t key = 0; key < slot.keys; ++key)
      EXPECT_EQ(mask[row * slot.keys + key], call.mask[slot.position[row] * call.keys + key]);
}

}  // namespace
}  // namespace foreshock
