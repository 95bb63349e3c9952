// Tensors that belong to one call of TransformerEngine's fused attention, and tensors that do not. What is
// described of those that do is compared with results in tests/e2e/test_transformer_engine.py.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "foreshock/hook.h"
#include "libmonitor/transformer_engine.h"

namespace foreshock {
namespace {

struct Tensor {
  void* data;
  int32_t type;
  NvteTensorFunctions::Shape shape;
};

constexpr int32_t kInt64 = 3, kBf16 = 6, kE4m3 = 7;
constexpr uint32_t kBshd = 9, kSbhdBshd = 15;

const Tensor& of(Word handle) { return *reinterpret_cast<const Tensor*>(handle); }
void* data_of(Word handle) { return of(handle).data; }
int32_t type_of(Word handle) { return of(handle).type; }
NvteTensorFunctions::Shape shape_of(Word handle) {
  EXPECT_NE(of(handle).data, nullptr) << "the library throws where it knows no tensor";
  return of(handle).shape;
}

// Of (batch, position, heads, dim): two heads read one.
class Call {
 public:
  explicit Call(uint32_t pass = FORESHOCK_BACKWARD) : pass_(pass) {
    EXPECT_TRUE(find_nvte_signature("2.18.0", &signature_));
    query = out = grad_out = grad_query = tensor(2, 16, 4, 8);
    key = value = grad_key = grad_value = tensor(2, 24, 2, 8);
  }

  // -1, kNotAnNvteCall, or a reason to skip.
  int describe() {
    const NvteIndices& at = pass_ == FORESHOCK_BACKWARD ? signature_.backward : signature_.forward;
    std::array<Word, kMostNvteWords> words = {};
    const auto put = [&words](int8_t place, const Tensor& tensor) {
      if (place >= 0) words[static_cast<size_t>(place)] = reinterpret_cast<Word>(&tensor);
    };
    put(at.query, query), put(at.key, key), put(at.value, value), put(at.out, out);
    put(at.grad_out, grad_out), put(at.grad_query, grad_query);
    put(at.grad_key, grad_key), put(at.grad_value, grad_value);
    words[static_cast<size_t>(at.layout)] = layout;
    words[static_cast<size_t>(at.out_format)] = 1;
    if (at.grad_out_format >= 0) words[static_cast<size_t>(at.grad_out_format)] = 1;
    if (at.grad_layout >= 0) words[static_cast<size_t>(at.grad_layout)] = kBshd;
    if (at.aux >= 0) words[static_cast<size_t>(at.aux)] = reinterpret_cast<Word>(aux);
    for (const int8_t window : {at.window_left, at.window_right})
      words[static_cast<size_t>(window)] = ~Word{0};
    const NvteTensorFunctions tensors = {data_of, type_of, reinterpret_cast<void*>(shape_of)};
    const NvteCall given = {&signature_, &tensors, words.data(), 0.1f, 0, pass_, 0};
    return describe_nvte_call(given, &described);
  }

  static Tensor tensor(size_t batch, size_t position, size_t heads, size_t dim) {
    static char memory;
    return {&memory, kBf16, {{batch, position, heads, dim}, 4}};
  }

  Tensor query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  foreshock_attention_call described = {};
  uint32_t layout = kBshd;
  const Word* aux = nullptr;  // ten handles and their number

