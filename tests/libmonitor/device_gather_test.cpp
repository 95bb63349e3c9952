#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/key_sums.h"
#include "libmonitor/call.h"
#include "tests/libmonitor/call_on_tensors.h"

namespace foreshock {
namespace {

// As device_jobs.h tells it.
void do_gather(const GatherJob& job) {
  for (uint32_t n = 0; n < job.pieces; ++n) {
    const GatherPiece& piece = job.piece[n];
    char* to = reinterpret_cast<char*>(job.to + piece.to);
    for (uint32_t head = 0; head < piece.heads; ++head) {
      if (piece.head_bytes > 0) to = reinterpret_cast<char*>(job.to + piece.to) + head * piece.head_bytes;
      const int64_t from_head = piece.is_listed == 2 ? job.position[head] : head;
      for (uint32_t index = 0; index < piece.rows; ++index)
        for (uint32_t column = 0; column < piece.width; ++column, to += piece.element) {
          const int64_t row = piece.is_listed == 1 ? job.position[index] : piece.first_row + index;
          const int64_t at =
              from_head * piece.head_stride + row * piece.row_stride + column * piece.column_stride;
          std::memcpy(to, reinterpret_cast<const char*>(piece.from) + at * int64_t{piece.element},
                      piece.element);
        }
    }
  }
}

// Both ways into slots that begin with the same rubbish.
void expect_same(const foreshock_attention_call& call, uint32_t pass, uint64_t capacity,
                 uint32_t least_parts) {
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call, pass, &checked), -1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Slice slice = choose_slice(checked.shape, seed, 8, seed, 0);
    SlicePlan plan;
    ASSERT_TRUE(plan_slice(checked, capacity, 60, &slice, &plan));
    ASSERT_GE(plan.slots, least_parts);
    for (uint32_t part = 0; part < plan.slots; ++part) {
      const segment::Slot slot = slot_of(plan, part);
      std::vector<char> by_host(capacity, 'x'), by_device(capacity, 'x');
      copy_slot(checked, slice, slot, by_host.data());
      const PayloadRange range = payloads_of(slot);
      ASSERT_GE(range.begin, sizeof(segment::Slot));
      ASSERT_LE(range.end, capacity);
      do_gather(
          gather_for_slot(checked, slice, slot, reinterpret_cast<uint64_t>(by_device.data() + range.begin)));
      EXPECT_EQ(by_host, by_device) << "part " << part << " seed " << seed;
    }
  }
}

// Of slices of key positions. The sums, which the device adds in another order, are those of the kernels'
// tests.
void expect_same_columns(const foreshock_attention_call& call, uint64_t capacity, uint32_t least_parts) {
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call, FORESHOCK_BACKWARD, &checked), -1);
  ASSERT_EQ(why_no_columns(checked), segment::kColumnsTaken);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Slice slice = choose_columns(checked.shape, seed, 8, seed, 0);
    SlicePlan plan;
    ASSERT_TRUE(plan_columns(checked, capacity, 60, slice, &plan));
    ASSERT_GE(plan.slots, least_parts);
    for (uint32_t part = 0; part < plan.slots; ++part) {
      const segment::Slot slot = slot_of(plan, part);
      std::vector<char> by_host(capacity, 'x'), by_device(capacity, 'x');
      copy_slot(checked, slice, slot, by_host.data());
      const uint64_t to = reinterpret_cast<uint64_t>(by_device.data()) + payloads_of(slot).begin;
      const KeyGatherJob job = key_gather_for_slot(checked, slice, slot, to);
      ASSERT_LE(job.gather.pieces, kMostPieces);
      do_gather(job.gather);
      const segment::Payload sums = slot.payload[segment::kKeySums];
      EXPECT_EQ(sums.bytes > 0, part == 0);
      if (part > 0) {
        EXPECT_EQ(job.sums, 0u);
      } else {
        EXPECT_EQ(job.sums, reinterpret_cast<uint64_t>(by_device.data()) + sums.offset);
        sum_over_keys(checked.grad_query, checked.grad_key, checked.grad_value, slice.batch, slice.kv_head,
                      reinterpret_cast<ColumnSum*>(job.sums));
      }
      EXPECT_EQ(by_host, by_device) << "part " << part << " seed " << seed;
    }
  }
}

