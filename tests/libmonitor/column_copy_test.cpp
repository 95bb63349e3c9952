#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/key_sums.h"
#include "libmonitor/call.h"
#include "segment/reader.h"
#include "tests/libmonitor/call_on_tensors.h"
#include "tests/libmonitor/written_slots.h"

namespace foreshock {
namespace {

using Call = CallOnTensors;

ValidatedCall checked(const Call& call) {
  ValidatedCall checked;
  EXPECT_EQ(validate_call(call.call, FORESHOCK_BACKWARD, &checked), -1);
  return checked;
}

constexpr size_t kRoom = 1 << 20;

TEST(ColumnCopy, ParserReadsBackWhatTheTensorsHold) {
  for (const int32_t causal :
       {FORESHOCK_CAUSAL_NONE, FORESHOCK_CAUSAL_TOP_LEFT, FORESHOCK_CAUSAL_BOTTOM_RIGHT}) {
    Call call;
    call.queries = 9;
    call.build_with_key_gradients();
    call.call.causal = causal;
    const ValidatedCall all = checked(call);
    ASSERT_TRUE(has_columns(all));
    for (uint64_t number = 0; number < 20; ++number) {
      const Slice slice = choose_columns(all.shape, 3, 5, number, 0);
      SlicePlan plan;
      ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
      const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
      const segment::SlotView view = parsed(bytes);
      const segment::Slot& slot = view.header;
      const auto payload = [&](segment::PayloadId id) {
        return reinterpret_cast<const float*>(view.payload[id].data());
      };
      ASSERT_EQ(slot.rows, 12u);  // all keys: there are fewer than 16
      ASSERT_EQ(slot.heads_in_slice, 2u);
      ASSERT_EQ(slot.keys, 18u);
      for (uint32_t row = 0; row < slot.rows; ++row) {
        const int64_t key = slot.position[row];
        const uint32_t first[] = {0, uint32_t(std::min<int64_t>(key, 9)),
                                  uint32_t(std::max<int64_t>(key - 3, 0))};
        EXPECT_EQ(slot.key_limit[row], first[causal]);
        for (const auto& [id, storage] :
             {std::pair(segment::kKey, &call.key), std::pair(segment::kValue, &call.value),
              std::pair(segment::kGradKey, &call.grad_key), std::pair(segment::kGradValue, &call.grad_value)})
          for (int64_t d = 0; d < call.dim; ++d)
            EXPECT_EQ(payload(id)[row * call.dim + d],
                      call.at(*storage, call.kv_heads, call.keys, slot.batch, slot.kv_head, key, d));
      }
      for (uint32_t n = 0; n < slot.keys; ++n) {
        const int64_t head = slot.kv_head * 2 + n / 9, position = n % 9;
        for (const auto& [id, storage] :
             {std::pair(segment::kQuery, &call.query), std::pair(segment::kOut, &call.out),
              std::pair(segment::kGradOut, &call.grad_out)})
          EXPECT_EQ(payload(id)[n * call.dim + 1],
                    call.at(*storage, call.heads, call.queries, slot.batch, head, position, 1));
        EXPECT_EQ(payload(segment::kLogSumExp)[n],
                  call.lse[(slot.batch * call.heads + head) * call.queries + position]);
      }
    }
  }
}

TEST(ColumnCopy, SumsAreOverAllKeysOfTheHead) {
  Call call;
  call.build_with_key_gradients();
  call.grad_key[0] = NAN;
  const ValidatedCall all = checked(call);
  uint64_t nonfinite = 0;
  for (uint64_t number = 0; number < 20; ++number) {
    const Slice slice = choose_columns(all.shape, 3, 5, number, 0);
    SlicePlan plan;
    ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
    const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
    const segment::SlotView view = parsed(bytes);
    const auto* sums = reinterpret_cast<const ColumnSum*>(view.payload[segment::kKeySums].data());
    for (int64_t d = 0; d < call.dim; ++d) {
      double sum = 0;
      for (int64_t key = 0; key < call.keys; ++key)
        sum += call.at(call.grad_value, call.kv_heads, call.keys, slice.batch, slice.kv_head, key, d);
      EXPECT_EQ(sums[call.dim + d].sum, sum);
      nonfinite += sums[d].nonfinite;
    }
  }
  EXPECT_GT(nonfinite, 0u);
  EXPECT_LT(nonfinite, 20u) << "one head of one batch element";
}

TEST(NonfiniteOut, IsCountedOverAllRowsWhereTheInputsAreFinite) {
  Call call;
  call.build(false);
  const auto count = [&] {
    ValidatedCall all;
    EXPECT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &all), -1);
    Slice slice;
    slice.batch = 1;
    slice.kv_head = 1;
    slice.first_head = 3;
    return count_nonfinite_out(all, slice);
  };
  const auto place = [&](int64_t heads, int64_t head, int64_t n) {
    return static_cast<size_t>(((call.queries + n) * heads + head) * call.dim);
  };
  EXPECT_EQ(count(), 0u);
  call.out[place(4, 2, 5)] = NAN;  // of another head
  EXPECT_EQ(count(), 0u);
  call.out[place(4, 3, 5)] = NAN;
  call.out[place(4, 3, 7) + 1] = INFINITY;
  EXPECT_EQ(count(), 2u);
  for (const auto& [storage, heads, head] :
       {std::tuple(&call.query, 4, 3), std::tuple(&call.key, 2, 1), std::tuple(&call.value, 2, 1)}) {
    float& x = (*storage)[place(heads, head, 11)];
    const float before = std::exchange(x, INFINITY);
    EXPECT_EQ(count(), 0u) << "a sound kernel gives NaN too";
    x = before;
  }
  call.call.causal = FORESHOCK_CAUSAL_NONE;
  EXPECT_EQ(count(), 2u);
  add_mask(&call);
  EXPECT_EQ(count(), 0u) << "a row that sees no key may be NaN";
}

