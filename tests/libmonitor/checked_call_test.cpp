#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "libmonitor/call.h"
#include "tests/libmonitor/call_on_tensors.h"

namespace foreshock {
namespace {

using Call = CallOnTensors;

TEST(ValidatedCall, RefusesWithTheRightReason) {
  const auto reason = [](auto change, uint32_t pass = 0) {
    Call call;
    call.build(pass == 1);
    change(call.call);
    ValidatedCall checked;
    return validate_call(call.call, pass, &checked);
  };
  EXPECT_EQ(reason([](auto& c) { c.dropout = 0.1; }, 1), FORESHOCK_SKIP_DROPOUT);
  for (const double none : {static_cast<double>(NAN), -0.1, 1.1})
    EXPECT_EQ(reason([none](auto& c) { c.dropout = none; }), FORESHOCK_SKIP_DROPOUT);
  EXPECT_EQ(reason([](auto& c) { c.query.device_type = FORESHOCK_DEVICE_OTHER; }), FORESHOCK_SKIP_DEVICE);
  EXPECT_EQ(reason([](auto& c) { c.query.device_type = FORESHOCK_DEVICE_CUDA; }), FORESHOCK_SKIP_LAYOUT)
      << "the others are on the host";
  const auto on_device = [](auto& c) {
    for (foreshock_tensor* tensor : {&c.query, &c.key, &c.value, &c.out, &c.log_sum_exp})
      tensor->device_type = FORESHOCK_DEVICE_CUDA;
  };
  EXPECT_EQ(reason(on_device), -1);
  EXPECT_EQ(reason([&](auto& c) { on_device(c), c.key.device_index = 1; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.key.device_index = 1; }), -1) << "the host has no numbers";
  EXPECT_EQ(reason([](auto& c) { c.query.dims = 3; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.key.shape[1] = 3; }), FORESHOCK_SKIP_LAYOUT);  // 4 heads over 3 kv-heads
  EXPECT_EQ(reason([](auto& c) { c.value.dtype = FORESHOCK_BF16; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.scale = NAN; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.out.data = nullptr; }), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.grad_query.shape[2] = 1; }, 1), FORESHOCK_SKIP_LAYOUT);
  EXPECT_EQ(reason([](auto& c) { c.mask = c.query; }), FORESHOCK_SKIP_MASK);
}

TEST(ValidatedCall, JoinsCausalMaskAndWindow) {
  const auto window_of = [](int32_t causal, int32_t window, int64_t left, int64_t right) {
    Call call;
    call.build(false);
    set_window(window, left, right, &call.call);
    call.call.causal = causal;
    ValidatedCall checked;
    EXPECT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &checked), -1);
    return std::tuple(checked.window.left, checked.window.right, checked.window.is_bottom_right);
  };
  constexpr int32_t kNone = FORESHOCK_CAUSAL_NONE, kTop = FORESHOCK_CAUSAL_TOP_LEFT,
                    kBottom = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  using Window = std::tuple<int64_t, int64_t, uint32_t>;
  EXPECT_EQ(window_of(kNone, kNone, 1, 2), Window(-1, -1, 0)) << "without a window its numbers are not read";
  EXPECT_EQ(window_of(kTop, kNone, 0, 0), Window(-1, 0, 0));
  EXPECT_EQ(window_of(kBottom, kNone, 0, 0), Window(-1, 0, 1));
  EXPECT_EQ(window_of(kNone, kBottom, 4, 5), Window(4, 5, 1));
  EXPECT_EQ(window_of(kTop, kTop, 4, 5), Window(4, 0, 0));
  EXPECT_EQ(window_of(kNone, kTop, INT64_MAX, -1), Window(-1, -1, 0));
}