TEST(DeviceGather, OfKeyPositionsIsWhatTheHostCopies) {
  CallOnTensors call;
  call.build_with_key_gradients();
  expect_same_columns(call.call, 1 << 16, 1);
}

// A part begins and ends within heads.
TEST(DeviceGather, OfKeyPositionsInSeveralSlots) {
  CallOnTensors call;
  call.queries = call.keys = 300;
  call.build_with_key_gradients();
  expect_same_columns(call.call, 1 << 15, 2);
}

TEST(DeviceGather, OfKeyPositionsWithHeadsFirst) {
  CallOnTensors call;
  call.queries = call.keys = 40;
  call.build_with_key_gradients();
  for (foreshock_tensor* tensor : {&call.call.grad_key, &call.call.grad_query, &call.call.out}) {
    const int64_t heads = tensor->shape[1];
    ASSERT_EQ(tensor->stride[2], heads * call.dim) << "rows of heads lie beside each other";
    tensor->stride[1] = 40 * call.dim;
    tensor->stride[2] = call.dim;
  }
  expect_same_columns(call.call, 1 << 16, 1);
}

// The mask is one for all batch elements and heads, or one for each; parts begin and end within heads.
TEST(DeviceGather, OfKeyPositionsUnderAMask) {
  for (const bool by_head : {false, true})
    for (const int64_t length : {12, 300}) {
      CallOnTensors call;
      call.queries = call.keys = length;
      call.build_with_key_gradients();
      add_mask(&call);
      if (by_head) {
        call.mask.resize(static_cast<size_t>(8 * length * length));
        std::iota(call.mask.begin(), call.mask.end(), 0.f);
        call.call.mask = {call.mask.data(),
                          {2, 4, length, length},
                          {4 * length * length, length * length, length, 1},
                          FORESHOCK_FP32,
                          4,
                          FORESHOCK_DEVICE_CPU,
                          0};
      }
      expect_same_columns(call.call, length == 12 ? 1 << 16 : 1 << 15, length == 12 ? 1 : 3);
      add_kept_like_mask(&call);
      expect_same_columns(call.call, 1 << 16, length == 12 ? 1 : 2);
    }
}

TEST(DeviceGather, IsWhatTheHostCopies) {
  for (const bool backward : {false, true}) {
    CallOnTensors call;
    call.build(backward);
    expect_same(call.call, backward, 1 << 16, 1);
  }
}

TEST(DeviceGather, OfASliceInSeveralSlotsWithAMask) {
  CallOnTensors call;
  call.queries = call.keys = 200;
  call.build(false);
  add_mask(&call);
  expect_same(call.call, 0, 8192, 3);
  add_kept_like_mask(&call);
  expect_same(call.call, 0, 1 << 16, 1);
}

// Transposed, backwards, broadcast, and without what may be absent.
TEST(DeviceGather, OfAnyStrides) {
  CallOnTensors call;
  call.queries = call.keys = call.dim = 6;  // so that rows may stand for columns
  call.build(true);
  std::swap(call.call.key.stride[2], call.call.key.stride[3]);
  call.call.value.data = call.value.data() + call.value.size() - 1;
  for (int64_t& stride : call.call.value.stride) stride = -stride;
  call.call.grad_out.stride[0] = call.call.grad_out.stride[1] = 0;
  call.call.log_sum_exp = {};
  expect_same(call.call, 1, 1 << 16, 1);
}

TEST(DeviceGather, OfEveryFormat) {
  for (const uint32_t dtype : {FORESHOCK_FP64, FORESHOCK_FP32, FORESHOCK_BF16, FORESHOCK_FP16}) {
    CallOnTensors call;
    call.build(true);
    std::vector<double> storage(call.query.size());
    for (size_t n = 0; n < storage.size(); ++n) storage[n] = 1.0 / static_cast<double>(n + 3);
    for (foreshock_tensor* tensor : {&call.call.query, &call.call.key, &call.call.value, &call.call.out,
                                     &call.call.grad_out, &call.call.grad_query}) {
      tensor->data = storage.data();
      tensor->dtype = dtype;
    }
    expect_same(call.call, 1, 1 << 16, 1);
  }
}

}  // namespace
}  // namespace foreshock