TEST(ColumnCopy, PartsJoinedAreTheSliceByteForByte) {
  Call call;
  call.queries = call.keys = 300;
  call.build_with_key_gradients();
  const ValidatedCall all = checked(call);
  const Slice slice = choose_columns(all.shape, 3, 5, 7, 0);
  SlicePlan plan;
  ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
  ASSERT_EQ(plan.slots, 1u);
  const std::vector<char> whole_slot = written(all, slice, plan, 0, kRoom);
  const segment::SlotView whole = parsed(whole_slot);
  size_t most_parts = 0;
  for (size_t capacity = sizeof(segment::Slot); capacity < 60000; capacity += 192) {
    if (!plan_columns(all, capacity, segment::kMaxSlots, slice, &plan) || plan.slots == 1) continue;
    most_parts = std::max<size_t>(most_parts, plan.slots);
    segment::JoinedSlice joined;
    for (uint32_t part = 0; part < plan.slots; ++part) {
      const std::vector<char> bytes = written(all, slice, plan, part, capacity);
      const segment::SlotView view = parsed(bytes);
      const char* why = part == 0 ? joined.begin(view, kRoom) : joined.add(view);
      ASSERT_EQ(why, nullptr) << why;
    }
    ASSERT_TRUE(joined.is_whole());
    const segment::SlotView view = joined.take();
    EXPECT_EQ(view.header.keys, 600u);
    for (uint32_t id = 0; id < segment::kPayloads; ++id)
      ASSERT_TRUE(std::ranges::equal(view.payload[id], whole.payload[id])) << capacity << " " << id;
  }
  EXPECT_GE(most_parts, 10u);
}

TEST(ColumnCopy, SliceThatFitsNowhereIsNotPlanned) {
  Call call;
  call.queries = call.keys = 300;
  call.build_with_key_gradients();
  const ValidatedCall all = checked(call);
  SlicePlan plan;
  EXPECT_FALSE(plan_columns(all, 8192, 2, choose_columns(all.shape, 3, 5, 7, 0), &plan));
  EXPECT_FALSE(plan_columns(all, sizeof(segment::Slot), 60, choose_columns(all.shape, 3, 5, 7, 0), &plan));
}

