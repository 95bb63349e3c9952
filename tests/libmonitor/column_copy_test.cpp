#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
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
    ASSERT_EQ(why_no_columns(all), segment::kColumnsTaken);
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
        EXPECT_EQ(slot.seen_begin[row], first[causal]);
        EXPECT_EQ(slot.seen_end[row], 9u);
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

TEST(ColumnCopy, HasTheQueriesThatSeeEachKeyInAWindow) {
  for (const int32_t alignment : {FORESHOCK_CAUSAL_TOP_LEFT, FORESHOCK_CAUSAL_BOTTOM_RIGHT})
    for (const auto& [left, right] :
         {std::pair<int64_t, int64_t>(3, 0), {0, 2}, {-1, 1}, {2, -1}, {99, 99}}) {
      Call call;
      call.queries = 9;
      call.build_with_key_gradients();
      set_window(alignment, left, right, &call.call);
      const ValidatedCall all = checked(call);
      const Slice slice = choose_columns(all.shape, 3, 5, 0, 0);
      SlicePlan plan;
      ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
      const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
      const segment::Slot slot = parsed(bytes).header;
      ASSERT_EQ(slot.rows, 12u);
      for (uint32_t row = 0; row < slot.rows; ++row) {
        const int64_t key = slot.position[row];
        for (uint32_t query = 0; query < 9; ++query) {
          const int64_t own = query + (alignment == FORESHOCK_CAUSAL_BOTTOM_RIGHT ? 3 : 0);
          const bool sees = (left < 0 || key >= own - left) && (right < 0 || key <= own + right);
          EXPECT_EQ(query >= slot.seen_begin[row] && query < slot.seen_end[row], sees) << key << " " << query;
        }
      }
    }
}

// A mask of the given sizes; a size of 1 stands for all batch elements, heads or queries.
void add_broadcast_mask(Call* call, int64_t batch, int64_t heads, int64_t queries) {
  call->mask.resize(static_cast<size_t>(batch * heads * queries * call->keys));
  std::iota(call->mask.begin(), call->mask.end(), 0.f);
  call->call.mask = {call->mask.data(),
                     {batch, heads, queries, call->keys},
                     {heads * queries * call->keys, queries * call->keys, call->keys, 1},
                     FORESHOCK_FP32,
                     4,
                     FORESHOCK_DEVICE_CPU,
                     0};
}

TEST(ColumnCopy, HasTheMaskOfItsKeysAndAllQueries) {
  for (const auto& [batch, heads, queries] :
       {std::tuple(2, 4, 12), std::tuple(2, 1, 1), std::tuple(1, 4, 1), std::tuple(1, 1, 12)}) {
    Call call;
    call.keys = 40;  // more than are sampled
    call.build_with_key_gradients();
    add_broadcast_mask(&call, batch, heads, queries);
    const ValidatedCall all = checked(call);
    ASSERT_EQ(why_no_columns(all), segment::kColumnsTaken);
    for (uint64_t number = 0; number < 8; ++number) {
      const Slice slice = choose_columns(all.shape, 3, 5, number, 0);
      SlicePlan plan;
      ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
      const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
      const segment::SlotView view = parsed(bytes);
      const segment::Slot& slot = view.header;
      const auto* mask = reinterpret_cast<const float*>(view.payload[segment::kMask].data());
      for (uint32_t column = 0; column < slot.rows; ++column)
        for (uint32_t n = 0; n < slot.keys; ++n) {
          const int64_t head = slot.kv_head * 2 + n / 12, position = n % 12;
          const int64_t line = ((batch == 1 ? 0 : slot.batch) * heads + (heads == 1 ? 0 : head)) * queries +
                               (queries == 1 ? 0 : position);
          ASSERT_EQ(mask[column * slot.keys + n], float(line * call.keys + slot.position[column]));
        }
    }
  }
}

TEST(ColumnCopy, HasWhatDropoutKept) {
  Call call;
  call.keys = 40;  // more than are sampled
  call.build_with_key_gradients();
  add_broadcast_mask(&call, 2, 4, 12);
  add_kept_like_mask(&call);
  const ValidatedCall all = checked(call);
  ASSERT_EQ(why_no_columns(all), segment::kColumnsTaken);
  const Slice slice = choose_columns(all.shape, 3, 5, 0, 0);
  SlicePlan plan;
  ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
  const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
  const segment::SlotView view = parsed(bytes);
  EXPECT_EQ(view.header.dropout, 0.25);
  EXPECT_EQ(view.header.soft_cap, 30);
  const auto* mask = reinterpret_cast<const float*>(view.payload[segment::kMask].data());
  const auto* kept = reinterpret_cast<const float*>(view.payload[segment::kKept].data());
  ASSERT_EQ(view.payload[segment::kKept].size(), size_t{4} * view.header.rows * view.header.keys);
  for (uint32_t n = 0; n < view.header.rows * view.header.keys; ++n) ASSERT_EQ(kept[n], mask[n] + 1e6f);
}