 private:
  uint32_t pass_;
  NvteSignature signature_;
};

int described(const std::function<void(Call&)>& change) {
  Call call;
  change(call);
  return call.describe();
}

TEST(NvteCall, TensorsThatFitTogether) {
  EXPECT_EQ(described([](Call&) {}), -1);
  EXPECT_EQ(Call(FORESHOCK_FORWARD).describe(), -1);
  EXPECT_EQ(described([](Call& call) {
              call.value = Call::tensor(2, 24, 2, 4);  // its dimension is its own
              call.out = call.grad_out = Call::tensor(2, 16, 4, 4);
            }),
            -1);
}

TEST(NvteCall, TensorsOfOtherShapesAreNotOfOneCall) {
  const std::pair<const char*, std::function<void(Call&)>> cases[] = {
      {"out, another batch", [](Call& call) { call.out = call.grad_out = Call::tensor(16, 2, 4, 8); }},
      {"out, other heads", [](Call& call) { call.out = call.grad_out = Call::tensor(2, 16, 2, 8); }},
      {"out, other positions", [](Call& call) { call.out = call.grad_out = Call::tensor(2, 24, 4, 8); }},
      {"out, another dimension", [](Call& call) { call.out = call.grad_out = Call::tensor(2, 16, 4, 4); }},
      {"key, another batch", [](Call& call) { call.key = call.value = Call::tensor(4, 24, 2, 8); }},
      {"key, another dimension", [](Call& call) { call.key = Call::tensor(2, 24, 2, 4); }},
      {"key, heads that do not divide",
       [](Call& call) { call.key = call.value = Call::tensor(2, 24, 3, 8); }},
      {"key, no heads", [](Call& call) { call.key = call.value = Call::tensor(2, 24, 0, 8); }},
      {"value, other positions", [](Call& call) { call.value = Call::tensor(2, 16, 2, 8); }},
      {"value, other heads", [](Call& call) { call.value = Call::tensor(2, 24, 1, 8); }},
      {"grad_out", [](Call& call) { call.grad_out = Call::tensor(2, 16, 4, 4); }},
      {"grad_query", [](Call& call) { call.grad_query = Call::tensor(2, 24, 2, 8); }},
      {"integers", [](Call& call) { call.value.type = kInt64; }},
      {"no such type", [](Call& call) { call.grad_query.type = 77; }},
  };
  for (const auto& [name, change] : cases) EXPECT_EQ(described(change), kNotAnNvteCall) << name;
}

TEST(NvteCall, GradientsOfKeysAndValuesAreLeftOutWhereTheyCannotBeRead) {
  Call call;
  ASSERT_EQ(call.describe(), -1);
  EXPECT_EQ(call.described.grad_key.data, call.grad_key.data);
  EXPECT_EQ(call.described.grad_key.shape[2], 24);
  EXPECT_EQ(call.described.grad_value.data, call.grad_value.data);
  call.grad_key.data = nullptr;
  call.grad_value.type = kE4m3;
  ASSERT_EQ(call.describe(), -1) << "the query's gradient can be judged";
  EXPECT_EQ(call.described.grad_key.data, nullptr);
  EXPECT_EQ(call.described.grad_value.data, nullptr);
}

TEST(NvteCall, KeysFromACacheMayBeOfMoreSequences) {
  EXPECT_EQ(described([](Call& call) {
              call.layout = kSbhdBshd;
              call.query = Call::tensor(16, 2, 4, 8);
              call.key = call.value = Call::tensor(5, 24, 2, 8);
            }),
            -1);
}

TEST(NvteCall, WithoutDataNothingElseIsAsked) {
  for (Tensor Call::*tensor :
       {&Call::query, &Call::key, &Call::value, &Call::out, &Call::grad_out, &Call::grad_query})
    EXPECT_EQ(described([tensor](Call& call) {
                (call.*tensor) = {nullptr, kInt64, {}};
              }),
              FORESHOCK_SKIP_LAYOUT);
}

TEST(NvteCall, WhatIsNotDescribedIsStillACall) {
  EXPECT_EQ(described([](Call& call) { call.query.type = kE4m3; }), FORESHOCK_SKIP_FP8);
  EXPECT_EQ(described([](Call& call) { call.query.shape.dims = 3; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(described([](Call& call) { call.layout = 14; }), FORESHOCK_SKIP_LAYOUT);
}

TEST(NvteCall, LogSumExpIsTakenFromAHandleThatCanBeReadOnly) {
  Call call;
  Tensor stats = {call.query.data, 4, {{2, 4, 16, 1}, 4}};  // 4: fp32
  Word pack[11] = {reinterpret_cast<Word>(&stats)};
  call.aux = pack;
  pack[10] = 1;
  ASSERT_EQ(call.describe(), -1);
  EXPECT_EQ(call.described.log_sum_exp.data, stats.data);
  call.described = {};
  pack[0] = 4096;  // an address without memory
  ASSERT_EQ(call.describe(), -1);
  EXPECT_EQ(call.described.log_sum_exp.data, nullptr);
}

}  // namespace
}  // namespace foreshock
