#include <gtest/gtest.h>

#include <vector>

#include "libmonitor/base.h"

namespace foreshock {
namespace {

TEST(DeferredSteps, EachIsHandedOverOnce) {
  DeferredSteps steps;
  for (const int64_t step : {7, 8, 7, 0, -1}) steps.add(step);
  std::vector<int64_t> seen;
  const auto see = [&](int64_t step) { seen.push_back(step); };
  steps.take(see);
  EXPECT_EQ(seen, (std::vector<int64_t>{7, 8, 0, -1}));
  steps.take(see);
  EXPECT_EQ(seen.size(), 4u);
}

}  // namespace
}  // namespace foreshock
