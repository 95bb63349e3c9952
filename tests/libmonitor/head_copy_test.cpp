#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "libmonitor/weights.h"
#include "segment/reader.h"
#include "tests/libmonitor/packed_tensors.h"

namespace foreshock {
namespace {

using segment::parse_tensor_heads;
using segment::TensorHeadsView;

constexpr HeadGeometry kHeads{.heads = 6, .kv_heads = 3, .head_dim = 4};

// A weight whose value at (output, input) is 1000 output + input.
struct Weight {
  uint64_t outputs, width;
  std::vector<float> values;
  bool transposed;

  Weight(uint64_t of_outputs, uint64_t of_width, bool is_transposed)
      : outputs(of_outputs), width(of_width), values(of_outputs * of_width), transposed(is_transposed) {
    for (uint64_t o = 0; o < outputs; ++o)
      for (uint64_t i = 0; i < width; ++i)
        values[transposed ? i * outputs + o : o * width + i] = static_cast<float>(1000 * o + i);
  }
  foreshock_tensor tensor() const {
    foreshock_tensor t = {};
    t.data = values.data();
    t.dtype = FORESHOCK_FP32;
    t.dims = 2;
    const auto rows = static_cast<int64_t>(transposed ? width : outputs);
    const auto columns = static_cast<int64_t>(transposed ? outputs : width);
    for (int d = 0; d < 4; ++d) t.shape[d] = 1;
    t.shape[0] = rows;
    t.shape[1] = columns;
    t.stride[0] = columns;
    t.stride[1] = 1;
    return t;
  }
};

struct Copied {
  std::vector<uint64_t> storage;
  TensorHeadsView view;

