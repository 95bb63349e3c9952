#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "segment/reader.h"

namespace foreshock::segment {
namespace {

constexpr uint32_t kDim = 4, kWidth = 6, kCount = 3;

struct Payload {
  TensorHeads head = {.sides = kQuerySide | kKeySide,
                      .head_dim = kDim,
                      .width = kWidth,
                      .kv_heads = 8,
                      .count = kCount,
                      .reserved = 0};
  uint32_t numbers[kCount + 1] = {0, 2, 7, 0};  // up to a multiple of 8 bytes
  int bytes_more = 0;

  std::vector<std::byte> bytes(uint64_t element_bytes) const {
    const uint64_t side = uint64_t{kCount} * kDim * kWidth * element_bytes;
    std::vector<std::byte> all(values_offset(kCount) + 2 * side);
    std::memcpy(all.data(), &head, sizeof head);
    std::memcpy(all.data() + sizeof head, numbers, sizeof numbers);
    for (uint64_t n = values_offset(kCount); n < all.size(); ++n) all[n] = static_cast<std::byte>(n % 251);
    all.resize(static_cast<size_t>(static_cast<int64_t>(all.size()) + bytes_more));
    return all;
  }
};

TEST(TensorHeads, BothSidesAreFound) {
  for (const uint64_t element_bytes : {2, 4}) {
    const auto bytes = Payload().bytes(element_bytes);
    TensorHeadsView view;
    ASSERT_EQ(parse_tensor_heads(bytes, element_bytes, &view), nullptr);
    EXPECT_EQ(view.numbers, (std::vector<uint32_t>{0, 2, 7}));
    EXPECT_EQ(view.queries.data(), bytes.data() + values_offset(kCount));
    EXPECT_EQ(view.keys.data(), view.queries.data() + view.queries.size());
    EXPECT_EQ(view.keys.size(), kCount * kDim * kWidth * element_bytes);
    EXPECT_EQ(view.keys.data() + view.keys.size(), bytes.data() + bytes.size());
  }
}

TEST(TensorHeads, OneSideAloneIsThatSide) {
  Payload payload;
  for (const uint32_t side : {kQuerySide, kKeySide}) {
    payload.head.sides = side;
    payload.bytes_more = -static_cast<int>(kCount * kDim * kWidth * 2);
    const auto bytes = payload.bytes(2);
    TensorHeadsView view;
    ASSERT_EQ(parse_tensor_heads(bytes, 2, &view), nullptr);
    EXPECT_EQ(view.queries.empty(), side == kKeySide);
    EXPECT_EQ(view.keys.empty(), side == kQuerySide);
  }
}

TEST(TensorHeads, WhatCannotBeIsRefusedWithItsReason) {
  const struct {
    const char* why;
    std::function<void(Payload*)> spoil;
  } cases[] = {
      {"heads of no known side", [](Payload* p) { p->head.sides = 0; }},
      {"heads of no known side", [](Payload* p) { p->head.sides = 4; }},
      {"heads of an impossible number", [](Payload* p) { p->head.count = 0; }},
      {"heads of an impossible number", [](Payload* p) { p->head.count = 9; }},
      {"heads of an impossible number", [](Payload* p) { p->head.head_dim = 0; }},
      {"heads of an impossible number", [](Payload* p) { p->head.width = 0; }},
      {"more heads than bytes", [](Payload* p) { p->head.count = p->head.kv_heads = 0xffffffff; }},
      {"more values of heads than bytes", [](Payload* p) { p->head.head_dim = p->head.width = 0xffffffff; }},
      {"more values of heads than bytes", [](Payload* p) { p->head.width = 1000; }},
      {"heads of another size", [](Payload* p) { p->head.width = kWidth - 1; }},
      {"heads of another size", [](Payload* p) { p->bytes_more = 2; }},
      {"heads of another size", [](Payload* p) { p->bytes_more = -2; }},
      {"heads of another size", [](Payload* p) { p->head.sides = kKeySide; }},
      {"heads out of order", [](Payload* p) { p->numbers[1] = 0; }},
      {"heads out of order", [](Payload* p) { p->numbers[2] = 8; }},
  };
  for (const auto& [why, spoil] : cases) {
    Payload payload;
    spoil(&payload);
    TensorHeadsView view;
    EXPECT_STREQ(parse_tensor_heads(payload.bytes(4), 4, &view), why);
  }
  TensorHeadsView view;
  EXPECT_STREQ(parse_tensor_heads({}, 4, &view), "heads of an impossible size");
  const auto bytes = Payload().bytes(4);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(parse_tensor_heads(std::span(bytes).first(size), 4, &view), nullptr) << size;
}

}  // namespace
}  // namespace foreshock::segment