TEST(ValidatedCall, RefusesAWindowThatIsInvalidOrHidesAllKeys) {
  const auto reason = [](int32_t causal, int32_t window, int64_t left, int64_t right, int64_t queries = 12) {
    Call call;
    call.queries = queries;
    call.build(false);
    set_window(window, left, right, &call.call);
    call.call.causal = causal;
    ValidatedCall checked;
    return validate_call(call.call, FORESHOCK_FORWARD, &checked);
  };
  constexpr int32_t kNone = FORESHOCK_CAUSAL_NONE, kTop = FORESHOCK_CAUSAL_TOP_LEFT,
                    kBottom = FORESHOCK_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(reason(kNone, kBottom, -2, 0), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason(kNone, kBottom, 0, -2), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason(kNone, 3, 1, 1), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason(kTop, kBottom, 1, 1), FORESHOCK_SKIP_MASK) << "two alignments";
  // 20 queries on 12 keys: aligned at the bottom right, the first query belongs to key -8.
  EXPECT_EQ(reason(kNone, kBottom, 4, 7, 20), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason(kNone, kBottom, 4, 8, 20), -1);
  EXPECT_EQ(reason(kNone, kTop, 7, 0, 20), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(reason(kNone, kTop, 8, 0, 20), -1);
  Call older;
  older.build(false);
  set_window(kTop, 1, 1, &older.call);
  older.call.size = offsetof(foreshock_attention_call, window);
  ValidatedCall checked;
  ASSERT_EQ(validate_call(older.call, FORESHOCK_FORWARD, &checked), -1);
  EXPECT_EQ(checked.window.left, -1) << "the struct of an older caller has no window";
}

TEST(ValidatedCall, WithDropoutTheOutputIsNobodysBusiness) {
  Call call;
  call.build(false);
  call.call.dropout = 0.1;
  ValidatedCall checked;
  ASSERT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &checked), -1);
  EXPECT_EQ(checked.out.data, nullptr);
  EXPECT_EQ(checked.log_sum_exp.data, call.lse.data());
  call.call.out = {};
  EXPECT_EQ(validate_call(call.call, FORESHOCK_FORWARD, &checked), -1);
}

TEST(ValidatedCall, WithKeptWeightsDropoutIsPartOfTheCall) {
  Call call;
  call.build(true);
  add_mask(&call);
  add_kept_like_mask(&call);
  ValidatedCall checked;
  for (const uint32_t pass : {FORESHOCK_FORWARD, FORESHOCK_BACKWARD}) {
    ASSERT_EQ(validate_call(call.call, pass, &checked), -1);
    EXPECT_EQ(checked.out.data, call.out.data());
    EXPECT_EQ(checked.kept.data, call.kept.data());
    EXPECT_EQ(checked.kept.stride[1], 0) << "one for all heads";
    EXPECT_EQ(checked.dropout, 0.25);
    EXPECT_EQ(checked.soft_cap, 30);
  }
  const auto changed = [&](uint32_t pass, auto change) {
    foreshock_attention_call other = call.call;
    change(other);
    return validate_call(other, pass, &checked);
  };
  // Without dropout nothing is dropped; where all is, nothing is known.
  EXPECT_EQ(changed(FORESHOCK_BACKWARD, [](auto& c) { c.dropout = 0; }), -1);
  EXPECT_EQ(checked.kept.data, nullptr);
  EXPECT_EQ(changed(FORESHOCK_FORWARD, [](auto& c) { c.dropout = 1; }), -1);
  EXPECT_EQ(checked.out.data, nullptr);
  for (const double dropout : {1.0, -0.5, double{NAN}})
    EXPECT_EQ(changed(FORESHOCK_BACKWARD, [&](auto& c) { c.dropout = dropout; }), FORESHOCK_SKIP_DROPOUT);
  EXPECT_EQ(changed(FORESHOCK_BACKWARD, [](auto& c) { c.kept.shape[1] = 7; }), FORESHOCK_SKIP_MASK);
  EXPECT_EQ(changed(FORESHOCK_BACKWARD, [](auto& c) { c.kept.device_type = 1; }), FORESHOCK_SKIP_LAYOUT);
  for (const double cap : {-1.0, double{INFINITY}, double{NAN}})
    EXPECT_EQ(changed(FORESHOCK_FORWARD, [&](auto& c) { c.soft_cap = cap; }), FORESHOCK_SKIP_MASK);
  // A trainer that was built before these fields existed.
  EXPECT_EQ(changed(FORESHOCK_FORWARD, [](auto& c) { c.size = offsetof(foreshock_attention_call, kept); }),
            -1);
  EXPECT_EQ(checked.kept.data, nullptr);
  EXPECT_EQ(checked.soft_cap, 0);
}

}  // namespace
}  // namespace foreshock