  Copied(const char* name, const Weight& weight, const HeadGeometry& heads) {
    const foreshock_tensor tensor = weight.tensor();
    const Projection projection = projection_of(name, tensor.shape, 2, heads);
    const size_t bytes = head_payload_bytes(projection, heads, tensor.dtype);
    storage.resize((bytes + 7) / 8 + 1, 0xabababababababab);
    copy_heads(projection, heads, tensor, reinterpret_cast<char*>(storage.data()));
    EXPECT_EQ(reinterpret_cast<const unsigned char*>(storage.data())[bytes], 0xab) << "wrote too far";
    EXPECT_EQ(parse_tensor_heads(std::as_bytes(std::span(storage)).first(bytes), 4, &view), nullptr);
  }
  static float at(std::span<const std::byte> side, size_t n) {
    float x;
    std::memcpy(&x, side.data() + n * sizeof x, sizeof x);
    return x;
  }
};

// Head n of a side begins at that output, and all of it is there.
void expect_head(std::span<const std::byte> side, size_t n, uint64_t first_output, uint64_t width) {
  for (uint64_t o = 0; o < kHeads.head_dim; ++o)
    for (uint64_t i = 0; i < width; ++i)
      ASSERT_EQ(Copied::at(side, (n * kHeads.head_dim + o) * width + i),
                static_cast<float>(1000 * (first_output + o) + i));
}

TEST(HeadCopy, FusedAndTransposed) {
  constexpr uint64_t kOutputs = (6 + 2 * 3) * 4;
  for (const bool transposed : {false, true}) {
    const Copied copied("attn.c_attn.weight", Weight(kOutputs, 10, transposed), kHeads);
    EXPECT_EQ(copied.view.header.head_dim, 4u);
    EXPECT_EQ(copied.view.header.width, 10u);
    EXPECT_EQ(copied.view.numbers, (std::vector<uint32_t>{0, 1, 2}));
    for (uint32_t n = 0; n < 3; ++n) {
      expect_head(copied.view.queries, n, n * 2 * 4, 10);  // the first of the two heads that read it
      expect_head(copied.view.keys, n, (6 + n) * 4, 10);
    }
  }
}

TEST(HeadCopy, SeparateAndGrouped) {
  const Copied query("self_attn.q_proj.weight", Weight(24, 7, false), kHeads);
  EXPECT_TRUE(query.view.keys.empty());
  expect_head(query.view.queries, 2, 16, 7);
  const Copied key("self_attn.k_proj.weight", Weight(12, 7, false), kHeads);
  EXPECT_TRUE(key.view.queries.empty());
  expect_head(key.view.keys, 2, 8, 7);
  const Copied grouped("linear_qkv.weight", Weight(48, 7, false), kHeads);
  expect_head(grouped.view.queries, 1, 16, 7);
  expect_head(grouped.view.keys, 1, 24, 7);
}

TEST(HeadCopy, ALargeLayerShowsSomeOfItsHeads) {
  constexpr HeadGeometry kMany{.heads = 16, .kv_heads = 8, .head_dim = 4};
  constexpr uint64_t kWidth = 8192;  // a head's queries and keys: 256 KiB
  const Copied some("qkv.weight", Weight(32 * 4, kWidth, false), kMany);
  EXPECT_EQ(some.view.numbers, (std::vector<uint32_t>{0, 4}));
  const Copied one("qkv.weight", Weight(32 * 4, 5 * kWidth, false), kMany);  // beyond the limit: still one
  EXPECT_EQ(one.view.numbers, (std::vector<uint32_t>{0}));
}

TEST(HeadCopy, HostilePayloadsAreRefused) {
  const Copied good("attn.qkv.weight", Weight(48, 10, false), kHeads);
  const size_t bytes = segment::values_offset(3) + 2 * 3 * 4 * 10 * 4;
  std::vector<std::byte> payload(bytes);
  std::memcpy(payload.data(), good.storage.data(), bytes);
  TensorHeadsView view;
  ASSERT_EQ(parse_tensor_heads(payload, 4, &view), nullptr);
  EXPECT_NE(parse_tensor_heads(payload, 2, &view), nullptr);
  for (size_t size : {size_t{0}, size_t{23}, size_t{24}, size_t{40}, bytes - 1})
    EXPECT_NE(parse_tensor_heads(std::span(payload).first(size), 4, &view), nullptr) << size;
  for (size_t word = 0; word < 5; ++word) {
    for (const uint32_t value : {0u, 77u, 0x7fffffffu, 0xffffffffu}) {
      std::vector<std::byte> hostile = payload;
      std::memcpy(hostile.data() + 4 * word, &value, sizeof value);
      const bool is_harmless = word == 3 && value >= 3;  // more kv-heads in the layer
      EXPECT_EQ(parse_tensor_heads(hostile, 4, &view) == nullptr, is_harmless) << word << " " << value;
    }
  }
  std::vector<std::byte> disordered = payload;
  const uint32_t again = 0;
  std::memcpy(disordered.data() + sizeof(segment::TensorHeads) + 4, &again, sizeof again);
  EXPECT_NE(parse_tensor_heads(disordered, 4, &view), nullptr);
}

ValidatedCall call_of(int64_t heads, int64_t kv_heads, int64_t dim) {
  ValidatedCall call = {};
  call.shape = {2, heads, kv_heads, 100, 100};
  call.head_dim = dim;
  return call;
}

TEST(ObservedHeads, CallsThatDifferTellNothing) {
  ObservedHeads heads;
  EXPECT_EQ(heads.get(), HeadGeometry{});
  for (int n = 0; n < 2; ++n) heads.add(call_of(8, 2, 64));
  EXPECT_EQ(heads.get(), (HeadGeometry{8, 2, 64}));
  heads.add(call_of(8, 2, 32));
  EXPECT_EQ(heads.get(), HeadGeometry{});
  heads.add(call_of(8, 2, 64));
  EXPECT_EQ(heads.get(), HeadGeometry{});
  heads.reset();
  heads.add(call_of(1 << 19, 1, 64));
  EXPECT_EQ(heads.get(), (HeadGeometry{1 << 19, 1, 64}));
  heads.reset();
  heads.add(call_of(1 << 20, 1, 64));
  EXPECT_EQ(heads.get(), HeadGeometry{});
}

TEST(ObservedHeads, APackedCallHasThemToo) {
  PackedTensors tensors;
  tensors.build({7, 30}, {7, 30}, false);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(tensors.call, FORESHOCK_FORWARD, &checked), -1);
  ObservedHeads heads;
  heads.add(checked);
  EXPECT_EQ(heads.get(), (HeadGeometry{4, 2, 6}));
}

}  // namespace
}  // namespace foreshock
