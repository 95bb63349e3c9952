#include <gtest/gtest.h>

#include "agent/pipeline.h"

namespace foreshock {
namespace {

TensorSnapshot snapshot(int64_t step, size_t bytes, uint64_t interval = 1) {
  TensorSnapshot of;
  of.step = step;
  of.interval = interval;
  of.stored.assign(bytes, 'x');
  return of;
}

TEST(HistogramQuota, NothingIsWrittenUnlessAskedFor) {
  HistogramQuota quota(0);
  EXPECT_FALSE(quota.takes(snapshot(1, 10)));
  EXPECT_EQ(quota.left_out(), 0u);
}

TEST(HistogramQuota, ALongRunIsThereFromItsBeginToItsEnd) {
  constexpr uint64_t kBytes = 64000;
  HistogramQuota quota(kBytes);
  uint64_t spent = 0;
  int64_t first = -1, last = -1;
  for (int64_t step = 0; step < 200000; ++step)
    if (quota.takes(snapshot(step, 300))) {  // 400 bytes of text
      if (first < 0) first = step;
      last = step;
      spent += 400;
    }
  EXPECT_EQ(first, 0);
  EXPECT_GT(last, 190000);
  EXPECT_LE(spent, kBytes);
}

TEST(HistogramQuota, AllTensorsOfAnIntervalAreThereOrNone) {
  HistogramQuota quota(20000);
  for (int64_t window = 0; window < 100; ++window) {
    int taken = 0;
    for (int64_t tensor = 0; tensor < 4; ++tensor)
      taken += quota.takes(snapshot(16 * window + 4 * tensor, 30, 16));
    EXPECT_TRUE(taken == 0 || taken == 4) << window;
  }
  EXPECT_GT(quota.left_out(), 0u);
}

TEST(HistogramQuota, WhatFitsIntoNoLineIsLeftOut) {
  HistogramQuota quota(uint64_t{1} << 30);
  EXPECT_FALSE(quota.takes(snapshot(0, HistogramQuota::kLongest + 1)));
  EXPECT_TRUE(quota.takes(snapshot(0, HistogramQuota::kLongest)));
  EXPECT_EQ(quota.left_out(), 1u);
}

}  // namespace
}  // namespace foreshock
