#include <gtest/gtest.h>

#include "libmonitor/cuda_driver.h"

namespace foreshock {
namespace {

struct Setting : PerContext {
  using PerContext::fail, PerContext::marker;
  bool has_written_marker(uint64_t word) {
    return PerContext::has_written_marker([word] { return word; });
  }

  // Returns how often it was tried.
  int set_up(uint64_t context_id, int result = -1) {
    int tries = 0;
    set_up_in(context_id, [&] {
      EXPECT_EQ(skip_reason(), FORESHOCK_SKIP_DEVICE) << "until it is done";
      ++tries;
      return result;
    });
    return tries;
  }
};

TEST(PerContext, IsOfNoContextUntilItIsSetUp) {
  Setting setting;
  EXPECT_FALSE(setting.was_set_up_in(0));
  EXPECT_EQ(setting.skip_reason(), -1);
  EXPECT_EQ(setting.set_up(0), 1);
  EXPECT_TRUE(setting.was_set_up_in(0));
  EXPECT_FALSE(setting.was_set_up_in(1));
  EXPECT_EQ(setting.skip_reason(), -1);
}

TEST(PerContext, WhatSetUpReturnedIsWhyItFailed) {
  Setting setting;
  EXPECT_EQ(setting.set_up(7, FORESHOCK_SKIP_DEVICE_MEMORY), 1);
  EXPECT_TRUE(setting.was_set_up_in(7)) << "it is known of this context that nothing can be had";
  EXPECT_EQ(setting.skip_reason(), FORESHOCK_SKIP_DEVICE_MEMORY);
}

TEST(PerContext, IsLeftAloneAfterSoManyContexts) {
  Setting setting;
  for (int n = 0; n < Setting::kMostSetUps; ++n) {
    const auto context_id = static_cast<uint64_t>(n);
    EXPECT_EQ(setting.set_up(context_id, n == 1 ? FORESHOCK_SKIP_DEVICE_MEMORY : -1), 1);
    setting.refuse(100 + context_id);  // costs nothing and so is not counted
  }
  for (const uint64_t context_id : {200, 0}) {
    EXPECT_EQ(setting.set_up(context_id), 0);
    EXPECT_TRUE(setting.is_refused(context_id));
  }
  EXPECT_TRUE(setting.was_set_up_in(Setting::kMostSetUps - 1)) << "what is had in the last one stays";
}

TEST(PerContext, WhatIsRefusedTakesNothingFromAnotherContext) {
  Setting setting;
  EXPECT_FALSE(setting.is_refused(0));
  setting.refuse(3);
  EXPECT_TRUE(setting.is_refused(3));
  EXPECT_FALSE(setting.was_set_up_in(3));
  setting.set_up(4);
  uint64_t word = setting.marker();
  EXPECT_TRUE(setting.has_written_marker(word));
  setting.refuse(5);
  EXPECT_FALSE(setting.is_refused(3)) << "the last one";
  EXPECT_TRUE(setting.was_set_up_in(4));
  EXPECT_EQ(setting.skip_reason(), -1);
  word = 0;
  EXPECT_TRUE(setting.has_written_marker(word)) << "as before";
}

TEST(PerContext, WhatFailedIsNewInAnotherContext) {
  Setting setting;
  setting.set_up(4);
  EXPECT_EQ(setting.fail(), FORESHOCK_SKIP_DEVICE);
  EXPECT_EQ(setting.skip_reason(), FORESHOCK_SKIP_DEVICE);
  setting.set_up(5);
  EXPECT_EQ(setting.skip_reason(), -1);
}

TEST(PerContext, IsReadyWhenTheWordBearsItsMarker) {
  Setting setting;
  setting.set_up(1);
  uint64_t word = 1;
  EXPECT_FALSE(setting.has_written_marker(word)) << "no number of another kind is taken for it";
  word = setting.marker();
  EXPECT_TRUE(setting.has_written_marker(word));
  word = 5;  // what the word is for, from then on
  EXPECT_TRUE(setting.has_written_marker(word));
  word = setting.marker();
  setting.set_up(2);
  EXPECT_FALSE(setting.has_written_marker(word)) << "that of another context";
  word = setting.marker();
  EXPECT_TRUE(setting.has_written_marker(word));
}

}  // namespace
}  // namespace foreshock