TEST(ColumnCopy, MaskOfEveryFormat) {
  Call call;
  call.build_with_key_gradients();
  add_broadcast_mask(&call, 2, 4, 12);
  // The same memory as numbers of other sizes.
  for (const auto& [dtype, element] : {std::pair(FORESHOCK_BOOL, 1), std::pair(FORESHOCK_BF16, 2)}) {
    call.call.mask.dtype = dtype;
    const ValidatedCall all = checked(call);
    const Slice slice = choose_columns(all.shape, 3, 5, 0, 0);
    SlicePlan plan;
    ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
    const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
    const segment::SlotView view = parsed(bytes);
    const segment::Bytes mask = view.payload[segment::kMask];
    ASSERT_EQ(mask.size(), static_cast<size_t>(12 * 24 * element));
    for (int64_t column = 0; column < 12; ++column)
      for (int64_t n = 0; n < 24; ++n) {
        const int64_t line = (slice.batch * 4 + slice.first_head + n / 12) * 12 + n % 12;
        const char* from = static_cast<const char*>(all.mask.data) + (line * 12 + column) * element;
        EXPECT_EQ(std::memcmp(mask.data() + (column * 24 + n) * element, from, static_cast<size_t>(element)),
                  0);
      }
  }
}

TEST(ColumnCopy, AllKeysIfThereAreFew) {
  Call call;
  call.queries = 256;
  call.keys = 7;
  call.build_with_key_gradients();
  call.call.causal = FORESHOCK_CAUSAL_NONE;
  const ValidatedCall all = checked(call);
  const Slice slice = choose_columns(all.shape, 3, 5, 0, 0);
  ASSERT_EQ(slice.positions, 7);
  for (int n = 0; n < 7; ++n) EXPECT_EQ(slice.position[n], n);
  SlicePlan plan;
  ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
  EXPECT_EQ(parsed(written(all, slice, plan, 0, kRoom)).header.rows, 7u);
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
  add_mask(&call);
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

// The weights that the log-sum-exp of a row gives: those of its scores, with some dropped.
TEST(ColumnCopy, WeightsStandForTheLogSumExp) {
  for (const bool has_mask : {false, true}) {
    Call call;
    call.build_with_key_gradients();
    for (float& x : call.query) x = std::sin(x);
    for (float& x : call.key) x = std::cos(x);
    if (has_mask) add_mask(&call);
    for (float& x : call.mask) x = std::sin(x);
    call.call.dropout = 0;
    ValidatedCall all = checked(call);
    const double keep = 0.75;
    std::vector<double> weights, expected;
    for (int64_t b = 0; b < call.batch; ++b)
      for (int64_t head = 0; head < call.heads; ++head)
        for (int64_t row = 0; row < call.queries; ++row) {
          std::vector<double> scores;
          double sum = 0;
          for (int64_t key = 0; key < call.keys; ++key) {
            double score = 0;
            for (int64_t d = 0; d < call.dim; ++d)
              score += double(call.at(call.query, call.heads, call.queries, b, head, row, d)) *
                       double(call.at(call.key, call.kv_heads, call.keys, b, head / 2, key, d));
            score = score * 0.5 + (has_mask ? double(call.mask[row * call.keys + key]) : 0);
            scores.push_back(score);
            if (has_mask || key <= row) sum += std::exp(score);
          }
          expected.push_back(std::log(sum));
          for (int64_t key = 0; key < call.keys; ++key) {
            const bool is_kept = (has_mask || key <= row) && (key + row) % 3 != 0 && row != 5;
            weights.push_back(is_kept ? std::exp(scores[key]) / sum / keep : 0);
          }
        }
    call.call.log_sum_exp = {};
    call.call.dropout = 1 - keep;
    call.call.weights = {weights.data(),
                         {call.batch, call.heads, call.queries, call.keys},
                         {call.heads * call.queries * call.keys, call.queries * call.keys, call.keys, 1},
                         FORESHOCK_FP64,
                         4,
                         FORESHOCK_DEVICE_CPU,
                         0};
    call.call.kept = call.call.weights;
    all = checked(call);
    ASSERT_EQ(why_no_columns(all), segment::kColumnsTaken);
    for (uint64_t number = 0; number < 8; ++number) {
      const Slice slice = choose_columns(all.shape, 3, 5, number, 0);
      SlicePlan plan;
      ASSERT_TRUE(plan_columns(all, kRoom, 1, slice, &plan));
      const std::vector<char> bytes = written(all, slice, plan, 0, kRoom);
      const segment::SlotView view = parsed(bytes);
      ASSERT_EQ(view.header.lse_dtype, uint32_t{FORESHOCK_FP64});
      const auto* found = reinterpret_cast<const double*>(view.payload[segment::kLogSumExp].data());
      for (uint32_t n = 0; n < view.header.keys; ++n) {
        const int64_t row = n % call.queries;
        const size_t at = (slice.batch * call.heads + slice.first_head) * call.queries + n;
        // A row without a weight; causal rows of which dropout has taken all also have none.
        const bool is_empty =
            std::all_of(weights.data() + at * call.keys, weights.data() + (at + 1) * call.keys,
                        [](double weight) { return weight == 0; });
        ASSERT_EQ(is_empty, row == 5 || (!has_mask && row == 0));
        if (is_empty)
          EXPECT_EQ(found[n], std::numeric_limits<double>::infinity());
        else
          EXPECT_NEAR(found[n], expected[at], 1e-12);  // of numbers below 10, some dozen roundings
      }
    }
  }
}

TEST(ColumnCopy, CallsWithoutAllThatIsNeededHaveNoColumns) {
  const auto why = [](auto change) {
    Call call;
    call.build_with_key_gradients();
    change(&call);
    return why_no_columns(checked(call));
  };
  EXPECT_EQ(why([](Call*) {}), segment::kColumnsTaken);
  EXPECT_EQ(why([](Call* c) { c->call.log_sum_exp = {}; }), segment::kColumnsLogSumExp);
  EXPECT_EQ(why([](Call* c) { c->call.grad_key = {}; }), segment::kColumnsGradients);
  EXPECT_EQ(why([](Call* c) { c->call.grad_value.shape[2] = 5; }), segment::kColumnsGradients);
  EXPECT_EQ(why([](Call* c) { c->call.grad_value.dtype = FORESHOCK_BF16; }), segment::kColumnsGradients);
  EXPECT_EQ(why([](Call* c) { c->call.grad_key.device_type = FORESHOCK_DEVICE_CUDA; }),
            segment::kColumnsGradients);
  // A trainer that was built before these fields existed.
  EXPECT_EQ(why([](Call* c) { c->call.size = offsetof(foreshock_attention_call, grad_key); }),
            segment::kColumnsGradients);
  Call on_device;
  on_device.build_with_key_gradients();
  for (foreshock_tensor* tensor :
       {&on_device.call.query, &on_device.call.key, &on_device.call.value, &on_device.call.out,
        &on_device.call.log_sum_exp, &on_device.call.grad_out, &on_device.call.grad_query,
        &on_device.call.grad_key, &on_device.call.grad_value})
    tensor->device_type = FORESHOCK_DEVICE_CUDA;
  EXPECT_EQ(why_no_columns(checked(on_device)), segment::kColumnsTaken);
  add_mask(&on_device);
  on_device.call.mask.device_type = FORESHOCK_DEVICE_CUDA;
  EXPECT_EQ(why_no_columns(checked(on_device)), segment::kColumnsTaken);
}

TEST(ColumnSampling, TakesHalfOfTheCallsIfAffordableAndElseAsManyAsCostLittle) {
  const auto share = [](const CallShape& shape, bool is_affordable, int64_t mask_lines = 0) {
    ValidatedCall call = {};
    call.shape = shape;
    call.head_dim = call.value_dim = 64;
    call.dtype = DType::kBf16;
    const char visible = 1;
    if (mask_lines > 0) call.mask = {&visible, DType::kBool, {}, {0, 0, mask_lines == 1 ? 0 : shape.keys, 1}};
    int taken = 0;
    for (int step = 0; step < 1000; ++step)
      for (uint64_t number = 0; number < 10; ++number)
        taken += takes_columns(call, is_affordable, 7, step, number);
    return taken / 10000.0;
  };
  // Binomial of 10,000: five deviations are at most 0.025. Key positions copy 1.5 times the bytes of rows and
  // read 3 times as many; with four query heads for each kv-head 6 and 9 times. In elements, rows cost 137 k
  // (6 k for any slice and 131 k of the keys), key positions 203 k and 197 k for the sums (793 k and 393 k).
  EXPECT_NEAR(share({2, 4, 4, 1024, 1024}, true), 0.5, 0.025);
  EXPECT_NEAR(share({2, 8, 2, 1024, 1024}, true), 137 / 793.0, 0.02);
  EXPECT_NEAR(share({2, 4, 4, 1024, 1024}, false), 0.22 * 137 / 400, 0.014);
  EXPECT_NEAR(share({2, 8, 2, 1024, 1024}, false), 0.22 * 137 / 1186, 0.008);
  // A bool mask adds 8 k to either copy, and a cache line for each query and key if it differs between
  // queries.
  EXPECT_NEAR(share({2, 4, 4, 1024, 1024}, false, 1), 0.22 * 145 / 408, 0.014);
  EXPECT_NEAR(share({2, 4, 4, 1024, 1024}, false, 1024), 0.22 * 145 / (408 + 524), 0.01);
  // Seven keys: the fixed part of the cost is nearly all of it.
  EXPECT_NEAR(share({2, 4, 4, 256, 7}, true), 6.9 / 55.2, 0.017);
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
