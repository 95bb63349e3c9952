#include "libmonitor/slice_copy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "segment/parser.h"

namespace foreshock {
namespace {

// A call on fp32 tensors laid out as torch does it: (batch, position, head, dimension) in memory.
struct Call {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 12, keys = 12, dim = 6;
  std::vector<float> query, key, value, out, lse, mask, grad_out, grad_query;
  foreshock_attention_call call = {};

  foreshock_tensor tensor(std::vector<float>* storage, int64_t heads, int64_t length, float first) {
    storage->resize(batch * heads * length * dim);
    std::iota(storage->begin(), storage->end(), first);
    return {storage->data(),
            {batch, heads, length, dim},
            {length * heads * dim, dim, heads * dim, 1},
            FORESHOCK_FP32,
            4,
            FORESHOCK_DEVICE_CPU,
            0};
  }
  void build(bool backward) {
    call.size = sizeof call;
    call.version = FORESHOCK_ABI_VERSION;
    call.scale = 0.5;
    call.causal = FORESHOCK_CAUSAL_TOP_LEFT;
    call.query = tensor(&query, heads, queries, 0);
    call.key = tensor(&key, kv_heads, keys, 10000);
    call.value = tensor(&value, kv_heads, keys, 20000);
    call.out = tensor(&out, heads, queries, 30000);
    lse.resize(batch * heads * queries);
    std::iota(lse.begin(), lse.end(), 40000.f);
    call.log_sum_exp = {lse.data(),
                        {batch, heads, queries, 1},
                        {heads * queries, queries, 1, 0},
                        FORESHOCK_FP32,
                        3,
                        FORESHOCK_DEVICE_CPU,
                        0};
    if (!backward) return;
    call.grad_out = tensor(&grad_out, heads, queries, 50000);
    call.grad_query = tensor(&grad_query, heads, queries, 60000);
  }
  float at(const std::vector<float>& storage, int64_t heads, int64_t length, int64_t b, int64_t h, int64_t n,
           int64_t d) const {
    return storage[((b * length + n) * heads + h) * dim + d];
  }
};

TEST(SliceCopy, TheParserReadsBackWhatTheTensorsHold) {
  for (bool backward : {false, true}) {
    Call call;
    call.build(backward);
    CheckedCall checked;
    ASSERT_EQ(check_call(call.call, backward, &checked), -1);
    for (uint64_t number = 0; number < 30; ++number) {
      const Slice slice = choose_slice(checked.shape, 3, 5, number, 0);
      std::vector<char> bytes(slot_bytes_for(checked));
      segment::Slot slot = {};
      ASSERT_TRUE(plan_slot(checked, slice, bytes.size(), &slot));
      std::memcpy(bytes.data(), &slot, sizeof slot);
      copy_slot(checked, slice, slot, bytes.data());
      segment::SlotView view;
      const char* why = segment::parse_slot(std::as_bytes(std::span(bytes)), sizeof(segment::Slot), &view);
      ASSERT_EQ(why, nullptr) << why;
      const auto payload = [&](segment::PayloadId id) {
        return reinterpret_cast<const float*>(view.payload[id].data());
      };
      uint32_t most = 0;
      for (uint32_t row = 0; row < slot.rows; ++row) {
        EXPECT_EQ(slot.key_limit[row], slot.position[row] + 1);
        most = std::max(most, slot.key_limit[row]);
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

TEST(SliceCopy, MasksAreBroadcast) {
  Call call;
  call.build(false);
  call.call.causal = FORESHOCK_CAUSAL_NONE;
  call.mask.resize(call.queries * call.keys);
  std::iota(call.mask.begin(), call.mask.end(), 0.f);
  // Two dimensions stand for (position, key), whatever the batch and head.
  call.call.mask = {call.mask.data(),
                    {call.queries, call.keys, 1, 1},
                    {call.keys, 1, 0, 0},
                    FORESHOCK_FP32,
                    2,
                    FORESHOCK_DEVICE_CPU,
                    0};
  CheckedCall checked;
  ASSERT_EQ(check_call(call.call, 0, &checked), -1);
  const Slice slice = choose_slice(checked.shape, 1, 1, 1, 0);
  std::vector<char> bytes(slot_bytes_for(checked));
  segment::Slot slot = {};
  ASSERT_TRUE(plan_slot(checked, slice, bytes.size(), &slot));
  copy_slot(checked, slice, slot, bytes.data());
  const float* mask = reinterpret_cast<const float*>(bytes.data() + slot.payload[segment::kMask].offset);
  ASSERT_EQ(slot.keys, call.keys);
  for (uint32_t row = 0; row < slot.rows; ++row)
    for (uint32_t key = 0; key < slot.keys; ++key)
      EXPECT_EQ(mask[row * slot.keys + key], call.mask[slot.position[row] * call.keys + key]);
}

TEST(SliceCopy, RefusesWithTheRightReason) {
  const auto reason = [](auto change, uint32_t pass = 0) {
    Call call;
    call.build(pass == 1);
    change(call.call);
    CheckedCall checked;
    return check_call(call.call, pass, &checked);
  };
  EXPECT_EQ(reason([](auto& c) { c.dropout = 0.1; }), FORESHOCK_SKIP_DROPOUT);
  EXPECT_EQ(reason([](auto& c) { c.dropout = NAN; }), FORESHOCK_SKIP_DROPOUT);
  EXPECT_EQ(reason([](auto& c) { c.query.device_type = FORESHOCK_DEVICE_CUDA; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.query.dims = 3; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.key.shape[1] = 3; }), FORESHOCK_SKIP_LAYOUT);  // 4 heads over 3 kv-heads
  EXPECT_EQ(reason([](auto& c) { c.value.dtype = FORESHOCK_BF16; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.scale = NAN; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.out.data = nullptr; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.grad_query.shape[2] = 1; }, 1), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.mask = c.query; }), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason([](auto& c) { c.size = 16; }), FORESHOCK_SKIP_UNKNOWN);
}

TEST(SliceCopy, APlanThatDoesNotFitIsRefused) {
  Call call;
  call.build(false);
  CheckedCall checked;
  ASSERT_EQ(check_call(call.call, 0, &checked), -1);
  segment::Slot slot = {};
  EXPECT_FALSE(plan_slot(checked, choose_slice(checked.shape, 1, 1, 1, 0), sizeof(segment::Slot), &slot));
}

}  // namespace
}  // namespace foreshock