TEST(ColumnCopy, CallsWithoutAllThatIsNeededHaveNoColumns) {
  const auto is_missing = [](auto change) {
    Call call;
    call.build_with_key_gradients();
    change(&call);
    return !has_columns(checked(call));
  };
  EXPECT_FALSE(is_missing([](Call*) {}));
  EXPECT_TRUE(is_missing([](Call* c) { c->call.grad_key = {}; }));
  EXPECT_TRUE(is_missing([](Call* c) { c->call.grad_value.shape[2] = 5; }));
  EXPECT_TRUE(is_missing([](Call* c) { c->call.grad_value.dtype = FORESHOCK_BF16; }));
  EXPECT_TRUE(is_missing([](Call* c) { c->call.log_sum_exp = {}; }));
  EXPECT_TRUE(is_missing([](Call* c) { add_mask(c); }));
  EXPECT_TRUE(is_missing([](Call* c) { c->call.grad_key.device_type = FORESHOCK_DEVICE_CUDA; }));
  // A trainer that was built before these fields existed.
  EXPECT_TRUE(is_missing([](Call* c) { c->call.size = offsetof(foreshock_attention_call, grad_key); }));
  Call on_device;
  on_device.build_with_key_gradients();
  for (foreshock_tensor* tensor :
       {&on_device.call.query, &on_device.call.key, &on_device.call.value, &on_device.call.out,
        &on_device.call.log_sum_exp, &on_device.call.grad_out, &on_device.call.grad_query,
        &on_device.call.grad_key, &on_device.call.grad_value})
    tensor->device_type = FORESHOCK_DEVICE_CUDA;
  EXPECT_TRUE(has_columns(checked(on_device)));
}

TEST(ColumnSampling, TakesHalfOfTheCallsIfAffordableAndElseAsManyAsCostLittle) {
  const auto share = [](const CallShape& shape, bool is_affordable) {
    int taken = 0;
    for (int step = 0; step < 1000; ++step)
      for (uint64_t call = 0; call < 10; ++call)
        taken += takes_columns(shape, 64, 64, is_affordable, 7, step, call);
    return taken / 10000.0;
  };
  // Binomial of 10,000: five deviations are at most 0.025. Key positions copy 1.5 times the bytes of rows and
  // read 3 times as many; with four query heads for each kv-head 6 and 9 times.
  EXPECT_NEAR(share({2, 4, 4, 128, 128}, true), 0.5, 0.025);
  EXPECT_NEAR(share({2, 8, 2, 128, 128}, true), 1 / 6.0, 0.025);
  EXPECT_NEAR(share({2, 4, 4, 128, 128}, false), 0.22 / 3, 0.014);
  EXPECT_NEAR(share({2, 8, 2, 128, 128}, false), 0.22 / 9, 0.008);
}

TEST(ColumnSampling, KeysOfEachPartOfTheSequenceAndAllHeadsOfTheGroup) {
  const CallShape shape = {3, 40, 2, 50, 1000};
  std::vector<bool> kv_heads(2);
  for (uint64_t call = 0; call < 100; ++call) {
    const Slice slice = choose_columns(shape, 1, 2, call, 0);
    EXPECT_EQ(slice.heads, 20);
    EXPECT_EQ(slice.first_head, slice.kv_head * 20);
    kv_heads[slice.kv_head] = true;
    ASSERT_EQ(slice.positions, 16);
    for (int n = 0; n < 16; ++n) {
      EXPECT_GE(slice.position[n], n * 1000 / 16);
      EXPECT_LE(slice.position[n], (n + 1) * 1000 / 16);
    }
  }
  EXPECT_TRUE(kv_heads[0] && kv_heads[1]);
}

}  // namespace
}  // namespace foreshock
