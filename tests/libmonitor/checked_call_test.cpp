#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace foreshock
